#include "fs/daemon/control_handlers.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "fs/base/text_table.hpp"
#include "fs/control/wait_condition.hpp"
#include "store/base/bytes.hpp"
#include "store/base/context.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/base/path_rules.hpp"
#include "store/base/sha256.hpp"
#include "store/handover/publish_queue.hpp"
#include "store/staging/staging.hpp"

namespace weightfs::fs {
namespace {

constexpr std::size_t kMadeUpBytes = 4;
constexpr std::uint64_t kAskedAhead = 16;        // versions that may have come since the last poll
constexpr std::chrono::seconds kRebaseTime{30};  // for the bucket to reply

/// In the order that WaitFacts requires.
WaitFacts facts_of(const Sync& sync, const PublishQueue* queue) {
  WaitFacts facts;
  if (queue != nullptr) {
    facts.queue = queue->list();
    facts.ended = queue->ended();
  }
  facts.catalog = sync.catalog();
  const SyncStatus status = sync.status();
  facts.follow = status.follow;
  facts.followed = status.followed;
  facts.nameable = sync.opens_by_name() ? status.newest : 0;
  facts.partial = status.partial;
  return facts;
}

/// How fresh what is known is: a version may have come since.
std::string poll_text(const SyncStatus& status) {
  if (status.offline_since != 0) return ", and the bucket is out of reach";
  if (status.checked_time == 0) return ", and the bucket was not asked yet";
  const std::int64_t age = std::max<std::int64_t>(seconds_now() - status.checked_time, 0);
  return fmt::format(", where the bucket was last asked {} s ago", age);
}

/// Of a version that is far above the newest one that is known.  Any user may wait, and for each
/// number the sync would ask the bucket, in vain.
std::optional<WaitEnd> find_absent(const Sync& sync, std::uint64_t version) {
  const SyncStatus status = sync.status();
  const bool is_known = sync.opens_by_name() && status.newest != 0;
  if (!is_known || version <= status.newest + kAskedAhead) return std::nullopt;
  return WaitEnd{WaitEnd::How::failed, version,
                 fmt::format("version {} is not known here{}; the newest seen is {}", version,
                             poll_text(status), status.newest),
                 ""};
}

/// Requests a version, once, and prevents its eviction while a client waits.  If it is just being
/// removed, the next check requests it.
void bring(Sync& sync, std::uint64_t version, ControlHandlers::WaitState& state) {
  state.comes = sync.try_reserve(version);
  if (state.comes) sync.ask_for(version);
}

/// The directory at `path` below staging/.
StagingId find_directory(const Staging& staging, std::string_view path) {
  StagingId id = kStagingRoot;
  for (std::string_view rest = path; !rest.empty();) {
    const std::size_t end = std::min(rest.find('/'), rest.size());
    const std::string_view name = rest.substr(0, end);
    if (!name.empty()) id = staging.lookup(id, name);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  if (id != kStagingRoot) return id;
  throw Error(ErrorCode::invalid, "staging itself cannot be handed over: name a directory in it");
}

/// Renames are checked by the kernel; these requests must be checked here.
void check_may_hand_over(const PublishQueue& queue, Caller peer) {
  if (queue.may_hand_over(peer)) return;
  throw Error(
      ErrorCode::permission,
      fmt::format(
          "uid {} has no permission to write to publish/, so it may not hand over; mount with "
          "--staging-mode, --uid or --gid to allow it",
          peer.uid));
}

void check_owner(const Staging& staging, StagingId directory, uid_t peer, std::string_view path) {
  const uid_t owner = staging.attributes(directory).st_uid;
  if (peer == 0 || peer == owner) return;
  throw Error(ErrorCode::permission,
              fmt::format("staging/{} belongs to uid {}; uid {} may not hand it over",
                          escape_name(path), owner, peer));
}

/// In publish/, of what has no tag.
std::string made_up_name(const HandOverRequest& request) {
  const std::uint64_t rollback = request.options.wishes.rollback;
  const std::string what = rollback == 0 ? "untagged" : fmt::format("rollback-{}", rollback);
  return fmt::format("{}-{}", what, random_hex(kMadeUpBytes));
}

std::uint64_t hand_over(const Writing& writing, const HandOverRequest& request, Caller peer,
                        const Context& context) {
  check_may_hand_over(*writing.queue, peer);
  const StagingId directory = find_directory(*writing.staging, request.path);
  check_owner(*writing.staging, directory, peer.uid, request.path);
  const std::string name = request.name.empty() ? made_up_name(request) : request.name;
  HandOverOptions options = request.options;
  options.caller = peer;
  options.wishes.tag = request.name;
  const std::uint64_t order = writing.queue->hand_over(directory, name, options, context);
  log_info(fmt::format("uid {} handed staging/{} over as publish/{}", peer.uid,
                       escape_name(request.path), escape_name(name)));
  return order;
}

}  // namespace

ControlHandlers make_control_handlers(Sync& sync, const Writing& writing, LoaderPins& pins) {
  ControlHandlers handlers;
  handlers.wait = [&sync, queue = writing.queue](const WaitFor& what,
                                                 ControlHandlers::WaitState& state) {
    if (what.ready && what.version && !state.comes) {
      if (auto end = find_absent(sync, *what.version)) return end;
      bring(sync, *what.version, state);
    }
    return find_wait_end(what, facts_of(sync, queue), state);
  };
  handlers.pin = [&pins](const PinRequest& request) {
    const std::uint64_t version = pins.pin(request.version);
    log_info(fmt::format("version {} was pinned by weightfs pin", version));
    return version;
  };
  handlers.unpin = [&pins](const UnpinRequest& request) {
    const std::size_t ended = pins.unpin(request);
    log_info(fmt::format("weightfs unpin ended {}", count_text(ended, "pin")));
    return ended;
  };
  if (writing.queue == nullptr) return handlers;
  handlers.hand_over = [writing](const HandOverRequest& request, Caller peer,
                                 const Context& context) {
    return hand_over(writing, request, peer, context);
  };
  handlers.rebase = [writing](Caller peer, const Context& context) {
    check_may_hand_over(*writing.queue, peer);
    return writing.queue->rebase(context.within(kRebaseTime));
  };
  return handlers;
}

}  // namespace weightfs::fs
