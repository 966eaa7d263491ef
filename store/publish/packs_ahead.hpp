// Packs ahead: uploads the packs that are full while the next one is still being coded.
//
// Threads: add() is called by one thread at a time; the rest belongs to its maker.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "store/base/context.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/coding/delta_coder.hpp"
#include "store/format/manifest.hpp"
#include "store/threads/background.hpp"

namespace weightfs {

class PacksAhead {
 public:
  /// `upload`: uploads pack number `k` and returns what the manifest says of it.
  PacksAhead(const Context& context,
             std::function<PackRef(const SpooledPack& pack, std::size_t k)> upload);
  /// Stops.
  ~PacksAhead();

  /// The next pack, which takes no more chunks.  Returns at once.
  void add(std::shared_ptr<const SpooledPack> pack);

  /// Lets no more uploads begin.
  /// Returns: how many packs are uploaded or on their way: the first ones that were added.
  std::size_t end();

  /// Waits for those.  Requires: end() was called.  Throws Error: the first failure.
  std::vector<PackRef> finish();

 private:
  void run(const Context& context);

  const std::function<PackRef(const SpooledPack& pack, std::size_t k)> upload_;
  RankedMutex mutex_{LockRank::leaf, "PacksAhead::mutex_"};  // guards the next block
  std::condition_variable_any changed_;
  std::vector<std::shared_ptr<const SpooledPack>> packs_;
  std::size_t begun_ = 0;
  bool is_ended_ = false;

  std::vector<PackRef> refs_;  // the thread's, until it has ended
  Background thread_;          // last: it uses those above
};

}  // namespace weightfs
