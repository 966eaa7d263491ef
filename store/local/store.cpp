#include "store/local/store.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/local/discard.hpp"

namespace weightfs {
namespace {

namespace fs = std::filesystem;

fs::path default_parent() {
  if (::geteuid() == 0) return "/var/lib/weightfs";
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && fs::path(cache).is_absolute()) return fs::path(cache) / "weightfs";
  const char* home = std::getenv("HOME");
  if (home != nullptr && fs::path(home).is_absolute()) return fs::path(home) / ".cache/weightfs";
  throw Error(ErrorCode::invalid, "neither XDG_CACHE_HOME nor HOME is set; give a --store");
}

/// "<id>", or "<id>.2" and so on, for several mounts of one repository.
bool is_default_name(std::string_view name, std::string_view repository) {
  if (!name.starts_with(repository)) return false;
  name.remove_prefix(repository.size());
  return name.empty() || (name.size() > 1 && name.front() == '.' &&
                          name.find_first_not_of("0123456789", 1) == std::string_view::npos);
}

struct DefaultStore {
  fs::path path;
  std::string repository;
};

/// This user's default stores for `url`.  Publishers' private stores lie next to them and have the
/// same identity.
std::vector<DefaultStore> find_defaults(std::string_view url) {
  std::vector<DefaultStore> found;
  std::error_code error;
  fs::directory_iterator entry(default_parent(), error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::optional<StoreMarker> marker = find_marker(entry->path());
    if (!marker || marker->url != url) continue;
    if (!is_default_name(entry->path().filename().string(), marker->repository)) continue;
    found.push_back({entry->path(), std::move(marker->repository)});
  }
  return found;
}

// What the bucket has is fetched again; images and the other records must not go with it.  RocksDB
// compares a checksum of every block that it reads.
void drop_if_rotten(Db& db, ColumnFamily family, std::string_view what) {
  try {
    db.scan(family, "", [](std::string_view, std::string_view) {});
  } catch (const Error& error) {
    if (error.code() != ErrorCode::corrupt) throw;
    log_warning(fmt::format("the store's {} are damaged; all of them are fetched again: {}", what,
                            error.what()));
    try {
      db.remove_range(family, {}, {}, {});
    } catch (const Error& full) {
      throw full.within(fmt::format("cannot remove the store's damaged {}", what));
    }
  }
}

/// The marker was checked, but it may have been written by hand.  Nothing of another repository is
/// ever cleared: its hand-overs and staged files have their names in these records.
void require_repository(const Db& db, const fs::path& path, const StoreMarker& marker) {
  const auto found = db.find(ColumnFamily::store, "repository");
  if (!found) throw Error(ErrorCode::corrupt, "its records name no repository");
  if (*found == marker.repository) return;
  throw Error(ErrorCode::invalid,
              fmt::format("the records of the store {} are of repository {} ({}), not of {} ({}): "
                          "use another --store",
                          path.string(), *found,
                          db.find(ColumnFamily::store, "url").value_or("URL unknown"),
                          marker.repository, marker.url));
}

// Makes the directories and opens the database, or creates it.
std::unique_ptr<Db> open_db(const StoreDirectory& directory, const StoreMarker& marker,
                            const std::function<Space()>& space) {
  const fs::path& path = directory.path();
  make_directories(path / "images", 0755);
  make_directories(path / "deltas", 0755);
  make_directories(path / "tmp", 0700);
  std::unique_ptr<Db> db = Db::open(path / "db", [space] { return space().free_bytes; });
  const std::optional<std::string> format = db->find(ColumnFamily::store, "format");
  if (!format) {
    db->write({{ColumnFamily::store, "format", marker.format},
               {ColumnFamily::store, "repository", marker.repository},
               {ColumnFamily::store, "url", marker.url}});
  } else {
    require_repository(*db, path, marker);
    if (format != marker.format)
      throw Error(ErrorCode::corrupt, "its records are of another format");
  }
  drop_if_rotten(*db, ColumnFamily::manifests, "manifests");
  drop_if_rotten(*db, ColumnFamily::layouts, "layouts");
  return db;
}

}  // namespace

// ---- where stores are ----

fs::path Store::default_path(std::string_view repository_id) {
  return default_parent() / repository_id;
}

