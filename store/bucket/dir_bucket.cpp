#include "store/bucket/dir_bucket.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "store/base/bytes.hpp"
#include "store/base/sha256.hpp"
#include "store/os/file.hpp"

namespace weightfs {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kPieceToCheckBytes = 8u << 20;
constexpr std::size_t kListMax = 1000;
constexpr std::string_view kTemporary = ".tmp";
constexpr auto kTemporaryAgeMax = std::chrono::hours(24);

// A file under .tmp.  Its own name is always removed: the object's name is another link to it, or
// it was renamed, and then this name is free.
class Temporary {
 public:
  explicit Temporary(const fs::path& directory) : path_(directory / random_hex(16)) {}
  ~Temporary() { ::unlink(path_.c_str()); }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;

  [[nodiscard]] const fs::path& path() const noexcept { return path_; }

 private:
  fs::path path_;
};

bool is_network_trouble(int error) {
  return error == ESTALE || error == ENOTCONN || error == ETIMEDOUT || error == EHOSTDOWN ||
         error == EHOSTUNREACH;
}

Bucket::Time written_at(const struct stat& attributes) {
  using std::chrono::duration_cast;
  const auto since_1970 = std::chrono::seconds(attributes.st_mtim.tv_sec) +
                          std::chrono::nanoseconds(attributes.st_mtim.tv_nsec);
  return Bucket::Time(duration_cast<Bucket::Time::duration>(since_1970));
}

/// nullopt: it is no regular file, or it is gone.
std::optional<ObjectInfo> find_object(const fs::path& path, std::string_view key) {
  struct stat attributes {};
  if (::stat(path.c_str(), &attributes) != 0 || !S_ISREG(attributes.st_mode)) return std::nullopt;
  return ObjectInfo{std::string(key), static_cast<std::uint64_t>(attributes.st_size),
                    written_at(attributes)};
}

// Linked directories are not entered: they could form a cycle.
bool is_real_directory(const fs::directory_entry& entry) {
  std::error_code ignored;
  return fs::is_directory(entry.symlink_status(ignored));
}

bool is_key(std::string_view key) {
  try {
    check_key(key);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

struct DirBucket::Listing {
  std::string_view prefix, after;
  std::vector<ObjectInfo> objects;

  [[nodiscard]] bool full() const noexcept { return objects.size() == kListMax; }

  // `directory` ends in '/', so all keys below it are contiguous in key order.
  [[nodiscard]] bool may_hold(std::string_view directory) const noexcept {
    const bool has_prefix = directory.starts_with(prefix) || prefix.starts_with(directory);
    return has_prefix && (directory > after || after.starts_with(directory));
  }
};

DirBucket::DirBucket(fs::path root, bool create)
    : root_(std::move(root)), url_("file://" + root_.string()) {
  if (create) {
    try {
      make_directories(root_, 0777);
    } catch (const Error& error) {
      throw error.within("bucket " + url_);
    }
  }
  struct stat attributes {};
  if (::stat(root_.c_str(), &attributes) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) {
      throw Error(ErrorCode::not_found,
                  fmt::format("the bucket directory {} does not exist", root_.string()));
    }
    throw failure(errno, "open", ".");
  }
  if (!S_ISDIR(attributes.st_mode)) {
    throw Error(ErrorCode::invalid,
                fmt::format("the bucket {} is not a directory", root_.string()));
  }
}

DirBucket::~DirBucket() {
  if (has_made_ && landmark_.empty()) ::rmdir((root_ / kTemporary).c_str());
}

void DirBucket::set_landmark(std::string_view key) {
  const std::lock_guard lock(mutex_);
  landmark_ = key;
}

// Prefixes the message of an Error from `body` with the bucket and the key.
template <typename Body>
void DirBucket::named(std::string_view key, Body&& body) const {
  try {
    body();
  } catch (const Error& error) {
    throw error.within(fmt::format("bucket {}: object {}", url_, key));
  }
}

std::size_t DirBucket::get(std::string_view key, std::uint64_t offset_bytes,
                           std::span<std::byte> into, const Context& context) {
  check_lock_order(LockRank::bucket, "a request to the bucket");
  check_key(key);
  const fs::path path = root_ / key;
  // O_NONBLOCK: a FIFO in the bucket must not block the reader.
  const File file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!file) throw failure(errno, "read", key);
  struct stat attributes {};
  if (::fstat(file.fd(), &attributes) != 0) throw failure(errno, "read", key);
  if (!S_ISREG(attributes.st_mode)) throw failure(ENOENT, "read", key);

  const auto size = static_cast<std::uint64_t>(attributes.st_size);
  const std::uint64_t rest = size - std::min(size, offset_bytes);
  into = into.first(static_cast<std::size_t>(std::min<std::uint64_t>(into.size(), rest)));
  for (std::size_t done = 0; done < into.size();) {
    context.check(fmt::format("reading object {} of bucket {}", key, url_));
    const std::size_t count = std::min<std::size_t>(into.size() - done, kPieceToCheckBytes);
    named(key, [&] {
      if (!read_at(file.fd(), offset_bytes + done, into.subspan(done, count), path)) {
        throw Error(ErrorCode::io, "it was truncated while it was read");
      }
    });
    done += count;
  }
  return into.size();
}

void DirBucket::put(std::string_view key, const Source& source, const Context& context) {
  check_lock_order(LockRank::bucket, "a request to the bucket");
  check_key(key);
  require_there("write", key);
  make_parents(key);
  const Temporary temporary(root_ / kTemporary);
  write_temporary(temporary.path(), key, source, context);
  if (::rename(temporary.path().c_str(), (root_ / key).c_str()) != 0) {
    throw failure(errno, "write", key);
  }
  sync_up(key);
}

Bucket::Put DirBucket::put_if_absent(std::string_view key, std::string_view bytes,
                                     const Context& context) {
  check_lock_order(LockRank::bucket, "a request to the bucket");
  check_key(key);
  require_there("write", key);
  make_parents(key);
  const Temporary temporary(root_ / kTemporary);
  write_temporary(temporary.path(), key, TextSource(bytes), context);
  if (::link(temporary.path().c_str(), (root_ / key).c_str()) != 0) {
    if (errno == EEXIST) {
      sync_up(key);  // who made it may not have come to that, and the caller builds on it
      return Put::exists;
    }
    if (errno == EPERM || errno == EOPNOTSUPP || errno == ENOSYS) {
      throw Error(ErrorCode::unsupported,
                  fmt::format("the file system of the bucket directory {} has no hard links, which "
                              "publishing needs; use another one",
                              root_.string()));
    }
    throw failure(errno, "write", key);
  }
  sync_up(key);
  return Put::created;
}

std::vector<ObjectInfo> DirBucket::list_objects(std::string_view prefix, std::string_view after,
                                                const Context& context) {
  check_lock_order(LockRank::bucket, "a request to the bucket");
  require_there("list", prefix);
  Listing listing{prefix, after, {}};
  // All matches lie below the directory part of the prefix.
  const std::size_t slash = prefix.rfind('/');
  const std::string start(slash == std::string_view::npos ? "" : prefix.substr(0, slash + 1));
  if (start.empty() || is_key(start.substr(0, slash))) collect(start, listing, context);
  return std::move(listing.objects);
}

// Adds the keys below `directory` ("" or ending in '/'), in the order of whole keys: a directory
// sorts as its name plus '/', so "a-b" comes before "a/b".
void DirBucket::collect(const std::string& directory, Listing& listing,
                        const Context& context) const {
  context.check(fmt::format("listing bucket {}", url_));
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entry(root_ / directory, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = directory + entry->path().filename().string();
    if (is_real_directory(*entry)) {
      if (is_key(name + "/x") && listing.may_hold(name + "/")) names.push_back(name + "/");
    } else if (name.starts_with(listing.prefix) && name > listing.after && is_key(name)) {
      names.push_back(name);
    }
  }
  if (error && error.value() != ENOENT && error.value() != ENOTDIR) {
    throw failure(error.value(), "list", directory);
  }
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    if (listing.full()) return;
    if (name.back() == '/') {
      collect(name, listing, context);
    } else if (auto object = find_object(root_ / name, name)) {
      listing.objects.push_back(std::move(*object));
    }
  }
}

