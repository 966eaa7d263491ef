// Places: where a repository is, and the store that goes with it.
//
// Threads: pure functions of the system's state.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>

#include "store/base/context.hpp"
#include "store/base/error.hpp"
#include "store/local/store.hpp"
#include "store/repository/repository.hpp"
#include "store/s3/settings.hpp"

namespace weightfs::fs {

/// For a bucket to say what it is, when something starts.
inline constexpr std::chrono::seconds kOpenTimeout{5};

/// The repository, from its bucket or from what a store remembers, and the store's place.
struct Places {
  std::unique_ptr<Repository> repository;
  std::filesystem::path store;
};

struct PlacesWanted {
  const std::string& url;  // canonical
  const BucketOptions& bucket;
  const std::filesystem::path& store;  // empty: the default place
};

/// A bucket out of reach is no error if the store, or a default one, remembers the URL.
/// Throws Error: see Repository::open.
Places find_places(const PlacesWanted& wanted, const Context& context);

struct StoreWanted {
  const std::filesystem::path& named;  // empty: a default one
  const std::string& repository;       // its id
  const std::string& url;
  const StoreLimits& limits;
  const std::filesystem::path& place;  // for what it is: the mount point
};

struct OpenedStore {
  std::unique_ptr<Store> store;
  std::string note;  // why it is not the first default one; empty: it is, or was named
};

/// Opens the store that was named.  Else the one that this place used last; else the first of
/// <id>, <id>.2, <id>.3 ... that nobody holds, and in which nothing lies that was staged elsewhere.
/// Throws Error: busy (the one that was named, or that this place used last, is held: says by whom
/// and for what mount); see Store::open.
OpenedStore open_store(const StoreWanted& wanted);

/// Said of a bucket that is asked when something starts: the store will do until it answers.  Not
/// of a key or a setting that is refused: who starts it can correct that at once.
bool may_start_offline(ErrorCode code);

/// Whether `path` is `directory` or lies in it.
bool is_inside(const std::filesystem::path& path, const std::filesystem::path& directory);

}  // namespace weightfs::fs
