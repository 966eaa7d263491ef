// ShardIndexes: checks *.safetensors.index.json files, which say in which shard each tensor is,
// against the shards; and the names of shards that no index names.
//
// Threads: immutable after construction.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace weightfs {

/// Whether the file is such an index, by its name.
bool is_shard_index(std::string_view path) noexcept;

class ShardIndexes {
 public:
  struct File {
    std::string_view path;  // of the version
    bool is_shard = false;  // a safetensors file
    std::vector<std::string_view> tensors;
  };

  /// `files`: by path, bytewise.  Keeps the views.  `is_partial`: an index may name shards that are
  /// not among them.
  ShardIndexes(std::vector<File> files, bool is_partial);

  /// Checks an index: every shard that it names lies beside it, and every tensor in the shard it
  /// says.  `path`: in the version.  `shown`: what messages call it.
  /// Returns: the shards that it names, by path.
  /// Throws Error: corrupt, not_found (a missing shard).
  std::set<std::string_view> check(std::string_view path, std::string_view text,
                                   const std::string& shown) const;

  /// A saver that is killed leaves some of its shards, and no index, which comes last.  So where
  /// there is X-00001-of-00008.safetensors, all eight must be there, unless it is in `indexed`: an
  /// index knows better.  `shown`: what messages call the directory of the version.
  /// Throws Error: not_found.
  void check_names(const std::set<std::string_view>& indexed, const std::string& shown) const;

 private:
  [[nodiscard]] const File* shard_of(std::string_view index, const std::string& shard,
                                     const std::string& shown) const;
  void check_tensor(const std::string& tensor, const File& shard, const std::string& shown) const;

  std::vector<File> files_;
  bool is_partial_;
};

}  // namespace weightfs
