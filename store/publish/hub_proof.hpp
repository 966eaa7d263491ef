// Hub proof: that the weights files of a checkpoint are those of a commit on the Hub, so that a
// version's snapshot may name the commit and nothing is uploaded.
//
//     ask()      before anything is hashed: every file is there, and has its size
//     compare()  when the files are hashed: the SHA-256 of each file is what the Hub says of it
//                (X-Linked-Etag), and its last piece is fetched, which shows that ranges of it can
//                be read; a file of which the Hub says no SHA-256 is fetched whole, and compared
//                piece by piece
//
// Files that do not lie in the layout are none of its business: they are blobs, in the bucket.
//
// Threads: one call at a time; each runs its own threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "store/base/context.hpp"
#include "store/base/sha256.hpp"
#include "store/coding/checkpoint_reader.hpp"
#include "store/format/hub_base.hpp"
#include "store/hub/hub_reader.hpp"
#include "store/repository/repository.hpp"

namespace weightfs {

class HubProof {
 public:
  /// Keeps the reference `reader`.  `threads`: 0: work_threads().
  /// Throws Error: invalid (the environment of the Hub).
  HubProof(Repository& repository, HubBase base, const CheckpointReader& reader, unsigned threads);

  [[nodiscard]] const HubBase& base() const noexcept { return base_; }

  // Both throw Error: invalid (a file that is not there, or is another one, naming it), permission,
  // unavailable, timed_out, cancelled; busy (a file was written to).

  void ask(const Context& context);

  /// `marks`: of the checkpoint's weights.  Returns: the SHA-256 of their pieces.
  /// Requires: ask() has returned.  Progress: "comparing".
  std::vector<std::vector<Sha256>> compare(const std::vector<std::vector<std::uint64_t>>& marks,
                                           const Context& context, const Progress& progress);

 private:
  void compare_hash(const CheckpointFile& file, const Sha256& expected,
                    const SnapshotSource& source) const;
  void compare_bytes(const CheckpointFile& file, std::uint64_t first,
                     std::span<const Sha256> pieces, const Context& context);
  void check_end(const CheckpointFile& file, const Context& context);
  std::size_t read_there(const CheckpointFile& file, std::uint64_t offset_bytes,
                         std::span<std::byte> into, const Context& context);
  [[noreturn]] void refuse(const CheckpointFile& file, const std::string& why) const;

  HubReader& hub_;
  const HubBase base_;
  const CheckpointReader& reader_;
  const unsigned threads_;
  std::vector<HubFile> there_;  // by file of the layout
};

}  // namespace weightfs
