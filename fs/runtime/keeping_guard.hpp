// KeepingGuard: keeps versions from being evicted by a predicate, for code that knows nothing of
// the eviction: a mount's pins, engines.
//
// Threads: as the predicate.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "store/local/eviction.hpp"
#include "store/local/version_guard.hpp"

namespace weightfs::fs {

class KeepingGuard final : public VersionGuard {
 public:
  /// The predicate is called as long as this lives.  Requires: `eviction` outlives this.
  KeepingGuard(Eviction& eviction, std::function<bool(std::uint64_t version)> keeps)
      : keeps_(std::move(keeps)), guarding_(eviction.add_guard(*this)) {}

  [[nodiscard]] bool keeps(std::uint64_t version) override { return keeps_(version); }

 private:
  const std::function<bool(std::uint64_t)> keeps_;
  Eviction::Guarding guarding_;  // must be destroyed first
};

}  // namespace weightfs::fs
