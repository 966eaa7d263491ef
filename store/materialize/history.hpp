// History: the versions of a repository as this host knows them, from the store's records or else
// from the bucket.  What is fetched from the bucket is kept in the store.
//
// It also guards the order of versions: a manifest must name the SHA-256 of its parent's manifest,
// and a known version must not come back with another hash (a fork or a rollback of the bucket):
// Error corrupt.  A manifest without a hash of its own (Manifest::carries_hash) can be verified
// only through its child, so it is checked together with its child.
//
// Memory is bounded: the most recently used manifests and layouts stay, others are read again from
// the store or the bucket.  The store keeps every manifest, but only the layouts of versions that
// are on this host, are made of its patches, or are in use.
//
// Threads: all calls may run in parallel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "store/base/lru_cache.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/local/store.hpp"
#include "store/repository/kept_packs.hpp"
#include "store/repository/layout_cache.hpp"
#include "store/repository/repository.hpp"
#include "store/seed/seed_directory.hpp"
#include "store/ways/skip_book.hpp"
#include "store/ways/version_source.hpp"

namespace weightfs {

class History final : public VersionSource {
 public:
  /// Limits for unused layouts, and for manifests.
  static constexpr std::size_t kLayoutBytesKept = 32u << 20;
  static constexpr std::size_t kManifestBytesKept = 32u << 20;
  /// Limits for headers of packs, and for data of small ones: eight, as many files grow at a time.
  static constexpr std::size_t kPackHeadBytesKept = 16u << 20;
  static constexpr std::size_t kPackDataBytesKept = 4u << 20;
  /// A host that is no more versions behind reads all of their manifests: it is likely to need
  /// them, and they come at the same time.
  static constexpr std::uint64_t kWalkedMax = 8;

  enum class Reach {
    newest,
    next  // at most one version after `known`, by one request: somebody has just looked
  };

  /// `store` may be null: then nothing is kept.  Keeps both references.  `seed`: what plans take
  /// from there is not fetched; may be null.
  History(Repository& repository, Store* store,
          std::shared_ptr<const SeedDirectory> seed = nullptr);

  /// nullptr if the version does not exist.
  std::shared_ptr<const Version> find(std::uint64_t number, const Context& context);

  /// Throws Error: not_found, listing the versions that exist; corrupt if the version is among them
  /// but its manifest is missing.
  std::shared_ptr<const Version> get(std::uint64_t number, const Context& context) override;

  /// The layout of a version; versions with the same layout share the object.  Kept in the store
  /// too.
  std::shared_ptr<const Layout> layout(const Version& version, const Context& context) override;

  /// Like layout(), but from memory or the store only; nullptr if it is in neither.
  std::shared_ptr<const Layout> find_layout(const Version& version) override;

  /// Records a version that this process committed, as find() and layout() would, and as
  /// ManifestTable::newest(), so that it need not be fetched.
  std::shared_ptr<const Version> add(Version version, std::shared_ptr<const Layout> layout);

  /// Looks for versions after `known`, up to the first absent one.  The newest one is recorded as
  /// ManifestTable::newest() before this returns; ManifestTable::sync_newest() makes that durable.
  /// Without a new version this is one request, with one it is two.  The first four versions after
  /// `known` are fetched and accepted in order.  If LIST then names more than kWalkedMax others,
  /// only the newest of them is: the manifests in between are read when somebody needs them, and
  /// compared with what is known of their neighbours then.  LIST is a hint: a number that it does
  /// not name is asked for, and where it names nothing, manifests are fetched in parallel and
  /// accepted in order.
  ///
  /// The first call that reaches the bucket also checks that the newest version known here is still
  /// there and unchanged; later calls notice a change when the next version names another parent,
  /// and whoever calls them asks check_bucket() now and then.
  /// The first call also looks beyond the first absent number: if there are versions above it, its
  /// manifest was removed, which is Error corrupt.  Later calls do not, so that a call without a
  /// new version is one GET.
  /// `reach`: how far to look after the first one.
  /// Returns: the newest version that exists now, at least `known`.  If a version cannot be read or
  /// is rejected, the last one before it is returned, and the next call throws.
  /// Throws Error: corrupt (malformed, a fork, a rollback), unavailable.
  std::uint64_t refresh(std::uint64_t known, const Context& context, Reach reach = Reach::newest);

