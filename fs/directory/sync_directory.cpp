#include "fs/directory/sync_directory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <string_view>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/json.hpp"
#include "store/base/log.hpp"
#include "store/base/sha256.hpp"
#include "store/local/store.hpp"
#include "store/local/sync_images.hpp"
#include "store/os/lease.hpp"

namespace weightfs::fs {
namespace {

namespace stdfs = std::filesystem;

constexpr std::uint64_t kSyncFormat = 1;
constexpr std::uint64_t kSyncFileBytesMax = 1u << 30;  // a record's, which lists every file
constexpr std::uint64_t kSyncStatusBytesMax = 16u << 20;
constexpr std::size_t kSyncCopyBytes = 4u << 20;
constexpr std::string_view kOwnName = ".weightfs";
constexpr std::string_view kTargetPrefix = "versions/";
constexpr std::string_view kRecordSuffix = ".json";
constexpr std::string_view kRemovedPrefix = "removed-";

bool is_there(const stdfs::path& path) {
  struct stat attributes {};
  return ::lstat(path.c_str(), &attributes) == 0;
}

bool is_plain_directory(const stdfs::path& path) {
  struct stat attributes {};
  return ::lstat(path.c_str(), &attributes) == 0 && S_ISDIR(attributes.st_mode);
}

bool is_plain_file(const stdfs::path& path, std::uint64_t size_bytes) {
  struct stat attributes {};
  return ::lstat(path.c_str(), &attributes) == 0 && S_ISREG(attributes.st_mode) &&
         static_cast<std::uint64_t>(attributes.st_size) == size_bytes;
}

void rename_path(const stdfs::path& from, const stdfs::path& to) {
  if (::rename(from.c_str(), to.c_str()) == 0) return;
  throw_errno(errno, fmt::format("rename {} to {}", from.string(), to.string()));
}

/// Independent of the umask.
void make_open_directory(const stdfs::path& path) {
  if (::mkdir(path.c_str(), 0755) != 0 && (errno != EEXIST || !is_plain_directory(path))) {
    throw_errno(errno, "make the directory " + path.string());
  }
  if (::chmod(path.c_str(), 0755) != 0) throw_errno(errno, "chmod " + path.string());
}

void set_time(const stdfs::path& path, std::int64_t seconds) {
  const std::array<timespec, 2> times{
      {{.tv_sec = seconds, .tv_nsec = 0}, {.tv_sec = seconds, .tv_nsec = 0}}};
  if (::utimensat(AT_FDCWD, path.c_str(), times.data(), AT_SYMLINK_NOFOLLOW) != 0) {
    throw_errno(errno, "set the time of " + path.string());
  }
}

std::optional<std::uint64_t> number_of_name(std::string_view name) {
  std::uint64_t number = 0;
  const char* end = name.data() + name.size();
  const auto [at, error] = std::from_chars(name.data(), end, number);
  if (error != std::errc() || at != end || std::to_string(number) != name) return std::nullopt;
  return number;
}

/// The version that one of our links leads to; nullopt if it is not like one.
std::optional<std::uint64_t> read_link(const stdfs::path& path) {
  std::error_code error;
  const std::string target = stdfs::read_symlink(path, error).string();
  if (error || !target.starts_with(kTargetPrefix)) return std::nullopt;
  return number_of_name(std::string_view(target).substr(kTargetPrefix.size()));
}

std::vector<std::string> names_in(const stdfs::path& directory) {
  std::vector<std::string> names;
  std::error_code error;
  stdfs::directory_iterator entry(directory, error);
  for (; !error && entry != stdfs::directory_iterator(); entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error) throw_errno(error.value(), "list " + directory.string());
  std::sort(names.begin(), names.end());
  return names;
}

/// True for a directory that a process began to take before it was killed.
bool is_barely_begun(const stdfs::path& own) {
  const auto names = names_in(own);
  return std::all_of(names.begin(), names.end(), [](const std::string& name) {
    return name == "lock" || name.starts_with(".sync.");
  });
}

/// Throws Error: invalid, if it contains something that is not ours.
void check_vacant(const stdfs::path& path) {
  for (const std::string& name : names_in(path)) {
    if (name == "lost+found") continue;
    if (name == kOwnName && is_plain_directory(path / name) && is_barely_begun(path / name)) {
      continue;
    }
    throw Error(ErrorCode::invalid,
                fmt::format("{} is not empty ({}) and was not made by weightfs sync; name an empty "
                            "or absent directory",
                            path.string(), name));
  }
}

stdfs::path canonical_directory(const stdfs::path& path) {
  make_directories(path);
  std::error_code error;
  stdfs::path canonical = stdfs::canonical(path, error);
  if (error) throw_errno(error.value(), "look at " + path.string());
  return canonical;
}

/// The marker; nullopt if there is none.
/// Throws Error: unsupported (a newer format), corrupt.
std::optional<SyncDirectoryInfo> read_marker(const stdfs::path& path) {
  const stdfs::path marker = path / kOwnName / "sync";
  if (!is_there(marker)) return std::nullopt;
  const std::string what = marker.string();
  const Json json = parse_json(read_file(marker, 1u << 20), what);
  if (const std::uint64_t format = json_uint(json, "format", what); format != kSyncFormat) {
    throw Error(ErrorCode::unsupported,
                fmt::format("{}: format {}, this weightfs knows {}", what, format, kSyncFormat));
  }
  return SyncDirectoryInfo{path, json_string(json, "url", what),
                           json_string(json, "repository", what), false};
}

/// A name in tmp/, which is removed unless it was renamed: what fails is tried again and again.
class Temporary {
 public:
  explicit Temporary(stdfs::path path) : path_(std::move(path)) {}
  ~Temporary() { ::unlink(path_.c_str()); }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  [[nodiscard]] const stdfs::path& path() const noexcept { return path_; }

