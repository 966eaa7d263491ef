// The bytes are read once: what is compared is what is written.  Of a clone the clone is read.
#include "store/publish/keep_images.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/dispatch/hash.hpp"
#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/base/sha256.hpp"
#include "store/format/chunk_batches.hpp"
#include "store/local/manual_pins.hpp"
#include "store/materialize/image_files.hpp"
#include "store/os/file.hpp"
#include "store/threads/parallel.hpp"

namespace weightfs {
namespace {

namespace stdfs = std::filesystem;

constexpr std::uint64_t kKeptBatchBytes = 16u << 20;

class Keeper {
 public:
  Keeper(const CheckpointReader& reader, const VersionImages& images, stdfs::path root)
      : reader_(reader), images_(images), root_(std::move(root)) {}

  void run(unsigned threads, const Context& context, const Progress& progress) {
    make_image_files();
    for (const CheckpointFile* blob : reader_.blobs()) keep_blob(*blob);
    keep_weights(threads, context, progress);
    reader_.check_untouched();
    seal();
  }

 private:
  [[nodiscard]] const Layout& layout() const { return reader_.layout(); }

  void make_image_files() {
    for (const VersionImages::File& file : images_.files) {
      for (auto slash = file.path.find('/'); slash != file.path.npos;
           slash = file.path.find('/', slash + 1)) {
        stdfs::create_directory(root_ / file.path.substr(0, slash));
      }
    }
    for (const CheckpointFile* file : reader_.weights()) {
      const stdfs::path path = root_ / file->path;
      const File made = File::open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
      is_clone_.push_back(::ioctl(made.fd(), FICLONE, reader_.open(*file).fd()) == 0);
      if (is_clone_.back()) {
        check_head(made, *file);
        continue;
      }
      reserve_image(made.fd(), file->stamp.size_bytes, path);
      write_at(made.fd(), 0, as_bytes(file->head), path);
    }
  }

  /// No chunk has the head of a file.
  void check_head(const File& image, const CheckpointFile& file) const {
    std::string head(file.head.size(), '\0');
    reader_.read(image, file, 0, std::as_writable_bytes(std::span(head)));
    if (head != file.head) reader_.refuse(file);
  }

  void keep_blob(const CheckpointFile& blob) {
    const std::string bytes = reader_.read_all(blob);
    const auto known = std::ranges::find(images_.files, blob.path, &VersionImages::File::path);
    if (known == images_.files.end() || known->sha256 != sha256(as_bytes(bytes))) {
      reader_.refuse(blob);
    }
    const stdfs::path path = root_ / blob.path;
    const File made = File::open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    write_at(made.fd(), 0, as_bytes(bytes), path);
  }

  void keep_weights(unsigned threads, const Context& context, const Progress& progress) {
    const auto batches = chunk_batches(layout(), kKeptBatchBytes);
    std::atomic<std::uint64_t> done{0};
    parallel_for(batches.size(), threads, context, [&](std::size_t i) {
      keep_batch(batches[i]);
      const std::uint64_t now_done = done += batches[i].size_bytes;
      if (progress) progress("keeping", now_done, layout().size_bytes());
    });
  }

  void keep_batch(const ChunkBatch& batch) const {
    LastOpened sources([&](std::uint32_t file) { return reader_.open(*reader_.weights()[file]); });
    LastOpened images([&](std::uint32_t file) { return open_image(file); });
    Bytes chunk;
    for (std::size_t i = 0; i < batch.places.size(); i++) {
      const LayoutTensor& tensor = layout().tensors()[batch.places[i].tensor];
      const CheckpointFile& file = *reader_.weights()[tensor.file];
      const File& image = images.get(tensor.file);
      const bool is_clone = is_clone_[tensor.file];
      const std::uint64_t offset = offset_of(batch.places[i]);
      chunk.resize(tensor.chunk_size_bytes(batch.places[i].chunk));
      reader_.read(is_clone ? image : sources.get(tensor.file), file, offset, chunk);
      if (kernels::hash_chunk(chunk) != images_.chunk_hashes[batch.first_chunk + i]) {
        reader_.refuse(file);
      }
      if (!is_clone) write_at(image.fd(), offset, chunk, root_ / file.path);
    }
    begin_to_sync(batch);
  }

  /// Whoever keeps images syncs them before it ends (sync_all_images): the disk begins meanwhile.
  void begin_to_sync(const ChunkBatch& batch) const {
    const ChunkPlace first = batch.places.front(), last = batch.places.back();
    const LayoutTensor& end = layout().tensors()[last.tensor];
    const std::uint32_t first_file = layout().tensors()[first.tensor].file;
    for (std::uint32_t file = first_file; file <= end.file; file++) {
      if (is_clone_[file]) continue;
      const std::uint64_t from = file == first_file ? offset_of(first) : 0;
      const std::uint64_t to = file == end.file ? offset_of(last) + end.chunk_size_bytes(last.chunk)
                                                : layout().files()[file].size_bytes;
      begin_writeback(open_image(file).fd(), from, to - from);
    }
  }

  [[nodiscard]] std::uint64_t offset_of(ChunkPlace place) const {
    const LayoutTensor& tensor = layout().tensors()[place.tensor];
    return tensor.offset_bytes + tensor.chunk_offset_bytes(place.chunk);
  }

  [[nodiscard]] File open_image(std::uint32_t file) const {
    return File::open(root_ / reader_.weights()[file]->path, O_RDWR);
  }

  void seal() const {
    const ImageSeal sealed{.time = images_.time, .sync = false};
    for (const VersionImages::File& file : images_.files) {
      const stdfs::path path = root_ / file.path;
      seal_image(File::open(path, O_RDONLY).fd(), path, sealed);
    }
  }

  const CheckpointReader& reader_;
  const VersionImages& images_;
  const stdfs::path root_;
  std::vector<bool> is_clone_;  // of weights, as the reader has them
};

}  // namespace

void remove_other_images(Store& store, std::uint64_t version) {
  const ManualPins pins(store.db());
  for (const std::uint64_t other : store.images().complete_versions()) {
    if (other != version && !pins.contains(other)) static_cast<void>(store.evictor().evict(other));
  }
}

void keep_images(Store& store, const CheckpointReader& reader, const VersionImages& images,
                 unsigned threads, const Context& context, const Progress& progress) {
  const auto making = store.eviction().reserve(images.version, Eviction::Claim::stays, context);
  const ImagesLock lock = store.images().lock_images(context);
  if (store.images().is_complete(images.version) || store.images().is_partial(images.version))
    return;
  // Before there is more: their pages and blocks are used again.
  remove_other_images(store, images.version);
  std::vector<std::uint64_t> sizes;
  std::uint64_t bytes = 0;
  for (const VersionImages::File& file : images.files) {
    sizes.push_back(file.size_bytes);
    bytes += file.size_bytes;
  }
  store.evictor().evict_for_images(bytes);
  try {
    Keeper(reader, images, store.images().begin_images(images.version))
        .run(threads, context, progress);
    store.images().complete_images(images.version, sizes, images.chunk_hashes);
  } catch (...) {
    try {
      store.images().remove_images(images.version);
    } catch (const Error& error) {
      log_error(fmt::format("cannot remove files of version {}: {}", images.version, error.what()));
    }
    throw;
  }
}

}  // namespace weightfs
