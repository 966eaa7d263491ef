#include "store/publish/part_chunks.hpp"

#include <utility>

namespace weightfs {
namespace {

/// A path has no backslash.
std::string as_glob(std::string_view path) {
  std::string glob;
  for (const char c : path) {
    if (c == '*' || c == '?' || c == '[') glob += '\\';
    glob += c;
  }
  return glob;
}

}  // namespace

class PartChunks::FileReader final : public Reader {
 public:
  explicit FileReader(const PartChunks& chunks)
      : chunks_(chunks), files_([&chunks](std::uint32_t file) {
          return chunks.reader_.open(*chunks.reader_.weights()[chunks.own_[file]]);
        }) {}

  void read(ChunkPlace place, std::span<const std::byte> /*old_chunk*/,
            std::span<std::byte> into) override {
    const LayoutTensor& tensor = chunks_.layout().tensors()[place.tensor];
    chunks_.reader_.read(files_.get(tensor.file),
                         *chunks_.reader_.weights()[chunks_.own_[tensor.file]],
                         tensor.offset_bytes + tensor.chunk_offset_bytes(place.chunk), into);
  }

 private:
  const PartChunks& chunks_;
  LastOpened files_;
};

PartChunks::PartChunks(const CheckpointReader& reader, const Layout& parent)
    : reader_(reader), globs_(globs_of(reader.layout())) {
  std::vector<LayoutFile> files;
  for (const LayoutFile& file : parent.files()) {
    const LayoutFile* const own = reader.layout().find_file(file.path);
    files.push_back(own == nullptr ? file : *own);
    others_.push_back(own == nullptr);
    own_.push_back(own == nullptr ? 0 : reader.layout().number_of(*own));
  }
  placed_ = Layout::of_files(std::move(files), "the parent with the files of this part");
}

std::unique_ptr<NewChunks::Reader> PartChunks::open() const {
  return std::make_unique<FileReader>(*this);
}

std::vector<std::uint64_t> PartChunks::own_hashes(std::span<const std::uint64_t> all) const {
  std::vector<std::uint64_t> own;
  for (const LayoutTensor& tensor : placed_->tensors()) {
    if (others_[tensor.file]) continue;
    const auto hashes = all.subspan(tensor.first_chunk, tensor.chunk_count);
    own.insert(own.end(), hashes.begin(), hashes.end());
  }
  return own;
}

std::vector<std::string> globs_of(const Layout& layout) {
  std::vector<std::string> globs;
  for (const LayoutFile& file : layout.files()) globs.push_back(as_glob(file.path));
  return globs;
}

}  // namespace weightfs