 private:
  const stdfs::path path_;
};

/// The pid in a lock's file; empty: there is none.
std::string read_holder(const stdfs::path& lock) {
  std::string holder = read_file(lock, 64);
  while (!holder.empty() && holder.back() == '\n') holder.pop_back();
  return holder;
}

struct flock whole_file(short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return lock;
}

/// A copy with the image's mode and time.
void copy_image(const stdfs::path& from, const stdfs::path& to, const Context& context) {
  const File source = File::open(from, O_RDONLY);
  struct stat attributes {};
  if (::fstat(source.fd(), &attributes) != 0) throw_errno(errno, "stat " + from.string());
  const File target = File::open(to, O_WRONLY | O_CREAT | O_EXCL, 0600);
  const auto size = static_cast<std::uint64_t>(attributes.st_size);
  std::vector<std::byte> buffer(std::min<std::uint64_t>(size, kSyncCopyBytes));
  for (std::uint64_t at = 0; at < size; at += buffer.size()) {
    context.check("copying " + from.string());
    const std::span part =
        std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), size - at));
    if (!read_at(source.fd(), at, part, from)) {
      throw Error(ErrorCode::corrupt, from.string() + " was truncated while it was copied");
    }
    write_at(target.fd(), at, part, to);
  }
  if (::fchmod(target.fd(), attributes.st_mode & 07777) != 0) {
    throw_errno(errno, "chmod " + to.string());
  }
  set_time(to, attributes.st_mtim.tv_sec);
  fsync_file(target.fd(), to);
}

/// Throws Error: cancelled.
template <typename Body>
std::optional<Error> error_of(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::cancelled) throw;
    return error;
  }
  return std::nullopt;
}

