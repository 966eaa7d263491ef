#include "store/materialize/take_patches.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <span>

#include "kernels/block/block.hpp"
#include "kernels/block/scratch.hpp"
#include "kernels/dispatch/hash.hpp"
#include "store/base/bytes.hpp"
#include "store/materialize/base_reader.hpp"
#include "store/patches/chunk_patch.hpp"
#include "store/patches/tensor_table_id.hpp"

namespace weightfs {
namespace {

bool lacks_files(const Base& base) {
  return std::find(base.absent.begin(), base.absent.end(), true) != base.absent.end();
}

/// Reads chunks of one version.
class CheckedImages {
 public:
  explicit CheckedImages(const Base& base) : base_(base), reader_(open_image_reader(base)) {}

  std::span<const std::byte> read(ChunkPlace place) {
    const LayoutTensor& tensor = base_.layout->tensors()[place.tensor];
    const std::span<std::byte> chunk(buffer_.get(), tensor.chunk_size_bytes(place.chunk));
    reader_->read(tensor.file, tensor.offset_bytes + tensor.chunk_offset_bytes(place.chunk), chunk);
    if (kernels::hash_chunk(chunk) != base_.hashes[tensor.first_chunk + place.chunk]) {
      const std::uint64_t number = base_.version->number();
      throw BaseDamaged(
          number, fmt::format("the images of version {} are damaged: chunk {} of tensor '{}' in "
                              "{}/{} does not have its hash",
                              number, place.chunk, tensor.name, base_.directory.string(),
                              base_.layout->files()[tensor.file].path));
    }
    return chunk;
  }

 private:
  const Base& base_;
  const std::unique_ptr<BaseReader> reader_;
  const std::unique_ptr<std::byte[]> buffer_ =
      std::make_unique_for_overwrite<std::byte[]>(kernels::kChunkBytesMax);
};

}  // namespace

std::optional<SpanEnds> span_between(const Base& from, const Base& to) {
  if (from.version->number() >= to.version->number()) return std::nullopt;
  if (lacks_files(from) || lacks_files(to)) return std::nullopt;
  const TensorTableId table = tensor_table_id(*to.layout);
  if (tensor_table_id(*from.layout) != table) return std::nullopt;
  return SpanEnds{PatchLevel::one,
                  {from.version->number(), from.version->manifest_sha256},
                  {to.version->number(), to.version->manifest_sha256},
                  table};
}

PatchFiles take_patches(const PatchTable& table, const SpanEnds& ends, const Base& from,
                        const Base& to, const Context& context, std::uint64_t bytes_max) {
  PatchFileWriter writer = table.make_writer(ends.span());
  CheckedImages before(from), after(to);
  kernels::Scratch scratch;
  const auto tensors = to.layout->tensors();
  for (std::uint32_t number = 0; number < tensors.size(); number++) {
    const LayoutTensor& tensor = tensors[number];
    for (std::uint32_t chunk = 0; chunk < tensor.chunk_count; chunk++) {
      const std::uint64_t old_hash = from.hashes[tensor.first_chunk + chunk];
      const std::uint64_t new_hash = to.hashes[tensor.first_chunk + chunk];
      if (old_hash == new_hash) continue;
      context.check("taking patches");
      const ChunkPlace place{number, chunk};
      const auto patch = make_chunk_patch(tensor.kind, before.read(place), after.read(place),
                                          old_hash, new_hash, scratch);
      if (!patch) continue;
      writer.add(place, *patch);
      if (writer.size_bytes() <= bytes_max) continue;
      throw TooManyPatches(ErrorCode::no_space,
                           fmt::format("the changes of a version have more than {}, which is what "
                                       "--store-size leaves for patches beside two versions, and "
                                       "--min-free of the file system",
                                       human_bytes(bytes_max)));
    }
  }
  return writer.take();
}

}  // namespace weightfs
