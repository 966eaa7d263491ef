#include "store/coding/new_chunks.hpp"

namespace weightfs {

class CheckpointChunks::FileReader final : public Reader {
 public:
  explicit FileReader(const CheckpointReader& reader)
      : reader_(reader),
        files_([&reader](std::uint32_t file) { return reader.open(*reader.weights()[file]); }) {}

  void read(ChunkPlace place, std::span<const std::byte> /*old_chunk*/,
            std::span<std::byte> into) override {
    const LayoutTensor& tensor = reader_.layout().tensors()[place.tensor];
    reader_.read(files_.get(tensor.file), *reader_.weights()[tensor.file],
                 tensor.offset_bytes + tensor.chunk_offset_bytes(place.chunk), into);
  }

 private:
  const CheckpointReader& reader_;
  LastOpened files_;
};

std::unique_ptr<NewChunks::Reader> CheckpointChunks::open() const {
  return std::make_unique<FileReader>(reader_);
}

}  // namespace weightfs
