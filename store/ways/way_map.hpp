// WayMap: which ways lead to a version, and which of them is the cheapest.
//
//     start          skip: 8 -> 16
//       8 ----------------------------------> 16 -> 17 -> 18   wanted
//       8 --> 9 --> 10 --> ... --> 15 ------> 16
//
// Versions are nodes.  A delta leads to each version from the one before it, unless it is known not
// to; a skip delta leads over several.  A way begins at a start: images on this host, which cost
// nothing, or a snapshot.  Costs are bytes and requests; a request is worth kRequestBytes: what a
// connection to a bucket could carry meanwhile.  What is not known yet has a guessed cost.
//
// Threads: a value; nothing here reads anything.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "store/base/version_pair.hpp"

namespace weightfs {

/// Price of a request: 64 KiB, what 20 MB/s carry in 3 ms.
inline constexpr std::uint64_t kRequestBytes = 64u << 10;

/// What it costs to fetch something.
struct WayCost {
  static constexpr std::uint64_t kMax = std::uint64_t{1} << 54;  // a sum of many fits

  std::uint64_t bytes = 0, requests = 0;

  [[nodiscard]] std::uint64_t price() const noexcept {
    return std::min(bytes, kMax) + std::min(requests, kMax / kRequestBytes) * kRequestBytes;
  }
  bool operator==(const WayCost&) const = default;
};

/// A delta or a skip delta on a way.
struct WayHop {
  VersionPair versions;
  bool is_skip = false;
  bool operator==(const WayHop&) const = default;
};

struct Way {
  std::uint64_t start = 0;
  std::vector<WayHop> hops;  // oldest first; empty: the start is the wanted version
};

/// The last part of the cheapest way to a version.
struct WayEnd {
  enum class By { nothing, start, delta, skip };  // nothing: no way leads to the version
  By by = By::nothing;
  std::uint64_t from = 0;  // the version before this part; 0: the way begins and ends here
  std::uint64_t price = 0, hops = 0;  // of the whole way
};

class WayMap {
 public:
  /// A version to begin at.  Replaces what was set before.
  void set_start(std::uint64_t version, const WayCost& cost) { starts_[version] = cost; }
  void remove_start(std::uint64_t version) { starts_.erase(version); }
  [[nodiscard]] bool has_start(std::uint64_t version) const { return starts_.contains(version); }
  [[nodiscard]] const std::map<std::uint64_t, WayCost>& starts() const noexcept { return starts_; }

  /// The delta that leads to a version; nullopt: there is none.
  void set_delta(std::uint64_t version, std::optional<WayCost> cost) { deltas_[version] = cost; }
  /// The cost of all deltas that were not set.
  void guess_deltas(const WayCost& cost) { guess_ = cost; }

  void set_skip(const VersionPair& versions, const WayCost& cost) {
    skips_[versions.to][versions.from] = cost;
  }
  void remove_skip(const VersionPair& versions);
  void remove_skips_to(std::uint64_t version) { skips_.erase(version); }
  void remove_skips_but(const std::set<VersionPair>& kept);

  /// The way with the lowest price; of equal ones that with fewer hops.  nullopt: no start leads to
  /// the version.
  [[nodiscard]] std::optional<Way> find(std::uint64_t wanted) const;

  /// The ends of such ways to all versions up to `newest`, v at [v - 1]: with `from` they are whole
  /// ways.  For who has set every delta: each version costs a step.
  [[nodiscard]] std::vector<WayEnd> find_all(std::uint64_t newest) const;

  /// Whether a way to `wanted` may come from `version` or before it.
  [[nodiscard]] bool reaches_back(std::uint64_t wanted, std::uint64_t version) const;

 private:
  [[nodiscard]] std::optional<WayCost> delta_to(std::uint64_t version) const;

  std::map<std::uint64_t, WayCost> starts_;
  std::map<std::uint64_t, std::optional<WayCost>> deltas_;                // by `to`
  std::map<std::uint64_t, std::map<std::uint64_t, WayCost>> skips_ = {};  // by `to`, then `from`
  WayCost guess_;
};

}  // namespace weightfs
