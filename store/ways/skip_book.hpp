// SkipBook: the skip deltas of a repository as this process knows them.  It remembers which are of
// no use, so that each is tried and complained of once, and what was read for the version planned
// last, so that planning it again costs no request.
//
// Threads: all calls may run in parallel.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "store/base/context.hpp"
#include "store/base/error.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/repository/gc_record.hpp"
#include "store/repository/pieces.hpp"
#include "store/repository/skips.hpp"

namespace weightfs {

/// gc left nothing to build a version from but this skip delta, and that is of no use.  Unlike
/// other errors about one it leaves no other way.
class NeededSkipDamaged : public ObjectError {
 public:
  using ObjectError::ObjectError;
};

class SkipBook {
 public:
  /// Keeps the reference.
  explicit SkipBook(Repository& repository) : repository_(repository) {}

  /// Skips to versions above `after`, up to `wanted`, without those of no use.  A hint.
  /// Throws Error: what list_skips() throws.
  std::vector<ListedSkip> list(std::uint64_t wanted, std::uint64_t after, const Context& context);

  /// Skips that versions depend on, since gc removed deltas.  Reads its log.
  /// Throws Error: as read_gc_log().
  NeededSkips needed(const Context& context);

  /// nullptr: there is none, or it is of no use; the log says why.
  /// Throws Error: unavailable, cancelled, timed_out.
  std::shared_ptr<const SkipRecord> find(const VersionPair& versions, const Context& context);

  /// This skip is not used, until forgive().  Logs that once.
  void leave_out(const VersionPair& versions, const Error& why);

  /// Why it was left out last, naming the object; nullopt: it never was.
  [[nodiscard]] std::optional<NeededSkipDamaged> find_reason(const VersionPair& versions) const;

  /// No way was left without them: what was left out is tried again, by the next plan.  gc may have
  /// left nothing else to build a version from, and it may be mended.
  void forgive();

  /// If the error is about an object of a skip delta, that one is left out.
  /// Returns: whether it is; then the next plan finds another way to whatever was read, or throws
  /// NeededSkipDamaged, of which nothing is left out.
  bool leave_out_cause(const Error& error);

 private:
  [[nodiscard]] bool is_left_out(const VersionPair& versions) const;

  Repository& repository_;
  mutable RankedMutex mutex_{LockRank::leaf, "SkipBook::mutex_"};  // guards what follows
  struct LeftOut {
    bool is_now = true;  // false: it was, and is tried again
    NeededSkipDamaged reason;
  };
  std::map<VersionPair, LeftOut> left_out_;  // named in the log
  // For versions up to wanted_: a long way is planned in parts, for the last one first.
  std::uint64_t wanted_ = 0;
  std::optional<std::pair<std::uint64_t, std::vector<ListedSkip>>> listed_;  // after `first`
  std::map<VersionPair, std::shared_ptr<const SkipRecord>> records_;
};

/// How often a plan is made again after an object was gone that it named.
inline constexpr int kReplansMax = 3;

/// Calls `body`, which plans and reads; and again as long as it fails because of a skip delta,
/// which the next plan does without; and a few times if an object is gone: gc may have removed it
/// after it was planned with, and the next plan finds another way, or the error for the user.
template <typename Body>
auto planning_again(SkipBook& skips, Body&& body) {
  for (int replans = 0;;) {
    try {
      return body();
    } catch (const ObjectError& error) {
      if (skips.leave_out_cause(error)) continue;
      if (error.code() != ErrorCode::not_found || replans++ == kReplansMax) throw;
    }
  }
}

}  // namespace weightfs
