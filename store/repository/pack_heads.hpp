// PackHeads: headers of packs that were read before there was a manifest that names them; the most
// recently used ones, in bounded memory.  Whoever makes the version need not fetch them again.
//
// A header is found by all that a manifest says of its pack, so it is the one that is meant, and
// was checked when it was read.
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

class PackHeads {
 public:
  explicit PackHeads(std::size_t bytes_max) : heads_(bytes_max) {}

  /// nullptr if the header is not here.
  std::shared_ptr<const std::string> find(const PackRef& ref);

  /// Requires: `head` came from Repository::get_pack_head().
  void put(const PackRef& ref, std::string head);

 private:
  struct Known {
    PackRef ref;
    std::string head;
  };
  struct Cost {
    static std::size_t enter(const Known& known) { return leave(known); }
    static std::size_t leave(const Known& known) {
      return sizeof known + known.ref.name.capacity() + known.head.capacity();
    }
  };

  RankedMutex mutex_{LockRank::leaf, "PackHeads::mutex_"};  // guards the field below
  LruCache<Sha256, Known, Cost> heads_;
};

}  // namespace weightfs
