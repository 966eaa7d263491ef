#include "store/local/store.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/local/store_directory.hpp"
#include "store/os/lease.hpp"

namespace weightfs {

namespace {

namespace fs = std::filesystem;

constexpr char kAbsent = 0, kComplete = 2;  // state bytes of an image record
constexpr std::uint64_t kFreeBytesMinMax = 10ull << 30;
constexpr std::uint64_t kBytesMax = 1ull << 60;  // sums of a few of them cannot overflow

std::string key_of(std::uint64_t version) {
  std::string key;
  append_be64(key, version);
  return key;
}

std::string image_key(std::uint64_t version, std::uint32_t file) {
  std::string key = key_of(version);
  append_be32(key, file);
  return key;
}

/// What the records of a version say of one file.
struct ImageRecord {
  std::uint64_t size_bytes = 0;
  bool is_absent = false;
};
using ImageRecords = std::vector<ImageRecord>;  // by path, bytewise

std::string image_value(const ImageRecord& image) {
  std::string value(1, image.is_absent ? kAbsent : kComplete);
  append_be64(value, image.size_bytes);
  return value;
}

std::string delta_name(std::uint64_t version) { return std::to_string(version) + ".safetensors"; }

[[noreturn]] void throw_bad_record(std::string_view family) {
  throw Error(ErrorCode::corrupt, fmt::format("a record in family '{}' is malformed", family));
}

std::uint64_t version_of_key(std::string_view key, std::size_t size, std::string_view family) {
  if (key.size() != size) throw_bad_record(family);
  return load_be(key.substr(0, 8));
}

std::string text_of(const Newest& newest) {
  std::string text = key_of(newest.version);
  text += as_text(newest.manifest_sha256);
  return text;
}

// Sizes of the regular files below a directory, by path, bytewise.
std::vector<std::uint64_t> file_sizes_below(const fs::path& directory) {
  std::map<std::string, std::uint64_t> sizes;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (entry.symlink_status().type() == fs::file_type::directory) continue;
    sizes.emplace(entry.path().lexically_relative(directory).string(), entry.file_size());
  }
  std::vector<std::uint64_t> result;
  for (const auto& [path, size] : sizes) result.push_back(size);
  return result;
}

// Whether a directory has exactly the files that are not absent.  One that is not there or cannot
// be read is a mismatch, not an error.
bool has_files(const fs::path& directory, const ImageRecords& images) {
  std::vector<std::uint64_t> sizes;
  for (const ImageRecord& image : images) {
    if (!image.is_absent) sizes.push_back(image.size_bytes);
  }
  try {
    return file_sizes_below(directory) == sizes;
  } catch (const fs::filesystem_error&) {
    return false;
  }
}

// As Store::absent_files() has them.
std::vector<bool> absent_of(const ImageRecords& images) {
  std::vector<bool> absent;
  for (const ImageRecord& image : images) absent.push_back(image.is_absent);
  const bool any = std::find(absent.begin(), absent.end(), true) != absent.end();
  return any ? absent : std::vector<bool>();
}

// The number that a directory below images/ is named by; nullopt if it is none.
std::optional<std::uint64_t> version_of_name(const std::string& name) {
  std::uint64_t version = 0;
  const char* end = name.data() + name.size();
  const auto [at, error] = std::from_chars(name.data(), end, version);
  if (error != std::errc() || at != end || name != std::to_string(version)) return std::nullopt;
  return version;
}

class LocalStore final : public Store {
 public:
  LocalStore(StoreDirectory directory, std::string_view repository, std::string_view url,
             StoreLimits limits, std::function<Space()> space);

  [[nodiscard]] const fs::path& path() const noexcept override { return directory_.path(); }

  [[nodiscard]] Db& db() noexcept override { return *db_; }

  [[nodiscard]] std::optional<std::string> find_manifest(std::uint64_t version) const override {
    return db_->find(Family::manifests, key_of(version));
  }
  void put_manifest(std::uint64_t version, std::string_view bytes) override {
    db_->write({{Family::manifests, key_of(version), std::string(bytes)}}, Durability::process);
  }
  [[nodiscard]] std::vector<std::uint64_t> manifest_numbers() const override;

