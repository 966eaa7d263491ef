// KeptPacks: headers of packs that were read before there was a manifest that names them, and the
// data of small ones; the most recently used, in bounded memory.  Whoever makes the version, or the
// next piece of a file, need not fetch them again.
//
// Both are found by all that a manifest says of the pack, so they are of the one that is meant.  A
// header was checked when it was read, data was not: its pieces must be compared before use.
//
// Threads: all calls may run in parallel.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "store/base/lru_cache.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/base/sha256.hpp"
#include "store/format/object_refs.hpp"

namespace weightfs {

class KeptPacks {
 public:
  KeptPacks(std::size_t head_bytes_max, std::size_t data_bytes_max)
      : heads_(head_bytes_max), data_(data_bytes_max) {}

  /// nullptr if it is not here.
  std::shared_ptr<const std::string> find_head(const PackRef& ref);
  std::shared_ptr<const std::string> find_data(const PackRef& ref);

  /// Requires: they came from Repository::get_pack_head() or get_whole_pack().
  void put_head(const PackRef& ref, std::string head);
  void put_data(const PackRef& ref, std::shared_ptr<const std::string> data);

 private:
  struct Known {
    PackRef ref;
    std::shared_ptr<const std::string> bytes;
  };
  struct Cost {
    static std::size_t enter(const Known& known) { return leave(known); }
    static std::size_t leave(const Known& known) {
      return sizeof known + known.ref.name.capacity() + known.bytes->capacity();
    }
  };
  using Cache = LruCache<Sha256, Known, Cost>;

  std::shared_ptr<const std::string> find(Cache& cache, const PackRef& ref);
  void put(Cache& cache, const PackRef& ref, std::shared_ptr<const std::string> bytes);

  RankedMutex mutex_{LockRank::leaf, "KeptPacks::mutex_"};  // guards the fields below
  Cache heads_, data_;                                      // by Sha256 of the header
};

}  // namespace weightfs
