#include "store/local/store_directory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "store/base/bytes.hpp"
#include "store/base/log.hpp"
#include "store/database/column_families.hpp"

namespace weightfs {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMarkerName = "STORE";
constexpr std::string_view kMarkerTitle = "weightfs store ";
constexpr std::uint64_t kMarkerBytesMax = 64u << 10;
constexpr std::string_view kUserName = "used-by";

std::string text_of(const StoreMarker& marker) {
  return fmt::format("{}{}\n{}\n{}\n", kMarkerTitle, marker.format, marker.repository, marker.url);
}

// Whether a directory may become a store: it is empty except for remains of an interrupted attempt.
bool is_vacant(const fs::path& path) {
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    const std::string name = entry.path().filename().string();
    const bool ours =
        name == kMarkerName || name == "lock" || name.starts_with(fmt::format(".{}.", kMarkerName));
    if (!ours && name != "lost+found") return false;
  }
  return true;
}

// Who holds the lock, according to what the holder wrote into the file.
std::string holder_of(const fs::path& lock_path) {
  std::array<char, 16> text{};
  const File file(::open(lock_path.c_str(), O_RDONLY | O_CLOEXEC));
  const ssize_t count = file ? ::pread(file.fd(), text.data(), text.size(), 0) : 0;
  long pid = 0;
  std::from_chars(text.data(), text.data() + (count > 0 ? count : 0), pid);
  if (pid <= 0) return "another process";
  const auto user = find_last_user(lock_path.parent_path());
  if (!user || user->pid != pid) return fmt::format("process {}", pid);
  return fmt::format("process {}, for {}", pid, user->place.string());
}

bool is_same_file(int fd, const fs::path& path) {
  struct stat held {
  }, named{};
  return ::fstat(fd, &held) == 0 && ::stat(path.c_str(), &named) == 0 &&
         held.st_ino == named.st_ino && held.st_dev == named.st_dev;
}

}  // namespace

fs::path marker_path(const fs::path& path) { return path / kMarkerName; }

std::optional<StoreMarker> find_marker(const fs::path& path) {
  std::string text;
  try {
    text = read_file(marker_path(path), kMarkerBytesMax);
  } catch (const Error&) {
    return std::nullopt;
  }
  if (!text.starts_with(kMarkerTitle)) return std::nullopt;
  text.erase(0, kMarkerTitle.size());
  std::array<std::string, 3> lines;
  for (std::string& line : lines) {
    const std::size_t end = text.find('\n');
    if (end == std::string::npos) return std::nullopt;
    line = text.substr(0, end);
    text.erase(0, end + 1);
  }
  // Written by hand, with a space behind it: that is no other format, for which a store is cleared.
  const bool is_number =
      !lines[0].empty() && lines[0].find_first_not_of("0123456789") == std::string::npos;
  if (!is_number) return std::nullopt;
  return StoreMarker{lines[0], lines[1], lines[2]};
}

std::optional<StoreUser> find_last_user(const fs::path& store) {
  std::string text;
  try {
    text = read_file(store / kUserName, kMarkerBytesMax);
  } catch (const Error&) {
    return std::nullopt;
  }
  StoreUser user;
  const char* const end = text.data() + text.size();
  const auto [behind, failed] = std::from_chars(text.data(), end, user.pid);
  if (failed != std::errc{} || end - behind < 3 || *behind != '\n') return std::nullopt;
  user.place = std::string(behind + 1, end - 1);  // without the final newline
  return user;
}

void write_user(const fs::path& store, const fs::path& place) {
  write_file(store / kUserName, fmt::format("{}\n{}\n", ::getpid(), place.string()), 0600);
}

std::string find_store_remedy(const Error& error) {
  const std::string_view what = error.what();
  const auto has = [&](const char* text) { return what.find(text) != what.npos; };
  // RocksDB tells an errno in words only.
  const auto tells = [&](int number) { return has(std::strerror(number)); };
  if (has("--store")) return "";
  if (error.code() == ErrorCode::read_only || tells(EROFS)) {
    return "mount its file system writable, or choose another --store";
  }
  if (error.code() == ErrorCode::permission || tells(EACCES)) {
    return fmt::format("give its files to uid {}, or choose another --store", ::geteuid());
  }
  if (tells(EIO)) return "see what the kernel says of its disk (dmesg), or choose another --store";
  return "";
}

StoreDirectory::StoreDirectory(const fs::path& path, std::string_view repository,
                               std::string_view url)
    : path_(fs::absolute(path).lexically_normal()) {
  if (!path_.has_filename() && path_.has_relative_path()) path_ = path_.parent_path();
  take_directory();
  lock();
  check_marker(repository, url);
}