Bucket::Time DirBucket::now(const Context& context) {
  constexpr std::string_view kName = ".probe-clock";  // for messages: the file has no object's name
  check_lock_order(LockRank::bucket, "a request to the bucket");
  require_there("write", kName);
  make_parents(kName);
  struct stat attributes {};
  const Temporary temporary(root_ / kTemporary);
  try {
    write_temporary(temporary.path(), kName, TextSource(""), context);
    if (::stat(temporary.path().c_str(), &attributes) != 0) throw failure(errno, "read", kName);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::no_space) throw;
    // gc must be able to empty a directory that takes no more files.
    const std::filesystem::path directory = root_ / kTemporary;
    if (::utimensat(AT_FDCWD, directory.c_str(), nullptr, 0) != 0 ||
        ::stat(directory.c_str(), &attributes) != 0) {
      throw;
    }
  }
  return written_at(attributes);
}

void DirBucket::remove(std::string_view key, const Context& context) {
  check_lock_order(LockRank::bucket, "a request to the bucket");
  check_key(key);
  context.check(fmt::format("removing object {} of bucket {}", key, url_));
  if (::unlink((root_ / key).c_str()) != 0) {
    const bool absent = errno == ENOENT || errno == ENOTDIR || errno == EISDIR;
    if (!absent || is_gone()) throw failure(errno, "remove", key);
    return;
  }
  named(key, [&] { fsync_directory((root_ / key).parent_path()); });
}