  /// Whether the bucket still is the one that is followed: has the repository's record, and the
  /// newest version known here, unchanged.  Two small requests, three where that has no hash of its
  /// own.
  /// Throws Error: not_found (no repository, or another one), corrupt (a rollback, a fork); what
  /// the bucket throws.
  void check_bucket(std::uint64_t known, const Context& context);

  /// Makes the next refresh() look beyond the first absent number again, and read every manifest on
  /// its way.  Call it before publishing a version with that number.
  void look_behind_the_newest();

  [[nodiscard]] Repository& repository() noexcept { return repository_; }
  [[nodiscard]] const std::shared_ptr<const SeedDirectory>& seed() const noexcept { return seed_; }

  /// Packs of the next version that were read already.
  [[nodiscard]] KeptPacks& kept_packs() noexcept { return kept_packs_; }

  /// The skip deltas of the repository.
  [[nodiscard]] SkipBook& skips() noexcept { return skips_; }

 private:
  /// The result of one lookup: known before, fetched, neither, or an error.
  struct Looked {
    std::shared_ptr<const Version> known;
    std::optional<Version> fetched;
    std::exception_ptr error;
    [[nodiscard]] const Version* get() const { return fetched ? &*fetched : known.get(); }
  };
  struct VersionCost {
    static std::size_t enter(const Version& version) { return leave(version); }
    static std::size_t leave(const Version& version);
  };

  std::shared_ptr<const Version> find_known(std::uint64_t number);
  std::shared_ptr<const Version> find_in_memory(std::uint64_t number);
  std::shared_ptr<const Layout> find_kept_layout(const Sha256& id);
  std::vector<Looked> look(std::uint64_t first, std::size_t count, const Context& context);
  bool advance(std::uint64_t& newest, std::size_t count, const Context& context);
  void walk(std::uint64_t& newest, const Context& context);
  void jump(std::uint64_t& newest, const Context& context);
  std::shared_ptr<const Version> accept(Version version);
  std::shared_ptr<const Version> remember(Version version);
  std::uint64_t newest_known();
  void check_order(const Version& version);
  static void check_old_form(const Version& version, const Version* child);
  void check_old_form(const Version& version, const Context& context);
  void check_not_rolled_back(std::uint64_t known, const Context& context);
  void check_newest(std::uint64_t known, const Context& context);
  void check_no_gap(std::uint64_t newest, const Context& context);
  void keep_manifest(const Version& version);
  void keep_newest(std::uint64_t number, const Context& context);
  std::shared_ptr<const Layout> know(std::shared_ptr<const Layout> layout);
  void keep_layout(const Layout& layout, bool replace);
  void prune_layouts();
  std::set<Sha256> layouts_of_versions_here();
  void keep(const std::string& what, const std::function<void()>& write);

  Repository& repository_;
  Store* const store_;
  const std::shared_ptr<const SeedDirectory> seed_;
  SkipBook skips_{repository_};
  KeptPacks kept_packs_{kPackHeadBytesKept, kPackDataBytesKept};
  // Held while a version is compared with its neighbours and remembered. Held across store calls,
  // not bucket calls; before mutex_.
  RankedMutex accept_mutex_{LockRank::history_accept, "History::accept_mutex_"};
  // Guards the store's layout records; held across store calls; before mutex_.
  RankedMutex layouts_mutex_{LockRank::history_layouts, "History::layouts_mutex_"};
  std::optional<std::set<Sha256>> kept_layouts_;  // ids in the store; guarded by layouts_mutex_
  // Guards what follows; never held across store or bucket calls.
  RankedMutex mutex_{LockRank::history, "History::mutex_"};
  LruCache<std::uint64_t, Version, VersionCost> versions_{kManifestBytesKept};
  LayoutCache layouts_{kLayoutBytesKept};
  std::set<std::uint64_t> unkept_;  // versions whose manifest the store had no room for
  std::uint64_t highest_ = 0;       // highest accepted version
  bool checked_bucket_ = false, looked_behind_ = false, logged_no_space_ = false;
  bool reads_all_ = false;  // the next refresh() does
};

}  // namespace weightfs
