#include "store/local/early_images.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <set>

namespace weightfs {
namespace {

constexpr std::chrono::seconds kPatience{30};  // for a bucket that does not answer

}  // namespace

std::uint64_t EarlySet::size_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [path, image] : files) bytes += image.size_bytes;
  return bytes;
}

EarlyImages::Pass::~Pass() {
  if (images_ != nullptr) images_->end_pass();
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
  const std::filesystem::path path =
      images_->set_->directory.path() / std::to_string(images_->set_->passes);
  std::filesystem::create_directories(path);
  return path;
}

void EarlyImages::Pass::add(std::string path, EarlyImage image) {
  std::filesystem::path replaced;
  {
    const std::lock_guard lock(images_->mutex_);
    EarlyImage& at = images_->set_->files[std::move(path)];
    if (at.file != image.file) replaced = at.file;
    at = std::move(image);
  }
  std::error_code ignored;
  if (!replaced.empty()) std::filesystem::remove(replaced, ignored);
}

std::optional<EarlyImages::Pass> EarlyImages::begin(std::uint64_t version,
                                                    const Sha256& parent_sha256, ImagesHome home,
                                                    const std::filesystem::path& temporary) {
  std::unique_ptr<EarlySet> old;
  {
    const std::lock_guard lock(mutex_);
    if (is_running_ || version <= claimed_) return std::nullopt;
    const bool fits = set_ && set_->version == version && set_->parent_sha256 == parent_sha256 &&
                      set_->home == home;
    if (!fits) old = std::move(set_);
    is_running_ = true;  // so nobody else changes set_
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

std::unique_ptr<EarlySet> EarlyImages::claim(std::uint64_t version, const Context& context) {
  std::unique_ptr<EarlySet> claimed;
  std::unique_lock lock(mutex_);
  claimed_ = std::max(claimed_, version);
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
