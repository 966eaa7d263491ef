#include "fs/runtime/locate_repository.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/base/log.hpp"
#include "store/local/store_directory.hpp"

namespace weightfs::fs {
namespace {

constexpr int kStoresMax = 64;  // default stores of a repository on one host

std::optional<Places> find_remembered(const PlacesWanted& wanted) {
  const auto store =
      wanted.store.empty() ? Store::find_default_by_url(wanted.url) : std::optional(wanted.store);
  if (!store) return std::nullopt;
  const auto identity = Store::find_identity(*store);
  if (!identity || identity->url != wanted.url) return std::nullopt;
  return Places{Repository::assume(wanted.url, identity->repository, wanted.bucket), *store};
}

/// A dead mount in the path cannot be resolved.
std::filesystem::path canonical_as_far_as_it_goes(const std::filesystem::path& path) {
  std::error_code failed;
  auto canonical = std::filesystem::weakly_canonical(path, failed);
  return failed ? std::filesystem::absolute(path).lexically_normal() : canonical;
}

std::unique_ptr<Store> open_at(const StoreWanted& wanted, const std::filesystem::path& path) {
  return Store::open(path, wanted.repository, wanted.url, wanted.limits);
}

std::filesystem::path default_store(const std::string& repository, int number) {
  std::filesystem::path path = Store::default_path(repository);
  if (number > 1) path += fmt::format(".{}", number);
  return path;
}

bool has_files(const std::filesystem::path& directory) {
  std::error_code failed;
  return std::filesystem::exists(directory, failed) &&
         !std::filesystem::is_empty(directory, failed);
}

/// Why this place must not take over a store that is free: it has staged files, which wait for the
/// next mount at their own place.  Empty: it may.
std::string why_kept(const std::filesystem::path& store, const std::filesystem::path& place) {
  const auto user = find_last_user(store);
  if (!user || user->place == place) return "";
  if (!has_files(store / "staging") && !has_files(store / "handover")) return "";
  return fmt::format(
      "the store {0} has files that were staged at {1}; to continue with them: --store {0}",
      store.string(), user->place.string());
}

OpenedStore open_default(const StoreWanted& wanted) {
  for (int number = 1; number <= kStoresMax; number++) {
    const auto path = default_store(wanted.repository, number);
    const auto user = find_last_user(path);
    if (user && user->place == wanted.place) return {open_at(wanted, path), {}};
  }
  std::string why;
  for (int number = 1; number <= kStoresMax; number++) {
    const auto path = default_store(wanted.repository, number);
    std::string why_not = why_kept(path, wanted.place);
    try {
      if (why_not.empty()) {
        OpenedStore opened{open_at(wanted, path), {}};
        if (number > 1) {
          opened.notes.push_back(
              fmt::format("{}; this mount uses a store of its own, {}", why, path.string()));
        }
        return opened;
      }
    } catch (const Error& error) {
      if (error.code() != ErrorCode::busy) throw;
      why_not = error.what();
    }
    if (why.empty()) why = std::move(why_not);
  }
  throw Error(ErrorCode::busy,
              fmt::format("{}; the same for {} stores; choose one with --store", why, kStoresMax));
}

/// A file that has several names counts once.
std::uint64_t bytes_on_disk(const std::filesystem::path& directory) {
  std::uint64_t bytes = 0;
  std::set<std::pair<dev_t, ino_t>> counted;
  std::error_code error;
  std::filesystem::recursive_directory_iterator entry(directory, error);
  for (; !error && entry != std::filesystem::recursive_directory_iterator();
       entry.increment(error)) {
    struct stat found {};
    if (::lstat(entry->path().c_str(), &found) != 0) continue;  // it has just gone
    if (found.st_nlink > 1 && !counted.emplace(found.st_dev, found.st_ino).second) continue;
    bytes += static_cast<std::uint64_t>(found.st_blocks) * 512;
  }
  return bytes;
}

/// Also where the database with their names was lost: `staging.lost-1`.
bool has_staged_files(const std::filesystem::path& store) {
  if (has_files(store / "handover")) return true;
  std::error_code failed;
  std::filesystem::directory_iterator entry(store, failed);
  for (; !failed && entry != std::filesystem::directory_iterator(); entry.increment(failed)) {
    const std::string name = entry->path().filename();
    if ((name == "staging" || name.starts_with("staging.lost-")) && has_files(entry->path()))
      return true;
  }
  return false;
}

/// Nothing else names them: they belong to no repository that is still there.
void note_earlier_stores(const StoreWanted& wanted, std::vector<std::string>& notes) {
  for (const auto& store : Store::find_defaults_of_others(wanted.url, wanted.repository)) {
    notes.push_back(fmt::format(
        "the store {} of an earlier repository at this URL takes {}{}; remove it if no mount uses "
        "it and you need it no more",
        store.string(), human_bytes(bytes_on_disk(store)),
        has_staged_files(store) ? ", also for files that were staged" : ""));
  }
}

}  // namespace

OpenedStore open_store(const StoreWanted& wanted) {
  OpenedStore opened;
  if (wanted.named.empty()) {
    opened = open_default(wanted);
    note_earlier_stores(wanted, opened.notes);
  } else {
    opened.store = open_at(wanted, wanted.named);
  }
  try {
    write_user(opened.store->path(), wanted.place);
  } catch (const Error& error) {
    log_warning(error.what());  // a full disk is no reason not to serve
  }
  return opened;
}

bool may_start_offline(ErrorCode code) {
  return code == ErrorCode::unavailable || code == ErrorCode::not_found ||
         code == ErrorCode::timed_out || code == ErrorCode::io;
}

Places find_places(const PlacesWanted& wanted, const Context& context) {
  auto remembered = find_remembered(wanted);
  const auto limit = remembered ? kOpenTimeout : kFirstOpenTimeout;
  try {
    auto repository = Repository::open(wanted.url, context.within(limit), wanted.bucket);
    const auto store = wanted.store.empty() ? Store::default_path(repository->id()) : wanted.store;
    return {std::move(repository), store};
  } catch (const Error& error) {
    if (!remembered || !may_start_offline(error.code())) throw;
    log_warning(
        fmt::format("starting from the store {}: {}", remembered->store.string(), error.what()));
    return std::move(*remembered);
  }
}

bool is_inside(const std::filesystem::path& path, const std::filesystem::path& directory) {
  const auto inner = canonical_as_far_as_it_goes(path);
  const auto outer = canonical_as_far_as_it_goes(directory);
  const auto [end, ignored] = std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end());
  return end == outer.end();
}

}  // namespace weightfs::fs