  [[nodiscard]] std::optional<std::string> find_layout(const Sha256& id) const override {
    return db_->find(Family::layouts, as_text(id));
  }
  void put_layout(const Sha256& id, std::string_view bytes) override {
    db_->write({{Family::layouts, std::string(as_text(id)), std::string(bytes)}},
               Durability::process);
  }
  [[nodiscard]] std::set<Sha256> layout_ids() const override;
  void remove_layouts(std::span<const Sha256> ids) override;

  [[nodiscard]] Newest newest() const override {
    const std::scoped_lock lock(mutex_);
    return newest_;
  }
  void put_newest(const Newest& newest) override;

  [[nodiscard]] std::vector<std::uint64_t> complete_versions() const override;
  [[nodiscard]] bool is_complete(std::uint64_t version) const override {
    const std::scoped_lock lock(mutex_);
    return complete_.contains(version);
  }
  [[nodiscard]] std::vector<bool> absent_files(std::uint64_t version) const override;
  [[nodiscard]] std::vector<std::uint64_t> chunk_hashes(std::uint64_t version) const override;
  [[nodiscard]] fs::path image_directory(std::uint64_t version) const override {
    return images() / std::to_string(version);
  }

  [[nodiscard]] ImagesLock lock_images(const Context& context) override;
  fs::path begin_images(std::uint64_t version) override;
  void complete_images(std::uint64_t version, std::span<const std::uint64_t> file_sizes,
                       std::span<const std::uint64_t> chunk_hashes,
                       const std::vector<bool>& absent) override;
  void remove_images(std::uint64_t version) override;

  void begin_partial(std::uint64_t version, std::uint64_t bytes, Eviction::Files files) override;
  void end_partial(std::uint64_t version) noexcept override;
  void set_partial_error(std::uint64_t version, std::optional<Error> error) override;
  [[nodiscard]] bool is_partial(std::uint64_t version) const override {
    const std::scoped_lock lock(mutex_);
    return partial_.contains(version);
  }
  void wait_partial(std::uint64_t version, const Context& context) override;

  [[nodiscard]] std::optional<fs::path> find_delta(std::uint64_t version) const override;
  fs::path begin_delta(std::uint64_t version, std::uint64_t bytes) override;
  void complete_delta(std::uint64_t version, const fs::path& file) override;
  void abandon_delta(std::uint64_t version, const fs::path& file) noexcept override;
  [[nodiscard]] std::uint64_t delta_bytes() const override;

  [[nodiscard]] Eviction& eviction() noexcept override { return eviction_; }
  void make_room(std::uint64_t bytes, std::uint64_t version_bytes) override;
  void make_free(std::uint64_t bytes) override;
  bool evict(std::uint64_t version) override;
  [[nodiscard]] std::uint64_t image_bytes() const override { return bytes_of(complete_versions()); }

 private:
  struct Room;
  using Records = std::map<std::uint64_t, ImageRecords>;  // by version

  void open_db(const std::string& repository, const std::string& url);
  void load(const std::string& repository, const std::string& url);
  [[nodiscard]] Records read_records() const;
  void drop_unusable(const Records& records);
  void remove_strays();
  void forget(std::uint64_t version);
  void discard(const fs::path& directory) const;

  struct Delta {
    std::uint64_t bytes = 0;
    bool is_complete = false;
  };
  void load_deltas();
  bool remove_delta(std::uint64_t version);
  std::uint64_t make_room_of_deltas(const Room& room, std::uint64_t image_bytes);
  [[nodiscard]] std::map<std::uint64_t, Delta> deltas_now() const;
  [[nodiscard]] fs::path delta_path(std::uint64_t version) const {
    return path() / "deltas" / delta_name(version);
  }

  struct Partial {
    std::uint64_t order = 0;  // in which they were begun
    std::uint64_t bytes = 0;
    Eviction::Files files;
    /// As text: an exception must not be shared by threads.
    std::optional<std::pair<ErrorCode, std::string>> error;
  };
  [[nodiscard]] std::vector<std::uint64_t> partial_versions() const;
  bool evict_partial(std::uint64_t version);
  [[nodiscard]] std::uint64_t newest_bytes() const;

  [[nodiscard]] fs::path images() const { return path() / "images"; }
  [[nodiscard]] std::uint64_t bytes_of(const std::vector<std::uint64_t>& versions) const;

  void make(const Room& room);
  void check_worth(const Room& room, const std::vector<std::uint64_t>& versions) const;
  [[nodiscard]] std::uint64_t free_min(const Space& space) const;

