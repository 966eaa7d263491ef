// aws_probe: prints what our signer and our credential chain produce, for tests that compare them
// with botocore (tests/s3).
//
//     aws_probe sign                     signs a request for each JSON line of its input
//     aws_probe credentials [PROFILE]    keys, region and endpoint resulting from the environment
#include <iostream>

#include "store/aws/credentials.hpp"
#include "store/aws/sigv4.hpp"
#include "store/base/error.hpp"
#include "store/base/json.hpp"
#include "store/s3/settings.hpp"

namespace weightfs {
namespace {

Json sign_one(const Json& line) {
  HttpRequest request;
  request.method = line.at("method");
  for (const Json& header : line.at("headers")) request.headers.push_back({header[0], header[1]});
  HttpTarget target;
  target.scheme_and_host = line.at("scheme_and_host");
  target.path = line.at("path");
  for (const Json& item : line.at("query")) target.query.emplace_back(item[0], item[1]);
  AwsCredentials keys;
  keys.access_key_id = line.at("id");
  keys.secret_access_key = line.at("secret");
  keys.session_token = line.at("token");
  const Signer signer(line.at("region"), line.at("service"));
  signer.sign(request, target, line.at("body_sha256").get<std::string>(), keys,
              std::chrono::system_clock::from_time_t(line.at("time").get<std::int64_t>()));
  Json headers = Json::object();
  for (const HttpHeader& header : request.headers) headers[header.name] = header.value;
  return {
      {"url", request.url}, {"authorization", headers["Authorization"]}, {"host", headers["Host"]}};
}

int sign() {
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << sign_one(Json::parse(line)).dump() << "\n";
  }
  return 0;
}

int credentials(const std::string& profile) {
  Json said;
  try {
    BucketOptions options;
    options.profile = profile;
    const S3Settings settings = find_s3_settings(options, process_environment());
    said["region"] = settings.region;
    said["endpoint"] = settings.endpoint;
    AwsCredentialChain chain(settings.identity(), process_environment());
    const AwsCredentials keys = chain.get({});
    said["id"] = keys.access_key_id;
    said["secret"] = keys.secret_access_key;
    said["token"] = keys.session_token;
    said["source"] = keys.source;
  } catch (const Error& error) {
    said["error"] = to_string(error.code());
    said["message"] = error.what();
  }
  std::cout << said.dump() << "\n";
  return 0;
}

}  // namespace
}  // namespace weightfs

int main(int count, char** arguments) {
  const std::string command = count > 1 ? arguments[1] : "";
  if (command == "sign") return weightfs::sign();
  if (command == "credentials") return weightfs::credentials(count > 2 ? arguments[2] : "");
  std::cerr << "usage: aws_probe sign | credentials [PROFILE]\n";
  return 2;
}
