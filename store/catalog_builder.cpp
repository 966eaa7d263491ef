#include "store/catalog_builder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "store/bytes.hpp"
#include "store/error.hpp"
#include "store/kept_files.hpp"
#include "store/log.hpp"

namespace weightfs {
namespace {

constexpr std::chrono::seconds kUnreadablePause{30};
constexpr std::uint64_t kTagVersionsMax = 1'000'000;  // the newest so many; bounds memory

/// From the store's records alone.  Throws Error: corrupt.
std::optional<Version> stored_version(const Store& store, std::uint64_t number) {
  auto bytes = store.find_manifest(number);
  if (!bytes) return std::nullopt;
  Version version;
  version.manifest =
      Manifest::parse(*bytes, fmt::format("manifest {} in {}", number, store.path().string()));
  version.manifest_sha256 = sha256(as_bytes(*bytes));
  version.manifest_bytes = std::move(*bytes);
  return version;
}

/// Whether the store's record of a layout can be used.
bool has_layout(const Store& store, const Sha256& id) {
  const auto bytes = store.find_layout(id);
  return bytes && sha256(as_bytes(*bytes)) == id;
}

}  // namespace

CatalogBuilder::CatalogBuilder(Store& store, History& history, Follow follow, bool with_absent)
    : store_(store), history_(history), follow_(std::move(follow)), with_absent_(with_absent) {
  read_stored_tags();
}

std::shared_ptr<const Catalog> CatalogBuilder::make() {
  auto catalog = std::make_shared<Catalog>();
  std::map<std::uint64_t, std::shared_ptr<const CatalogVersion>> described;
  const std::lock_guard lock(mutex_);
  const std::uint64_t newest = store_.newest().version;
  for (const std::uint64_t number : store_.complete_versions()) {
    if (number > newest) break;
    const auto known = described_.find(number);
    const bool is_known = known != described_.end() && is_as_described(*known->second);
    const auto version = is_known ? known->second : describe(number, nullptr);
    if (!version) continue;
    described.emplace(number, version);
    if (is_hidden(number) || !(with_absent_ || version->has_all_files())) continue;
    catalog->versions.emplace(number, version);
  }
  described_ = std::move(described);
  const std::uint64_t chosen = choose_latest(follow_, catalog->versions);
  if (chosen > 0 && chosen >= shown_) catalog->latest = shown_ = chosen;
  catalog->tags = tags_;
  catalog->repository_time = newest_time_;
  return catalog;
}

void CatalogBuilder::fetch(const Context& context) {
  for (const std::uint64_t number : store_.complete_versions()) {
    {
      const std::lock_guard lock(mutex_);
      const auto known = described_.find(number);
      if (known != described_.end() && is_as_described(*known->second)) continue;
    }
    if (auto version = describe(number, &context)) {
      const std::lock_guard lock(mutex_);
      described_.insert_or_assign(number, std::move(version));
    }
  }
}

/// Files may have been added to a version since it was described.
bool CatalogBuilder::is_as_described(const CatalogVersion& version) const {
  if (version.has_all_files()) return true;
  const std::vector<bool> absent = store_.absent_files(version.number);
  const auto is_absent = [](const CatalogEntry& entry) {
    return entry.image == ImageState::absent;
  };
  return std::count(absent.begin(), absent.end(), true) ==
         std::count_if(version.entries.begin(), version.entries.end(), is_absent);
}

void CatalogBuilder::hide(Hider hider, std::uint64_t version) {
  const std::lock_guard lock(mutex_);
  hidden_[static_cast<std::size_t>(hider)].insert(version);
}

void CatalogBuilder::show(Hider hider, std::uint64_t version) {
  const std::lock_guard lock(mutex_);
  hidden_[static_cast<std::size_t>(hider)].erase(version);
}

void CatalogBuilder::show_all(Hider hider) {
  const std::lock_guard lock(mutex_);
  hidden_[static_cast<std::size_t>(hider)].clear();
}

bool CatalogBuilder::is_hidden(std::uint64_t version) const {
  return std::any_of(hidden_.begin(), hidden_.end(),
                     [&](const auto& hidden) { return hidden.contains(version); });
}

std::int64_t CatalogBuilder::newest_time() const {
  const std::lock_guard lock(mutex_);
  return newest_time_;
}

/// nullptr if the version cannot be shown now.
std::shared_ptr<const CatalogVersion> CatalogBuilder::describe(std::uint64_t number,
                                                               const Context* bucket) {
  try {
    return describe_now(number, bucket);
  } catch (const Error& error) {
    log_warning(fmt::format("version {} is here but cannot be shown: {}", number, error.what()));
    return nullptr;
  }
}

std::shared_ptr<const CatalogVersion> CatalogBuilder::describe_now(std::uint64_t number,
                                                                   const Context* bucket) {
  std::optional<Version> version = stored_version(store_, number);
  if (!version && bucket != nullptr) version = *history_.get(number, *bucket);
  if (!version) return nullptr;
  if (bucket == nullptr && !has_layout(store_, version->manifest.layout.sha256)) return nullptr;
  const auto layout = history_.layout(*version, bucket != nullptr ? *bucket : Context{});
  return make_catalog_version(*version, *layout, store_.image_directory(number),
                              absent_files(store_, *version, *layout));
}

void CatalogBuilder::read_stored_tags() {
  const std::vector<std::uint64_t> numbers = store_.manifest_numbers();
  if (numbers.empty()) return;
  const std::lock_guard lock(mutex_);
  expect_up_to(numbers.back());
  for (const std::uint64_t number : numbers) {
    try {
      if (const auto version = stored_version(store_, number)) take_tag(version->manifest);
    } catch (const Error& error) {
      log_warning(error.what());  // read_tags() tries again, by way of the bucket
    }
  }
}

/// Versions 1..newest exist: their tags are to be read.
void CatalogBuilder::expect_up_to(std::uint64_t newest) {
  const std::uint64_t least = newest > kTagVersionsMax ? newest - kTagVersionsMax : 0;
  for (std::uint64_t n = std::max(expected_, least) + 1; n <= newest; n++) unread_.insert(n);
  expected_ = std::max(expected_, newest);
}

void CatalogBuilder::note(const Version& version) {
  const std::lock_guard lock(mutex_);
  expect_up_to(version.number());
  take_tag(version.manifest);
}

void CatalogBuilder::take_tag(const Manifest& manifest) {
  unread_.erase(manifest.version);
  unreadable_.erase(manifest.version);
  if (manifest.version > newest_read_) {
    newest_read_ = manifest.version;
    newest_time_ = manifest.time;
  }
  if (manifest.tag.empty()) return;
  std::uint64_t& version = tags_[manifest.tag];
  version = std::max(version, manifest.version);
}

bool CatalogBuilder::read_tags(std::uint64_t newest, const Context& context,
                               Clock::time_point until) {
  bool learned = false;
  try {
    for (const std::uint64_t number : unread_tags(newest)) {
      if (Clock::now() >= until) break;
      context.check("reading tags");
      learned = read_tag(number, context) || learned;
    }
  } catch (const Error&) {
    // Out of reach, or stopped: the next poll says so.
  }
  return learned;
}

std::uint64_t CatalogBuilder::known_carrier(const std::string& tag) const {
  const std::lock_guard lock(mutex_);
  const auto found = tags_.find(tag);
  return found == tags_.end() ? 0 : found->second;
}

std::uint64_t CatalogBuilder::find_carrier(const std::string& tag, std::uint64_t newest,
                                           const Context& context) {
  for (const std::uint64_t number : unread_tags(newest)) {
    if (number <= known_carrier(tag)) break;
    context.check("looking for the tag " + tag);
    read_tag(number, context);
  }
  return known_carrier(tag);
}

/// Newest first, without those that are not to be tried now.
std::vector<std::uint64_t> CatalogBuilder::unread_tags(std::uint64_t newest) {
  const std::lock_guard lock(mutex_);
  expect_up_to(newest);
  std::vector<std::uint64_t> unread(unread_.rbegin(), unread_.rend());
  std::erase_if(unread, [&, now = Clock::now()](std::uint64_t number) {
    const auto later = unreadable_.find(number);
    return later != unreadable_.end() && now < later->second;
  });
  return unread;
}

/// Throws Error: the bucket is out of reach.
bool CatalogBuilder::read_tag(std::uint64_t number, const Context& context) {
  std::string problem = "is missing";
  try {
    if (const auto version = history_.find(number, context)) {
      note(*version);
      return true;
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::corrupt && error.code() != ErrorCode::unsupported) throw;
    problem = error.what();
  }
  const std::lock_guard lock(mutex_);
  if (!unreadable_.contains(number)) {
    log_warning(fmt::format("the tag of version {} is not known: its manifest cannot be read: {}",
                            number, problem));
  }
  unreadable_[number] = Clock::now() + kUnreadablePause;
  return false;
}

}  // namespace weightfs