  StoreDirectory directory_;
  const StoreLimits limits_;
  const std::function<Space()> space_;
  std::unique_ptr<Db> db_;
  std::mutex images_mutex_;  // guards the next one
  bool images_locked_ = false;
  std::condition_variable_any images_free_;
  std::mutex newest_mutex_;  // held while the record is written, so that it never goes back
  Eviction eviction_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable_any partial_changed_;
  Newest newest_;
  std::uint64_t partials_begun_ = 0;
  std::map<std::uint64_t, Partial> partial_;
  std::map<std::uint64_t, Delta> deltas_;                // complete or begun
  std::map<std::uint64_t, std::vector<bool>> complete_;  // version -> absent_files()
};

LocalStore::LocalStore(StoreDirectory directory, std::string_view repository, std::string_view url,
                       StoreLimits limits, std::function<Space()> space)
    : directory_(std::move(directory)), limits_(limits), space_(std::move(space)) {
  const StoreMarker marker{std::string(kStoreFormat), std::string(repository), std::string(url)};
  if (directory_.has_other_format()) {
    log_warning(fmt::format("the store {} has another format; it is rebuilt from the bucket",
                            path().string()));
    directory_.clear(marker);
  }
  try {
    open_db(marker.repository, marker.url);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::corrupt) throw;
    log_warning(fmt::format("the store {} is damaged and is rebuilt from the bucket: {}",
                            path().string(), error.what()));
    db_.reset();
    directory_.clear(marker);
    open_db(marker.repository, marker.url);
  }
  remove_strays();
}

void LocalStore::open_db(const std::string& repository, const std::string& url) {
  make_directories(images(), 0755);
  make_directories(path() / "deltas", 0755);
  make_directories(temporary_directory(), 0700);
  const auto free_bytes = [space = space_] { return space().free_bytes; };
  db_ = Db::open(path() / "db", free_bytes);
  load(repository, url);
}

void LocalStore::load(const std::string& repository, const std::string& url) {
  const std::optional<std::string> format = db_->find(Family::store, "format");
  if (format && (format != kStoreFormat || db_->find(Family::store, "repository") != repository)) {
    throw Error(ErrorCode::corrupt, "its records are of another format or repository");
  }
  if (!format) {
    db_->write({{Family::store, "format", std::string(kStoreFormat)},
                {Family::store, "repository", repository},
                {Family::store, "url", url}});
  }
  if (const auto newest = db_->find(Family::store, "newest")) {
    newest_.version = version_of_key(*newest, 8 + sizeof(Sha256), "default");
    std::memcpy(newest_.manifest_sha256.data(), newest->data() + 8, sizeof(Sha256));
  }
  drop_unusable(read_records());
  load_deltas();
}

// A record without its file counts for nothing; a file without a record goes with the strays.
void LocalStore::load_deltas() {
  deltas_.clear();
  std::vector<Db::Change> gone;
  db_->scan(Family::deltas, "", [&](std::string_view key, std::string_view value) {
    const std::uint64_t version = version_of_key(key, 8, "deltas");
    if (value.size() != 8) throw_bad_record("deltas");
    std::error_code error;
    const std::uint64_t size = fs::file_size(delta_path(version), error);
    if (!error && size == load_be(value)) {
      deltas_[version] = {size, true};
    } else {
      gone.push_back({Family::deltas, std::string(key), std::nullopt});
    }
  });
  try {
    if (!gone.empty()) db_->write(gone);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::no_space) throw;
    log_warning(error.what());
  }
}

LocalStore::Records LocalStore::read_records() const {
  Records records;
  db_->scan(Family::hashes, "", [&](std::string_view key, std::string_view value) {
    if (value.size() % 8 != 0) throw_bad_record("hashes");
    records[version_of_key(key, 8, "hashes")] = {};
  });
  db_->scan(Family::images, "", [&](std::string_view key, std::string_view value) {
    if (value.size() != 9) throw_bad_record("images");
    const auto version = records.find(version_of_key(key, 12, "images"));
    // Without hashes the version is not complete; its directory goes with the strays.
    if (version == records.end()) return;
    const bool is_absent = value[0] == kAbsent;
    if ((!is_absent && value[0] != kComplete) || load_be(key.substr(8)) != version->second.size()) {
      throw_bad_record("images");
    }
    version->second.push_back({load_be(value.substr(1)), is_absent});
  });
  return records;
}

