// Growing file: a safetensors file that somebody is still writing, from its beginning to its end as
// savers do.  Its chunks can be coded as they come.
//
//     appended        what is there ends where the file ends
//     size set first  what is there ends before the first hole (SEEK_HOLE): safetensors >= 0.8
//
// What has been read may be written again before the file is complete, and nothing tells of that:
// who has coded such a file compares all its hashes afterwards (has_hashes).
//
// Threads: immutable; each reader waits for itself.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "store/base/context.hpp"
#include "store/coding/checkpoint_reader.hpp"
#include "store/coding/new_chunks.hpp"
#include "store/format/checkpoint.hpp"
#include "store/format/layout.hpp"
#include "store/os/file.hpp"

namespace weightfs {

class GrowingFile final : public NewChunks {
 public:
  /// Whether the file is still written, after waiting for so long, or until it is not.  Asked while
  /// bytes are waited for, by any thread; throws if they are not to be waited for.
  using IsWritten = std::function<bool(std::chrono::milliseconds wait)>;

  /// Between looks how far it is: short while it grows.
  struct Pauses {
    std::chrono::milliseconds first{5}, last{20};
  };

  /// Waits for the header.  `path`: below the checkpoint's directory.
  /// Throws Error: busy (it is full, so nothing shows how far it is; it ends early), corrupt (no
  /// header, a bad one), not_found, io; what `is_written` throws.
  GrowingFile(const std::filesystem::path& source, const std::string& path, IsWritten is_written,
              Pauses pauses);

  /// As it will be.  Its stamp has nothing but that size.
  [[nodiscard]] const CheckpointFile& file() const noexcept { return checkpoint_.files.front(); }
  [[nodiscard]] const std::shared_ptr<const Layout>& shared_layout() const { return layout_; }

  [[nodiscard]] const Layout& layout() const override { return *layout_; }
  [[nodiscard]] std::span<const std::uint64_t> hashes() const override { return {}; }
  /// Readers wait for their bytes.  They throw Error: busy (the file ends early), io; what
  /// `is_written` throws.
  [[nodiscard]] std::unique_ptr<Reader> open() const override;

 private:
  class GrowingReader;
  [[nodiscard]] std::uint64_t written_bytes() const;
  [[nodiscard]] std::uint64_t wait_for(std::uint64_t end_bytes) const;
  template <typename Look>
  void look_until(Look&& look) const;
  void read_header();

  const IsWritten is_written_;
  const Pauses pauses_;
  const File opened_;
  const bool tells_of_holes_;                         // its file system
  mutable std::atomic<bool> has_size_first_ = false;  // it was seen to have holes
  Checkpoint checkpoint_;                             // of this file alone
  std::shared_ptr<const Layout> layout_;
};

/// Whether these are the hashes of all chunks of a checkpoint.  Reads every byte once.
/// Throws Error: busy (a file has changed since the scan), io, cancelled, timed_out.
bool has_hashes(const CheckpointReader& reader, std::span<const std::uint64_t> hashes,
                unsigned threads, const Context& context);

}  // namespace weightfs
