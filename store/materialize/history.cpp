#include "store/materialize/history.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/threads/parallel.hpp"

namespace weightfs {

namespace {

/// Manifests fetched in parallel: these are small objects, so the limit is latency, not CPU.
constexpr unsigned kManifestRequests = 32;

std::string hex(const Sha256& hash) { return to_hex(hash); }

// Parses a manifest from the store. nullopt if it does not match its key: the store is only a
// cache, so the caller then asks the bucket.
std::optional<Version> parse_kept(std::string bytes, std::uint64_t number,
                                  const std::string& repository) {
  Version version;
  try {
    version.manifest = Manifest::parse(bytes, fmt::format("the store's version {}", number));
  } catch (const Error& error) {
    log_warning(error.what());
    return std::nullopt;
  }
  if (version.number() != number || version.manifest.repository != repository) return std::nullopt;
  version.manifest_sha256 = sha256(as_bytes(bytes));
  version.manifest_bytes = std::move(bytes);
  return version;
}

void check_parent(const Version& parent, const Version& child) {
  if (child.manifest.parent_sha256 == parent.manifest_sha256) return;
  throw Error(
      ErrorCode::corrupt,
      fmt::format("version {} does not follow version {}: it names the parent {}, expected {}",
                  child.number(), parent.number(), hex(child.manifest.parent_sha256),
                  hex(parent.manifest_sha256)));
}

Error fork(std::uint64_t number, const Sha256& found, const Sha256& known) {
  return {ErrorCode::corrupt,
          fmt::format(
              "the bucket's version {} is not the one that this host knew: its manifest has the "
              "SHA-256 {}, expected {}; the history was rewritten, or another repository "
              "was put in its place",
              number, hex(found), hex(known))};
}

Error missing(std::uint64_t number, std::uint64_t later, std::string_view url) {
  return {ErrorCode::corrupt,
          fmt::format(
              "{} is missing in {}, but version {} exists: the history has a gap.  Restore that "
              "object; until then nothing can be published, and versions from {} on may not be "
              "found",
              keys::manifest(number), url, later, number)};
}

}  // namespace

std::size_t History::VersionCost::leave(const Version& version) {
  return sizeof(Version) + 3 * version.manifest_bytes.size();  // as text, and parsed
}

History::History(Repository& repository, Store* store, std::shared_ptr<const SeedDirectory> seed)
    : repository_(repository), store_(store), seed_(std::move(seed)) {}

std::shared_ptr<const Version> History::find(std::uint64_t number, const Context& context) {
  if (auto version = find_known(number)) return version;
  std::optional<Version> fetched = repository_.find_version(number, context);
  if (!fetched) return nullptr;
  check_old_form(*fetched, context);
  return accept(std::move(*fetched));
}

std::shared_ptr<const Version> History::get(std::uint64_t number, const Context& context) {
  if (auto version = find(number, context)) return version;
  const std::uint64_t newest = repository_.newest_version(newest_known(), context);
  if (number > 0 && number < newest) {
    if (auto version = find(number, context)) return version;  // published just now
    throw missing(number, newest, repository_.url());
  }
  throw Error(
      ErrorCode::not_found,
      fmt::format("version {} does not exist; {}", number,
                  newest == 0   ? "the repository is empty"
                  : newest == 1 ? "the repository has version 1"
                                : fmt::format("the repository has versions 1 to {}", newest)));
}

std::shared_ptr<const Layout> History::layout(const Version& version, const Context& context) {
  std::shared_ptr<const Layout> layout = find_layout(version);
  const bool is_new = layout == nullptr;
  if (is_new) layout = know(repository_.get_layout(version.manifest.layout, context));
  keep_layout(*layout, is_new);
  return layout;
}

std::shared_ptr<const Layout> History::find_layout(const Version& version) {
  const Sha256& id = version.manifest.layout.sha256;
  {
    const std::scoped_lock lock(mutex_);
    if (auto known = layouts_.find(id)) return known;
  }
  auto kept = find_kept_layout(id);
  return kept ? know(std::move(kept)) : nullptr;
}

std::shared_ptr<const Version> History::add(Version version, std::shared_ptr<const Layout> layout) {
  const auto added = remember(std::move(version));
  layout = know(std::move(layout));
  keep_manifest(*added);
  keep_layout(*layout, false);
  keep(fmt::format("version {}", added->number()), [&] {
    store_->manifests().put_newest({added->number(), added->manifest_sha256});
  });
  return added;
}

// ---- new versions ----

std::uint64_t History::refresh(std::uint64_t known, const Context& context, Reach reach) {
  check_not_rolled_back(known, context);
  std::uint64_t newest = known;
  try {
    // One request if there is no new version, two if there is one.
    const bool is_behind =
        advance(newest, 1, context) && reach == Reach::newest && advance(newest, 1, context);
    if (is_behind && advance(newest, 2, context)) {
      jump(newest, context);
      walk(newest, context);
    }
    check_no_gap(newest, context);
  } catch (const Error&) {
    // Return what was accepted before the error; the next call runs into the error first.
    if (newest == known) throw;
  }
  keep_newest(newest, context);
  const std::scoped_lock lock(mutex_);
  reads_all_ = false;
  return newest;
}

/// Accepts all versions after `newest` in order.
void History::walk(std::uint64_t& newest, const Context& context) {
  constexpr std::array<std::size_t, 4> kAhead{1, 4, 16, 64};
  for (std::size_t i = 0; advance(newest, kAhead[i], context);) {
    i = std::min(i + 1, kAhead.size() - 1);
  }
}

/// Accepts the newest version that LIST leads to and none before it, if that is far away and its
/// manifest can be read; else does nothing.  A gap that LIST shows is found by check_no_gap().
void History::jump(std::uint64_t& newest, const Context& context) {
  {
    const std::scoped_lock lock(mutex_);
    if (reads_all_) return;
  }
  const Repository::Numbers numbers = repository_.list_numbers(newest, context);
  if (numbers.newest <= newest + kWalkedMax) return;
  Looked looked = std::move(look(numbers.newest, 1, context).front());
  if (looked.fetched) {
    check_old_form(*looked.fetched, context);
    looked.known = accept(std::move(*looked.fetched));
  }
  if (!looked.known) return;
  newest = numbers.newest;
  const std::scoped_lock lock(mutex_);
  if (numbers.behind_gap) looked_behind_ = false;
}

/// Accepts up to `count` versions after `newest` in order and advances `newest`, until one is
/// absent.  Returns: whether all of them exist.
bool History::advance(std::uint64_t& newest, std::size_t count, const Context& context) {
  std::vector<Looked> found = look(newest + 1, count, context);
  for (std::size_t i = 0; i < count; i++) {
    Looked& looked = found[i];
    if (looked.error) std::rethrow_exception(looked.error);
    if (looked.fetched) {
      const bool is_last = i + 1 == count;
      is_last ? check_old_form(*looked.fetched, context)
              : check_old_form(*looked.fetched, found[i + 1].get());
      looked.known = accept(std::move(*looked.fetched));
    }
    if (!looked.known) return false;
    newest++;
  }
  return true;
}

/// Skips versions beyond the first one known to be absent or unreadable.
std::vector<History::Looked> History::look(std::uint64_t first, std::size_t count,
                                           const Context& context) {
  std::vector<Looked> found(count);
  std::atomic<std::size_t> end = count;
  parallel_for(count, kManifestRequests, context, [&](std::size_t i) {
    if (i > end) return;
    Looked& looked = found[i];
    try {
      looked.known = find_known(first + i);
      if (!looked.known) looked.fetched = repository_.find_version(first + i, context);
    } catch (...) {
      looked.error = std::current_exception();
    }
    if (looked.known || looked.fetched) return;
    for (std::size_t seen = end; i < seen && !end.compare_exchange_weak(seen, i);) {
    }
  });
  return found;
}

// The first call in this process checks that the bucket still has the newest version that this host
// accepted, and the version that is shown.
void History::check_not_rolled_back(std::uint64_t known, const Context& context) {
  {
    const std::scoped_lock lock(mutex_);
    if (checked_bucket_) return;
  }
  check_newest(known, context);
  const std::scoped_lock lock(mutex_);
  checked_bucket_ = true;
}

void History::check_bucket(std::uint64_t known, const Context& context) {
  repository_.check_still_there(context);
  check_newest(known, context);
}

/// The newest version known here must be there, and unchanged.
void History::check_newest(std::uint64_t known, const Context& context) {
  const Newest newest = store_ != nullptr ? store_->manifests().newest() : Newest{};
  const std::uint64_t number = std::max(known, newest.version);
  if (number == 0) return;
  const std::optional<Version> there = repository_.find_version(number, context);
  if (!there) {
    throw Error(
        ErrorCode::corrupt,
        fmt::format(
            "the bucket {} lost version {}, which this host knew: the bucket was rolled back or "
            "replaced by another repository",
            repository_.url(), number));
  }
  check_order(*there);
  check_old_form(*there, context);
  const auto mine = find_known(number);
  if (mine && mine->manifest_sha256 != there->manifest_sha256) {
    throw fork(number, there->manifest_sha256, mine->manifest_sha256);
  }
}

void History::look_behind_the_newest() {
  const std::scoped_lock lock(mutex_);
  looked_behind_ = false;
  reads_all_ = true;
}

void History::check_no_gap(std::uint64_t newest, const Context& context) {
  {
    const std::scoped_lock lock(mutex_);
    if (looked_behind_) return;
  }
  if (const auto later = repository_.find_behind_gap(newest, context)) {
    throw missing(newest + 1, *later, repository_.url());
  }
  const std::scoped_lock lock(mutex_);
  looked_behind_ = true;
}

// Retries to store a manifest for which the store had no room. Otherwise it would be known only in
// memory, and be fetched again after a restart.
std::shared_ptr<const Version> History::find_in_memory(std::uint64_t number) {
  std::shared_ptr<const Version> known;
  bool is_kept = true;
  {
    const std::scoped_lock lock(mutex_);
    known = versions_.find(number);
    is_kept = !unkept_.contains(number);
  }
  if (known && !is_kept) keep_manifest(*known);
  return known;
}

// From memory or the store.
std::shared_ptr<const Version> History::find_known(std::uint64_t number) {
  if (auto known = find_in_memory(number)) return known;
  if (store_ == nullptr) return nullptr;
  std::optional<std::string> bytes = store_->manifests().find_manifest(number);
  if (!bytes) return nullptr;
  std::optional<Version> version = parse_kept(std::move(*bytes), number, repository_.id());
  if (!version) return nullptr;
  const Newest newest = store_->manifests().newest();
  if (newest.version == number && newest.manifest_sha256 != version->manifest_sha256)
    return nullptr;
  return remember(std::move(*version));
}

// Compares a manifest from the bucket with what is known about it and its neighbours.
void History::check_order(const Version& version) {
  const std::uint64_t number = version.number();
  const Newest newest = store_ != nullptr ? store_->manifests().newest() : Newest{};
  if (newest.version == number && newest.manifest_sha256 != version.manifest_sha256) {
    throw fork(number, version.manifest_sha256, newest.manifest_sha256);
  }
  if (const auto parent = find_known(number - 1)) {
    check_parent(*parent, version);
  } else if (newest.version + 1 == number &&
             version.manifest.parent_sha256 != newest.manifest_sha256) {
    throw fork(newest.version, version.manifest.parent_sha256, newest.manifest_sha256);
  }
  if (const auto child = find_known(number + 1)) check_parent(version, *child);
}

// A manifest without a hash of its own is undamaged if the next version, where one exists, names
// its hash as the parent's.
void History::check_old_form(const Version& version, const Version* child) {
  if (child != nullptr && !version.manifest.carries_hash()) check_parent(version, *child);
}

void History::check_old_form(const Version& version, const Context& context) {
  if (version.manifest.carries_hash() || find_known(version.number() + 1)) return;
  std::optional<Version> child;
  try {
    child = repository_.find_version(version.number() + 1, context);
  } catch (const Error& error) {
    // The child itself is damaged; that is reported when the child is needed.
    if (error.code() != ErrorCode::corrupt && error.code() != ErrorCode::unsupported) throw;
  }
  if (child) check_parent(version, *child);
}

std::shared_ptr<const Layout> History::find_kept_layout(const Sha256& id) {
  if (store_ == nullptr) return nullptr;
  const std::optional<std::string> bytes = store_->manifests().find_layout(id);
  if (!bytes || sha256(as_bytes(*bytes)) != id) return nullptr;
  return Layout::parse(*bytes, "the store's layout " + hex(id));
}

/// Accepts a version from the bucket.  One at a time, so that two neighbours that arrive together
/// are compared too.
std::shared_ptr<const Version> History::accept(Version version) {
  const std::scoped_lock one_at_a_time(accept_mutex_);
  check_order(version);
  keep_manifest(version);
  return remember(std::move(version));
}

std::shared_ptr<const Version> History::remember(Version version) {
  auto shared = std::make_shared<const Version>(std::move(version));
  const std::scoped_lock lock(mutex_);
  const std::uint64_t number = shared->number();
  highest_ = std::max(highest_, number);
  return versions_.put(number, std::move(shared));
}

std::shared_ptr<const Layout> History::know(std::shared_ptr<const Layout> layout) {
  const std::scoped_lock lock(mutex_);
  return layouts_.put(layout);
}

std::uint64_t History::newest_known() {
  const std::uint64_t kept = store_ != nullptr ? store_->manifests().newest().version : 0;
  const std::scoped_lock lock(mutex_);
  return std::max(kept, highest_);
}

void History::keep_newest(std::uint64_t number, const Context& context) {
  if (store_ == nullptr || store_->manifests().newest().version >= number) return;
  if (const auto version = find(number, context)) {
    keep("the newest version", [&] {
      store_->manifests().put_newest({number, version->manifest_sha256}, Durability::process);
    });
  }
}

// ---- records of layouts ----

/// `replace`: overwrite the record, because what the store has under this name is wrong.
void History::keep_layout(const Layout& layout, bool replace) {
  if (store_ == nullptr) return;
  keep("a layout", [&] {
    const std::scoped_lock records(layouts_mutex_);
    const bool is_first = !kept_layouts_;
    if (is_first) kept_layouts_ = store_->manifests().layout_ids();
    const bool is_missing = !kept_layouts_->contains(layout.id());
    if (is_missing || replace) {
      store_->manifests().put_layout(layout.id(), layout.serialize());
      kept_layouts_->insert(layout.id());
    }
    if (is_first || is_missing) prune_layouts();
  });
}

/// Removes the records of layouts that no local version uses and nobody holds.  A later holder
/// stores the record again through keep_layout().  Requires: layouts_mutex_ is held.
void History::prune_layouts() {
  const std::set<Sha256> wanted = layouts_of_versions_here();
  std::vector<Sha256> unwanted;
  for (const Sha256& id : *kept_layouts_) {
    const std::scoped_lock lock(mutex_);
    if (!wanted.contains(id) && !layouts_.is_held(id)) unwanted.push_back(id);
  }
  store_->manifests().remove_layouts(unwanted);
  for (const Sha256& id : unwanted) kept_layouts_->erase(id);
}

std::set<Sha256> History::layouts_of_versions_here() {
  std::vector<std::uint64_t> numbers = store_->images().complete_versions();
  numbers.push_back(store_->manifests().newest().version);
  // These are made of patches, without the bucket.
  for (const SpanInfo& span : store_->patches().list()) {
    numbers.push_back(span.ends.first.version);
    numbers.push_back(span.ends.last.version);
  }
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  std::set<Sha256> layouts;
  for (const std::uint64_t number : numbers) {
    if (const auto version = find_known(number)) layouts.insert(version->manifest.layout.sha256);
  }
  return layouts;
}

void History::keep_manifest(const Version& version) {
  if (store_ == nullptr) return;
  const std::uint64_t number = version.number();
  bool is_kept = false;
  keep(fmt::format("the manifest of version {}", number), [&] {
    store_->manifests().put_manifest(number, version.manifest_bytes);
    is_kept = true;
  });
  const std::scoped_lock lock(mutex_);
  if (is_kept) {
    unkept_.erase(number);
  } else {
    unkept_.insert(number);
  }
}

// A full disk only means that the record is not kept; versions still work. Logged once.
void History::keep(const std::string& what, const std::function<void()>& write) {
  if (store_ == nullptr) return;
  try {
    write();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::no_space) throw;
    const std::scoped_lock lock(mutex_);
    if (!std::exchange(logged_no_space_, true)) {
      log_warning(fmt::format("cannot keep {}: {}", what, error.what()));
    }
  }
}

}  // namespace weightfs
