#include "store/os/file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>

#include "store/base/error.hpp"
#include "store/base/sha256.hpp"

namespace weightfs {

File& File::operator=(File&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

File File::open(const std::filesystem::path& path, int flags, unsigned mode) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  if (fd < 0) throw_errno(errno, "open " + path.string());
  return File(fd);
}

File File::temporary(const std::filesystem::path& directory) {
  // Not O_TMPFILE, which some file systems that may hold a store do not support.
  const std::filesystem::path path = directory / ("spool-" + random_hex(8));
  File file = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
  if (::unlink(path.c_str()) != 0) throw_errno(errno, "unlink " + path.string());
  return file;
}

File File::in_memory() { return File(::memfd_create("weightfs spool", MFD_CLOEXEC)); }

bool read_at(int fd, std::uint64_t offset_bytes, std::span<std::byte> into,
             const std::filesystem::path& path) {
  while (!into.empty()) {
    const ssize_t got = ::pread(fd, into.data(), into.size(), static_cast<off_t>(offset_bytes));
    if (got < 0) {
      if (errno == EINTR) continue;
      throw_errno(errno, "read " + path.string());
    }
    if (got == 0) return false;
    into = into.subspan(static_cast<std::size_t>(got));
    offset_bytes += static_cast<std::uint64_t>(got);
  }
  return true;
}

void write_at(int fd, std::uint64_t offset_bytes, std::span<const std::byte> from,
              const std::filesystem::path& path) {
  while (!from.empty()) {
    const ssize_t put = ::pwrite(fd, from.data(), from.size(), static_cast<off_t>(offset_bytes));
    if (put < 0) {
      if (errno == EINTR) continue;
      throw_errno(errno, "write " + path.string());
    }
    from = from.subspan(static_cast<std::size_t>(put));
    offset_bytes += static_cast<std::uint64_t>(put);
  }
}

namespace {

[[noreturn]] void throw_lost_write(int error, const std::string& what) {
  throw LostWrite(code_of_errno(error), describe_errno(error, what));
}

}  // namespace

void fsync_file(int fd, const std::filesystem::path& path) {
  if (::fsync(fd) == 0) return;
  const int error = errno;
  const std::string what = "fsync " + path.string();
  if (is_lost_write(error)) throw_lost_write(error, what);
  throw_errno(error, what);
}

void fsync_directory(const std::filesystem::path& path) {
  const File directory = File::open(path, O_RDONLY | O_DIRECTORY);
  fsync_file(directory.fd(), path);
}

void begin_writeback(int fd, std::uint64_t offset_bytes, std::uint64_t size_bytes) noexcept {
  // Without a WAIT flag it takes no error of the disk away from fsync().
  static_cast<void>(::sync_file_range(fd, static_cast<off64_t>(offset_bytes),
                                      static_cast<off64_t>(size_bytes), SYNC_FILE_RANGE_WRITE));
}

void write_back(int fd, std::uint64_t offset_bytes, std::uint64_t size_bytes,
                const std::filesystem::path& path) {
  constexpr unsigned kWriteAndWait =
      SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
  const int failed = ::sync_file_range(fd, static_cast<off64_t>(offset_bytes),
                                       static_cast<off64_t>(size_bytes), kWriteAndWait);
  // Any other error: there is no such call here, and fsync alone does it.
  if (failed != 0 && is_lost_write(errno))
    throw_lost_write(errno, "write " + path.string() + " to the disk");
}

bool sync_in_slices(int fd, const std::filesystem::path& path,
                    const std::function<bool()>& goes_on) {
  constexpr std::uint64_t kSliceBytes = 16u << 20;  // how soon it can end
  struct stat found {};
  if (::fstat(fd, &found) != 0) throw_errno(errno, "stat " + path.string());
  const auto size = static_cast<std::uint64_t>(found.st_size);
  for (std::uint64_t at = 0; at < size; at += kSliceBytes) {
    if (!goes_on()) return false;
    write_back(fd, at, kSliceBytes, path);
  }
  if (!goes_on()) return false;
  fsync_file(fd, path);
  return true;
}

void make_directories(const std::filesystem::path& path, unsigned mode) {
  int error = ::mkdir(path.c_str(), mode) == 0 ? 0 : errno;
  if (error == ENOENT && path.has_parent_path() && path.parent_path() != path) {
    make_directories(path.parent_path(), mode);
    // Retry only once: /proc always returns ENOENT.
    error = ::mkdir(path.c_str(), mode) == 0 ? 0 : errno;
  }
  if (error == 0) return fsync_directory(path.has_parent_path() ? path.parent_path() : ".");
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) {
    throw_errno(error, "make the directory " + path.string());
  }
}

std::string read_file(const std::filesystem::path& path, std::uint64_t limit_bytes) {
  const File file = File::open(path, O_RDONLY);
  struct stat attributes {};
  if (::fstat(file.fd(), &attributes) != 0) throw_errno(errno, "stat " + path.string());
  const auto size = static_cast<std::uint64_t>(attributes.st_size);
  if (size > limit_bytes) {
    throw Error(ErrorCode::corrupt, path.string() + " has " + std::to_string(size) +
                                        " bytes, expected at most " + std::to_string(limit_bytes));
  }
  std::string bytes(size, '\0');
  if (!read_at(file.fd(), 0, std::as_writable_bytes(std::span(bytes)), path)) {
    throw Error(ErrorCode::io, path.string() + " was truncated while it was read");
  }
  return bytes;
}

void write_file(const std::filesystem::path& path, std::string_view bytes, unsigned mode) {
  const std::filesystem::path directory = path.has_parent_path() ? path.parent_path() : ".";
  const std::filesystem::path temporary =
      directory / ("." + path.filename().string() + "." + random_hex(8));
  try {
    const File file = File::open(temporary, O_WRONLY | O_CREAT | O_EXCL, mode);
    write_at(file.fd(), 0, std::as_bytes(std::span(bytes)), temporary);
    fsync_file(file.fd(), temporary);
    if (::rename(temporary.c_str(), path.c_str()) != 0) {
      throw_errno(errno, "rename " + temporary.string() + " to " + path.string());
    }
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  fsync_directory(directory);
}

Space space_of(const std::filesystem::path& path) {
  struct statvfs info {};
  if (::statvfs(path.c_str(), &info) != 0)
    throw_errno(errno, "read the free space of " + path.string());
  return {std::uint64_t{info.f_bavail} * info.f_frsize,
          std::uint64_t{info.f_blocks} * info.f_frsize};
}

FileSource::FileSource(int fd, std::uint64_t size_bytes, std::filesystem::path path)
    : fd_(fd), size_(size_bytes), path_(std::move(path)) {}

void FileSource::read(std::uint64_t offset_bytes, std::span<std::byte> into) const {
  if (!read_at(fd_, offset_bytes, into, path_)) {
    throw Error(ErrorCode::busy, path_.string() + " was truncated while it was read");
  }
}

}  // namespace weightfs
