// ChunkMaker: makes one chunk of a plan's version: its old bytes, all steps applied one after
// another, and the hash compared.
//
//     old_ --step 0--> new_, swap --step 1--> new_, swap ... --> hash
//
// Only the last hash is compared on the way; if it is wrong the chunk is made once more with every
// hash compared, to find out whose fault it is.
//
// Threads: a ChunkMaker belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/scratch.hpp"
#include "store/materialize.hpp"
#include "store/old_bytes.hpp"
#include "store/pack_spool.hpp"

namespace weightfs {

class ChunkMaker {
 public:
  /// Keeps the references.
  ChunkMaker(const Plan& plan, const PackSpool& spool, std::unique_ptr<OldBytes> old);

  /// Returns: the verified bytes of a chunk of the plan's layout, valid until the next call.
  /// Throws BaseDamaged, ObjectError (names pack or snapshot, tensor and chunk), Error: io.
  std::span<const std::byte> make(std::uint32_t tensor, std::uint32_t chunk);

 private:
  enum class Check { nothing, every_hash };

  void trace(std::uint32_t tensor, std::uint32_t chunk);
  std::span<const std::byte> run(std::uint32_t chunk, Check check);
  void read_start(std::uint32_t chunk, Check check);
  void apply(std::size_t step, std::uint32_t tensor, std::uint32_t chunk, Check check);
  void resize(std::size_t size_bytes);
  void check_start(const LayoutTensor& tensor, std::uint32_t chunk) const;

  const Plan& plan_;
  const PackSpool& spool_;
  std::unique_ptr<OldBytes> source_;

  // Where the chunk comes from: trail_[i] is its tensor after step first_step_ + i.
  std::vector<std::uint32_t> trail_;
  std::size_t first_step_ = 0;
  bool from_start_ = false;  // else from zeros
  std::uint32_t start_tensor_ = 0;

  // Scratch, reused for every chunk.
  std::unique_ptr<std::byte[]> old_, new_;
  std::size_t size_ = 0;  // of what is in old_
  std::vector<std::byte> coded_;
  kernels::Scratch scratch_;
};

}  // namespace weightfs
