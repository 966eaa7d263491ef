#include "store/format/version_fields.hpp"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/path_rules.hpp"
#include "store/format/checkpoint.hpp"

namespace weightfs {

Json json_of(const std::vector<BlobRef>& blobs) {
  Json all = Json::array();
  for (const BlobRef& blob : blobs) {
    all.push_back(
        {{"path", blob.path}, {"sha256", to_hex(blob.sha256)}, {"size", blob.size_bytes}});
  }
  return all;
}

std::map<std::string, std::string> VersionFieldReader::meta(const Json& json) const {
  const Json& value = json_field(json, "meta", what());
  if (!value.is_object()) fail("field 'meta' must be an object of strings");
  std::map<std::string, std::string> meta;
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) {
      fail(fmt::format("field 'meta': the value of '{}' must be a string", escape_name(key)));
    }
    meta.emplace(key, text.get<std::string>());
  }
  return meta;
}

std::string VersionFieldReader::tag(const Json& json) const {
  std::string tag = json_string(json, "tag", what());
  if (tag.empty()) return tag;
  if (const std::string problem = tag_problem(tag); !problem.empty()) {
    fail(fmt::format("the tag '{}' {}", escape_name(tag), problem));
  }
  return tag;
}

std::vector<BlobRef> VersionFieldReader::blobs(const Json& json) const {
  std::vector<BlobRef> blobs;
  for (const Json& entry : array(json, "blobs")) {
    BlobRef blob{json_string(entry, "path", what()), number(entry, "size", kBlobBytesMax),
                 hash(entry, "sha256")};
    if (const std::string problem = path_problem(blob.path); !problem.empty()) {
      fail(fmt::format("the path '{}' {}", escape_name(blob.path), problem));
    }
    if (!blobs.empty() && blobs.back().path >= blob.path) {
      fail(fmt::format("the path '{}' does not come after '{}'", blob.path, blobs.back().path));
    }
    blobs.push_back(std::move(blob));
  }
  if (blobs.size() > kVersionFilesMax) fail(fmt::format("too many blobs: {}", blobs.size()));
  std::vector<std::string_view> paths;
  for (const BlobRef& blob : blobs) paths.push_back(blob.path);
  if (const std::string problem = paths_problem(paths); !problem.empty()) fail(problem);
  return blobs;
}

}  // namespace weightfs
