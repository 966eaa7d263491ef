// Delta coder: codes the chunks of a version against a base: the images of its parent, or what the
// store's patches make of images.
//
// Per batch of chunks: leave out those that are known to have the base's hash; read the old bytes
// from the base and the new ones from the checkpoint, or make them; code them, decode the result
// and compare it with the new bytes; hash both (kernels/block/chunk_coder.hpp); compare the old
// bytes' hashes with the recorded ones.  Results that were coded against other bytes are discarded.
// So neither a bad disk nor a broken coder can damage the history.  Who keeps patches gets what
// changed in chunks that have passed all that (store/patches/fresh_patches.hpp).
//
// Batches are coded in parallel and appended in order. Coded data goes to unnamed spool files; at
// most a few batches per thread are in memory.
//
// Threads: one call runs its own threads.  Format: docs/FORMAT.md, "Packs".
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/block/chunk_coder.hpp"
#include "kernels/dispatch/cpu_coder.hpp"
#include "store/base/context.hpp"
#include "store/coding/checkpoint_reader.hpp"
#include "store/coding/new_chunks.hpp"
#include "store/format/chunk_batches.hpp"
#include "store/format/chunk_place.hpp"
#include "store/format/manifest.hpp"
#include "store/format/pack.hpp"
#include "store/materialize/plan.hpp"
#include "store/os/file.hpp"
#include "store/patches/fresh_patches.hpp"

namespace weightfs {

/// A pack before its upload: its header, and its data in an unnamed file.
struct SpooledPack {
  PackWriter writer;  // finished; makes the header
  File data;
  std::uint64_t data_size_bytes = 0;
};

/// The bucket object of a pack: the data read must be what was spooled, else Error io.
/// Keeps both references.
class PackSource final : public Source {
 public:
  PackSource(std::string_view head, const SpooledPack& pack);
  [[nodiscard]] std::uint64_t size_bytes() const override;
  void read(std::uint64_t offset_bytes, std::span<std::byte> into) const override;

 private:
  const TextSource head_;
  const FileSource data_;
  const std::vector<Sha256> pieces_;
  const CheckedSource checked_;  // last: it uses the members above
};

/// What a manifest says of a pack whose header is `head`; all but its name.
PackRef pack_ref(const SpooledPack& pack, std::string_view head);

/// Where the chunks of a rollback come from.
struct RollbackChunks {
  std::uint64_t equal = 0;    // known to have the parent's hash: not read
  std::uint64_t patched = 0;  // the parent's, which is read anyway, and patches
  std::uint64_t other = 0;    // other images, packs
};

struct CodedDelta {
  std::vector<std::shared_ptr<const SpooledPack>> packs;  // none if nothing changed
  std::vector<std::uint64_t> hashes;  // of every chunk of the new version; 0 where left out
  std::uint64_t changed_elements = 0;
  RollbackChunks rollback;  // of a rollback
  bool needs_xr = false;    // has a block of mode XR or XS: kFeatureXr
};

/// How far coding is when a pack is closed.
struct CodedSoFar {
  std::optional<ChunkPlace> last;  // all chunks up to this one are coded; nullopt: all there are
  std::uint64_t changed_elements = 0;
  bool needs_xr = false;
};

struct CodeOptions {
  std::filesystem::path spool;                      // directory for the data
  unsigned threads = 0;                             // 0: work_threads()
  std::uint64_t pack_bytes = kPackDataBytesTarget;  // a pack is closed at this size
  /// ... and when so many bytes of the version were coded since the one before; 0: never.
  std::uint64_t piece_bytes = 0;
  kernels::SharedCoder coder = kernels::make_cpu_coder();
  FileSet without = {};  // files to leave out
  /// Gets what changes, if `coder` writes logs; nullptr: nobody asks.
  FreshChunks* fresh = nullptr;
  /// Called with each pack that is closed by its size, in order; by one thread at a time.  Must be
  /// quick.  May be empty.
  std::function<void(std::shared_ptr<const SpooledPack> pack, const CodedSoFar& so_far)> closed =
      {};
  /// Called before each batch, by any thread; may wait, or throw.  May be empty.
  std::function<void(const Context& context)> before_batch = {};
};

/// Progress: "coding", bytes of the new version.
///
/// Throws BaseDamaged (an image of the base does not match its hashes, naming it), PatchDamaged;
/// Error: busy (the checkpoint was written to), no_space (naming the spool), io.
CodedDelta code_delta(const CheckpointReader& reader, const Base& base, const CodeOptions& options,
                      const Context& context, const Progress& progress);

/// The same of any chunks.  Throws also what their readers throw.
CodedDelta code_delta(const NewChunks& chunks, const Base& base, const CodeOptions& options,
                      const Context& context, const Progress& progress);

}  // namespace weightfs
