// Hand-over record: what the store keeps of a checkpoint that was handed over, so that any later
// process can continue (family `handovers`; the key is its order).
//
//     queued       nothing of it can be a version
//     committing   the manifest of `version` may be in the bucket, with this nonce
//     committed    it is `version`; its images and staged files are not settled yet
//     conflict     terminal, with the reason: another writer published since its fence
//     failed       terminal, with the reason
//
// The value is JSON with a format number; the meaning of a field never changes.  That of a part has
// a higher one, since a release that does not know parts would publish it as a whole version.
//
// Threads: a value; parsing and writing are pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "store/parts/part_set.hpp"
#include "store/publish/version_wishes.hpp"
#include "store/staging/types.hpp"

namespace weightfs {

struct HandOverRecord {
  enum class Phase { queued, committing, committed, conflict, failed };

  std::uint64_t order = 0;  // the key; not in the value
  StagingId directory = 0;
  std::string name;      // in publish/
  std::string nonce;     // 32 hex digits: of the manifest, and the name of the tree of links
  StagingOrigin origin;  // where it was in staging
  std::uint64_t fence = 0;
  VersionWishes wishes;
  PartChoice part;        // with the token that it was handed over with; none: a whole version
  std::int64_t time = 0;  // handed over, seconds since 1970
  /// The boot id of the machine at the hand-over; "" once its files are synced.  After a reboot the
  /// contents of unsynced files are undefined.  Most are never synced under this record: the bucket
  /// has their version before that; those that wait are.  "lost": the disk did not take them.
  std::string unsynced_boot;

  Phase phase = Phase::queued;
  std::uint64_t version = 0;  // of committing and committed
  std::string error;          // of conflict and failed
  std::string error_code;

  [[nodiscard]] bool is_terminal() const noexcept {
    return phase == Phase::conflict || phase == Phase::failed;
  }

  /// Whether bytes of its files may be lost.  `boot`: this run of the machine.
  [[nodiscard]] bool may_be_lost(std::string_view boot) const noexcept {
    return !unsynced_boot.empty() && unsynced_boot != boot;
  }

  [[nodiscard]] std::string key() const;

  /// Throws Error: invalid if a text is not UTF-8; names in staging may be any bytes.
  [[nodiscard]] std::string serialize() const;

  /// Throws Error: corrupt (malformed), unsupported (a newer format).
  static HandOverRecord parse(std::string_view key, std::string_view value);
};

std::string_view to_string(HandOverRecord::Phase phase) noexcept;

}  // namespace weightfs