void DirBucket::write_temporary(const fs::path& path, std::string_view key, const Source& source,
                                const Context& context) {
  if (!tidied_.exchange(true)) remove_old_temporaries();
  const File file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file) throw failure(errno, "write", key);
  const std::uint64_t size = source.size_bytes();
  Bytes piece(static_cast<std::size_t>(std::min(size, kPieceToCheckBytes)));
  for (std::uint64_t offset = 0; offset < size; offset += piece.size()) {
    context.check(fmt::format("writing object {} of bucket {}", key, url_));
    const std::span part(piece.data(), static_cast<std::size_t>(
                                           std::min<std::uint64_t>(piece.size(), size - offset)));
    source.read(offset, part);
    named(key, [&] { write_at(file.fd(), offset, part, path); });
    begin_writeback(file.fd(), offset, part.size());
  }
  named(key, [&] { fsync_file(file.fd(), path); });
}

// Makes .tmp and the directories of a key, never the root.
void DirBucket::make_parents(std::string_view key) {
  const auto make = [&](std::string_view name) {
    if (::mkdir((root_ / name).c_str(), 0777) == 0) {
      if (name == kTemporary) has_made_ = true;
      const std::lock_guard lock(mutex_);
      durable_.erase(std::string(name));
    } else if (errno != EEXIST) {
      throw failure(errno, "write", key);
    }
  };
  make(kTemporary);
  for (std::size_t slash = key.find('/'); slash != std::string_view::npos;
       slash = key.find('/', slash + 1)) {
    make(key.substr(0, slash));
  }
}

// Makes the names of an object and of its directories durable: those of directories once, since
// another process may have made them.  A failed sync is always Error io: unlike a lost reply, the
// caller cannot settle it by reading the object back.
void DirBucket::sync_up(std::string_view key) {
  const auto is_durable = [&](std::string_view name) {
    const std::lock_guard lock(mutex_);
    return durable_.contains(name);
  };
  try {
    for (std::string_view rest = key; !rest.empty();) {
      const std::string_view name = rest;
      const std::size_t slash = rest.rfind('/');
      rest = slash == std::string_view::npos ? "" : rest.substr(0, slash);
      if (is_durable(name)) continue;
      fsync_directory(root_ / rest);
      if (name == key) continue;
      const std::lock_guard lock(mutex_);
      durable_.emplace(name);
    }
  } catch (const Error& error) {
    throw Error(ErrorCode::io, fmt::format("bucket {}: object {} was written, but may be lost in a "
                                           "power cut: {}",
                                           url_, key, error.what()));
  }
}

void DirBucket::remove_old_temporaries() const noexcept {
  std::error_code error;
  fs::directory_iterator entry(root_ / kTemporary, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::error_code ignored;
    const auto written = entry->last_write_time(ignored);
    if (!ignored && fs::file_time_type::clock::now() - written > kTemporaryAgeMax) {
      fs::remove(entry->path(), ignored);
    }
  }
}

std::string DirBucket::landmark() const {
  const std::lock_guard lock(mutex_);
  return landmark_;
}

bool DirBucket::is_gone() const {
  struct stat ignored {};
  const bool is_there = ::stat((root_ / landmark()).c_str(), &ignored) == 0;
  return !is_there && (errno == ENOENT || errno == ENOTDIR);
}

void DirBucket::require_there(std::string_view action, std::string_view key) const {
  if (is_gone()) throw failure(ENOENT, action, key);
}

Error DirBucket::failure(int error, std::string_view action, std::string_view key) const {
  const bool reads = action == "read" || action == "list" || action == "open";
  if (error == ENOENT || error == ENOTDIR) {
    if (is_gone()) {
      std::error_code ignored;
      const std::string what =
          fs::is_directory(root_, ignored)
              ? fmt::format("has no {} now: is a file system to be mounted there?  It", landmark())
              : "is gone; it";
      return {ErrorCode::unavailable,
              fmt::format("the bucket directory {} {} is used again once it is back",
                          root_.string(), what)};
    }
    return {ErrorCode::not_found, fmt::format("bucket {}: object {} does not exist", url_, key)};
  }
  if (error == EACCES || error == EPERM || error == EROFS) {
    return {ErrorCode::permission,
            fmt::format("the bucket directory {} is not {} by uid {} (object {}: {})",
                        root_.string(), reads ? "readable" : "writable", ::geteuid(), key,
                        std::generic_category().message(error))};
  }
  if (is_network_trouble(error)) {
    return {ErrorCode::unavailable,
            fmt::format("the bucket directory {} cannot be reached (object {}: {})", root_.string(),
                        key, std::generic_category().message(error))};
  }
  try {
    throw_errno(error, fmt::format("{} object {} of bucket {}", action, key, url_));
  } catch (const Error& thrown) {
    return thrown;
  }
}

}  // namespace weightfs
