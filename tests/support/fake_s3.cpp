#include "tests/support/fake_s3.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/base/md5.hpp"
#include "store/base/sha256.hpp"
#include "store/s3/s3_bucket.hpp"

namespace weightfs::test {
namespace {

using std::chrono::seconds;
using std::chrono::system_clock;

constexpr std::string_view kFakeKeyId = "FAKEKEYID", kFakeSecret = "fake/secret+key";
constexpr std::string_view kFakeRegion = "us-east-1";
constexpr std::string_view kFakeRoot = "/bucket";
constexpr auto kSkewMax = std::chrono::minutes(15);

std::string fake_etag(std::string_view bytes) {
  Md5Stream hash;
  hash.update(as_bytes(bytes));
  return "\"" + hash.finish() + "\"";
}

std::string escaped(std::string_view text) {
  std::string xml;
  for (const char c : text) xml += c == '&' ? "&amp;" : c == '<' ? "&lt;" : std::string(1, c);
  return xml;
}

std::string header_of(const ServedRequest& request, const std::string& name) {
  const auto header = request.headers.find(name);
  return header == request.headers.end() ? "" : header->second;
}

std::string value_of(const std::map<std::string, std::string>& query, const std::string& name) {
  const auto value = query.find(name);
  return value == query.end() ? "" : value->second;
}

/// "20260930T120000Z".
system_clock::time_point parse_amz_date(const std::string& text) {
  std::tm parts{};
  if (std::sscanf(text.c_str(), "%4d%2d%2dT%2d%2d%2dZ", &parts.tm_year, &parts.tm_mon,
                  &parts.tm_mday, &parts.tm_hour, &parts.tm_min, &parts.tm_sec) != 6) {
    return {};
  }
  parts.tm_year -= 1900;
  parts.tm_mon -= 1;
  return system_clock::from_time_t(::timegm(&parts));
}

/// The Authorization that the request should have: signs what was received.
std::string expected_authorization(const ServedRequest& request, const std::string& token) {
  HttpRequest again;
  again.method = request.method;
  const std::string given = header_of(request, "authorization");
  const std::size_t names = given.find("SignedHeaders=");
  for (std::size_t at = names == given.npos ? given.npos : names + 14; at < given.size();) {
    const std::size_t end = given.find_first_of(";,", at);
    const std::string name = given.substr(at, end - at);
    again.headers.push_back({name, header_of(request, name)});
    if (end == given.npos || given[end] == ',') break;
    at = end + 1;
  }
  HttpTarget target{"http://" + header_of(request, "host"), request.path(), {}};
  for (const auto& [name, value] : request.query()) target.query.emplace_back(name, value);
  AwsCredentials keys;
  keys.access_key_id = kFakeKeyId;
  keys.secret_access_key = kFakeSecret;
  keys.session_token = token;
  Signer(std::string(kFakeRegion), "s3")
      .sign(again, target, to_hex(sha256(as_bytes(request.body))), keys,
            parse_amz_date(header_of(request, "x-amz-date")));
  for (const HttpHeader& header : again.headers) {
    if (header.name == "Authorization") return header.value;
  }
  return "";
}

struct Asked {
  std::uint64_t begin = 0, end = 0;
};

std::optional<Asked> asked_range(const std::string& header, std::uint64_t size) {
  unsigned long long first = 0, last = 0;
  if (std::sscanf(header.c_str(), "bytes=%llu-%llu", &first, &last) != 2) return std::nullopt;
  return Asked{first, std::min<std::uint64_t>(last + 1, size)};
}

}  // namespace

ServedReply s3_error_reply(int status, std::string_view code, std::string_view message) {
  return {.status = status,
          .headers = {{"Content-Type", "application/xml"}},
          .body = fmt::format("<?xml version=\"1.0\"?><Error><Code>{}</Code><Message>{}</Message>"
                              "<RequestId>r1</RequestId></Error>",
                              code, message)};
}

FakeS3::FakeS3()
    : server_(std::make_unique<HttpServer>(
          [this](const ServedRequest& request) { return answer(request); })) {}
FakeS3::~FakeS3() { server_.reset(); }  // before the members that its threads use

std::string FakeS3::url() const { return server_->url(); }

Environment FakeS3::environment() const {
  std::map<std::string, std::string, std::less<>> variables{
      {"AWS_ACCESS_KEY_ID", std::string(kFakeKeyId)},
      {"AWS_SECRET_ACCESS_KEY", std::string(kFakeSecret)},
      {"AWS_REGION", std::string(kFakeRegion)},
      {"AWS_EC2_METADATA_DISABLED", "true"},
      {"AWS_CONFIG_FILE", "/dev/null"},
      {"AWS_SHARED_CREDENTIALS_FILE", "/dev/null"},
      {"AWS_ENDPOINT_URL", url()}};
  if (!session_token.empty()) variables["AWS_SESSION_TOKEN"] = session_token;
  return [variables](std::string_view name) -> std::optional<std::string> {
    const auto variable = variables.find(name);
    return variable == variables.end() ? std::nullopt : std::optional(variable->second);
  };
}

std::unique_ptr<Bucket> FakeS3::open(std::string_view prefix) const {
  const std::string slash = prefix.empty() ? "" : "/";
  return std::make_unique<S3Bucket>(fmt::format("s3://bucket{}{}", slash, prefix), BucketOptions{},
                                    environment());
}

void FakeS3::before(Before before) {
  const std::lock_guard lock(mutex_);
  before_ = std::move(before);
}

void FakeS3::after(After after) {
  const std::lock_guard lock(mutex_);
  after_ = std::move(after);
}

std::map<std::string, std::string> FakeS3::objects() const {
  const std::lock_guard lock(mutex_);
  return objects_;
}

void FakeS3::plant(const std::string& key, std::string bytes) {
  const std::lock_guard lock(mutex_);
  objects_[key] = std::move(bytes);
  written_[key] = system_clock::now();
}

void FakeS3::erase(const std::string& key) {
  const std::lock_guard lock(mutex_);
  objects_.erase(key);
}

std::size_t FakeS3::uploads() const {
  const std::lock_guard lock(mutex_);
  return uploads_.size();
}

void FakeS3::age_uploads(std::chrono::hours by) {
  const std::lock_guard lock(mutex_);
  for (auto& [id, upload] : uploads_) upload.initiated -= by;
}

std::vector<std::string> FakeS3::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

std::size_t FakeS3::count(std::string_view part_of_request) const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::size_t>(std::count_if(
      requests_.begin(), requests_.end(),
      [&](const std::string& request) { return request.find(part_of_request) != request.npos; }));
}

