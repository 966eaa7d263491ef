#include "store/materialize/check_images.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/block/block.hpp"
#include "kernels/dispatch/hash.hpp"
#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/format/chunk_batches.hpp"
#include "store/format/version_images.hpp"
#include "store/local/image_times.hpp"
#include "store/local/sync_images.hpp"
#include "store/materialize/file_filter.hpp"
#include "store/materialize/image_files.hpp"
#include "store/os/file.hpp"
#include "store/threads/parallel.hpp"
#include "store/threads/progress_counter.hpp"

namespace weightfs {
namespace {

constexpr std::chrono::seconds kUnkeptRecordTime{5};  // to fetch a record that should be here
constexpr std::uint64_t kCheckedBytes = 8u << 20;     // that a thread takes at a time

class ImageChecker {
 public:
  ImageChecker(Store& store, const Version& version, const Layout& layout)
      : version_(version),
        layout_(layout),
        directory_(store.images().image_directory(version.number())),
        hashes_(store.images().chunk_hashes(version.number())),
        absent_(absent_files(store, version, layout)) {}

  /// Throws Error: corrupt, not_found, io: what is wrong; cancelled, timed_out.
  void run(const Context& context, const Progress& progress) const {
    if (hashes_.size() != layout_.chunk_count()) {
      throw Error(ErrorCode::corrupt, "its recorded hashes are not those of its layout");
    }
    for (const BlobRef& blob : version_.manifest.blobs) check_blob(blob);
    for (const LayoutFile& file : layout_.files()) {
      if (!contains(absent_, layout_.number_of(file))) check_head(file);
    }
    ProgressCounter counter(progress, "checking", layout_.size_bytes());
    const std::vector<ChunkBatch> batches = chunk_batches(layout_, kCheckedBytes, absent_);
    parallel_for(batches.size(), 0, context, [&](std::size_t i) {
      check_chunks(batches[i]);
      counter.add(batches[i].size_bytes);
    });
  }

  /// What was written to and is right all the same, as in a copy of a store, would be checked at
  /// every start.  Requires: run().  Throws Error: io, cancelled, timed_out.
  void seal_again(const Context& context) const {
    for (const VersionImages::File& file : files_of(version_.manifest, layout_)) {
      const std::filesystem::path path = directory_ / file.path;
      struct stat attributes {};
      if (::lstat(path.c_str(), &attributes) != 0 || !was_written_to(attributes)) continue;
      sync_image(path, context);  // the time says that it is on the disk, too
      const File opened = File::open(path, O_RDONLY | O_NOFOLLOW);
      seal_image(opened.fd(), path, {.time = version_.manifest.time, .sync = false});
    }
  }

 private:
  void check_blob(const BlobRef& blob) const {
    const auto found = hash_of_small_file(directory_ / blob.path, blob.size_bytes);
    if (found != blob.sha256) throw_changed(blob.path);
  }

  void check_head(const LayoutFile& file) const {
    const File opened = open(file);
    struct stat attributes {};
    if (::fstat(opened.fd(), &attributes) != 0) throw_errno(errno, "stat " + file.path);
    std::string head(file.head.size(), '\0');
    const bool is_read =
        static_cast<std::uint64_t>(attributes.st_size) == file.size_bytes &&
        read_at(opened.fd(), 0, std::as_writable_bytes(std::span(head)), directory_ / file.path);
    if (!is_read || head != file.head) throw_changed(file.path);
  }

  void check_chunks(const ChunkBatch& batch) const {
    const auto buffer = std::make_unique_for_overwrite<std::byte[]>(kernels::kChunkBytesMax);
    const LayoutFile* file = nullptr;
    File opened;
    for (std::size_t i = 0; i < batch.places.size(); i++) {
      const ChunkPlace place = batch.places[i];
      const LayoutTensor& tensor = layout_.tensors()[place.tensor];
      if (file != &layout_.files()[tensor.file]) {
        file = &layout_.files()[tensor.file];
        opened = open(*file);
      }
      const std::span<std::byte> bytes(buffer.get(), tensor.chunk_size_bytes(place.chunk));
      const std::uint64_t offset = tensor.offset_bytes + tensor.chunk_offset_bytes(place.chunk);
      const bool is_read = read_at(opened.fd(), offset, bytes, directory_ / file->path);
      const std::uint64_t expected = hashes_[tensor.first_chunk + place.chunk];
      if (!is_read || kernels::hash_chunk(bytes) != expected) throw_changed(file->path);
    }
  }

  [[nodiscard]] File open(const LayoutFile& file) const {
    return File::open(directory_ / file.path, O_RDONLY | O_NOFOLLOW);
  }

  [[noreturn]] static void throw_changed(const std::string& path) {
    throw Error(ErrorCode::corrupt, path + " is not what it was");
  }

  const Version& version_;
  const Layout& layout_;
  const std::filesystem::path directory_;
  const std::vector<std::uint64_t> hashes_;
  const FileSet absent_;
};

/// What keeps it from being sealed says nothing of its bytes: it is checked at the next start
/// again.
void seal_again(const ImageChecker& checker, std::uint64_t number, const Context& context) {
  try {
    checker.seal_again(context);
  } catch (const LostWrite&) {
    throw;
  } catch (const Error& error) {
    context.check("checking images");
    log_warning(
        fmt::format("version {} is right, but will be checked again: {}", number, error.what()));
  }
}

void check_version(Store& store, History& history, std::uint64_t number, const Context& context,
                   const Progress& progress) {
  const Context asking = context.within(kUnkeptRecordTime);
  const auto version = history.get(number, asking);
  const auto layout = history.layout(*version, asking);
  // Before, not after: of a large model it takes minutes, and nothing is shown meanwhile.
  log_info(
      fmt::format("checking version {} ({}), which was not synced to disk or was written to since",
                  number, human_bytes(layout->size_bytes())));
  const ImageChecker checker(store, *version, *layout);
  checker.run(context, progress);
  seal_again(checker, number, context);
}

}  // namespace

void check_images(Store& store, History& history, const Context& context,
                  const Progress& progress) {
  for (const std::uint64_t number : store.images().unchecked_versions()) {
    context.check("checking images");
    try {
      check_version(store, history, number, context, progress);
      store.images().accept_unchecked(number);
      log_info(fmt::format(
          "version {} was not synced to disk or was written to since; every byte of it is right",
          number));
    } catch (const Error& error) {
      context.check("checking images");
      const bool is_unknown = error.code() == ErrorCode::unavailable ||
                              error.code() == ErrorCode::timed_out ||
                              error.code() == ErrorCode::no_memory;
      log_warning(fmt::format(
          "version {} was not synced to disk or was written to since, and {}: {}; it is rebuilt",
          number, is_unknown ? "cannot be checked" : "is damaged", error.what()));
      if (!is_unknown) store.images().remove_images(number);
    }
  }
}

}  // namespace weightfs
