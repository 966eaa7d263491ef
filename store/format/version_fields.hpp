// Version fields: what a manifest and the record of a part both say of a version: tag, metadata,
// small files.  Included by .cpp files only, as store/base/json.hpp.
//
// Threads: a value.  Format: docs/FORMAT.md, "Manifests".
#pragma once

#include <map>
#include <string>
#include <vector>

#include "store/format/object_refs.hpp"
#include "store/format/record_reader.hpp"

namespace weightfs {

Json json_of(const std::vector<BlobRef>& blobs);

/// All throw Error: corrupt.
class VersionFieldReader : public RecordReader {
 public:
  using RecordReader::RecordReader;

  [[nodiscard]] std::map<std::string, std::string> meta(const Json& json) const;
  [[nodiscard]] std::string tag(const Json& json) const;
  [[nodiscard]] std::vector<BlobRef> blobs(const Json& json) const;
};

}  // namespace weightfs