/// Opens `name` in `at`, only to look at it and to reach what is behind it.
/// Throws Error: permission, if it belongs to another user than root and this one.
File open_own(const File& at, const stdfs::path& name, const stdfs::path& directory) {
  File own(::openat(at ? at.fd() : AT_FDCWD, name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  struct stat found {};
  if (!own || ::fstat(own.fd(), &found) != 0) {
    throw_errno(errno, fmt::format("open {} of {}", name.string(), directory.string()));
  }
  if (found.st_uid == 0 || found.st_uid == ::geteuid()) return own;
  throw Error(ErrorCode::permission,
              fmt::format("{} is a directory of uid {}, and no other user, nor root, does what it "
                          "says: run this as that user",
                          directory.string(), found.st_uid));
}

bool has_no_links(int error) {
  return error == EXDEV || error == EPERM || error == EMLINK || error == EOPNOTSUPP ||
         error == ENOSYS;
}

}  // namespace

// ---- taking the directory ----

SyncDirectory::SyncDirectory(const stdfs::path& path, const std::string& repository,
                             const std::string& url, Follow follow,
                             std::function<bool(std::uint64_t)> keeps,
                             std::function<stdfs::path(std::uint64_t)> images)
    : path_(canonical_directory(path)),
      follow_(std::move(follow)),
      keeps_(std::move(keeps)),
      images_(std::move(images)) {
  take(repository, url);
  recover();
}

stdfs::path SyncDirectory::own(const char* name) const { return path_ / kOwnName / name; }
stdfs::path SyncDirectory::version_path(std::uint64_t version) const {
  return path_ / "versions" / std::to_string(version);
}
stdfs::path SyncDirectory::record_path(std::uint64_t version) const {
  return own("versions") / fmt::format("{}{}", version, kRecordSuffix);
}
stdfs::path SyncDirectory::removed_path(std::uint64_t version) const {
  return own("tmp") / fmt::format("{}{}", kRemovedPrefix, version);
}
stdfs::path SyncDirectory::temporary(const char* name) const {
  return own("tmp") / fmt::format("{}-{}", name, random_hex(8));
}

void SyncDirectory::take(const std::string& repository, const std::string& url) {
  auto marker = read_marker(path_);
  if (!marker) check_vacant(path_);
  if (marker && marker->repository != repository) {
    throw Error(ErrorCode::invalid,
                fmt::format("{} has versions of the repository {} ({}), not of {} ({}); use "
                            "another directory",
                            path_.string(), marker->repository, marker->url, repository, url));
  }
  make_open_directory(path_ / kOwnName);
  lock();
  if (!marker || marker->url != url) {
    const Json json{{"format", kSyncFormat}, {"repository", repository}, {"url", url}};
    write_file(own("sync"), json.dump(2) + "\n");
  }
  for (const stdfs::path& directory : {path_ / "versions", own("versions"), own("tmp")}) {
    make_open_directory(directory);
  }
  if (is_there(path_ / "latest") && !read_link(path_ / "latest")) {
    throw Error(ErrorCode::exists, fmt::format("{} is not a link to a version; move it away",
                                               (path_ / "latest").string()));
  }
}

// A lock that can be tested without taking it, and that ends with the process.
void SyncDirectory::lock() {
  const stdfs::path path = own("lock");
  lock_ = File::open(path, O_RDWR | O_CREAT, 0644);
  struct flock wanted = whole_file(F_WRLCK);
  if (::fcntl(lock_.fd(), F_OFD_SETLK, &wanted) != 0) {
    if (errno != EAGAIN && errno != EACCES) throw_errno(errno, "lock " + path.string());
    throw Error(ErrorCode::busy, fmt::format("{} is already in use by weightfs sync, pid {}",
                                             path_.string(), read_holder(path)));
  }
  const std::string text = fmt::format("{}\n", ::getpid());
  if (::ftruncate(lock_.fd(), 0) != 0) throw_errno(errno, "truncate " + path.string());
  write_at(lock_.fd(), 0, as_bytes(text), path);
}

/// Completes what a killed process had begun.
void SyncDirectory::recover() {
  for (const std::string& name : names_in(own("versions"))) {
    const auto suffix = name.size() - std::min(name.size(), kRecordSuffix.size());
    const auto number = number_of_name(std::string_view(name).substr(0, suffix));
    if (number && name.ends_with(kRecordSuffix)) {
      ours_.insert(*number);
    } else {
      stdfs::remove(own("versions") / name);
    }
  }
  for (const std::string& name : names_in(path_ / kOwnName)) {
    if (name.starts_with(".")) stdfs::remove(path_ / kOwnName / name);
  }
  for (const std::string& name : names_in(own("tmp"))) {
    if (!name.starts_with(kRemovedPrefix)) stdfs::remove_all(own("tmp") / name);
  }
  for (const std::uint64_t version : std::set(ours_)) {
    if (is_there(removed_path(version))) {
      finish_removal(version);
    } else if (!is_there(version_path(version))) {
      stdfs::remove(record_path(version));
      ours_.erase(version);
    }
  }
}

// ---- records ----

void SyncDirectory::put_record(const CatalogVersion& version) {
  Json entries = Json::array();
  for (const CatalogEntry& entry : version.entries) {
    if (!entry.path.empty()) entries.push_back({entry.path, entry.is_directory});
  }
  const Json record{{"tag", version.tag}, {"entries", std::move(entries)}};
  write_file(record_path(version.number), record.dump() + "\n");
  ours_.insert(version.number);
}

std::vector<SyncDirectory::Entry> SyncDirectory::read_record(std::uint64_t version) const {
  const stdfs::path path = record_path(version);
  const Json json = parse_json(read_file(path, kSyncFileBytesMax), path.string());
  std::vector<Entry> entries;
  for (const Json& one : json_field(json, "entries", path.string())) {
    entries.push_back({one.at(0).get<std::string>(), one.at(1).get<bool>()});
  }
  return entries;
}

// ---- showing ----

SyncDirectory::Shown SyncDirectory::show(
    const std::function<std::shared_ptr<const Catalog>()>& find_catalog, const Context& context) {
  const std::lock_guard lock(mutex_);
  const auto catalog = find_catalog();
  if (const auto found = catalog->versions.find(catalog->latest);
      found != catalog->versions.end() && may_move(catalog->latest)) {
    bring(*found->second, context);
    move_latest(catalog->latest);
  }
  Shown shown{catalog, {}};
  bring_all(shown, context);
  remove_others(*catalog, shown);
  return shown;
}

/// Tries all versions, even if one fails: nothing of `latest` waits for them.
void SyncDirectory::bring_all(Shown& shown, const Context& context) {
  std::shared_ptr<Catalog> brought;  // nullptr: all are
  for (const auto& each : shown.catalog->versions) {
    const auto error = error_of([&] { bring(*each.second, context); });
    if (!error) continue;
    if (!brought) brought = std::make_shared<Catalog>(*shown.catalog);
    brought->versions.erase(each.first);
    if (!shown.error) shown.error = error;
  }
  if (brought) shown.catalog = std::move(brought);
}

void SyncDirectory::remove_others(const Catalog& catalog, Shown& shown) {
  for (const std::uint64_t version : std::set(ours_)) {
    if (catalog.versions.contains(version)) continue;
    const auto error = error_of([&] { remove(version); });
    if (!shown.error) shown.error = error;
  }
}

/// A store that was lost and made again may be behind what is here: `latest` must not go back.
bool SyncDirectory::may_move(std::uint64_t version) const {
  const auto now = read_link(path_ / "latest");
  const bool goes_back =
      now && version < *now && ours_.contains(*now) && is_there(version_path(*now));
  if (!goes_back || follow_.kind == Follow::Kind::version) return true;
  return follow_.kind == Follow::Kind::tag && tag(*now) != follow_.tag;
}

void SyncDirectory::bring(const CatalogVersion& version, const Context& context) {
  const stdfs::path path = version_path(version.number);
  const bool there = is_there(path);
  if (there && whole_.contains(version.number)) return;
  if (there && !ours_.contains(version.number)) {
    throw Error(
        ErrorCode::exists,
        fmt::format("{} exists and was not made by weightfs sync; move it away", path.string()));
  }
  if (!there) {
    make(version, context);
  } else if (fill(version, path, context)) {
    log_warning(fmt::format("{} was incomplete and has been repaired", path.string()));
  }
  whole_.insert(version.number);
}

void SyncDirectory::make(const CatalogVersion& version, const Context& context) {
  const stdfs::path made = temporary("new");
  try {
    make_open_directory(made);
    fill(version, made, context);
    put_record(version);
    rename_path(made, version_path(version.number));
  } catch (...) {
    std::error_code ignored;
    if (ours_.erase(version.number) > 0) stdfs::remove(record_path(version.number), ignored);
    stdfs::remove_all(made, ignored);
    throw;
  }
  fsync_directory(path_ / "versions");
}

/// Makes what is missing or has the wrong size.
/// Returns: whether there was anything to make.
bool SyncDirectory::fill(const CatalogVersion& version, const stdfs::path& directory,
                         const Context& context) {
  bool made = false;
  for (const CatalogEntry& entry : version.entries) {
    const stdfs::path path = entry.path.empty() ? directory : directory / entry.path;
    if (entry.is_directory ? is_plain_directory(path) : is_plain_file(path, entry.size_bytes)) {
      continue;
    }
    made = true;
    if (entry.is_directory) {
      make_open_directory(path);
    } else {
      place(version.directory / entry.path, path, context);
    }
  }
  for (auto entry = version.entries.rbegin(); entry != version.entries.rend(); ++entry) {
    if (!entry->is_directory) continue;
    const stdfs::path path = entry->path.empty() ? directory : directory / entry->path;
    set_time(path, version.time);
    fsync_directory(path);
  }
  return made;
}

void SyncDirectory::place(const stdfs::path& image, const stdfs::path& target,
                          const Context& context) {
  context.check("making " + target.string());
  const Temporary temporary_name(temporary("file"));
  const stdfs::path& made = temporary_name.path();
  if (::link(image.c_str(), made.c_str()) != 0) {
    const int error = errno;
    if (!has_no_links(error)) {
      throw_errno(error, fmt::format("link {} to {}", image.string(), target.string()));
    }
    copy_image(image, made, context);
    has_copies_ = true;
  } else {
    sync_image(made, context);  // a version here must not wait for its store to be checked
  }
  rename_path(made, target);
}

void SyncDirectory::move_latest(std::uint64_t version) {
  const stdfs::path latest = path_ / "latest";
  const auto now = read_link(latest);
  if (now == version) return;
  if (!now && is_there(latest)) {
    throw Error(ErrorCode::exists,
                fmt::format("{} is not a link to a version; move it away", latest.string()));
  }
  const Temporary temporary_name(temporary("latest"));
  const stdfs::path& made = temporary_name.path();
  const std::string target = fmt::format("{}{}", kTargetPrefix, version);
  if (::symlink(target.c_str(), made.c_str()) != 0) throw_errno(errno, "make " + made.string());
  rename_path(made, latest);
  fsync_directory(path_);
  log_info(fmt::format("latest is version {}", version));
}

// ---- removing ----

bool SyncDirectory::release(std::uint64_t version) {
  const std::lock_guard lock(mutex_);
  return !ours_.contains(version) || remove(version);
}

/// Also checks the store's names of the same files, which are removed too.
bool SyncDirectory::nobody_reads_in(const stdfs::path& directory, std::uint64_t version) const {
  std::vector<stdfs::path> both{directory};
  if (images_) both.push_back(images_(version));
  return nobody_reads(both, &refused_leases_);
}

/// Checked twice: a file may be opened between the first check and the rename.  A caller that wants
/// to keep `latest` first says so and then reads the link; here the order is the opposite, so one
/// of the two sees the other.
bool SyncDirectory::remove(std::uint64_t version) {
  const stdfs::path path = version_path(version);
  if (read_link(path_ / "latest") == version || (keeps_ && keeps_(version))) return false;
  if (!is_there(removed_path(version))) {
    if (!nobody_reads_in(path, version)) return false;
    if (is_there(path)) rename_path(path, removed_path(version));
    if (!nobody_reads_in(removed_path(version), version)) {
      rename_path(removed_path(version), path);
      return false;
    }
  }
  finish_removal(version);
  return true;
}

/// Foreign files beside those of the version return to where they were.
void SyncDirectory::finish_removal(std::uint64_t version) {
  const stdfs::path directory = removed_path(version);
  const std::vector<Entry> entries = read_record(version);
  std::error_code ignored;
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    stdfs::remove(directory / entry->path, ignored);  // removes a directory only if it is empty
  }
  stdfs::remove(directory, ignored);
  if (is_there(directory) && !is_there(version_path(version))) {
    rename_path(directory, version_path(version));
    log_warning(fmt::format("removed version {}, but kept other files in {}", version,
                            version_path(version).string()));
  }
  stdfs::remove(record_path(version));
  ours_.erase(version);
  whole_.erase(version);
}

