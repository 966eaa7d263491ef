// Delta coder: codes a checkpoint against the images of its parent.
//
// Per batch of chunks: read the new bytes from the checkpoint and the old ones from the parent's
// images; code, decode what was coded and compare it with the new bytes, and hash both
// (kernels/block/chunk_coder.hpp); compare the old ones' hashes with those they were written with.
// Results that were coded against other bytes are discarded.  So neither a bad disk nor a broken
// coder can damage the history.
//
// Batches are worked on in parallel and appended in order; coded data goes to unnamed spool files,
// and at most a few batches per thread are in memory.
//
// Threads: one call runs its own threads.  Format: docs/FORMAT.md, "Packs".
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/block/chunk_coder.hpp"
#include "kernels/dispatch/cpu_coder.hpp"
#include "store/base/context.hpp"
#include "store/format/chunk_batches.hpp"
#include "store/format/pack.hpp"
#include "store/materialize/plan.hpp"
#include "store/os/file.hpp"
#include "store/publish/checkpoint_reader.hpp"

namespace weightfs {

/// A pack before it is uploaded: what makes its head, and its data in a file without a name.
struct SpooledPack {
  PackWriter writer;  // finished: it gives the head
  File data;
  std::uint64_t data_size_bytes = 0;
};

/// The object that a pack becomes: the data that is read is what was spooled, else Error io. Keeps
/// both references.
class PackSource final : public Source {
 public:
  PackSource(std::string_view head, const SpooledPack& pack);
  [[nodiscard]] std::uint64_t size_bytes() const override;
  void read(std::uint64_t offset_bytes, std::span<std::byte> into) const override;

 private:
  const TextSource head_;
  const FileSource data_;
  const std::vector<Sha256> pieces_;
  const CheckedSource checked_;  // last: it uses those above
};

struct CodedDelta {
  std::vector<SpooledPack> packs;     // none if nothing changed
  std::vector<std::uint64_t> hashes;  // of every chunk of the new version; 0 where left out
  std::uint64_t changed_elements = 0;
  bool needs_xr = false;  // a block is of mode XR or XS: kFeatureXr
};

struct CodeOptions {
  std::filesystem::path spool;                      // directory for the data
  unsigned threads = 0;                             // 0: one for each core
  std::uint64_t pack_bytes = kPackDataBytesTarget;  // a pack is closed when it has this much data
  kernels::SharedCoder coder = kernels::make_cpu_coder();
  FileSet without = {};  // files that are left out
};

/// Progress: "coding", bytes of the new version.
///
/// Throws Error: BaseDamaged (an image of the parent is not what its hashes say, naming it), busy
/// (the checkpoint was written to), no_space (naming the spool), io.
CodedDelta code_delta(const CheckpointReader& reader, const Base& base, const CodeOptions& options,
                      const Context& context, const Progress& progress);

}  // namespace weightfs
