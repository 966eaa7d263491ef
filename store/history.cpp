#include "store/history.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "store/bytes.hpp"
#include "store/error.hpp"
#include "store/log.hpp"

namespace weightfs {

namespace {

std::string hex(const Sha256& hash) { return to_hex(hash); }

// The version that a manifest of the store holds; nullopt if it is not what its key says: the store
// is a cache, so the bucket is asked then.
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
          fmt::format("the bucket's version {} is not the one this host knew: its manifest has the "
                      "SHA-256 {}, expected {}; the history was rewritten, or another repository "
                      "was put in its place",
                      number, hex(found), hex(known))};
}

}  // namespace

History::History(Repository& repository, Store* store) : repository_(repository), store_(store) {}

std::shared_ptr<const Version> History::find(std::uint64_t number, const Context& context) {
  if (auto version = find_known(number)) return version;
  std::optional<Version> fetched = repository_.find_version(number, context);
  if (!fetched) return nullptr;
  check_order(*fetched);
  keep(fmt::format("the manifest of version {}", number),
       [&] { store_->put_manifest(number, fetched->manifest_bytes); });
  return remember(std::move(*fetched));
}

std::shared_ptr<const Version> History::get(std::uint64_t number, const Context& context) {
  if (auto version = find(number, context)) return version;
  const std::uint64_t newest = repository_.newest_version(newest_known(), context);
  throw Error(
      ErrorCode::not_found,
      fmt::format("version {} does not exist; {}", number,
                  newest == 0 ? "the repository is empty"
                              : fmt::format("the repository has versions 1 to {}", newest)));
}

std::shared_ptr<const Layout> History::layout(const Version& version, const Context& context) {
  const Sha256& id = version.manifest.layout.sha256;
  {
    const std::scoped_lock lock(mutex_);
    if (const auto known = layouts_.find(id); known != layouts_.end()) return known->second;
  }
  std::shared_ptr<const Layout> layout = find_kept_layout(id);
  if (!layout) {
    layout = repository_.get_layout(version.manifest.layout, context);
    keep("a layout", [&] { store_->put_layout(id, layout->serialize()); });
  }
  const std::scoped_lock lock(mutex_);
  return layouts_.emplace(id, std::move(layout)).first->second;
}

std::shared_ptr<const Version> History::add(Version version, std::shared_ptr<const Layout> layout) {
  const auto added = remember(std::move(version));
  const Sha256 id = layout->id();
  {
    const std::scoped_lock lock(mutex_);
    layouts_.emplace(id, layout);
  }
  keep(fmt::format("version {}", added->number()), [&] {
    store_->put_manifest(added->number(), added->manifest_bytes);
    if (!store_->find_layout(id)) store_->put_layout(id, layout->serialize());
    store_->put_newest({added->number(), added->manifest_sha256});
  });
  return added;
}

std::uint64_t History::refresh(std::uint64_t known, const Context& context) {
  check_not_rolled_back(known, context);
  std::uint64_t newest = known;
  try {
    while (find(newest + 1, context)) newest++;
  } catch (const Error&) {
    // What came before the trouble is news; the next call meets the trouble first.
    if (newest == known) throw;
  }
  keep_newest(newest, context);
  return newest;
}

// The first time in this process the bucket must still have the newest version that this host
// accepted, and the one that is shown.
void History::check_not_rolled_back(std::uint64_t known, const Context& context) {
  {
    const std::scoped_lock lock(mutex_);
    if (checked_bucket_) return;
  }
  const Newest newest = store_ != nullptr ? store_->newest() : Newest{};
  const std::uint64_t number = std::max(known, newest.version);
  if (number != 0) {
    const std::optional<Version> there = repository_.find_version(number, context);
    if (!there) {
      throw Error(
          ErrorCode::corrupt,
          fmt::format("the bucket {} lost version {}, which this host knew: it went back, or "
                      "another repository was put in its place",
                      repository_.url(), number));
    }
    check_order(*there);
    const auto mine = find_known(number);
    if (mine && mine->manifest_sha256 != there->manifest_sha256) {
      throw fork(number, there->manifest_sha256, mine->manifest_sha256);
    }
  }
  const std::scoped_lock lock(mutex_);
  checked_bucket_ = true;
}

// From memory or the store.
std::shared_ptr<const Version> History::find_known(std::uint64_t number) {
  {
    const std::scoped_lock lock(mutex_);
    if (const auto known = versions_.find(number); known != versions_.end()) return known->second;
  }
  if (store_ == nullptr) return nullptr;
  std::optional<std::string> bytes = store_->find_manifest(number);
  if (!bytes) return nullptr;
  std::optional<Version> version = parse_kept(std::move(*bytes), number, repository_.id());
  if (!version) return nullptr;
  const Newest newest = store_->newest();
  if (newest.version == number && newest.manifest_sha256 != version->manifest_sha256)
    return nullptr;
  return remember(std::move(*version));
}

// Compares a manifest of the bucket with what is known of it and of its neighbours.
void History::check_order(const Version& version) {
  const std::uint64_t number = version.number();
  const Newest newest = store_ != nullptr ? store_->newest() : Newest{};
  if (newest.version == number && newest.manifest_sha256 != version.manifest_sha256) {
    throw fork(number, version.manifest_sha256, newest.manifest_sha256);
  }
  if (const auto parent = find_known(number - 1)) check_parent(*parent, version);
  if (const auto child = find_known(number + 1)) check_parent(version, *child);
}

std::shared_ptr<const Layout> History::find_kept_layout(const Sha256& id) {
  if (store_ == nullptr) return nullptr;
  const std::optional<std::string> bytes = store_->find_layout(id);
  if (!bytes || sha256(as_bytes(*bytes)) != id) return nullptr;
  return Layout::parse(*bytes, "the store's layout " + hex(id));
}

std::shared_ptr<const Version> History::remember(Version version) {
  auto shared = std::make_shared<const Version>(std::move(version));
  const std::scoped_lock lock(mutex_);
  return versions_.emplace(shared->number(), shared).first->second;
}

std::uint64_t History::newest_known() {
  const std::uint64_t kept = store_ != nullptr ? store_->newest().version : 0;
  const std::scoped_lock lock(mutex_);
  return std::max(kept, versions_.empty() ? 0 : versions_.rbegin()->first);
}

void History::keep_newest(std::uint64_t number, const Context& context) {
  if (store_ == nullptr || store_->newest().version >= number) return;
  if (const auto version = find(number, context)) {
    keep("the newest version", [&] { store_->put_newest({number, version->manifest_sha256}); });
  }
}

// A full disk costs this host its memory, not the versions: it is logged once.
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
