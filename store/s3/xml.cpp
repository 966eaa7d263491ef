#include "store/s3/xml.hpp"

#include <fmt/format.h>

#include <pugixml.hpp>
#include <utility>

#include "store/aws/answers.hpp"
#include "store/base/error.hpp"

namespace weightfs {
namespace {

std::string text_of(const pugi::xml_node& node, const char* name) {
  return node.child(name).text().get();
}

pugi::xml_document parse_answer(std::string_view text, const char* root) {
  pugi::xml_document document;
  const auto result = document.load_buffer(text.data(), text.size());
  if (result && document.child(root)) return document;
  if (const pugi::xml_node error = document.child("Error"); result && error) {
    throw Error(ErrorCode::unavailable,
                fmt::format("the answer is an error: {}: {}", text_of(error, "Code"),
                            text_of(error, "Message")));
  }
  throw Error(ErrorCode::unavailable,
              fmt::format("the answer is not S3's <{}>; is the endpoint right?", root));
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

/// Decodes encoding-type=url, which is form encoding: '+' is a space.
std::string decode_form(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); i++) {
    const int high = i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
    const int low = high >= 0 ? hex_digit(text[i + 2]) : -1;
    if (text[i] == '%' && low >= 0) {
      plain.push_back(static_cast<char>(high * 16 + low));
      i += 2;
    } else {
      plain.push_back(text[i] == '+' ? ' ' : text[i]);
    }
  }
  return plain;
}

/// For an object without a readable time: never old enough for anything.
constexpr auto kNewest = Bucket::Time::max();

std::string unquoted(std::string text) {
  if (text.size() >= 2 && text.front() == '"' && text.back() == '"') {
    return text.substr(1, text.size() - 2);
  }
  return text;
}

}  // namespace

std::optional<S3ErrorText> read_s3_error(std::string_view text) {
  pugi::xml_document document;
  if (!document.load_buffer(text.data(), text.size())) return std::nullopt;
  const pugi::xml_node error = document.child("Error");
  if (!error) return std::nullopt;
  return S3ErrorText{text_of(error, "Code"), text_of(error, "Message"), text_of(error, "RequestId"),
                     text_of(error, "Region")};
}

S3Listing read_s3_listing(std::string_view text) {
  const pugi::xml_document document = parse_answer(text, "ListBucketResult");
  const pugi::xml_node result = document.child("ListBucketResult");
  const bool encoded = text_of(result, "EncodingType") == "url";
  S3Listing listing;
  for (const pugi::xml_node& entry : result.children("Contents")) {
    std::string key = text_of(entry, "Key");
    listing.objects.push_back({encoded ? decode_form(key) : std::move(key),
                               entry.child("Size").text().as_ullong(),
                               parse_iso_time(text_of(entry, "LastModified")).value_or(kNewest)});
  }
  if (text_of(result, "IsTruncated") == "true") {
    listing.continuation = text_of(result, "NextContinuationToken");
  }
  return listing;
}

std::string read_s3_upload_id(std::string_view text) {
  const pugi::xml_document document = parse_answer(text, "InitiateMultipartUploadResult");
  std::string id = text_of(document.child("InitiateMultipartUploadResult"), "UploadId");
  if (id.empty()) throw Error(ErrorCode::unavailable, "the service began an upload without an id");
  return id;
}

std::vector<S3UploadEntry> read_s3_uploads(std::string_view text) {
  pugi::xml_document other;
  if (other.load_buffer(text.data(), text.size()) && other.child("ListBucketResult")) {
    throw Error(ErrorCode::unsupported, "the service lists objects where uploads were asked for");
  }
  const pugi::xml_document document = parse_answer(text, "ListMultipartUploadsResult");
  std::vector<S3UploadEntry> uploads;
  const pugi::xml_node result = document.child("ListMultipartUploadsResult");
  for (const pugi::xml_node& entry : result.children("Upload")) {
    uploads.push_back(
        {text_of(entry, "Key"), text_of(entry, "UploadId"), text_of(entry, "Initiated")});
  }
  return uploads;
}

S3Parts read_s3_parts(std::string_view text) {
  const pugi::xml_document document = parse_answer(text, "ListPartsResult");
  const pugi::xml_node result = document.child("ListPartsResult");
  S3Parts parts;
  for (const pugi::xml_node& entry : result.children("Part")) {
    parts.parts.push_back({entry.child("PartNumber").text().as_uint(),
                           entry.child("Size").text().as_ullong(),
                           unquoted(text_of(entry, "ETag"))});
  }
  if (text_of(result, "IsTruncated") == "true") {
    parts.next_marker = text_of(result, "NextPartNumberMarker");
  }
  return parts;
}

void check_s3_completion(std::string_view text) {
  parse_answer(text, "CompleteMultipartUploadResult");
}

std::string make_s3_completion(std::span<const std::string> etags) {
  std::string text = "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">";
  for (std::size_t i = 0; i < etags.size(); i++) {
    text += fmt::format("<Part><PartNumber>{}</PartNumber><ETag>&quot;{}&quot;</ETag></Part>",
                        i + 1, unquoted(etags[i]));
  }
  return text + "</CompleteMultipartUpload>";
}

}  // namespace weightfs
