// File: RAII for descriptors, and the few file operations that weightfs needs, each complete (no
// short reads or writes) and each naming the path in its Error.
//
// Threads: pure functions; a File belongs to its owner, reads and writes at offsets may be
// parallel.
#pragma once

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "store/base/error.hpp"
#include "store/base/source.hpp"

namespace weightfs {

/// Owns a descriptor.
class File {
 public:
  File() = default;
  explicit File(int fd) noexcept : fd_(fd) {}
  File(File&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  File& operator=(File&& other) noexcept;
  ~File();

  /// open(2) with O_CLOEXEC added.  Throws Error: see throw_errno.
  static File open(const std::filesystem::path& path, int flags, unsigned mode = 0644);

  /// An unlinked file in `directory`, for spooling.
  static File temporary(const std::filesystem::path& directory);

  /// An unnamed file in memory; empty where there is no such thing.
  static File in_memory();

  [[nodiscard]] int fd() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// Fills `into`; false if the file ends before.  Throws Error: io, naming `path`.
[[nodiscard]] bool read_at(int fd, std::uint64_t offset_bytes, std::span<std::byte> into,
                           const std::filesystem::path& path);
void write_at(int fd, std::uint64_t offset_bytes, std::span<const std::byte> from,
              const std::filesystem::path& path);

/// The disk did not take bytes of a file; see is_lost_write().
class LostWrite : public Error {
 public:
  using Error::Error;
};

/// fsync(2) of a file or directory.
/// Throws LostWrite: final, never retried, the file must be dropped; Error: it could not be asked.
void fsync_file(int fd, const std::filesystem::path& path);
void fsync_directory(const std::filesystem::path& path);

/// Has the disk begin with these bytes of a file that is written front to back: fsync_file() then
/// waits for less.  Only a wish: what fails is told by fsync_file().
void begin_writeback(int fd, std::uint64_t offset_bytes, std::uint64_t size_bytes) noexcept;

/// Whether a call failed for want of descriptors or memory: that passes, and says nothing of what
/// it was about.
constexpr bool is_want_of_resources(int error) noexcept {
  return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS;
}

/// Whether this errno of a sync says that the disk did not take some bytes.  Block layers have many
/// for that (ENODATA, ENOLINK, EREMOTEIO ...), and the kernel tells each of them as it is, once. So
/// it is every one but those that say that this file, or file system, cannot be asked.
constexpr bool is_lost_write(int error) noexcept {
  switch (error) {
    case EAGAIN:
    case EBADF:
    case EINTR:
    case EINVAL:
    case ENOMEM:  // the pages stay as they are
    case ENOSYS:
    case EOPNOTSUPP:
    case EPERM:  // a seccomp filter
    case ESPIPE:
      return false;
    default:
      return true;
  }
}

/// Writes these bytes to the disk and waits, where there is such a call: a file that is written so
/// in slices bounds what waits for the disk, and may be stopped between two.  What is told here is
/// not told again by fsync_file(), which must follow: names and sizes are not written.
/// Throws LostWrite.
void write_back(int fd, std::uint64_t offset_bytes, std::uint64_t size_bytes,
                const std::filesystem::path& path);

/// fsync_file() of what may be large, in slices: `goes_on` is called before each of them, and ends
/// it by false or by what it throws. Returns: whether all is on the disk. Throws Error: as
/// fsync_file().
[[nodiscard]] bool sync_in_slices(int fd, const std::filesystem::path& path,
                                  const std::function<bool()>& goes_on);

/// Makes a directory and its parents; fsyncs the parent of each one made.
void make_directories(const std::filesystem::path& path, unsigned mode = 0755);

/// Small files as a whole.  write_file: temporary name, fsync, rename, fsync of the directory.
std::string read_file(const std::filesystem::path& path, std::uint64_t limit_bytes);
void write_file(const std::filesystem::path& path, std::string_view bytes, unsigned mode = 0644);

/// Free and total bytes of the file system that holds `path`, for an unprivileged writer.
struct Space {
  std::uint64_t free_bytes = 0, total_bytes = 0;
};
Space space_of(const std::filesystem::path& path);

/// A Source over an open file (not owned).
class FileSource final : public Source {
 public:
  FileSource(int fd, std::uint64_t size_bytes, std::filesystem::path path);
  [[nodiscard]] std::uint64_t size_bytes() const override { return size_; }
  void read(std::uint64_t offset_bytes, std::span<std::byte> into) const override;

 private:
  int fd_;
  std::uint64_t size_;
  std::filesystem::path path_;
};

}  // namespace weightfs
