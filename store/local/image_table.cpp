#include "store/local/image_table.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <mutex>
#include <set>
#include <system_error>
#include <utility>

#include "store/base/log.hpp"
#include "store/local/discard.hpp"
#include "store/local/image_records.hpp"
#include "store/local/image_times.hpp"
#include "store/local/store_limits.hpp"
#include "store/os/file.hpp"

namespace weightfs {
namespace {

namespace fs = std::filesystem;

constexpr auto kWaitSlice = std::chrono::hours(1);  // the deadline may be infinite

// The version whose images a directory of this name holds; nullopt if there is none.
std::optional<std::uint64_t> version_of_name(const std::string& name) {
  std::uint64_t version = 0;
  const char* end = name.data() + name.size();
  const auto [at, error] = std::from_chars(name.data(), end, version);
  if (error != std::errc() || at != end || name != std::to_string(version)) return std::nullopt;
  return version;
}

/// A file below a directory that may not have the bytes that were synced.  In a copy of a store
/// that was in use, files may be only half written though their records say that they are whole.
std::optional<fs::path> find_written_to(const fs::path& directory) {
  std::error_code error;
  fs::recursive_directory_iterator entry(directory, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    struct stat attributes {};
    const bool is_known = ::lstat(entry->path().c_str(), &attributes) == 0;
    if (!is_known || (S_ISREG(attributes.st_mode) && was_written_to(attributes)))
      return entry->path();
  }
  return error ? std::optional(directory) : std::nullopt;
}

bool warn_if_written_to(std::uint64_t version, const fs::path& directory) {
  const auto file = find_written_to(directory);
  if (!file) return false;
  log_warning(
      fmt::format("version {} counts as not synced: {} was written to since, or copied while it "
                  "was being written",
                  version, file->string()));
  return true;
}

}  // namespace

ImageTable::ImageTable(Db& db, fs::path directory, fs::path temporary)
    : db_(db), directory_(std::move(directory)), temporary_(std::move(temporary)) {
  load();
  remove_strays();
}

void ImageTable::load() {
  const auto coming = read_coming_files(db_);
  for (const auto& [version, records] : read_image_records(db_)) {
    const fs::path directory = image_directory(version);
    bool is_right = has_files(directory, records.images);
    if (const auto added = coming.find(version); !is_right && added != coming.end()) {
      remove_coming_files(directory, added->second);
      is_right = has_files(directory, records.images);
    }
    if (!is_right) {
      log_warning(
          fmt::format("the images of version {} in {} do not match their records; they are rebuilt",
                      version, directory_.parent_path().string()));
      forget_if_there_is_room(version);
    } else if (records.is_synced && !warn_if_written_to(version, directory)) {
      complete_[version] = {absent_files_of(records.images), true, ++generations_};
    } else {
      unchecked_[version] = absent_files_of(records.images);
    }
  }
}

// What a crash left of files that were being added to a version: without them it is what its
// records say.  With one that cannot be removed it is not, and is rebuilt.
void ImageTable::remove_coming_files(const fs::path& directory,
                                     const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    std::error_code ignored;
    fs::remove(directory / path, ignored);
  }
}

// Removes what has no record: files of an interrupted attempt.
void ImageTable::remove_strays() const {
  for (const auto& entry : fs::directory_iterator(directory_)) {
    const auto version = version_of_name(entry.path().filename().string());
    const bool is_recorded =
        version && (complete_.contains(*version) || unchecked_.contains(*version));
    if (!is_recorded) discard(entry.path(), temporary_);
  }
}

fs::path ImageTable::image_directory(std::uint64_t version) const {
  return directory_of(home_of(version)) / std::to_string(version);
}

// ---- complete versions ----

std::vector<std::uint64_t> ImageTable::complete_versions() const {
  const std::scoped_lock lock(mutex_);
  std::vector<std::uint64_t> versions;
  for (const auto& [version, images] : complete_) versions.push_back(version);
  return versions;
}

bool ImageTable::is_complete(std::uint64_t version) const {
  const std::scoped_lock lock(mutex_);
  return complete_.contains(version);
}

