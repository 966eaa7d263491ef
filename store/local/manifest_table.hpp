// ManifestTable: what a store remembers of versions whether or not their images are here:
// manifests, layouts, and the newest accepted version.
//
// Threads: all calls may run in parallel.
// Errors: every call throws Error: corrupt, io; those that write also no_space (nothing was
// written).
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/ranked_mutex.hpp"
#include "store/base/sha256.hpp"
#include "store/database/db.hpp"

namespace weightfs {

/// The highest version whose manifest was accepted; protects against rollback.
struct Newest {
  std::uint64_t version = 0;
  Sha256 manifest_sha256{};
};

class ManifestTable {
 public:
  /// Reads the record of the newest version; keeps the reference.  Throws Error: corrupt, io.
  explicit ManifestTable(Db& db);

  [[nodiscard]] std::optional<std::string> find_manifest(std::uint64_t version) const;
  /// This and put_layout() survive the end of the process at once, and a power cut after the next
  /// synced record; the last step of completing a version writes one.
  void put_manifest(std::uint64_t version, std::string_view bytes);

  /// Numbers of all stored manifests, ascending.
  [[nodiscard]] std::vector<std::uint64_t> manifest_numbers() const;

  [[nodiscard]] std::optional<std::string> find_layout(const Sha256& id) const;
  void put_layout(const Sha256& id, std::string_view bytes);
  /// Reads the records of all layouts, which may be large.
  [[nodiscard]] std::set<Sha256> layout_ids() const;
  void remove_layouts(std::span<const Sha256> ids);

  [[nodiscard]] Newest newest() const;

  /// A lower version than newest() changes nothing.
  void put_newest(const Newest& newest, Durability durability = Durability::power);
  /// Makes newest() survive a power cut, if it does not.
  void sync_newest();

 private:
  Db& db_;
  // Held while the record is written, so that the record never goes back; before mutex_.
  RankedMutex newest_mutex_{LockRank::store_newest, "ManifestTable::newest_mutex_"};
  mutable RankedMutex mutex_{LockRank::store, "ManifestTable::mutex_"};  // guards newest_
  Newest newest_;
  bool is_newest_synced_ = true;
};

}  // namespace weightfs