void LocalStore::drop_unusable(const Records& records) {
  for (const auto& [version, images] : records) {
    if (has_files(image_directory(version), images)) {
      complete_[version] = absent_of(images);
      continue;
    }
    log_warning(
        fmt::format("the images of version {} in {} are not what was recorded; they are "
                    "made again",
                    version, path().string()));
    forget(version);
  }
}

// What no record speaks for: files of an interrupted attempt, spools of the last process.
void LocalStore::remove_strays() {
  for (const auto& entry : fs::directory_iterator(images())) {
    const auto version = version_of_name(entry.path().filename().string());
    if (!version || !is_complete(*version)) discard(entry.path());
  }
  std::set<fs::path> deltas;
  for (const auto& [version, delta] : deltas_) deltas.insert(delta_path(version));
  for (const auto& entry : fs::directory_iterator(path() / "deltas")) {
    if (!deltas.contains(entry.path())) discard(entry.path());
  }
  for (const auto& entry : fs::directory_iterator(temporary_directory())) discard(entry.path());
}

std::vector<std::uint64_t> LocalStore::manifest_numbers() const {
  std::vector<std::uint64_t> numbers;
  db_->scan(Family::manifests, "", [&](std::string_view key, std::string_view) {
    numbers.push_back(version_of_key(key, 8, "manifests"));
  });
  return numbers;
}

std::set<Sha256> LocalStore::layout_ids() const {
  std::set<Sha256> ids;
  db_->scan(Family::layouts, "", [&](std::string_view key, std::string_view) {
    Sha256 id{};
    if (key.size() != id.size()) return;
    std::memcpy(id.data(), key.data(), id.size());
    ids.insert(id);
  });
  return ids;
}

void LocalStore::remove_layouts(std::span<const Sha256> ids) {
  std::vector<Db::Change> changes;
  for (const Sha256& id : ids) {
    changes.push_back({Family::layouts, std::string(as_text(id)), std::nullopt});
  }
  if (!changes.empty()) db_->write(changes, Durability::process);
}

void LocalStore::put_newest(const Newest& newest) {
  const std::scoped_lock one_writer(newest_mutex_);
  if (newest.version < this->newest().version) return;
  db_->write({{Family::store, "newest", text_of(newest)}});
  const std::scoped_lock lock(mutex_);
  newest_ = newest;
}

std::vector<std::uint64_t> LocalStore::complete_versions() const {
  const std::scoped_lock lock(mutex_);
  std::vector<std::uint64_t> versions;
  for (const auto& [version, absent] : complete_) versions.push_back(version);
  return versions;
}

std::vector<bool> LocalStore::absent_files(std::uint64_t version) const {
  const std::scoped_lock lock(mutex_);
  const auto found = complete_.find(version);
  return found == complete_.end() ? std::vector<bool>() : found->second;
}

std::vector<std::uint64_t> LocalStore::chunk_hashes(std::uint64_t version) const {
  const std::optional<std::string> bytes =
      is_complete(version) ? db_->find(Family::hashes, key_of(version)) : std::nullopt;
  if (!bytes) {
    throw Error(ErrorCode::not_found, fmt::format("version {} is not complete in the store {}",
                                                  version, path().string()));
  }
  std::vector<std::uint64_t> hashes(bytes->size() / 8);
  for (std::size_t i = 0; i < hashes.size(); i++) {
    hashes[i] = load_le<std::uint64_t>(as_bytes(*bytes).data() + 8 * i);
  }
  return hashes;
}

ImagesLock LocalStore::lock_images(const Context& context) {
  constexpr auto kLookAgain = std::chrono::hours(1);  // a deadline may be as far off as can be
  std::unique_lock lock(images_mutex_);
  while (!images_free_.wait_until(lock, context.stop,
                                  std::min(context.deadline, Clock::now() + kLookAgain),
                                  [&] { return !images_locked_; })) {
    context.check("waiting for another version to be brought into the store");
  }
  images_locked_ = true;
  return ImagesLock([this] {
    const std::scoped_lock unlocking(images_mutex_);
    images_locked_ = false;
    images_free_.notify_one();
  });
}

fs::path LocalStore::begin_images(std::uint64_t version) {
  assert(!is_partial(version));
  remove_images(version);
  const fs::path directory = image_directory(version);
  make_directories(directory, 0755);
  return directory;
}

