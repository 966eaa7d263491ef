#include "store/catalog_builder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <string_view>
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

/// A version of which only what `is_here` tells of is complete.
std::shared_ptr<const CatalogVersion> incomplete_version(
    const CatalogVersion& version, ImageState others,
    const std::function<bool(std::string_view path)>& is_here) {
  auto made = std::make_shared<CatalogVersion>(version);
  for (CatalogEntry& entry : made->entries) {
    const bool is_filled = !entry.is_directory && !entry.is_rest;
    if (is_filled && !is_here(entry.path)) entry.image = others;
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
    return !catalog->find(entry.first) && !is_hidden(entry.first);
  });
  choose(*catalog);
  catalog->tags = tags_;
  catalog->repository_time = newest_time_;
  return catalog;
}

/// What becomes complete meanwhile must not be missed: so these are looked at first.
void CatalogBuilder::add_incomplete(Catalog& catalog) {
  const auto add = [&](std::uint64_t number, ImageState state,
                       const std::function<bool(std::string_view)>& is_here) {
    if (const auto version = known(number)) {
      catalog.incomplete.emplace(
          number, IncompleteVersion{incomplete_version(*version, state, is_here), state});
    }
  };
  if (partials_ != nullptr) {
    for (const auto& [number, partial] : partials_->list()) {
      add(number, ImageState::partial,
          [&one = *partial](std::string_view path) { return one.is_here(path); });
    }
  }
  for (const std::uint64_t number : named_) {
    add(number, ImageState::absent, [](std::string_view) { return false; });
  }
}

void CatalogBuilder::add_complete(Catalog& catalog) {
  const std::uint64_t newest = store_.newest().version;
  for (const std::uint64_t number : store_.complete_versions()) {
    if (number > newest) break;
    const auto version = known(number);
    if (!version || is_hidden(number)) continue;
    if (!with_absent_ && !version->has_all_files()) continue;
    catalog.versions.emplace(number, version);
    catalog.incomplete.erase(number);
  }
}

void CatalogBuilder::choose(Catalog& catalog) {
  const std::uint64_t chosen = choose_latest(follow_, catalog.versions);
  if (chosen > 0 && chosen >= shown_) {
    catalog.latest = shown_ = chosen;
    has_shown_complete_ = true;
  } else if (!has_shown_complete_ && catalog.has_images(first_)) {
    catalog.latest = first_;
    shown_ = std::max(shown_, first_);
  }
}

/// nullptr if it cannot be described now.
std::shared_ptr<const CatalogVersion> CatalogBuilder::known(std::uint64_t version) {
  const auto found = described_.find(version);
  if (found != described_.end() && is_as_described(*found->second)) return found->second;
  auto described = describe(version, nullptr);
  if (described) described_.insert_or_assign(version, described);
  return described;
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
    throw Error(ErrorCode::corrupt, error.what());  // there is the version, and not its layout
  }
  const std::lock_guard lock(mutex_);
  described_.emplace(version, std::move(described));
  std::erase(named_, version);
  named_.push_front(version);
  while (named_.size() > others_max) named_.pop_back();
}

void CatalogBuilder::show_first(std::uint64_t version) {
  const std::lock_guard lock(mutex_);
  first_ = version;
}

void CatalogBuilder::fetch(const Context& context) {
  std::vector<std::uint64_t> numbers = store_.complete_versions();
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
  return std::count(absent.begin(), absent.end(), true) ==
         std::count_if(version.entries.begin(), version.entries.end(),
                       [](const CatalogEntry& entry) { return entry.is_rest; });
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
  const FileSet unwanted = left_out(*layout, only_);
  const bool is_complete = store_.is_complete(number);
  const FileSet rest = is_complete ? absent_files(store_, *version, *layout) : unwanted;
  return make_catalog_version(*version, *layout, store_.image_directory(number), rest,
                              !is_enough(rest, unwanted));
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