void StoreDirectory::take_directory() {
  std::error_code ignored;
  if (fs::exists(path_, ignored) && !fs::is_directory(path_, ignored)) {
    throw Error(ErrorCode::invalid, fmt::format("the store {} is not a directory", path_.string()));
  }
  try {
    make_directories(path_, 0700);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::permission && error.code() != ErrorCode::read_only) throw;
    throw Error(error.code(), fmt::format("{}; choose another place with --store", error.what()));
  }
  struct stat attributes {};
  if (::stat(path_.c_str(), &attributes) != 0) throw_errno(errno, "stat " + path_.string());
  if (attributes.st_uid != ::geteuid()) {
    throw Error(ErrorCode::permission,
                fmt::format("the store {} belongs to uid {}, not to uid {}; use another --store",
                            path_.string(), attributes.st_uid, ::geteuid()));
  }
  // In this order: another process creating the same store writes its marker before anything else.
  if (!is_vacant(path_) && !fs::exists(marker_path(path_), ignored)) {
    throw Error(
        ErrorCode::invalid,
        fmt::format(
            "{} is not empty and is not a weightfs store; use an empty or absent directory for "
            "--store",
            path_.string()));
  }
  if ((attributes.st_mode & 07777) != 0700 && ::chmod(path_.c_str(), 0700) != 0) {
    throw_errno(errno, "make the store 0700: " + path_.string());
  }
}

void StoreDirectory::lock() {
  const fs::path lock_path = path_ / "lock";
  do {
    // A publisher removes its private store when it ends, so the opened file may be unlinked by
    // now.
    lock_ = File::open(lock_path, O_RDWR | O_CREAT, 0600);
    if (::flock(lock_.fd(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) throw_errno(errno, "lock " + lock_path.string());
      throw Error(ErrorCode::busy, fmt::format("the store {} is in use by {}", path_.string(),
                                               holder_of(lock_path)));
    }
  } while (!is_same_file(lock_.fd(), lock_path));

  const std::string text = fmt::format("{}\n", ::getpid());
  try {
    if (::ftruncate(lock_.fd(), 0) != 0) throw_errno(errno, "truncate " + lock_path.string());
    write_at(lock_.fd(), 0, as_bytes(text), lock_path);
  } catch (const Error& error) {
    // The lock matters, not its text; a full disk must not prevent serving.
    log_warning(error.what());
  }
}

void StoreDirectory::check_marker(std::string_view repository, std::string_view url) {
  const StoreMarker wanted{std::string(kStoreFormat), std::string(repository), std::string(url)};
  const std::optional<StoreMarker> found = find_marker(path_);
  if (!found) {
    std::error_code ignored;
    if (fs::exists(marker_path(path_), ignored)) {
      static_cast<void>(read_file(marker_path(path_), kMarkerBytesMax));  // or throws why not
      throw Error(ErrorCode::invalid,
                  fmt::format("{} is not the marker of a weightfs store; if {} was one, write its "
                              "three lines again: \"{}{}\", \"{}\", \"{}\"; else choose another "
                              "--store",
                              marker_path(path_).string(), path_.string(), kMarkerTitle,
                              kStoreFormat, repository, url));
    }
    write_file(marker_path(path_), text_of(wanted), 0600);
    return;
  }
  if (found->repository != repository) {
    throw Error(ErrorCode::invalid,
                fmt::format("the store {} belongs to repository {} ({}), not to {} ({}); use "
                            "another --store",
                            path_.string(), found->repository, found->url, repository, url));
  }
  has_other_format_ = found->format != kStoreFormat;
  if (has_other_format_ || found->url == url) return;
  try {
    write_file(marker_path(path_), text_of(wanted), 0600);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::no_space) throw;
    log_warning(error.what());
  }
}

/// What a trainer has staged is in no bucket.  Without the database the files have no names, but
/// their bytes are still there.
void StoreDirectory::keep_staging() const {
  const fs::path staging = path_ / "staging";
  std::error_code ignored;
  if (!fs::exists(staging, ignored) || fs::is_empty(staging, ignored)) return;
  fs::path kept;
  for (int k = 1; kept.empty() || fs::exists(kept, ignored); k++) {
    kept = path_ / ("staging.lost-" + std::to_string(k));
  }
  fs::rename(staging, kept);
  log_error(fmt::format("the names of files staged in {} are lost; the files are in {}",
                        path_.string(), kept.string()));
}

void StoreDirectory::clear(const StoreMarker& marker) {
  keep_staging();
  for (const char* name : {"db", "images", "deltas", "small", "handover", "tmp"}) {
    std::error_code error;
    fs::remove_all(path_ / name, error);
    if (error) throw_errno(error.value(), "remove " + (path_ / name).string());
  }
  write_file(marker_path(path_), text_of(marker), 0600);
  has_other_format_ = false;
}

}  // namespace weightfs
