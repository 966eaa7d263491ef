// History: the versions of a repository as this host knows them: from the store's records first,
// from the bucket else.  What came from the bucket is kept in the store.
//
// It also guards the order of things: a manifest must name the SHA-256 of its parent's manifest, and
// a version that is known already must not come back with another hash (a fork or a rollback of the
// bucket): Error corrupt.
//
// Threads: all calls may run in parallel.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "store/repository.hpp"
#include "store/store.hpp"

namespace weightfs {

class History {
 public:
  /// `store` may be null: nothing is kept then.  Keeps both references.
  History(Repository& repository, Store* store);

  /// nullptr if the version does not exist.
  std::shared_ptr<const Version> find(std::uint64_t number, const Context& context);

  /// Throws Error: not_found, saying which versions there are.
  std::shared_ptr<const Version> get(std::uint64_t number, const Context& context);

  /// The layout of a version; versions that have the same share it.  Kept in the store too.
  std::shared_ptr<const Layout> layout(const Version& version, const Context& context);

  /// Looks for versions after `known`, stops at the first that is absent.
  /// Returns: the newest version that exists now, at least `known`.
  std::uint64_t refresh(std::uint64_t known, const Context& context);

  [[nodiscard]] Repository& repository() noexcept { return repository_; }

 private:
  Repository& repository_;
  Store* store_;
  std::mutex mutex_;  // guards the two maps
  std::map<std::uint64_t, std::shared_ptr<const Version>> versions_;
  std::map<Sha256, std::shared_ptr<const Layout>> layouts_;
};

}  // namespace weightfs