std::vector<bool> ImageTable::absent_files(std::uint64_t version) const {
  const std::scoped_lock lock(mutex_);
  const auto found = complete_.find(version);
  if (found != complete_.end()) return found->second.absent;
  const auto unchecked = unchecked_.find(version);
  return unchecked == unchecked_.end() ? std::vector<bool>() : unchecked->second;
}

bool ImageTable::has_all_files(std::uint64_t version) const {
  return is_complete(version) && absent_files(version).empty();
}

std::vector<std::uint64_t> ImageTable::chunk_hashes(std::uint64_t version) const {
  bool is_recorded = false;
  {
    const std::scoped_lock lock(mutex_);
    const auto found = complete_.find(version);
    is_recorded = found != complete_.end() || unchecked_.contains(version);
    if (found != complete_.end() && found->second.in_memory) return found->second.in_memory->hashes;
  }
  if (is_recorded) {
    if (auto hashes = find_chunk_hashes(db_, version)) return std::move(*hashes);
  }
  throw Error(ErrorCode::not_found, fmt::format("version {} is not complete in the store {}",
                                                version, directory_.parent_path().string()));
}

// ---- changes ----

ImagesLock ImageTable::lock_images(const Context& context) {
  check_lock_order(LockRank::images, "ImageTable::lock_images()");
  std::unique_lock lock(lock_mutex_);
  while (!unlocked_.wait_until(lock, context.stop,
                               std::min(context.deadline, Clock::now() + kWaitSlice),
                               [&] { return !is_locked_; })) {
    context.check("waiting for another version to be added to the store");
  }
  is_locked_ = true;
  lock.unlock();
  ImagesLock locked([this] {
    const std::scoped_lock unlocking(lock_mutex_);
    is_locked_ = false;
    unlocked_.notify_one();
  });
  remove_leftovers();
  return locked;
}

void ImageTable::remove_leftovers() noexcept {
  try {
    for (const std::uint64_t version : take_leftovers())
      discard(directory_ / std::to_string(version), temporary_);
  } catch (const std::exception& error) {  // they go when the store is opened
    log_warning(error.what());
  }
}

/// Without those that somebody makes again.
std::set<std::uint64_t> ImageTable::take_leftovers() {
  const std::scoped_lock lock(mutex_);
  std::erase_if(leftovers_, [&](std::uint64_t version) {
    return complete_.contains(version) || partial_.contains(version);
  });
  return std::exchange(leftovers_, {});
}

fs::path ImageTable::begin_images(std::uint64_t version, ImagesHome home) {
  assert(!is_partial(version));
  assert(home == ImagesHome::disk || memory_);
  remove_from_memory(version);
  forget(version);
  make_forgetting_durable(version);
  discard(image_directory(version), temporary_);
  {
    const std::scoped_lock lock(mutex_);
    leftovers_.erase(version);
    if (home == ImagesHome::memory) homed_in_memory_.insert(version);
  }
  fs::path directory = image_directory(version);
  // Whoever syncs the version syncs the directory that it lies in.
  if (::mkdir(directory.c_str(), 0755) != 0) {
    throw_errno(errno, "make the directory " + directory.string());
  }
  return directory;
}

void ImageTable::complete_images(std::uint64_t version, std::span<const std::uint64_t> file_sizes,
                                 std::span<const std::uint64_t> chunk_hashes,
                                 const std::vector<bool>& absent) {
  ImageRecords images;
  for (std::size_t i = 0; i < file_sizes.size(); i++) {
    images.push_back({file_sizes[i], i < absent.size() && absent[i]});
  }
  if (!has_files(image_directory(version), images)) {
    throw Error(ErrorCode::io, fmt::format("the files in {} do not belong to version {}",
                                           image_directory(version).string(), version));
  }
  const std::scoped_lock records(records_mutex_);
  if (home_of(version) == ImagesHome::memory) {
    InMemory in_memory{images, {chunk_hashes.begin(), chunk_hashes.end()}};
    const std::scoped_lock lock(mutex_);
    Complete& complete = complete_[version];
    complete = {absent_files_of(images), true, ++generations_,
                std::make_shared<InMemory>(std::move(in_memory)), false};
    return;
  }
  write_image_records(db_, version, images, chunk_hashes);
  const std::scoped_lock lock(mutex_);
  complete_[version] = {absent_files_of(images), false, ++generations_};
  unchecked_.erase(version);
}

