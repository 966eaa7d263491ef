#include "store/publish/snapshot_choice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/format/pack_bytes.hpp"
#include "store/publish/parent.hpp"
#include "store/repository/skips.hpp"

namespace weightfs {
namespace {

constexpr std::uint64_t kSnapshotStep = 64;    // versions
constexpr std::uint64_t kSkipsOfSnapshot = 5;  // such skips are as large as a snapshot

/// Bytes of the deltas after the last snapshot up to `parent`; nullopt: there is no snapshot, or
/// the way back to it is damaged, so that a new one is needed the more.
std::optional<std::uint64_t> find_delta_bytes(History& history, std::uint64_t parent,
                                              const Context& context) {
  std::uint64_t bytes = 0;
  try {
    for (std::uint64_t number = parent; number > 0; number--) {
      const std::shared_ptr<const Version> version = history.get(number, context);
      if (version->manifest.snapshot) return bytes;
      bytes += pack_bytes(*version->manifest.delta);
    }
  } catch (const Error& error) {
    const ErrorCode code = error.code();
    if (code == ErrorCode::cancelled || code == ErrorCode::timed_out ||
        code == ErrorCode::unavailable) {
      throw;
    }
    log_warning(fmt::format("the deltas since the last snapshot are not known: {}", error.what()));
  }
  return std::nullopt;
}

/// Bytes of the newest skip from the last snapshot to one of the last 64 versions up to `parent`.
std::optional<std::uint64_t> find_skip_bytes(History& history, std::uint64_t parent,
                                             const Context& context) {
  const auto snapshot = find_snapshot_before(history.get(parent, context), history, context);
  if (!snapshot) return std::nullopt;
  const std::uint64_t after = std::max(*snapshot, parent - std::min(parent, kSnapshotStep));
  std::optional<std::uint64_t> bytes;
  try {
    for (const ListedSkip& skip : list_skips(history.repository(), after, context)) {
      if (skip.versions.from == *snapshot && skip.versions.to <= parent) bytes = skip.bytes;
    }
  } catch (const Error& error) {
    if (error.code() == ErrorCode::cancelled || error.code() == ErrorCode::timed_out) throw;
    log_info(fmt::format("the skip deltas are not known: {}", error.what()));
  }
  return bytes;
}

void note_due(std::uint64_t version, std::uint64_t version_bytes, std::string_view way,
              std::uint64_t way_bytes) {
  log_info(fmt::format("version {} gets a snapshot of {}: {} from the last one has {}", version,
                       human_bytes(version_bytes), way, human_bytes(way_bytes)));
}

}  // namespace

bool is_snapshot_due(History& history, std::uint64_t version, std::uint64_t version_bytes,
                     const SnapshotPolicy& policy, const Context& context) {
  if (version <= 1) return false;  // it has one anyway
  if (policy.every != 0 && version % policy.every == 0) return true;
  if (version % kSnapshotStep != 0) return false;
  if (policy.asks_bucket) {
    if (const auto skip = find_skip_bytes(history, version - 1, context)) {
      const bool is_long = *skip > version_bytes / kSkipsOfSnapshot;
      if (is_long) note_due(version, version_bytes, "the newest skip delta", *skip);
      return is_long;
    }
  }
  const auto deltas = find_delta_bytes(history, version - 1, context);
  if (!deltas) return true;
  const bool is_long = *deltas >= version_bytes;
  if (is_long) note_due(version, version_bytes, "the deltas", *deltas);
  return is_long;
}

}  // namespace weightfs