// ---- any thread ----

std::uint64_t SyncDirectory::latest() const { return read_link(path_ / "latest").value_or(0); }

/// Reads the record, which is replaced atomically, so it needs no lock.
std::string SyncDirectory::tag(std::uint64_t version) const {
  try {
    const stdfs::path path = record_path(version);
    const Json json = parse_json(read_file(path, kSyncFileBytesMax), path.string());
    return json_string(json, "tag", path.string());
  } catch (const Error&) {
    return {};
  }
}

std::vector<std::uint64_t> SyncDirectory::versions() const {
  const std::lock_guard lock(mutex_);
  return {ours_.begin(), ours_.end()};
}

bool SyncDirectory::has_copies() const {
  const std::lock_guard lock(mutex_);
  return has_copies_;
}

void SyncDirectory::note_alive() const noexcept { ::futimens(lock_.fd(), nullptr); }

// Without fsync: the content is only of momentary use.  Its time is by the clock of this host, as
// is that of who looks how old it is; a file server's may differ.
void SyncDirectory::write_own(const char* name, const std::string& text) const {
  const Temporary temporary_name(temporary(name));
  const stdfs::path& made = temporary_name.path();
  {
    const File file = File::open(made, O_WRONLY | O_CREAT | O_EXCL, 0644);
    write_at(file.fd(), 0, as_bytes(text), made);
    ::fchmod(file.fd(), 0644);
    set_time(made, seconds_now());
  }
  rename_path(made, own(name));
}