void FakeS3::forget_requests() {
  const std::lock_guard lock(mutex_);
  requests_.clear();
}

ServedReply FakeS3::answer(const ServedRequest& request) {
  Before first;
  After then;
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back(request.method + " " + request.target);
    first = before_;
    then = after_;
  }
  if (first) {
    if (auto reply = first(request)) return std::move(*reply);
  }
  ServedReply reply = carry_out(request);
  const auto now = system_clock::now() + seconds(clock_ahead_s);
  reply.headers.push_back({"Date", fmt::format("{:%a, %d %b %Y %H:%M:%S} GMT",
                                               fmt::gmtime(system_clock::to_time_t(now)))});
  if (then) then(request, reply);
  return reply;
}

std::optional<ServedReply> FakeS3::refuse(const ServedRequest& request) const {
  const auto now = system_clock::now() + seconds(clock_ahead_s);
  const auto signed_at = parse_amz_date(header_of(request, "x-amz-date"));
  if (signed_at < now - kSkewMax || signed_at > now + kSkewMax) {
    return s3_error_reply(403, "RequestTimeTooSkewed");
  }
  if (header_of(request, "x-amz-security-token") != session_token) {
    return s3_error_reply(400, "ExpiredToken");
  }
  if (header_of(request, "x-amz-content-sha256") != to_hex(sha256(as_bytes(request.body)))) {
    return s3_error_reply(400, "XAmzContentSHA256Mismatch");
  }
  if (header_of(request, "authorization") != expected_authorization(request, session_token)) {
    return s3_error_reply(403, "SignatureDoesNotMatch");
  }
  return std::nullopt;
}

