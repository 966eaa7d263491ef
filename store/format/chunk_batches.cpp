#include "store/format/chunk_batches.hpp"

#include <utility>

namespace weightfs {

std::vector<ChunkBatch> chunk_batches(const Layout& layout, std::uint64_t target_bytes,
                                      const FileSet& without) {
  std::vector<ChunkBatch> batches;
  ChunkBatch batch;
  for (std::uint32_t tensor = 0; tensor < layout.tensors().size(); tensor++) {
    const LayoutTensor& described = layout.tensors()[tensor];
    if (contains(without, described.file)) {
      if (!batch.places.empty()) batches.push_back(std::exchange(batch, {}));
      continue;
    }
    for (std::uint32_t chunk = 0; chunk < described.chunk_count; chunk++) {
      if (batch.places.empty()) batch.first_chunk = described.first_chunk + chunk;
      batch.places.push_back({tensor, chunk});
      batch.size_bytes += described.chunk_size_bytes(chunk);
      if (batch.size_bytes >= target_bytes) batches.push_back(std::exchange(batch, {}));
    }
  }
  if (!batch.places.empty()) batches.push_back(std::move(batch));
  return batches;
}

}  // namespace weightfs
