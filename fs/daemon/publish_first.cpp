#include "fs/daemon/publish_first.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/local/eviction.hpp"
#include "store/skips/make_skip.hpp"
#include "store/skips/skip_maker.hpp"

namespace weightfs::fs {
namespace {

using HandOverState = HandOver::State;

constexpr std::chrono::milliseconds kLookInterval{500};

bool waits_to_be_published(const HandOver& one) {
  return one.state != HandOverState::conflict && one.state != HandOverState::failed;
}

}  // namespace

bool is_publishing(const PublishQueue& queue) {
  return std::ranges::any_of(queue.list(), [](const HandOver& one) {
    return one.state == HandOverState::queued || one.state == HandOverState::uploading ||
           one.state == HandOverState::committing;
  });
}

void wait_published(const PublishQueue& queue, const Context& context) {
  while (std::ranges::any_of(queue.list(), waits_to_be_published) &&
         !context.stop.stop_requested()) {
    queue.wait_change(Clock::now() + kLookInterval, context.stop);
  }
}

bool make_skip_in_turn(const PublishQueue& queue, Store& store, History& history,
                       const VersionPair& versions, const Context& context) {
  MakeSkipOptions how;
  how.claim = Eviction::Claim::in_use;
  how.threads = 1;
  how.before_batch = [&, newest = store.manifests().newest().version](const Context& own) {
    let_publish_go_first(
        store, newest, [&](const Context& its) { wait_published(queue, its); }, own);
  };
  try {
    return make_skip(store, history, versions, how, context, {}).has_value();
  } catch (const Error& error) {
    const bool is_for_now =
        error.code() == ErrorCode::not_found || error.code() == ErrorCode::no_space;
    if (!is_for_now) throw;
    log_info(fmt::format("gc does without the skip delta from version {} to {}: {}", versions.from,
                         versions.to, error.what()));
    return false;
  }
}

}  // namespace weightfs::fs