void ImageTable::announce_files(std::uint64_t version, std::span<const std::string> paths) {
  if (home_of(version) == ImagesHome::disk) write_coming_files(db_, version, paths);
}

void ImageTable::remove_images(std::uint64_t version) {
  if (home_of(version) == ImagesHome::memory) return remove_from_memory(version);
  forget_if_there_is_room(version);
  discard(image_directory(version), temporary_);
}

// ---- images in memory ----

void ImageTable::use_memory(std::unique_ptr<ImageMemory> memory) {
  assert(!memory_);
  memory_ = std::move(memory);
}

ImagesHome ImageTable::home_of_next() const {
  const std::scoped_lock lock(mutex_);
  return memory_ && !complete_.empty() ? ImagesHome::memory : ImagesHome::disk;
}

fs::path ImageTable::directory_of(ImagesHome home) const {
  return home == ImagesHome::memory ? memory_->images() : directory_;
}

fs::path ImageTable::temporary_of(ImagesHome home) const {
  return home == ImagesHome::memory ? memory_->temporary() : temporary_;
}

ImagesHome ImageTable::home_of(std::uint64_t version) const {
  const std::scoped_lock lock(mutex_);
  return homed_in_memory_.contains(version) ? ImagesHome::memory : ImagesHome::disk;
}

std::vector<std::uint64_t> ImageTable::versions_in_memory() const {
  const std::scoped_lock lock(mutex_);
  std::vector<std::uint64_t> versions;
  for (const auto& [version, images] : complete_) {
    if (images.in_memory) versions.push_back(version);
  }
  return versions;
}

std::vector<std::uint64_t> ImageTable::versions_on_disk() const {
  const std::scoped_lock lock(mutex_);
  std::vector<std::uint64_t> versions;
  for (const auto& [version, images] : complete_) {
    if (images.is_on_disk) versions.push_back(version);
  }
  return versions;
}

std::uint64_t ImageTable::base_version() const {
  if (!memory_) return 0;
  const std::scoped_lock lock(mutex_);
  std::uint64_t newest = 0, synced = 0;
  for (const auto& [version, images] : complete_) {
    if (!images.is_on_disk) continue;
    newest = version;
    if (images.is_synced) synced = version;
  }
  return synced > 0 ? synced : newest;
}

/// What is slow is done without locks, so that the next version need not wait for the disk.
bool ImageTable::keep_on_disk(std::uint64_t version, std::uint64_t generation,
                              const fs::path& copy) {
  if (!is_in_memory_only(version, generation)) return false;
  make_forgetting_durable(version);
  const fs::path directory = directory_ / std::to_string(version);
  discard(directory, temporary_);
  if (::rename(copy.c_str(), directory.c_str()) != 0) {
    throw_errno(errno, fmt::format("rename {} to {}", copy.string(), directory.string()));
  }
  bool is_recorded = false;
  try {
    fsync_directory(directory_);
    is_recorded = record_copy(version, generation);
  } catch (...) {
    discard(directory, temporary_);  // nobody would count it
    throw;
  }
  if (!is_recorded) {
    discard(directory, temporary_);
    return false;
  }
  db_.sync();
  return true;
}

bool ImageTable::record_copy(std::uint64_t version, std::uint64_t generation) {
  const std::scoped_lock records(records_mutex_);
  if (!is_in_memory_only(version, generation)) return false;
  std::shared_ptr<const InMemory> in_memory;
  {
    const std::scoped_lock lock(mutex_);
    in_memory = complete_.at(version).in_memory;
  }
  write_image_records(db_, version, in_memory->images, in_memory->hashes);
  mark_image_records_synced(db_, version);
  const std::scoped_lock lock(mutex_);
  complete_.at(version).is_on_disk = true;
  return true;
}

bool ImageTable::is_in_memory_only(std::uint64_t version, std::uint64_t generation) const {
  const std::scoped_lock lock(mutex_);
  const auto found = complete_.find(version);
  return found != complete_.end() && found->second.generation == generation &&
         found->second.in_memory && !found->second.is_on_disk;
}