ServedReply FakeS3::carry_out(const ServedRequest& request) {
  if (auto refused = refuse(request)) return std::move(*refused);
  const std::lock_guard lock(mutex_);
  const std::string path = request.path();
  if (path == kFakeRoot) return answer_for_bucket(request);
  if (!path.starts_with(std::string(kFakeRoot) + "/")) return s3_error_reply(404, "NoSuchBucket");
  const std::string key = path.substr(kFakeRoot.size() + 1);
  const auto query = request.query();
  if (query.contains("uploads") || query.contains("uploadId")) {
    return answer_for_upload(request, key);
  }
  return answer_for_object(request, key);
}

ServedReply FakeS3::answer_for_bucket(const ServedRequest& request) {
  if (request.query().contains("uploads")) return list_uploads(request);
  if (value_of(request.query(), "list-type") == "2") return list(request);
  return s3_error_reply(501, "NotImplemented");
}

ServedReply FakeS3::answer_for_object(const ServedRequest& request, const std::string& key) {
  if (request.method == "PUT") return put(request, key);
  if (request.method == "GET" || request.method == "HEAD") return get(request, key);
  if (request.method != "DELETE") return s3_error_reply(405, "MethodNotAllowed");
  objects_.erase(key);
  return {.status = 204};
}

ServedReply FakeS3::put(const ServedRequest& request, const std::string& key) {
  const bool if_absent = header_of(request, "if-none-match") == "*" && !ignores_if_none_match;
  if (if_absent && objects_.contains(key)) return s3_error_reply(412, "PreconditionFailed");
  objects_[key] = request.body;
  written_[key] = system_clock::now();
  return {.headers = {{"ETag", fake_etag(request.body)}}};
}

ServedReply FakeS3::get(const ServedRequest& request, const std::string& key) const {
  const auto object = objects_.find(key);
  if (object == objects_.end()) return s3_error_reply(404, "NoSuchKey");
  const std::string& bytes = object->second;
  const auto range = asked_range(header_of(request, "range"), bytes.size());
  if (!range || ignores_range) return {.body = bytes};
  if (range->begin >= bytes.size()) {
    ServedReply reply = s3_error_reply(416, "InvalidRange");
    reply.headers.push_back({"Content-Range", fmt::format("bytes */{}", bytes.size())});
    return reply;
  }
  return {.status = 206,
          .headers = {{"Content-Range",
                       fmt::format("bytes {}-{}/{}", range->begin, range->end - 1, bytes.size())}},
          .body = bytes.substr(range->begin, range->end - range->begin)};
}

ServedReply FakeS3::list(const ServedRequest& request) const {
  const auto query = request.query();
  const std::string prefix = value_of(query, "prefix");
  std::string after = value_of(query, "start-after");
  if (query.contains("continuation-token")) after = value_of(query, "continuation-token");
  std::string entries, last;
  std::size_t count = 0;
  bool truncated = false;
  for (auto object = objects_.upper_bound(after); object != objects_.end(); ++object) {
    if (!object->first.starts_with(prefix)) continue;
    truncated = count == 1000;
    if (truncated) break;
    last = object->first;
    entries += fmt::format(
        "<Contents><Key>{}</Key><LastModified>{:%Y-%m-%dT%H:%M:%S}.000Z</LastModified>"
        "<Size>{}</Size></Contents>",
        uri_encode(last, false), fmt::gmtime(system_clock::to_time_t(written_.at(last))),
        object->second.size());
    count++;
  }
  return {.body = fmt::format(
              "<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"
              "<EncodingType>url</EncodingType><IsTruncated>{}</IsTruncated>{}{}"
              "</ListBucketResult>",
              truncated, entries,
              truncated
                  ? fmt::format("<NextContinuationToken>{}</NextContinuationToken>", escaped(last))
                  : "")};
}

