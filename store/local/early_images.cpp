#include "store/local/early_images.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <set>
#include <string_view>

namespace weightfs {
namespace {

constexpr std::chrono::seconds kPatience{30};  // for a bucket that does not answer

/// Of the files of the last pass.
std::filesystem::path directory_of(const EarlySet& set) {
  return set.directory.path() / std::to_string(set.passes);
}

std::set<std::string_view> names_of(std::span<const PackRef> packs) {
  std::set<std::string_view> names;
  for (const PackRef& pack : packs) names.insert(pack.name);
  return names;
}

}  // namespace

std::uint64_t EarlySet::size_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [path, image] : files) bytes += image.size_bytes;
  return bytes;
}

EarlyImages::Pass::~Pass() {
  if (images_ == nullptr) return;
  if (!has_added_) remove_files();
  images_->end_pass();
}

/// If a version has claimed the set meanwhile, they go with its rest.
void EarlyImages::Pass::remove_files() noexcept {
  const EarlySet* const set = images_->set_.get();
  if (set == nullptr || images_->is_claimed(set->version)) return;
  try {
    std::error_code ignored;
    std::filesystem::remove_all(directory_of(*set), ignored);
  } catch (const std::exception&) {  // no memory
  }
}

std::uint64_t EarlySet::noted_bytes() const {
  std::uint64_t bytes = 0;
  std::set<const FreshChunks*> known;
  for (const auto& [path, image] : files) {
    for (const auto& fresh : image.fresh) {
      if (fresh && known.insert(fresh.get()).second) bytes += fresh->size_bytes();
    }
  }
  return bytes;
}

std::filesystem::path EarlyImages::Pass::directory() const {
  std::filesystem::path path = directory_of(*images_->set_);
  std::filesystem::create_directories(path);
  return path;
}

void EarlyImages::Pass::add(std::string path, EarlyImage image) {
  has_added_ = true;
  EarlyImage replaced;
  {
    const std::lock_guard lock(images_->mutex_);
    EarlyImage& at = images_->set_->files[std::move(path)];
    if (at.file != image.file) replaced = std::move(at);
    at = std::move(image);
  }
  for (const auto& fresh : replaced.fresh) {
    if (fresh) fresh->give_up("a file was made early twice");
  }
  std::error_code ignored;
  if (!replaced.file.empty()) std::filesystem::remove(replaced.file, ignored);
}

std::optional<EarlyImages::Pass> EarlyImages::begin(EarlySource source, ImagesHome home,
                                                    const std::filesystem::path& temporary,
                                                    std::stop_source stop) {
  const std::uint64_t version = source.version;
  const Sha256 parent_sha256 = source.parent_sha256;
  std::unique_ptr<EarlySet> old;
  {
    const std::lock_guard lock(mutex_);
    if (is_running_ || version <= claimed_) return std::nullopt;
    const bool fits = set_ && set_->version == version && set_->parent_sha256 == parent_sha256 &&
                      set_->home == home;
    if (!fits) old = std::move(set_);
    is_running_ = true;  // so nobody else changes set_
    source_ = std::move(source);
    stop_ = std::move(stop);
  }
  std::optional<Pass> pass(*this);
  old.reset();
  if (!set_) {
    auto made = std::make_unique<EarlySet>(
        EarlySet{version, parent_sha256, home, ScratchDirectory(temporary, "early-")});
    const std::lock_guard lock(mutex_);
    set_ = std::move(made);
  }
  set_->passes++;
  return pass;
}

void EarlyImages::end_pass() noexcept {
  {
    const std::lock_guard lock(mutex_);
    is_running_ = false;
  }
  changed_.notify_all();
}

bool EarlyImages::is_claimed(std::uint64_t version) const {
  const std::lock_guard lock(mutex_);
  return version <= claimed_;
}

/// Stops the pass that is running, if it is of no use.
void EarlyImages::claim_pass(std::uint64_t version, std::span<const PackRef> packs) {
  const std::set<std::string_view> names = names_of(packs);
  std::stop_source useless(std::nostopstate);
  {
    const std::lock_guard lock(mutex_);
    claimed_ = std::max(claimed_, version);
    const auto is_its_own = [&](const PackRef& pack) { return names.contains(pack.name); };
    const bool is_of_use =
        source_.version > version ||
        (source_.version == version && std::ranges::all_of(source_.packs, is_its_own));
    if (is_running_ && !is_of_use) useless = stop_;
  }
  useless.request_stop();  // calls what waits for that
}

std::unique_ptr<EarlySet> EarlyImages::claim(std::uint64_t version, std::span<const PackRef> packs,
                                             const Context& context) {
  claim_pass(version, packs);
  std::unique_ptr<EarlySet> claimed;
  std::unique_lock lock(mutex_);
  const auto is_later = [&] { return set_ && set_->version > version; };
  const bool has_ended =
      changed_.wait_until(lock, context.stop, std::min(context.deadline, Clock::now() + kPatience),
                          [&] { return !is_running_ || is_later(); });
  context.check("waiting for files that are made early");
  if (!has_ended || is_later()) return nullptr;
  claimed = std::move(set_);
  lock.unlock();
  if (!claimed || claimed->version == version) return claimed;
  put_rest(std::move(claimed));
  return nullptr;
}

void EarlyImages::put_rest(std::unique_ptr<EarlySet> set) {
  if (!set) return;
  const std::lock_guard lock(mutex_);
  rest_.push_back(std::move(set));
}

void EarlyImages::drop_until(std::uint64_t version) noexcept {
  std::unique_ptr<EarlySet> dropped;
  std::vector<std::unique_ptr<EarlySet>> rest;
  const std::lock_guard lock(mutex_);
  rest.swap(rest_);
  if (!is_running_ && set_ && set_->version <= version) dropped = std::move(set_);
}

bool EarlyImages::drop() noexcept {
  std::unique_ptr<EarlySet> dropped;
  std::vector<std::unique_ptr<EarlySet>> rest;
  const std::lock_guard lock(mutex_);
  rest.swap(rest_);
  if (!is_running_) dropped = std::move(set_);
  return dropped != nullptr || !rest.empty();
}

std::uint64_t EarlyImages::size_bytes() const {
  const std::lock_guard lock(mutex_);
  return set_ ? set_->size_bytes() : 0;
}

std::uint64_t EarlyImages::taken_bytes() const {
  const std::lock_guard lock(mutex_);
  return taken_bytes_;
}

void EarlyImages::note_taken(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  taken_bytes_ += bytes;
}

}  // namespace weightfs
