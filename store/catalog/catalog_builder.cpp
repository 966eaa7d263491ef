#include "store/catalog/catalog_builder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/materialize/file_filter.hpp"
#include "store/threads/parallel.hpp"

namespace weightfs {
namespace {

constexpr std::chrono::seconds kUnreadablePause{30};
constexpr unsigned kTagRequests = 32;                 // in parallel, since latency is the limit
constexpr std::uint64_t kTagVersionsMax = 1'000'000;  // only the newest ones, to bound memory

/// Reads the store's record only.  Throws Error: corrupt.
std::optional<Version> stored_version(const Store& store, std::uint64_t number) {
  auto bytes = store.manifests().find_manifest(number);
  if (!bytes) return std::nullopt;
  Version version;
  version.manifest =
      Manifest::parse(*bytes, fmt::format("manifest {} in {}", number, store.path().string()));
  version.manifest_sha256 = sha256(as_bytes(*bytes));
  version.manifest_bytes = std::move(*bytes);
  return version;
}

std::string unknown_tag(std::uint64_t number, const std::string& why) {
  return fmt::format("the tag of version {} is not known: its manifest cannot be read: {}", number,
                     why);
}

/// A copy of a version with all its kept files in state `state`.
std::shared_ptr<const CatalogVersion> incomplete_version(const CatalogVersion& version,
                                                         ImageState state) {
  auto made = std::make_shared<CatalogVersion>(version);
  for (CatalogEntry& entry : made->entries) {
    if (!entry.is_directory && !entry.is_remote) entry.image = state;
  }
  return made;
}

}  // namespace

CatalogBuilder::CatalogBuilder(Store& store, History& history, Follow follow, bool with_absent,
                               std::vector<std::string> only)
    : store_(store),
      history_(history),
      follow_(std::move(follow)),
      with_absent_(with_absent),
      only_(std::move(only)) {
  read_stored_tags();
}

std::shared_ptr<const Catalog> CatalogBuilder::make() {
  auto catalog = std::make_shared<Catalog>();
  const std::lock_guard lock(mutex_);
  add_incomplete(*catalog);
  add_complete(*catalog);
  std::erase_if(described_, [&](const auto& entry) {
    return entry.first != shown_ && !catalog->find(entry.first);
  });
  choose(*catalog);
  catalog->tags = tags_;
  catalog->repository_time = newest_time_;
  return catalog;
}

/// Called before add_complete(), so that a version that becomes complete in between is not missed.
void CatalogBuilder::add_incomplete(Catalog& catalog) {
  if (partials_ != nullptr) {
    for (const auto& [number, partial] : partials_->list()) {
      const bool is_leaving = store_.eviction().is_hidden(number);
      add_incomplete(catalog, number, is_leaving ? ImageState::absent : ImageState::partial);
    }
  }
  for (const std::uint64_t number : named_) add_incomplete(catalog, number, ImageState::absent);
}

void CatalogBuilder::add_incomplete(Catalog& catalog, std::uint64_t version, ImageState state) {
  if (catalog.incomplete.contains(version)) return;
  Described* const described = known(version);
  if (described == nullptr) return;
  if (!described->incomplete || described->state != state) {
    described->incomplete = incomplete_version(*described->version, state);
    described->state = state;
  }
  catalog.incomplete.emplace(version, IncompleteVersion{described->incomplete, state});
}

void CatalogBuilder::add_complete(Catalog& catalog) {
  const std::uint64_t newest = store_.manifests().newest().version;
  for (const std::uint64_t number : store_.images().complete_versions()) {
    if (number > newest) break;
    const Described* const described = known(number);
    if (described == nullptr) continue;
    if (!with_absent_ && !described->version->has_all_files()) continue;
    if (store_.eviction().is_hidden(number)) {
      hide(catalog, number);
      continue;
    }
    catalog.versions.emplace(number, described->version);
    catalog.incomplete.erase(number);
  }
}

/// Readers that open the version then wait, where waiting is possible.
void CatalogBuilder::hide(Catalog& catalog, std::uint64_t version) {
  catalog.versions.erase(version);
  if (partials_ != nullptr) add_incomplete(catalog, version, ImageState::absent);
}

void CatalogBuilder::choose(Catalog& catalog) {
  std::uint64_t chosen = choose_latest(follow_, catalog.versions);
  while (chosen > shown_ && !reserve_latest(chosen)) {  // it is being removed
    hide(catalog, chosen);
    chosen = choose_latest(follow_, catalog.versions);
  }
  if (chosen > 0 && chosen >= shown_) {
    catalog.latest = shown_ = chosen;
    has_shown_complete_ = true;
  } else if (has_shown_complete_) {
    keep_latest(catalog);
  } else if (catalog.has_images(first_)) {
    catalog.latest = first_;
    shown_ = std::max(shown_, first_);
  }
  if (catalog.latest > 0) reserve_latest(catalog.latest);
}

/// The images of the version that `latest` names are lost, which only a person or a damaged disk
/// can cause. If it can be filled while it is read, it stays `latest`.
void CatalogBuilder::keep_latest(Catalog& catalog) {
  if (partials_ == nullptr) return;
  add_incomplete(catalog, shown_, ImageState::absent);
  if (catalog.incomplete.contains(shown_)) catalog.latest = shown_;
}

/// Returns: false if the version is being removed.
bool CatalogBuilder::reserve_latest(std::uint64_t version) {
  auto reserved = store_.eviction().try_reserve(version, Eviction::Claim::stays);
  if (!reserved) return false;
  latest_ = std::move(*reserved);
  return true;
}

/// nullptr if the version cannot be described now.
CatalogBuilder::Described* CatalogBuilder::known(std::uint64_t version) {
  const auto found = described_.find(version);
  if (found != described_.end() && is_as_described(*found->second.version)) return &found->second;
  auto described = describe(version, nullptr);
  if (!described) return nullptr;
  return &described_.insert_or_assign(version, Described{std::move(described)}).first->second;
}

void CatalogBuilder::set_partials(const PartialImages* partials) {
  const std::lock_guard lock(mutex_);
  partials_ = partials;
}

void CatalogBuilder::name(std::uint64_t version, const Context& context, std::size_t others_max) {
  static_cast<void>(history_.get(version, context));
  std::shared_ptr<const CatalogVersion> described;
  try {
    described = describe_now(version, &context);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::not_found) throw;
    throw Error(ErrorCode::corrupt, error.what());  // the version exists, so its layout must too
  }
  const std::lock_guard lock(mutex_);
  described_.emplace(version, Described{std::move(described)});
  std::erase(named_, version);
  named_.push_front(version);
  while (named_.size() > others_max) named_.pop_back();
}