void LocalStore::complete_images(std::uint64_t version, std::span<const std::uint64_t> file_sizes,
                                 std::span<const std::uint64_t> chunk_hashes,
                                 const std::vector<bool>& absent) {
  ImageRecords images;
  for (std::size_t i = 0; i < file_sizes.size(); i++) {
    images.push_back({file_sizes[i], i < absent.size() && absent[i]});
  }
  if (!has_files(image_directory(version), images)) {
    throw Error(ErrorCode::io, fmt::format("the files in {} are not those of version {}",
                                           image_directory(version).string(), version));
  }
  std::vector<Db::Change> changes;
  for (std::uint32_t file = 0; file < images.size(); file++) {
    changes.push_back({Family::images, image_key(version, file), image_value(images[file])});
  }
  std::string hashes;
  hashes.reserve(8 * chunk_hashes.size());
  for (const std::uint64_t hash : chunk_hashes) append_le(hashes, hash);
  changes.push_back({Family::hashes, key_of(version), std::move(hashes)});
  db_->write(changes);

  const std::scoped_lock lock(mutex_);
  complete_[version] = absent_of(images);
}

void LocalStore::remove_images(std::uint64_t version) {
  forget(version);
  {
    const std::scoped_lock lock(mutex_);
    complete_.erase(version);
  }
  discard(image_directory(version));
}

// Removes the records of a version.  On a full disk they stay: files that are gone are noticed when
// the store is opened, and a new attempt writes the same keys.
void LocalStore::forget(std::uint64_t version) {
  std::vector<Db::Change> changes;
  if (db_->find(Family::hashes, key_of(version))) {
    changes.push_back({Family::hashes, key_of(version), std::nullopt});
  }
  db_->scan(Family::images, key_of(version), [&](std::string_view key, std::string_view) {
    changes.push_back({Family::images, std::string(key), std::nullopt});
  });
  if (changes.empty()) return;
  try {
    db_->write(changes);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::no_space) throw;
    log_warning(error.what());
  }
}

// ---- images that are filled while they are read ----

void LocalStore::begin_partial(std::uint64_t version, std::uint64_t bytes, Eviction::Files files) {
  const std::scoped_lock lock(mutex_);
  assert(!complete_.contains(version) && !partial_.contains(version));
  Partial& partial = partial_[version];
  partial.order = ++partials_begun_;
  partial.bytes = std::min(bytes, kBytesMax);
  partial.files = std::move(files);
}

void LocalStore::end_partial(std::uint64_t version) noexcept {
  const std::scoped_lock lock(mutex_);
  partial_.erase(version);
  partial_changed_.notify_all();
}

void LocalStore::set_partial_error(std::uint64_t version, std::optional<Error> error) {
  const std::scoped_lock lock(mutex_);
  const auto found = partial_.find(version);
  if (found == partial_.end()) return;
  found->second.error.reset();
  if (error) found->second.error.emplace(error->code(), error->what());
  partial_changed_.notify_all();
}

void LocalStore::wait_partial(std::uint64_t version, const Context& context) {
  constexpr auto kLookAgain = std::chrono::hours(1);  // a deadline may be as far off as can be
  std::unique_lock lock(mutex_);
  const auto is_settled = [&] {
    const auto found = partial_.find(version);
    return found == partial_.end() || found->second.error;
  };
  while (!partial_changed_.wait_until(
      lock, context.stop, std::min(context.deadline, Clock::now() + kLookAgain), is_settled)) {
    context.check(fmt::format("waiting for version {}, which is filled while it is read", version));
  }
  const auto found = partial_.find(version);
  if (found != partial_.end()) throw Error(found->second.error->first, found->second.error->second);
}

// The first begun first.
std::vector<std::uint64_t> LocalStore::partial_versions() const {
  std::map<std::uint64_t, std::uint64_t> by_order;
  const std::scoped_lock lock(mutex_);
  for (const auto& [version, partial] : partial_) by_order[partial.order] = version;
  std::vector<std::uint64_t> versions;
  for (const auto& [order, version] : by_order) versions.push_back(version);
  return versions;
}

