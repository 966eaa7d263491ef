// History: the versions of a repository as this host knows them: from the store's records first,
// from the bucket else.  What came from the bucket is kept in the store.
//
// It also guards the order of things: a manifest must name the SHA-256 of its parent's manifest,
// and a version that is known already must not come back with another hash (a fork or a rollback of
// the bucket): Error corrupt.
//
// Threads: all calls may run in parallel.
#pragma once

#include <cstdint>
#include <functional>
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

  /// Takes a version that this process committed, so that nobody has to fetch it: as find() and
  /// layout() keep them, and as Store::newest().
  std::shared_ptr<const Version> add(Version version, std::shared_ptr<const Layout> layout);

  /// Looks for versions after `known`, stops at the first that is absent.  What is accepted is
  /// recorded as Store::newest() before this returns.
  ///
  /// The first call that reaches the bucket also checks that the newest version known here is still
  /// there and the same; later ones learn of it when the next version names another parent.
  /// Returns: the newest version that exists now, at least `known`.  If a version cannot be read or
  ///          does not fit, those before it are returned, and the next call throws.
  /// Throws Error: corrupt (malformed, a fork, a rollback), unavailable.
  std::uint64_t refresh(std::uint64_t known, const Context& context);

  [[nodiscard]] Repository& repository() noexcept { return repository_; }

 private:
  std::shared_ptr<const Version> find_known(std::uint64_t number);
  std::shared_ptr<const Layout> find_kept_layout(const Sha256& id);
  std::shared_ptr<const Version> remember(Version version);
  std::uint64_t newest_known();
  void check_order(const Version& version);
  void check_not_rolled_back(std::uint64_t known, const Context& context);
  void keep_newest(std::uint64_t number, const Context& context);
  void keep(const std::string& what, const std::function<void()>& write);

  Repository& repository_;
  Store* const store_;
  std::mutex mutex_;  // guards what follows; never held over store or bucket
  std::map<std::uint64_t, std::shared_ptr<const Version>> versions_;
  std::map<Sha256, std::shared_ptr<const Layout>> layouts_;
  bool checked_bucket_ = false, logged_no_space_ = false;
};

}  // namespace weightfs
