#include "store/publish/snapshot_choice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/format/pack_bytes.hpp"
#include "store/repository/skips.hpp"

namespace weightfs {
namespace {

constexpr std::uint64_t kSnapshotStep = 64;    // versions
constexpr std::uint64_t kSkipsOfSnapshot = 5;  // such skips are as large as a snapshot

/// What lies between a version and the last snapshot before it.
struct SinceSnapshot {
  std::uint64_t snapshot = 0;  // version; 0: there is none
  std::uint64_t delta_bytes = 0;
};

SinceSnapshot since_snapshot(History& history, std::uint64_t parent, const Context& context) {
  SinceSnapshot since;
  for (std::uint64_t number = parent; number > 0; number--) {
    const std::shared_ptr<const Version> version = history.get(number, context);
    if (version->manifest.snapshot) {
      since.snapshot = number;
      break;
    }
    since.delta_bytes += pack_bytes(*version->manifest.delta);
  }
  return since;
}

/// Bytes of the newest skip from the snapshot to one of the last 64 versions up to `parent`.
std::optional<std::uint64_t> find_skip_bytes(History& history, std::uint64_t snapshot,
                                             std::uint64_t parent, const Context& context) {
  const std::uint64_t after = std::max(snapshot, parent - std::min(parent, kSnapshotStep));
  std::optional<std::uint64_t> bytes;
  try {
    for (const ListedSkip& skip : list_skips(history.repository(), after, context)) {
      if (skip.versions.from == snapshot && skip.versions.to <= parent) bytes = skip.bytes;
    }
  } catch (const Error& error) {
    if (error.code() == ErrorCode::cancelled || error.code() == ErrorCode::timed_out) throw;
    log_info(fmt::format("the skip deltas are not known: {}", error.what()));
  }
  return bytes;
}

}  // namespace

bool is_snapshot_due(History& history, std::uint64_t version, std::uint64_t version_bytes,
                     const SnapshotPolicy& policy, const Context& context) {
  if (version <= 1) return false;  // it has one anyway
  if (policy.every != 0 && version % policy.every == 0) return true;
  if (version % kSnapshotStep != 0) return false;
  const SinceSnapshot since = since_snapshot(history, version - 1, context);
  if (since.snapshot == 0) return true;
  const auto skip = policy.asks_bucket
                        ? find_skip_bytes(history, since.snapshot, version - 1, context)
                        : std::nullopt;
  const bool is_due = skip ? *skip > version_bytes / kSkipsOfSnapshot  //
                           : since.delta_bytes >= version_bytes;
  if (is_due) {
    log_info(fmt::format("version {} gets a snapshot of {}: {} from that of version {} has {}",
                         version, human_bytes(version_bytes),
                         skip ? "the newest skip delta" : "the deltas", since.snapshot,
                         human_bytes(skip.value_or(since.delta_bytes))));
  }
  return is_due;
}

}  // namespace weightfs