// Bytes of the newest complete version, or of the largest partial one: what a store's size is
// measured by where nothing is said of it.
std::uint64_t LocalStore::newest_bytes() const {
  const std::vector<std::uint64_t> complete = complete_versions();
  std::uint64_t bytes = complete.empty() ? 0 : bytes_of({complete.back()});
  const std::scoped_lock lock(mutex_);
  for (const auto& [version, partial] : partial_) bytes = std::max(bytes, partial.bytes);
  return bytes;
}

// ---- deltas as files ----

std::optional<fs::path> LocalStore::find_delta(std::uint64_t version) const {
  const std::scoped_lock lock(mutex_);
  const auto found = deltas_.find(version);
  if (found == deltas_.end() || !found->second.is_complete) return std::nullopt;
  return delta_path(version);
}

void LocalStore::complete_delta(std::uint64_t version, const fs::path& file) {
  std::uint64_t expected = 0;
  {
    const std::scoped_lock lock(mutex_);
    expected = deltas_.at(version).bytes;
  }
  if (const std::uint64_t size = fs::file_size(file); size != expected) {
    throw Error(ErrorCode::io, fmt::format("{} has {} bytes, not the {} of the delta of version {}",
                                           file.string(), size, expected, version));
  }
  fs::rename(file, delta_path(version));
  try {
    fsync_directory(path() / "deltas");
    std::string value;
    append_be64(value, expected);
    db_->write({{Family::deltas, key_of(version), std::move(value)}});
  } catch (const Error&) {
    discard(delta_path(version));
    throw;
  }
  const std::scoped_lock lock(mutex_);
  deltas_[version].is_complete = true;
}

void LocalStore::abandon_delta(std::uint64_t version, const fs::path& file) noexcept {
  {
    const std::scoped_lock lock(mutex_);
    const auto found = deltas_.find(version);
    if (found == deltas_.end() || found->second.is_complete) return;
    deltas_.erase(found);
  }
  std::error_code ignored;
  fs::remove(file, ignored);
}

std::map<std::uint64_t, LocalStore::Delta> LocalStore::deltas_now() const {
  const std::scoped_lock lock(mutex_);
  return deltas_;
}

std::uint64_t LocalStore::delta_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [version, delta] : deltas_now()) bytes += delta.bytes;
  return bytes;
}

// False if somebody reads it.  Whoever opens it in between keeps the file that he has opened.
bool LocalStore::remove_delta(std::uint64_t version) {
  if (!nobody_reads_file(delta_path(version))) return false;
  log_info(fmt::format("removing the delta of version {} to make room", version));
  {
    const std::scoped_lock lock(mutex_);
    deltas_.erase(version);
  }
  try {
    db_->write({{Family::deltas, key_of(version), std::nullopt}});
  } catch (const Error& error) {
    if (error.code() != ErrorCode::no_space) throw;
    log_warning(error.what());  // a record without its file counts for nothing
  }
  discard(delta_path(version));
  return true;
}

// Only root can remove what lies in a read-only directory.
void make_removable(const fs::path& directory) {
  std::error_code ignored;
  if (!fs::is_directory(fs::symlink_status(directory, ignored))) return;
  fs::permissions(directory, fs::perms::owner_all, fs::perm_options::add, ignored);
  fs::directory_iterator entry(directory, ignored);
  for (; !ignored && entry != fs::directory_iterator(); entry.increment(ignored)) {
    make_removable(entry->path());
  }
}

// Takes a directory or file away at once, then removes it: images never lie half removed under
// their own name.
void LocalStore::discard(const fs::path& directory) const {
  std::error_code error;
  if (fs::symlink_status(directory, error).type() == fs::file_type::not_found) return;
  make_removable(directory);
  fs::path away = temporary_directory() / ("removed-" + random_hex(8));
  fs::rename(directory, away, error);
  if (error) away = directory;
  fs::remove_all(away, error);
  if (error) {
    log_warning(fmt::format("cannot remove {}: {}", away.string(), error.message()));
  }
}

// Bytes on disk of several versions; what they share by hard links counts once.
std::uint64_t LocalStore::bytes_of(const std::vector<std::uint64_t>& versions) const {
  std::set<std::uint64_t> inodes;
  std::uint64_t bytes = 0;
  for (const std::uint64_t version : versions) {
    std::error_code error;
    fs::recursive_directory_iterator entry(image_directory(version), error);
    for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
      struct stat attributes {};
      if (::lstat(entry->path().c_str(), &attributes) != 0 || !S_ISREG(attributes.st_mode))
        continue;
      if (!inodes.insert(attributes.st_ino).second) continue;
      bytes += static_cast<std::uint64_t>(attributes.st_size);
    }
  }
  return bytes;
}