ServedReply FakeS3::list_uploads(const ServedRequest& request) const {
  const std::string prefix = value_of(request.query(), "prefix");
  std::string entries;
  for (const auto& [id, upload] : uploads_) {
    if (!upload.key.starts_with(prefix)) continue;
    entries += fmt::format(
        "<Upload><Key>{}</Key><UploadId>{}</UploadId><Initiated>{:%Y-%m-%dT%H:%M:%S}.000Z"
        "</Initiated></Upload>",
        escaped(upload.key), id, fmt::gmtime(system_clock::to_time_t(upload.initiated)));
  }
  return {.body =
              fmt::format("<ListMultipartUploadsResult>{}</ListMultipartUploadsResult>", entries)};
}

ServedReply FakeS3::list_parts(const std::string& id) const {
  std::string entries;
  for (const auto& [number, bytes] : uploads_.at(id).parts) {
    entries += fmt::format("<Part><PartNumber>{}</PartNumber><ETag>{}</ETag><Size>{}</Size></Part>",
                           number, fake_etag(bytes), bytes.size());
  }
  return {.body = fmt::format("<ListPartsResult>{}</ListPartsResult>", entries)};
}

ServedReply FakeS3::answer_for_upload(const ServedRequest& request, const std::string& key) {
  const auto query = request.query();
  if (request.method == "POST" && query.contains("uploads")) {
    const std::string id = fmt::format("upload/{}", ++upload_count_);
    uploads_[id] = {key, system_clock::now(), {}};
    return {.body = fmt::format("<InitiateMultipartUploadResult><UploadId>{}</UploadId>"
                                "</InitiateMultipartUploadResult>",
                                id)};
  }
  const std::string id = value_of(query, "uploadId");
  const auto upload = uploads_.find(id);
  if (upload == uploads_.end() || upload->second.key != key) {
    return s3_error_reply(404, "NoSuchUpload");
  }
  if (request.method == "GET") return list_parts(id);
  if (request.method == "POST") return complete(id, request);
  if (request.method == "DELETE") {
    uploads_.erase(upload);
    return {.status = 204};
  }
  const auto number = static_cast<unsigned>(std::stoul(value_of(query, "partNumber")));
  upload->second.parts[number] = request.body;
  return {.headers = {{"ETag", fake_etag(request.body)}}};
}

ServedReply FakeS3::complete(const std::string& id, const ServedRequest& request) {
  const Upload& upload = uploads_.at(id);
  std::string bytes;
  std::size_t first_size = 0;
  for (const auto& [number, part] : upload.parts) {
    const std::string tag = fake_etag(part);
    const std::string entry = fmt::format("<PartNumber>{}</PartNumber><ETag>&quot;{}&quot;</ETag>",
                                          number, tag.substr(1, tag.size() - 2));
    const bool is_last = number == upload.parts.rbegin()->first;
    if (number == 1) first_size = part.size();
    if (request.body.find(entry) == request.body.npos) return s3_error_reply(400, "InvalidPart");
    if (!is_last && part.size() != first_size) return s3_error_reply(400, "InvalidPart");  // as R2
    bytes += part;
  }
  // All listed parts must exist.
  std::size_t listed = 0;
  for (auto at = request.body.find("<Part>"); at != std::string::npos;
       at = request.body.find("<Part>", at + 1)) {
    listed++;
  }
  if (listed == 0 || listed != upload.parts.size()) return s3_error_reply(400, "InvalidPart");
  objects_[upload.key] = std::move(bytes);
  written_[upload.key] = system_clock::now();
  uploads_.erase(id);
  return {.body = "<CompleteMultipartUploadResult></CompleteMultipartUploadResult>"};
}

}  // namespace weightfs::test