void CatalogBuilder::show_first(std::uint64_t version) {
  const std::lock_guard lock(mutex_);
  first_ = version;
}

void CatalogBuilder::fetch(const Context& context) {
  std::vector<std::uint64_t> numbers = store_.images().complete_versions();
  {
    const std::lock_guard lock(mutex_);
    if (partials_ != nullptr) {
      for (const auto& [number, partial] : partials_->list()) numbers.push_back(number);
    }
  }
  for (const std::uint64_t number : numbers) {
    {
      const std::lock_guard lock(mutex_);
      const auto known = described_.find(number);
      if (known != described_.end() && is_as_described(*known->second.version)) continue;
    }
    if (auto version = describe(number, &context)) {
      const std::lock_guard lock(mutex_);
      described_.insert_or_assign(number, Described{std::move(version)});
    }
  }
}

/// False if files were added to the version since it was described, or it lies elsewhere now.
bool CatalogBuilder::is_as_described(const CatalogVersion& version) const {
  if (version.directory != store_.images().image_directory(version.number)) return false;
  if (version.has_all_files()) return true;
  const std::vector<bool> absent = store_.images().absent_files(version.number);
  return std::count(absent.begin(), absent.end(), true) ==
         std::count_if(version.entries.begin(), version.entries.end(),
                       [](const CatalogEntry& entry) { return entry.is_remote; });
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
  const auto layout =
      bucket != nullptr ? history_.layout(*version, *bucket) : history_.find_layout(*version);
  if (!layout) return nullptr;
  const FileSet unwanted = left_out(*layout, only_);
  const bool is_complete = store_.images().is_complete(number);
  const FileSet not_kept = is_complete ? absent_files(store_, *version, *layout) : unwanted;
  return make_catalog_version(*version, *layout, store_.images().image_directory(number), not_kept,
                              !is_enough(not_kept, unwanted));
}

void CatalogBuilder::read_stored_tags() {
  const std::vector<std::uint64_t> numbers = store_.manifests().manifest_numbers();
  if (numbers.empty()) return;
  const std::lock_guard lock(mutex_);
  expect_up_to(numbers.back());
  for (const std::uint64_t number : numbers) {
    try {
      if (const auto version = stored_version(store_, number)) take_tag(version->manifest);
    } catch (const Error& error) {
      log_warning(error.what());  // read_tags() tries again from the bucket
    }
  }
}

/// Versions 1..newest exist: queues their tags for reading.
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
  std::atomic<bool> learned = false;
  const std::vector<std::uint64_t> unread = unread_tags(newest);
  try {
    parallel_for(unread.size(), kTagRequests, context, [&](std::size_t i) {
      if (Clock::now() < until && read_tag(unread[i], context)) learned = true;
    });
  } catch (const Error&) {
    // Unreachable or stopped: the next poll reports it.
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
  const std::vector<std::uint64_t> unread = unread_tags(newest);
  // Versions older than a known carrier need not be read.
  std::atomic<std::uint64_t> found = known_carrier(tag);
  parallel_for(unread.size(), kTagRequests, context, [&](std::size_t i) {
    if (unread[i] <= found) return;
    read_tag(unread[i], context);
    found = known_carrier(tag);
  });
  return known_carrier(tag);
}

/// Newest first, without those whose retry is not due.
std::vector<std::uint64_t> CatalogBuilder::unread_tags(std::uint64_t newest) {
  const std::lock_guard lock(mutex_);
  expect_up_to(newest);
  std::vector<std::uint64_t> unread(unread_.rbegin(), unread_.rend());
  std::erase_if(unread, [&, now = Clock::now()](std::uint64_t number) {
    const auto later = unreadable_.find(number);
    return later != unreadable_.end() && now < later->second.retry;
  });
  return unread;
}

std::optional<Error> CatalogBuilder::find_unreadable(std::uint64_t version) const {
  const std::lock_guard lock(mutex_);
  const auto found = unreadable_.upper_bound(version);
  if (found == unreadable_.end()) return std::nullopt;
  return Error(found->second.code, unknown_tag(found->first, found->second.why));
}

/// Throws Error: the bucket is unreachable.
bool CatalogBuilder::read_tag(std::uint64_t number, const Context& context) {
  Unreadable found{.retry = {}, .why = keys::manifest(number) + " is missing"};
  try {
    if (const auto version = history_.find(number, context)) {
      note(*version);
      return true;
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::corrupt && error.code() != ErrorCode::unsupported) throw;
    found.code = error.code();
    found.why = error.what();
  }
  const std::lock_guard lock(mutex_);
  if (!unreadable_.contains(number)) log_warning(unknown_tag(number, found.why));
  found.retry = Clock::now() + kUnreadablePause;
  unreadable_.insert_or_assign(number, std::move(found));
  return false;
}

}  // namespace weightfs