// What make_room weighs: `bytes` more, against both limits.
struct LocalStore::Room {
  std::uint64_t bytes, store_limit, free_min;

  [[nodiscard]] bool fits(std::uint64_t used, std::uint64_t free) const {
    return used + bytes <= store_limit && free >= free_min + bytes;
  }
  void check(const fs::path& store, std::uint64_t used, std::uint64_t free) const {
    if (used + bytes > store_limit) {
      throw Error(ErrorCode::no_space,
                  fmt::format("no room for {} of images in {}: {} must stay, the limit is {} "
                              "(--store-size), {} are missing",
                              human_bytes(bytes), store.string(), human_bytes(used),
                              human_bytes(store_limit), human_bytes(used + bytes - store_limit)));
    }
    if (free < free_min + bytes) {
      throw Error(ErrorCode::no_space,
                  fmt::format("no room for {} more in {}: its file system has or can get {} "
                              "free, {} must stay free (--min-free), {} are missing",
                              human_bytes(bytes), store.string(), human_bytes(free),
                              human_bytes(free_min), human_bytes(free_min + bytes - free)));
    }
  }
};

void LocalStore::make_room(std::uint64_t bytes, std::uint64_t version_bytes) {
  bytes = std::min(bytes, kBytesMax);
  const std::uint64_t largest =
      std::max({bytes, std::min(version_bytes, kBytesMax), newest_bytes()});
  const Room room{bytes, std::min(kBytesMax, limits_.store_bytes.value_or(3 * largest)),
                  free_min(space_())};
  make(room);
}

void LocalStore::make_free(std::uint64_t bytes) {
  bytes = std::min(bytes, kBytesMax);
  const Space space = space_();
  if (space.free_bytes >= free_min(space) + bytes) return;
  make({bytes, 2 * kBytesMax, free_min(space)});
}

fs::path LocalStore::begin_delta(std::uint64_t version, std::uint64_t bytes) {
  bytes = std::min(bytes, kBytesMax);
  const std::uint64_t known = newest_bytes();
  const std::uint64_t newest = known > 0 ? known : bytes;
  // Three versions may fill the default: without more, none of their deltas would ever have room.
  const std::uint64_t limit =
      limits_.store_bytes.value_or(3 * newest + std::max(newest / 4, bytes));
  make({bytes, std::min(kBytesMax, limit), free_min(space_())});
  const std::scoped_lock lock(mutex_);
  deltas_[version] = {bytes, false};
  return temporary_directory() / ("delta-" + random_hex(8));
}

std::uint64_t LocalStore::free_min(const Space& space) const {
  const std::uint64_t wanted =
      limits_.free_bytes_min.value_or(std::min(space.total_bytes / 20, kFreeBytesMinMax));
  return std::clamp(wanted, kRecordsFloorBytes, kBytesMax);
}

void LocalStore::make(const Room& room) {
  std::vector<std::uint64_t> counted = partial_versions();
  const std::size_t partial_count = counted.size();
  const std::vector<std::uint64_t> complete = complete_versions();
  counted.insert(counted.end(), complete.begin(), complete.end());
  if (room.fits(bytes_of(counted) + delta_bytes(), space_().free_bytes)) return;

  check_worth(room, counted);
  const std::uint64_t deltas = make_room_of_deltas(room, bytes_of(counted));
  const std::vector<std::uint64_t> candidates = counted;
  for (std::size_t i = 0; i < candidates.size(); i++) {
    if (room.fits(bytes_of(counted) + deltas, space_().free_bytes)) return;
    const std::uint64_t version = candidates[i];
    const bool is_gone = i < partial_count ? evict_partial(version) : evict(version);
    // Gone, or in use: then it does not count.
    if (is_gone || !eviction_.stays(version)) std::erase(counted, version);
  }
  room.check(path(), bytes_of(counted) + deltas, space_().free_bytes);
}

