// PartChunks: the files of one part of a version, with the numbers that their tensors have in the
// whole version.  A part knows its own files only; it takes the numbers from the parent, whose
// tensor table the version has.
//
//     own layout       b.safetensors
//     placed layout    a (the parent's)   b (own)   c (the parent's)
//
// Threads: as NewChunks.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "store/coding/checkpoint_reader.hpp"
#include "store/coding/new_chunks.hpp"
#include "store/format/chunk_batches.hpp"

namespace weightfs {

class PartChunks final : public NewChunks {
 public:
  /// Keeps the reference `reader`.  Requires: table_problem() of its layout and the parent's is
  /// empty.
  PartChunks(const CheckpointReader& reader, const Layout& parent);

  [[nodiscard]] const Layout& layout() const override { return *placed_; }
  [[nodiscard]] std::span<const std::uint64_t> hashes() const override { return {}; }
  /// Readers throw Error: busy (a file was written to), io.
  [[nodiscard]] std::unique_ptr<Reader> open() const override;

  /// Files of layout() that other parts have.
  [[nodiscard]] const FileSet& others() const noexcept { return others_; }

  /// Globs of the files of the parent that this part is coded against.
  [[nodiscard]] const std::vector<std::string>& globs() const noexcept { return globs_; }

  /// Of hashes by layout(): those of the part's own layout.
  [[nodiscard]] std::vector<std::uint64_t> own_hashes(std::span<const std::uint64_t> all) const;

 private:
  class FileReader;

  const CheckpointReader& reader_;
  std::shared_ptr<const Layout> placed_;
  std::vector<std::uint32_t> own_;  // by file of placed_: that of the part
  FileSet others_;
  std::vector<std::string> globs_;
};

/// Globs that match these paths.
std::vector<std::string> globs_of(const Layout& layout);

}  // namespace weightfs
