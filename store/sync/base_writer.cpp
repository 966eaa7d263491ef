#include "store/sync/base_writer.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/os/file.hpp"
#include "store/os/priority.hpp"
#include "store/os/scratch_directory.hpp"
#include "store/patches/tensor_table_id.hpp"
#include "store/sync/base_renewal.hpp"
#include "store/sync/patch_reach.hpp"

namespace weightfs {
namespace {

constexpr std::size_t kCopiedBytes = 8u << 20;  // at a time: how soon it can stop

/// Copies files to the disk, synced; they leave the page cache again, since nobody reads them
/// there.
class SyncedCopy {
 public:
  explicit SyncedCopy(const Context& context) : context_(context) {}

  void copy_directory(const std::filesystem::path& from, const std::filesystem::path& to) {
    for (const auto& entry : std::filesystem::directory_iterator(from)) {
      const std::filesystem::path target = to / entry.path().filename();
      if (entry.is_directory()) {
        if (::mkdir(target.c_str(), 0755) != 0) {
          throw_errno(errno, "make the directory " + target.string());
        }
        copy_directory(entry.path(), target);
      } else {
        copy_file(entry.path(), target);
      }
    }
    fsync_directory(to);
  }

 private:
  void copy_file(const std::filesystem::path& from, const std::filesystem::path& to) {
    const File source = File::open(from, O_RDONLY | O_NOFOLLOW);
    struct stat attributes {};
    if (::fstat(source.fd(), &attributes) != 0) throw_errno(errno, "stat " + from.string());
    const File target = File::open(to, O_WRONLY | O_CREAT | O_EXCL, 0600);
    const auto size = static_cast<std::uint64_t>(attributes.st_size);
    for (std::uint64_t at = 0; at < size; at += kCopiedBytes) {
      context_.check("writing the base to the disk");
      const auto part = std::span(buffer_.get(), std::min<std::uint64_t>(kCopiedBytes, size - at));
      if (!read_at(source.fd(), at, part, from)) {
        throw Error(ErrorCode::io, from.string() + " is shorter than it was");
      }
      write_at(target.fd(), at, part, to);
      leave_page_cache(target.fd(), at, part.size(), to);
    }
    if (::fchmod(target.fd(), attributes.st_mode & 07777) != 0) {
      throw_errno(errno, "set the mode of " + to.string());
    }
    const timespec times[2] = {attributes.st_mtim, attributes.st_mtim};
    if (::futimens(target.fd(), times) != 0) throw_errno(errno, "set the time of " + to.string());
    fsync_file(target.fd(), to);
  }

  /// Also bounds what waits for the disk.
  static void leave_page_cache(int fd, std::uint64_t offset_bytes, std::size_t size_bytes,
                               const std::filesystem::path& path) {
    write_back(fd, offset_bytes, size_bytes, path);
    static_cast<void>(::posix_fadvise(fd, static_cast<off_t>(offset_bytes),
                                      static_cast<off_t>(size_bytes), POSIX_FADV_DONTNEED));
  }

  const Context& context_;
  const std::unique_ptr<std::byte[]> buffer_ =
      std::make_unique_for_overwrite<std::byte[]>(kCopiedBytes);
};

}  // namespace

BaseWriter::BaseWriter(Store& store, History& history)
    : store_(store),
      history_(history),
      thread_({"the base of the images in memory is not renewed: {}", take_lowest_priority},
              [this](const Context& context, bool) {
                static_cast<void>(write_if_due(context));
                return WokenThread::kUntilWoken;
              }) {}

bool BaseWriter::write_if_due(const Context& context) {
  const std::vector<std::uint64_t> versions = store_.images().versions_in_memory();
  if (versions.empty() || !is_due(versions.back(), context)) return false;
  return write(versions.back(), context);
}

bool BaseWriter::is_due(std::uint64_t newest, const Context& context) const {
  const PatchReach reach = find_patch_reach(store_, history_, context);
  if (reach.base >= newest) return false;
  if (reach.base == 0) return true;  // it was damaged
  const std::uint64_t model_bytes = store_.images().newest_bytes();
  SinceBase since{reach.path_bytes, newest - std::min(newest, reach.reached), 0};
  if (is_base_due(since, model_bytes)) return true;
  if (since.versions == 0) return false;
  if (!has_table_of(reach.base, newest, context)) return true;
  for (std::uint64_t number = reach.reached + 1; number <= newest; number++) {
    const auto version = history_.get(number, context);
    // A snapshot: all of it.
    if (!version->manifest.delta) since.delta_bytes += model_bytes;
    if (!version->manifest.delta) continue;
    for (const PackRef& pack : version->manifest.delta->packs) {
      since.delta_bytes += std::min(pack.size_bytes, model_bytes);
    }
  }
  return is_base_due(since, model_bytes);
}

/// Whether patches may lead from the one to the other.
bool BaseWriter::has_table_of(std::uint64_t base, std::uint64_t newest,
                              const Context& context) const {
  const auto before = history_.layout(*history_.get(base, context), context);
  const auto after = history_.layout(*history_.get(newest, context), context);
  return before->id() == after->id() || tensor_table_id(*before) == tensor_table_id(*after);
}

bool BaseWriter::write(std::uint64_t version, const Context& context) {
  ImageTable& images = store_.images();
  const auto reserved = store_.eviction().reserve(version, Eviction::Claim::in_use, context);
  const std::uint64_t generation = images.generation(version);
  if (generation == 0 || images.home_of(version) != ImagesHome::memory) return false;
  const std::uint64_t bytes = images.bytes_of({version}, ImagesHome::memory);
  store_.evictor().evict_for_images(bytes, bytes);
  ScratchDirectory scratch(store_.temporary_directory(), "base-");
  SyncedCopy(context).copy_directory(images.image_directory(version), scratch.path());
  if (::chmod(scratch.path().c_str(), 0755) != 0) {
    throw_errno(errno, "set the mode of " + scratch.path().string());
  }
  if (!images.keep_on_disk(version, generation, scratch.path())) return false;
  note_renewed(version);
  log_info(fmt::format("version {} is on the disk, {}: the base of the images in memory", version,
                       human_bytes(bytes)));
  remove_before(version);
  return true;
}

void BaseWriter::note_renewed(std::uint64_t version) {
  const std::lock_guard lock(mutex_);
  renewals_ = {renewals_.count + 1, version};
}

BaseRenewals BaseWriter::renewals() const {
  const std::lock_guard lock(mutex_);
  return renewals_;
}

void BaseWriter::remove_before(std::uint64_t base) {
  ImageTable& images = store_.images();
  for (const std::uint64_t version : images.versions_on_disk()) {
    if (version >= base) break;
    if (images.home_of(version) == ImagesHome::memory) {
      images.remove_copy(version);
    } else {
      static_cast<void>(store_.evictor().evict(version));
    }
  }
}

}  // namespace weightfs
