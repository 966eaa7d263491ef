// RepositoryBuilder: makes in-memory repositories by hand, chunk by chunk, including some that no
// publisher would make: packs of several uploaders, wrong hashes, edited manifests.  It remembers
// the files of every version, the model that tests compare with.
//
// Threads: one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "store/repository/skips.hpp"
#include "tests/support/hosts.hpp"
#include "tests/support/support.hpp"

namespace weightfs::test {

/// path -> bytes of every file of a version.
using Tree = std::map<std::string, std::string>;

struct BuildOptions {
  bool snapshot = false;   // version 1 always has one
  bool delta = true;       // version 1 never has one
  unsigned uploaders = 1;  // packs take turns
  std::size_t chunks_per_pack = 1000;
  bool all_chunks = false;  // pack all chunks, also unchanged ones
  /// (tensor, chunk) whose hash is wrong in the pack; the root and later versions use the wrong
  /// hash consistently.
  std::optional<std::pair<std::uint32_t, std::uint32_t>> wrong_hash{};
  /// (tensor, chunk) that is omitted from the packs, or put into one more.
  std::optional<std::pair<std::uint32_t, std::uint32_t>> left_out{}, doubled{};
  /// Files of the snapshot, if they differ from the version's; their chunks must have the same
  /// hashes.
  std::optional<Tree> snapshot_tree{};
  bool names_snapshot = true;             // false: no `snapshot_before`, as of older releases
  std::function<void(Manifest&)> edit{};  // called last, before the commit
};

struct SkipBuildOptions {
  /// As of BuildOptions; the record still says what it says.
  std::optional<std::pair<std::uint32_t, std::uint32_t>> wrong_hash{}, left_out{};
  std::function<void(SkipRecord&)> edit{};  // called last, before the record is put
};

class RepositoryBuilder {
 public:
  RepositoryBuilder();

  /// Adds a version with these files.
  /// Returns: its number.
  std::uint64_t add(Tree tree, const BuildOptions& options = {});

  /// Adds a skip delta between two versions that exist.
  /// Returns: the record that the bucket has then.
  SkipRecord add_skip(const VersionPair& versions,  // NOLINT(modernize-use-nodiscard)
                      const SkipBuildOptions& options = {}) const;

  /// Only its packs, as a maker leaves them that is killed.
  [[nodiscard]] SkipRecord put_skip_packs(const VersionPair& versions,
                                          const SkipBuildOptions& options = {}) const;

  [[nodiscard]] std::uint64_t newest() const noexcept { return trees_.size(); }
  [[nodiscard]] const Tree& tree(std::uint64_t version) const { return trees_[version - 1]; }
  [[nodiscard]] const std::vector<std::uint64_t>& hashes(std::uint64_t version) const {
    return hashes_[version - 1];
  }
  /// The files of a version that is neither the newest nor an end of a later skip: for long runs.
  void forget_tree(std::uint64_t version) { trees_[version - 1].clear(); }
  [[nodiscard]] const Layout& layout(std::uint64_t version) const { return *layouts_[version - 1]; }
  [[nodiscard]] const std::shared_ptr<MemoryBucket>& bucket() const noexcept { return bucket_; }

  /// Another view of the repository.
  [[nodiscard]] std::unique_ptr<Repository> open() const;

  /// The only key that starts with `prefix` and ends with `suffix`; the test fails unless there is
  /// exactly one.
  [[nodiscard]] std::string key(std::string_view prefix, std::string_view suffix = "") const;

  /// Inverts a byte of an object; a negative `offset` counts from the end.
  void flip(const std::string& key, std::int64_t offset) const;

  /// Removes the last `bytes` bytes of an object.
  void cut(const std::string& key, std::size_t bytes) const;

 private:
  DeltaRef add_packs(const VersionPair& versions, const Layout& layout, const Tree& tree,
                     const BuildOptions& options, std::vector<std::uint64_t>& hashes) const;
  void add_snapshot(Manifest& manifest, const Layout& layout, const Tree& tree,
                    const std::vector<std::uint64_t>& hashes);

  std::shared_ptr<MemoryBucket> bucket_;
  std::unique_ptr<Repository> repository_;
  std::vector<Tree> trees_;
  std::vector<std::shared_ptr<const Layout>> layouts_;
  std::vector<std::vector<std::uint64_t>> hashes_;  // as in packs and snapshots
  std::vector<Sha256> manifests_;
  std::uint64_t newest_snapshot_ = 0;
};

/// A tensor of random bytes that are plausible numbers of its dtype.
TestTensor random_tensor(std::string name, Dtype dtype, std::vector<std::uint64_t> shape,
                         Random& rng);

/// Changes about `share` of a tensor's elements slightly; at least one byte changes.
void nudge(TestTensor& tensor, double share, Random& rng);

}  // namespace weightfs::test