std::optional<Store::Identity> Store::find_identity(const fs::path& path) {
  const std::optional<StoreMarker> marker = find_marker(path);
  if (!marker) return std::nullopt;
  return Identity{marker->repository, marker->url};
}

std::optional<fs::path> Store::find_default_by_url(std::string_view url) {
  // Several repositories may have used the same URL in turn: the last one used counts.
  std::optional<fs::path> found;
  fs::file_time_type found_time;
  for (const DefaultStore& store : find_defaults(url)) {
    std::error_code ignored;
    const auto time = fs::last_write_time(store.path / "lock", ignored);
    if (!found || time > found_time) {
      found = store.path;
      found_time = time;
    }
  }
  return found;
}

std::vector<fs::path> Store::find_defaults_of_others(std::string_view url,
                                                     std::string_view repository) {
  std::vector<fs::path> found;
  for (DefaultStore& store : find_defaults(url)) {
    if (store.repository != repository) found.push_back(std::move(store.path));
  }
  std::sort(found.begin(), found.end());
  return found;
}

// ---- opening ----

std::unique_ptr<Store> Store::open(const fs::path& path, std::string_view repository,
                                   std::string_view url, StoreLimits limits,
                                   std::function<Space()> space) {
  try {
    return open_as_is(path, repository, url, limits, std::move(space));
  } catch (const Error& error) {
    const std::string remedy = find_store_remedy(error);
    if (remedy.empty()) throw;
    throw Error(error.code(), fmt::format("{}; {}", error.what(), remedy));
  }
}

std::unique_ptr<Store> Store::open_as_is(const fs::path& path, std::string_view repository,
                                         std::string_view url, StoreLimits limits,
                                         std::function<Space()> space) {
  try {
    StoreDirectory directory(path, repository, url);
    if (!space) space = [root = directory.path()] { return space_of(root); };
    const StoreMarker marker{std::string(kStoreFormat), std::string(repository), std::string(url)};
    return std::unique_ptr<Store>(new Store(std::move(directory), marker, limits, space));
  } catch (const fs::filesystem_error& error) {
    throw_errno(error.code().value(), "open the store " + path.string());
  }
}

Store::Store(StoreDirectory directory, const StoreMarker& marker, StoreLimits limits,
             const std::function<Space()>& space)
    : directory_(std::move(directory)),
      small_files_(directory_.path() / "small"),
      tables_(open_tables(directory_, marker, space)),
      evictor_(path(), limits, space, eviction_, tables_->images, tables_->deltas,
               tables_->patches) {
  evictor_.set_early(&early_images_);
  // Spools left by the previous process.
  for (const auto& entry : fs::directory_iterator(temporary_directory())) {
    discard(entry.path(), temporary_directory());
  }
}

void Store::use_memory(Evictor::FindRoom find_room) {
  evictor_.use_memory(std::move(find_room));
  evictor_.require_memory();
  auto memory = std::make_unique<ImageMemory>();
  deltas().use_memory(memory->deltas(), memory->temporary());
  images().use_memory(std::move(memory));
}

Store::Tables::Tables(const StoreDirectory& directory, const StoreMarker& marker,
                      const std::function<Space()>& space)
    : db(open_db(directory, marker, space)),
      manifests(*db),
      images(*db, directory.path() / "images", directory.path() / "tmp"),
      deltas(*db, directory.path() / "deltas", directory.path() / "tmp"),
      timings(*db),
      patches(*db, directory.path() / "tmp") {}

std::unique_ptr<Store::Tables> Store::open_tables(StoreDirectory& directory,
                                                  const StoreMarker& marker,
                                                  const std::function<Space()>& space) {
  if (directory.has_other_format()) {
    log_warning(fmt::format("the store {} has another format; it is rebuilt from the bucket",
                            directory.path().string()));
    directory.clear(marker);
  }
  try {
    return std::make_unique<Tables>(directory, marker, space);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::corrupt) throw;
    log_warning(fmt::format("the store {} is damaged and is rebuilt from the bucket: {}",
                            directory.path().string(), error.what()));
  }
  directory.clear(marker);
  return std::make_unique<Tables>(directory, marker, space);
}

}  // namespace weightfs
