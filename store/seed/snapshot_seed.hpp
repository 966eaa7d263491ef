// SnapshotSeed: which tensors of a snapshot a seed directory may have, and how much was taken.
//
// Tensors are matched by name, dtype and shape, whatever file they are in.  That says nothing about
// their bytes: a tensor of which several pieces turned out to be others is not read any further, so
// that a seed that is another model costs next to nothing.
//
// Threads: all calls may run in parallel.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "store/format/layout.hpp"
#include "store/seed/seed_directory.hpp"

namespace weightfs {

class SnapshotSeed {
 public:
  /// Pieces of a tensor that may be wrong before the rest of it is fetched without a look.
  static constexpr std::uint8_t kWrongMax = 4;

  SnapshotSeed(std::shared_ptr<const SeedDirectory> directory, const Layout& layout);

  [[nodiscard]] const SeedDirectory& directory() const noexcept { return *directory_; }

  /// Where a tensor of the layout may be; empty if nowhere.
  [[nodiscard]] std::span<const SeedDirectory::Place> places(std::uint32_t tensor) const;

  /// A piece with bytes of this tensor was not what the snapshot has.
  void note_wrong(std::uint32_t tensor) noexcept;

  void add_taken(std::uint64_t bytes) noexcept { directory_->add_taken(bytes); }
  void add_fetched(std::uint64_t bytes) noexcept { fetched_bytes_ += bytes; }
  /// Of this snapshot, from the bucket.
  [[nodiscard]] std::uint64_t fetched_bytes() const noexcept { return fetched_bytes_; }

 private:
  const std::shared_ptr<const SeedDirectory> directory_;
  std::vector<std::span<const SeedDirectory::Place>> places_;  // by tensor
  std::vector<std::atomic<std::uint8_t>> wrong_;               // pieces, by tensor
  std::atomic<std::uint64_t> fetched_bytes_ = 0;
};

}  // namespace weightfs
