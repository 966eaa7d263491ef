#include "store/local/image_table.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cassert>
#include <charconv>
#include <chrono>
#include <mutex>
#include <set>

#include "store/base/log.hpp"
#include "store/local/discard.hpp"
#include "store/local/image_records.hpp"
#include "store/local/store_limits.hpp"
#include "store/os/file.hpp"

namespace weightfs {
namespace {

namespace fs = std::filesystem;

constexpr auto kWaitSlice = std::chrono::hours(1);  // a deadline may be as far off as can be

// The number that a directory of images is named by; nullopt if it is none.
std::optional<std::uint64_t> version_of_name(const std::string& name) {
  std::uint64_t version = 0;
  const char* end = name.data() + name.size();
  const auto [at, error] = std::from_chars(name.data(), end, version);
  if (error != std::errc() || at != end || name != std::to_string(version)) return std::nullopt;
  return version;
}

}  // namespace

ImageTable::ImageTable(Db& db, fs::path directory, fs::path temporary)
    : db_(db), directory_(std::move(directory)), temporary_(std::move(temporary)) {
  load();
  remove_strays();
}

void ImageTable::load() {
  for (const auto& [version, images] : read_image_records(db_)) {
    if (has_files(image_directory(version), images)) {
      complete_[version] = absent_files_of(images);
      continue;
    }
    log_warning(
        fmt::format("the images of version {} in {} do not match their records; they are rebuilt",
                    version, directory_.parent_path().string()));
    remove_image_records(db_, version);
  }
}

// What no record speaks for: files of an interrupted attempt.
void ImageTable::remove_strays() const {
  for (const auto& entry : fs::directory_iterator(directory_)) {
    const auto version = version_of_name(entry.path().filename().string());
    if (!version || !is_complete(*version)) discard(entry.path(), temporary_);
  }
}

fs::path ImageTable::image_directory(std::uint64_t version) const {
  return directory_ / std::to_string(version);
}

// ---- complete versions ----

std::vector<std::uint64_t> ImageTable::complete_versions() const {
  const std::scoped_lock lock(mutex_);
  std::vector<std::uint64_t> versions;
  for (const auto& [version, absent] : complete_) versions.push_back(version);
  return versions;
}

bool ImageTable::is_complete(std::uint64_t version) const {
  const std::scoped_lock lock(mutex_);
  return complete_.contains(version);
}

std::vector<bool> ImageTable::absent_files(std::uint64_t version) const {
  const std::scoped_lock lock(mutex_);
  const auto found = complete_.find(version);
  return found == complete_.end() ? std::vector<bool>() : found->second;
}

bool ImageTable::has_all_files(std::uint64_t version) const {
  return is_complete(version) && absent_files(version).empty();
}

std::vector<std::uint64_t> ImageTable::chunk_hashes(std::uint64_t version) const {
  if (is_complete(version)) {
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
  return ImagesLock([this] {
    const std::scoped_lock unlocking(lock_mutex_);
    is_locked_ = false;
    unlocked_.notify_one();
  });
}

fs::path ImageTable::begin_images(std::uint64_t version) {
  assert(!is_partial(version));
  remove_images(version);
  fs::path directory = image_directory(version);
  make_directories(directory, 0755);
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
  write_image_records(db_, version, images, chunk_hashes);
  const std::scoped_lock lock(mutex_);
  complete_[version] = absent_files_of(images);
}

void ImageTable::remove_images(std::uint64_t version) {
  remove_image_records(db_, version);
  {
    const std::scoped_lock lock(mutex_);
    complete_.erase(version);
  }
  discard(image_directory(version), temporary_);
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

std::uint64_t ImageTable::bytes_of(const std::vector<std::uint64_t>& versions) const {
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

std::uint64_t ImageTable::newest_bytes() const {
  const std::vector<std::uint64_t> complete = complete_versions();
  std::uint64_t bytes = complete.empty() ? 0 : bytes_of({complete.back()});
  const std::scoped_lock lock(mutex_);
  for (const auto& [version, partial] : partial_) bytes = std::max(bytes, partial.bytes);
  return bytes;
}

}  // namespace weightfs