std::optional<SyncDirectoryInfo> find_sync_directory(const stdfs::path& path) {
  std::error_code error;
  const stdfs::path canonical = stdfs::canonical(path, error);
  if (error) return std::nullopt;
  auto info = read_marker(canonical);
  if (!info) return std::nullopt;
  const stdfs::path path_of_lock = canonical / kOwnName / "lock";
  const File lock(::open(path_of_lock.c_str(), O_RDONLY | O_CLOEXEC));
  struct flock asked = whole_file(F_RDLCK);
  info->is_running =
      lock && ::fcntl(lock.fd(), F_OFD_GETLK, &asked) == 0 && asked.l_type != F_UNLCK;
  if (info->is_running) info->pid = read_holder(path_of_lock);
  for (const char* const name : {"status", "lock"}) {  // a full disk takes no status
    struct stat found {};
    if (::stat((canonical / kOwnName / name).c_str(), &found) == 0) {
      info->stated = std::max<std::int64_t>(info->stated, found.st_mtim.tv_sec);
    }
  }
  return info;
}

// By descriptors, and no symlink is followed: whose DIR is may put something else there meanwhile.
std::string read_own_status(const stdfs::path& directory) {
  const File own = open_own({}, directory / kOwnName, directory);
  static_cast<void>(open_own(own, "sync", directory));
  const File status = open_own(own, "status", directory);
  return read_file(fmt::format("/proc/self/fd/{}", status.fd()), kSyncStatusBytesMax);
}

}  // namespace weightfs::fs