void ImageTable::remove_copy(std::uint64_t version) {
  const std::scoped_lock records(records_mutex_);
  {
    const std::scoped_lock lock(mutex_);
    const auto found = complete_.find(version);
    if (found == complete_.end() || !found->second.in_memory) return;
    found->second.is_on_disk = false;
  }
  try {
    if (remove_image_records(db_, version)) {
      const std::scoped_lock lock(mutex_);
      forgotten_.insert(version);
    }
  } catch (const Error& error) {
    log_warning(error.what());  // a record without its files counts for nothing
  }
  discard(directory_ / std::to_string(version), temporary_);
}

/// Does nothing if it is not there.
void ImageTable::remove_from_memory(std::uint64_t version) {
  if (home_of(version) != ImagesHome::memory) return;
  const fs::path directory = image_directory(version);
  {
    const std::scoped_lock records(records_mutex_);
    const std::scoped_lock lock(mutex_);
    homed_in_memory_.erase(version);
    const auto found = complete_.find(version);
    if (found != complete_.end() && !found->second.is_on_disk)
      complete_.erase(found);
    else if (found != complete_.end())
      found->second.in_memory.reset();
  }
  discard(directory, temporary_of(ImagesHome::memory));
}

/// A power cut may bring the records back, with the files or without them.
void ImageTable::forget(std::uint64_t version) {
  const std::scoped_lock records(records_mutex_);
  const bool had_records = remove_image_records(db_, version);
  const std::scoped_lock lock(mutex_);
  complete_.erase(version);
  unchecked_.erase(version);
  if (had_records) forgotten_.insert(version);
}

void ImageTable::forget_if_there_is_room(std::uint64_t version) {
  try {
    forget(version);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::no_space) throw;
    log_warning(error.what());
    const std::scoped_lock lock(mutex_);
    complete_.erase(version);
    unchecked_.erase(version);
  }
}

void ImageTable::make_forgetting_durable(std::uint64_t version) {
  {
    const std::scoped_lock lock(mutex_);
    if (!forgotten_.contains(version)) return;
  }
  sync_records();
}

void ImageTable::sync_records() {
  std::set<std::uint64_t> forgotten;
  {
    const std::scoped_lock lock(mutex_);
    forgotten = forgotten_;
  }
  db_.sync();
  const std::scoped_lock lock(mutex_);
  for (const std::uint64_t version : forgotten) forgotten_.erase(version);
}

// ---- what a power cut may take ----

std::vector<std::uint64_t> ImageTable::unsynced_versions() const {
  const std::scoped_lock lock(mutex_);
  std::vector<std::uint64_t> versions;
  for (const auto& [version, images] : complete_) {
    if (!images.is_synced) versions.push_back(version);
  }
  return versions;
}

std::uint64_t ImageTable::generation(std::uint64_t version) const {
  const std::scoped_lock lock(mutex_);
  const auto found = complete_.find(version);
  return found == complete_.end() ? 0 : found->second.generation;
}

bool ImageTable::mark_synced(std::uint64_t version, std::uint64_t generation) {
  {
    const std::scoped_lock records(records_mutex_);
    if (generation == 0 || this->generation(version) != generation) return false;
    mark_image_records_synced(db_, version);
    const std::scoped_lock lock(mutex_);
    complete_[version].is_synced = true;
  }
  // Nobody waits for it: that the files are synced is true whether or not it is known.
  sync_records();
  return true;
}

bool ImageTable::forget_images(std::uint64_t version, std::uint64_t generation) {
  const std::scoped_lock records(records_mutex_);
  if (generation == 0 || this->generation(version) != generation) return false;
  {
    const std::scoped_lock lock(mutex_);
    complete_.erase(version);  // whatever fails below
  }
  try {
    // What is noted needs no memory once the records may be gone.
    std::set<std::uint64_t> leftover{version}, forgotten{version};
    bool had_records = true;
    try {
      had_records = remove_image_records(db_, version);
    } catch (const Error& error) {
      // It is unsynced in the records, so it is checked before it is shown again; or it was synced,
      // and its damage is found again.
      log_caught("forgetting a version", error);
    }
    const std::scoped_lock lock(mutex_);
    leftovers_.merge(leftover);
    if (had_records) forgotten_.merge(forgotten);
  } catch (const std::exception& error) {
    log_caught("forgetting a version", error);
  }
  return true;
}

std::vector<std::uint64_t> ImageTable::unchecked_versions() const {
  const std::scoped_lock lock(mutex_);
  std::vector<std::uint64_t> versions;
  for (const auto& [version, absent] : unchecked_) versions.push_back(version);
  return versions;
}

