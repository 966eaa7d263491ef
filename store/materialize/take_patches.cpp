#include "store/materialize/take_patches.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "kernels/block/block.hpp"
#include "kernels/block/free_list.hpp"
#include "kernels/block/scratch.hpp"
#include "kernels/dispatch/hash.hpp"
#include "store/base/bytes.hpp"
#include "store/materialize/base_reader.hpp"
#include "store/patches/chunk_patch.hpp"
#include "store/patches/tensor_table_id.hpp"
#include "store/threads/parallel.hpp"
#include "store/threads/reorder_buffer.hpp"
#include "store/threads/work_threads.hpp"

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

/// The patches of chunks, by one thread at a time.
class Taker {
 public:
  Taker(const Base& from, const Base& to) : from_(from), to_(to), before_(from), after_(to) {}

  std::optional<ChunkPatch> take(ChunkPlace place) {
    const LayoutTensor& tensor = to_.layout->tensors()[place.tensor];
    const std::uint64_t number = tensor.first_chunk + place.chunk;
    return make_chunk_patch(tensor.kind, before_.read(place), after_.read(place),
                            from_.hashes[number], to_.hashes[number], scratch_);
  }

 private:
  const Base &from_, &to_;
  CheckedImages before_, after_;
  kernels::Scratch scratch_;
};

struct Taken {
  ChunkPlace place;
  std::optional<ChunkPatch> patch;
};

std::vector<ChunkPlace> changed_places(const Base& from, const Base& to) {
  std::vector<ChunkPlace> places;
  const auto tensors = to.layout->tensors();
  for (std::uint32_t number = 0; number < tensors.size(); number++) {
    const std::size_t first = tensors[number].first_chunk;
    for (std::uint32_t chunk = 0; chunk < tensors[number].chunk_count; chunk++) {
      if (from.hashes[first + chunk] != to.hashes[first + chunk]) places.push_back({number, chunk});
    }
  }
  return places;
}

/// Half of the cores: others have work that is waited for.
unsigned taking_threads() { return std::max(1U, work_threads() / 2); }

}  // namespace

TooManyPatches::TooManyPatches(std::uint64_t bytes_max)
    : Error(ErrorCode::no_space,
            fmt::format("the changes of a version have more than {}, which is what --store-size "
                        "leaves for patches beside two versions, and --min-free of the file system",
                        human_bytes(bytes_max))) {}

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
  const std::vector<ChunkPlace> places = changed_places(from, to);
  const unsigned threads = taking_threads();
  const auto write = [&](const Taken& taken) {
    if (!taken.patch) return;
    writer.add(taken.place, *taken.patch);
    if (writer.size_bytes() > bytes_max) throw TooManyPatches(bytes_max);
  };
  ReorderBuffer<Taken> taken(std::size_t{2} * threads, write);
  kernels::FreeList<Taker> idle;
  // The context is checked here, not by parallel_for: a thread that takes a number must put its
  // patch or fail.
  parallel_for(places.size(), threads, {}, [&](std::size_t i) {
    try {
      if (!taken.wait_turn(i)) return;
      context.check("taking patches");
      const auto taker = idle.borrow([&] { return std::make_unique<Taker>(from, to); });
      taken.put(i, {places[i], taker->take(places[i])});
    } catch (...) {
      taken.fail();
      throw;
    }
  });
  return writer.take();
}

}  // namespace weightfs
