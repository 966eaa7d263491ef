#include "store/chunk_maker.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "kernels/decode.hpp"
#include "kernels/hash.hpp"
#include "store/pieces.hpp"

namespace weightfs {
namespace {

std::string place_of(const Layout& layout, const LayoutTensor& tensor, std::uint32_t chunk) {
  return fmt::format("chunk {} of tensor '{}' in '{}'", chunk, tensor.name,
                     layout.files()[tensor.file].path);
}

}  // namespace

ChunkMaker::ChunkMaker(const Plan& plan, const PackSpool& spool, std::unique_ptr<OldBytes> old)
    : plan_(plan),
      spool_(spool),
      source_(std::move(old)),
      old_(std::make_unique_for_overwrite<std::byte[]>(kernels::kChunkBytesMax)),
      new_(std::make_unique_for_overwrite<std::byte[]>(kernels::kChunkBytesMax)) {}

std::span<const std::byte> ChunkMaker::make(std::uint32_t tensor, std::uint32_t chunk) {
  const LayoutTensor& wanted = plan_.layout->tensors()[tensor];
  const std::uint64_t expected = plan_.hashes[wanted.first_chunk + chunk];
  trace(tensor, chunk);
  const auto bytes = run(chunk, Check::nothing);
  if (kernels::hash_chunk(bytes) == expected) return bytes;

  run(chunk, Check::every_hash);
  throw Error(
      ErrorCode::io,
      fmt::format("version {}: {} came out wrong, but every part of it is right when looked "
                  "at again; check the memory and disks of this host",
                  plan_.version->number(), place_of(*plan_.layout, wanted, chunk)));
}

/// Follows the counterparts back to the start, or to the step before which the chunk did not exist.
void ChunkMaker::trace(std::uint32_t tensor, std::uint32_t chunk) {
  trail_.clear();
  from_start_ = false;
  for (first_step_ = plan_.steps.size(); first_step_ > 0; first_step_--) {
    trail_.push_back(tensor);
    const auto counterpart = plan_.steps[first_step_ - 1].counterparts[tensor];
    const Layout& before = plan_.before(first_step_ - 1);
    if (!counterpart || chunk >= before.tensors()[*counterpart].chunk_count) {
      first_step_--;
      std::reverse(trail_.begin(), trail_.end());
      return;
    }
    tensor = *counterpart;
  }
  from_start_ = true;
  start_tensor_ = tensor;
  std::reverse(trail_.begin(), trail_.end());
}

std::span<const std::byte> ChunkMaker::run(std::uint32_t chunk, Check check) {
  size_ = 0;
  if (from_start_) read_start(chunk, check);
  for (std::size_t i = 0; i < trail_.size(); i++) apply(first_step_ + i, trail_[i], chunk, check);
  return {old_.get(), size_};
}

void ChunkMaker::read_start(std::uint32_t chunk, Check check) {
  const LayoutTensor& tensor = plan_.before(0).tensors()[start_tensor_];
  size_ = tensor.chunk_size_bytes(chunk);
  source_->read(tensor.file, tensor.offset_bytes + tensor.chunk_offset_bytes(chunk),
                {old_.get(), size_});
  if (check == Check::every_hash) check_start(tensor, chunk);
}

void ChunkMaker::check_start(const LayoutTensor& tensor, std::uint32_t chunk) const {
  const auto& hashes = plan_.base ? plan_.base->hashes : plan_.snapshot->hashes.chunks;
  const std::uint64_t expected = hashes[tensor.first_chunk + chunk];
  const std::uint64_t found = kernels::hash_chunk({old_.get(), size_});
  if (found == expected) return;
  const std::string reason = fmt::format("{} has the hash {:016x}, expected {:016x}",
                                         place_of(plan_.before(0), tensor, chunk), found, expected);
  if (plan_.base) {
    const std::uint64_t number = plan_.base->version->number();
    throw BaseDamaged(number, fmt::format("the images of version {} are damaged: {}/{}: {}", number,
                                          plan_.base->directory.string(),
                                          plan_.before(0).files()[tensor.file].path, reason));
  }
  const Version& version = *plan_.snapshot->version;
  std::string key = keys::snapshot_hashes(version.number(), version.manifest.snapshot->nonce);
  throw ObjectError(ErrorCode::corrupt, key,
                    fmt::format("{}: it does not fit the snapshot's files: {}", key, reason));
}

/// Cuts the chunk in old_, or extends it with zeros.
void ChunkMaker::resize(std::size_t size_bytes) {
  if (size_bytes > size_) std::memset(old_.get() + size_, 0, size_bytes - size_);
  size_ = size_bytes;
}

void ChunkMaker::apply(std::size_t step_number, std::uint32_t tensor_number, std::uint32_t chunk,
                       Check check) {
  const Step& step = plan_.steps[step_number];
  const LayoutTensor& tensor = step.layout->tensors()[tensor_number];
  const Listed place = step.listed[tensor.first_chunk + chunk];
  resize(tensor.chunk_size_bytes(chunk));
  if (!place) return;

  const PackChunk& packed = step.chunk(place);
  coded_.resize(packed.data_size_bytes);
  spool_.read(step_number, place, coded_);
  const auto fail = [&](std::string_view reason) {
    const std::string key = step.pack_key(place.pack);
    throw ObjectError(
        ErrorCode::corrupt, key,
        fmt::format("{}: {} {}; the pack was written wrongly, publish once more with --snapshot",
                    key, place_of(*step.layout, tensor, chunk), reason));
  };
  if (!kernels::decode_chunk(tensor.kind, {old_.get(), size_},
                             step.packs[place.pack]->block_lengths(packed), coded_,
                             {new_.get(), size_}, scratch_)) {
    fail("is malformed");
  }
  old_.swap(new_);
  if (check == Check::nothing) return;
  const std::uint64_t found = kernels::hash_chunk({old_.get(), size_});
  if (found != packed.hash) {
    fail(fmt::format("decodes to the hash {:016x}, expected {:016x}", found, packed.hash));
  }
}

}  // namespace weightfs