void ImageTable::accept_unchecked(std::uint64_t version) {
  const std::scoped_lock lock(mutex_);
  const auto found = unchecked_.find(version);
  if (found == unchecked_.end()) return;
  complete_[version] = {std::move(found->second), false, ++generations_};
  unchecked_.erase(found);
}

// ---- images that are filled while they are read ----

void ImageTable::begin_partial(std::uint64_t version, std::uint64_t bytes, Eviction::Files files) {
  const std::scoped_lock lock(mutex_);
  assert(!complete_.contains(version) && !partial_.contains(version));
  Partial& partial = partial_[version];
  partial.order = ++partials_begun_;
  partial.bytes = std::min(bytes, kSizeBytesMax);
  partial.files = std::move(files);
}

void ImageTable::end_partial(std::uint64_t version) noexcept {
  const std::scoped_lock lock(mutex_);
  partial_.erase(version);
  partial_changed_.notify_all();
}

void ImageTable::set_partial_error(std::uint64_t version, std::optional<Error> error) {
  const std::scoped_lock lock(mutex_);
  const auto found = partial_.find(version);
  if (found == partial_.end()) return;
  found->second.error.reset();
  if (error) found->second.error.emplace(error->code(), error->what());
  partial_changed_.notify_all();
}

bool ImageTable::is_partial(std::uint64_t version) const {
  const std::scoped_lock lock(mutex_);
  return partial_.contains(version);
}

void ImageTable::wait_partial(std::uint64_t version, const Context& context) {
  std::unique_lock lock(mutex_);
  const auto is_settled = [&] {
    const auto found = partial_.find(version);
    return found == partial_.end() || found->second.error;
  };
  while (!partial_changed_.wait_until(
      lock, context.stop, std::min(context.deadline, Clock::now() + kWaitSlice), is_settled)) {
    context.check(fmt::format("waiting for version {}, which is filled while it is read", version));
  }
  const auto found = partial_.find(version);
  if (found != partial_.end()) throw Error(found->second.error->first, found->second.error->second);
}

std::vector<std::uint64_t> ImageTable::partial_versions() const {
  std::map<std::uint64_t, std::uint64_t> by_order;
  const std::scoped_lock lock(mutex_);
  for (const auto& [version, partial] : partial_) by_order[partial.order] = version;
  std::vector<std::uint64_t> versions;
  for (const auto& [order, version] : by_order) versions.push_back(version);
  return versions;
}

std::optional<Eviction::Files> ImageTable::partial_files(std::uint64_t version) const {
  const std::scoped_lock lock(mutex_);
  const auto found = partial_.find(version);
  if (found == partial_.end()) return std::nullopt;
  return found->second.files;
}

// ---- sizes ----

std::uint64_t ImageTable::bytes_of(const std::vector<std::uint64_t>& versions,
                                   ImagesHome home) const {
  std::set<std::uint64_t> inodes;
  std::uint64_t bytes = 0;
  for (const std::uint64_t version : versions) {
    const fs::path directory = directory_of(home) / std::to_string(version);
    std::error_code error;
    fs::recursive_directory_iterator entry(directory, error);
    for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
      struct stat attributes {};
      if (::lstat(entry->path().c_str(), &attributes) != 0 || !S_ISREG(attributes.st_mode))
        continue;
      if (!inodes.insert(attributes.st_ino).second) continue;
      bytes += static_cast<std::uint64_t>(attributes.st_size);
    }
    // A sum that is too small would be taken for room.  What leaves meanwhile is gone, and what the
    // disk does not tell any more holds up no other version.
    if (is_want_of_resources(error.value())) {
      throw_errno(error.value(), "measure " + directory.string());
    }
  }
  return bytes;
}

std::uint64_t ImageTable::newest_bytes() const {
  const std::vector<std::uint64_t> complete = complete_versions();
  std::uint64_t bytes =
      complete.empty() ? 0 : bytes_of({complete.back()}, home_of(complete.back()));
  const std::scoped_lock lock(mutex_);
  for (const auto& [version, partial] : partial_) bytes = std::max(bytes, partial.bytes);
  return bytes;
}

}  // namespace weightfs
