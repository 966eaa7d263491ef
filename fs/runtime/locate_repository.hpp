// Locate repository: where a repository is, and which store belongs to it.
//
// Threads: pure functions of the system's state.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "store/base/context.hpp"
#include "store/base/error.hpp"
#include "store/local/store.hpp"
#include "store/repository/repository.hpp"
#include "store/s3/settings.hpp"

namespace weightfs::fs {

/// The time for the bucket to answer at the start.
inline constexpr std::chrono::seconds kOpenTimeout{5};
/// The same where there is nothing to serve without it: a resolver waits 5 s before it asks the
/// next name server.
inline constexpr std::chrono::seconds kFirstOpenTimeout{30};

/// The repository, as its bucket or a store describes it, and the path of the store.
struct Places {
  std::unique_ptr<Repository> repository;
  std::filesystem::path store;
};

struct PlacesWanted {
  const std::string& url;  // canonical
  const BucketOptions& bucket;
  const std::filesystem::path& store;  // empty: the default place
};

/// If the bucket cannot be reached, it is enough that the store, or a default one, remembers the
/// URL.
/// Throws Error: see Repository::open.
Places find_places(const PlacesWanted& wanted, const Context& context);

struct StoreWanted {
  const std::filesystem::path& named;  // empty: a default one
  const std::string& repository;       // its id
  const std::string& url;
  const StoreLimits& limits;
  const std::filesystem::path& place;  // its user: the mount point
};

struct OpenedStore {
  std::unique_ptr<Store> store;
  /// Of a default one: why it is not the first, and which others nobody needs any more.
  std::vector<std::string> notes = {};
};

/// Opens the named store.  Without a name: the one that this place used last, or else the first of
/// <id>, <id>.2, <id>.3 ... that is free and has no files staged elsewhere.
/// Throws Error: busy (the named one, or the one that this place used last, is in use: says by
/// which process and mount); see Store::open.
OpenedStore open_store(const StoreWanted& wanted);

/// Whether to start with the store until the bucket answers.  Not if a key or a setting is refused:
/// the user can correct that at once.
bool may_start_offline(ErrorCode code);

/// Whether `path` is `directory` or is inside it.
bool is_inside(const std::filesystem::path& path, const std::filesystem::path& directory);

}  // namespace weightfs::fs
