// Part union: the version that the parts of a set make together, or why they make none.
//
//     a path            in one part; in several only as a small file with the same bytes
//     a tensor's name   in one file of a directory
//     an index          says where each tensor of the union is; is made where shards of several
//                       parts have none
//     shards            all are there of which one is, as those of a whole version
//                       (store/format/shard_index.hpp)
//     weights           there are some if the parent has safetensors files
//     the parent        has the tensor table of the union, else there is no delta
//
// Threads: pure functions, but for what `read_blob` does.  Format: docs/FORMAT.md, "Parts".
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/format/layout.hpp"
#include "store/format/object_refs.hpp"
#include "store/parts/part_objects.hpp"

namespace weightfs {

/// What to do about parts that make no delta.  Some of them may have their records, which stay as
/// they are.
inline constexpr std::string_view kSnapshotWay =
    "publish this version with --snapshot and a new token (--run) or tag on all parts";

struct PartUnion {
  std::shared_ptr<const Layout> layout;
  SnapshotHashes hashes;       // by that layout; pieces only with a snapshot
  std::vector<BlobRef> blobs;  // by path; without `indexes`
  std::map<std::string, std::string> meta;
  std::optional<DeltaRef> delta;
  bool snapshot = false;  // at least one of the two
  bool needs_xr = false;
  /// Small files to be added, by path: indexes that no part brought.
  std::map<std::string, std::string> indexes;
};

/// What a union follows.
struct UnionParent {
  const Layout* layout = nullptr;  // nullptr for version 1
  Sha256 manifest_sha256{};
};

/// `parts`: all of a set, by number.
/// Throws Error: invalid, naming file, tensor and parts; corrupt (an index); not_found (a shard);
/// what `read_blob` throws.
PartUnion unite_parts(const std::vector<FoundPart>& parts, const UnionParent& parent,
                      const std::function<std::string(const BlobRef& blob)>& read_blob);

/// What keeps the files of a part from being coded with the numbers of the parent's tensors, naming
/// file and tensor; empty: nothing.
std::string table_problem(const Layout& part, const Layout& parent);

/// Throws Error: invalid if what one part has can be in no union.
void check_part_files(const Layout& part);

}  // namespace weightfs
