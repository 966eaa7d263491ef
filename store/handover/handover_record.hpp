// Hand-over record: what the store keeps of a checkpoint that was handed over, so that any later
// process goes on with it (family `handovers`; the key is its order).
//
//     queued       nothing of it can be a version
//     committing   the manifest of `version` may be in the bucket, with this nonce
//     committed    it is `version`; its images and staged files are not settled yet
//     conflict     terminal, with the reason: another writer published since its fence
//     failed       terminal, with the reason
//
// The value is JSON with a number of its format; fields are never given another meaning.
//
// Threads: a value; parsing and writing are pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "store/staging/types.hpp"

namespace weightfs {

struct HandOverRecord {
  enum class Phase { queued, committing, committed, conflict, failed };

  std::uint64_t order = 0;  // the key; not in the value
  StagingId directory = 0;
  std::string name;      // in publish/
  std::string tag;       // "" for none
  std::string nonce;     // 32 hex digits: of the manifest, and of the tree of links
  StagingOrigin origin;  // where it was in staging
  std::uint64_t fence = 0;
  std::map<std::string, std::string> meta;
  std::vector<std::string> include;
  bool snapshot = false;
  bool rebase = false;
  std::int64_t time = 0;  // handed over, seconds since 1970
  /// The run of the machine in which it was handed over; "" once its files are synced.  In another
  /// run of the machine the bytes of files that were not synced may be anything.
  std::string unsynced_boot;

  Phase phase = Phase::queued;
  std::uint64_t version = 0;  // of committing and committed
  std::string error;          // of conflict and failed
  std::string error_code;

  [[nodiscard]] bool is_terminal() const noexcept {
    return phase == Phase::conflict || phase == Phase::failed;
  }

  [[nodiscard]] std::string key() const;

  /// Throws Error: invalid if a text is not UTF-8; names of staging may be any bytes.
  [[nodiscard]] std::string serialize() const;

  /// Throws Error: corrupt (malformed), unsupported (a newer format).
  static HandOverRecord parse(std::string_view key, std::string_view value);
};

std::string_view to_string(HandOverRecord::Phase phase) noexcept;

}  // namespace weightfs