// Nothing goes if all that may go would not be enough.
void LocalStore::check_worth(const Room& room, const std::vector<std::uint64_t>& versions) const {
  std::vector<std::uint64_t> kept;
  std::copy_if(versions.begin(), versions.end(), std::back_inserter(kept),
               [&](std::uint64_t version) { return eviction_.stays(version); });
  const std::uint64_t kept_bytes = bytes_of(kept);
  std::uint64_t begun = 0, complete = 0;  // bytes of deltas
  for (const auto& [version, delta] : deltas_now()) {
    (delta.is_complete ? complete : begun) += delta.bytes;
  }
  room.check(path(), kept_bytes + begun,
             space_().free_bytes + bytes_of(versions) - kept_bytes + complete);
}

bool LocalStore::evict(std::uint64_t version) {
  const Eviction::Files files{
      .nobody_reads =
          [&] { return is_complete(version) && nobody_reads(image_directory(version)); },
      .remove =
          [&] {
            log_info(fmt::format("removing the images of version {} to make room", version));
            remove_images(version);
          }};
  return eviction_.evict(version, files);
}

bool LocalStore::evict_partial(std::uint64_t version) {
  Eviction::Files files;
  {
    const std::scoped_lock lock(mutex_);
    const auto found = partial_.find(version);
    if (found == partial_.end()) return false;
    files = found->second.files;
  }
  return eviction_.evict(version, files);
}

// Removes deltas, oldest first, until `room` is there or none may go.
// Returns: the bytes of those that are left and count: one that is read does not.
std::uint64_t LocalStore::make_room_of_deltas(const Room& room, std::uint64_t image_bytes) {
  const std::map<std::uint64_t, Delta> all = deltas_now();
  std::uint64_t counted = 0;
  for (const auto& [version, delta] : all) counted += delta.bytes;
  for (const auto& [version, delta] : all) {
    if (room.fits(image_bytes + counted, space_().free_bytes)) break;
    if (!delta.is_complete) continue;
    remove_delta(version);
    counted -= delta.bytes;
  }
  return counted;
}

fs::path default_parent() {
  if (::geteuid() == 0) return "/var/lib/weightfs";
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && fs::path(cache).is_absolute()) return fs::path(cache) / "weightfs";
  const char* home = std::getenv("HOME");
  if (home != nullptr && fs::path(home).is_absolute()) return fs::path(home) / ".cache/weightfs";
  throw Error(ErrorCode::invalid, "neither XDG_CACHE_HOME nor HOME is set; name a --store");
}

/// "<id>", or "<id>.2" and so on: those of several mounts of one repository.
bool is_default_name(std::string_view name, std::string_view repository) {
  if (!name.starts_with(repository)) return false;
  name.remove_prefix(repository.size());
  return name.empty() || (name.size() > 1 && name.front() == '.' &&
                          name.find_first_not_of("0123456789", 1) == std::string_view::npos);
}

}  // namespace

fs::path Store::default_path(std::string_view repository_id) {
  return default_parent() / repository_id;
}

std::optional<Store::Identity> Store::find_identity(const fs::path& path) {
  const std::optional<StoreMarker> marker = find_marker(path);
  if (!marker) return std::nullopt;
  return Identity{marker->repository, marker->url};
}

std::optional<fs::path> Store::find_default_by_url(std::string_view url) {
  // Several repositories may have lain at one URL, one after the other: the last one used counts.
  std::optional<fs::path> found;
  fs::file_time_type found_time;
  std::error_code error;
  fs::directory_iterator entry(default_parent(), error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::optional<Identity> identity = find_identity(entry->path());
    // Publishers' private stores lie beside it and say the same.
    if (!identity || identity->url != url) continue;
    if (!is_default_name(entry->path().filename().string(), identity->repository)) continue;
    std::error_code ignored;
    const auto time = fs::last_write_time(entry->path() / "lock", ignored);
    if (!found || time > found_time) {
      found = entry->path();
      found_time = time;
    }
  }
  return found;
}

std::unique_ptr<Store> Store::open(const fs::path& path, std::string_view repository,
                                   std::string_view url, StoreLimits limits,
                                   std::function<Space()> space) {
  try {
    StoreDirectory directory(path, repository, url);
    if (!space) space = [root = directory.path()] { return space_of(root); };
    return std::make_unique<LocalStore>(std::move(directory), repository, url, limits,
                                        std::move(space));
  } catch (const fs::filesystem_error& error) {
    throw_errno(error.code().value(), "open the store " + path.string());
  }
}

}  // namespace weightfs
