// ManifestTable: what a store remembers of versions whether or not their images are here:
// manifests, layouts, and the newest version that was accepted.
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
#include "store/local/db.hpp"

namespace weightfs {

/// The highest version whose manifest was accepted, against rollback.
struct Newest {
  std::uint64_t version = 0;
  Sha256 manifest_sha256{};
};

class ManifestTable {
 public:
  /// Reads the record of the newest version; keeps the reference.  Throws Error: corrupt, io.
  explicit ManifestTable(Db& db);

  [[nodiscard]] std::optional<std::string> find_manifest(std::uint64_t version) const;
  /// This and put_layout() survive the end of the process; a power cut from the next synced record
  /// on, which every version ends with that comes to be complete.
  void put_manifest(std::uint64_t version, std::string_view bytes);

  /// Numbers of all manifests kept here, ascending.
  [[nodiscard]] std::vector<std::uint64_t> manifest_numbers() const;

  [[nodiscard]] std::optional<std::string> find_layout(const Sha256& id) const;
  void put_layout(const Sha256& id, std::string_view bytes);
  /// Reads the records of all layouts, which may be large.
  [[nodiscard]] std::set<Sha256> layout_ids() const;
  void remove_layouts(std::span<const Sha256> ids);

  [[nodiscard]] Newest newest() const;

  /// Durable.  A lower version than newest() changes nothing.
  void put_newest(const Newest& newest);

 private:
  Db& db_;
  // Held while the record is written, so that it never goes back; before mutex_.
  RankedMutex newest_mutex_{LockRank::store_newest, "ManifestTable::newest_mutex_"};
  mutable RankedMutex mutex_{LockRank::store, "ManifestTable::mutex_"};  // guards newest_
  Newest newest_;
};

}  // namespace weightfs
