#include "store/handover/early_announcer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/repository/early_records.hpp"

namespace weightfs {
namespace {

constexpr std::chrono::seconds kRequestTime{30};
constexpr Clock::duration kPauseMin = std::chrono::seconds(1), kPauseMax = std::chrono::seconds(30);

}  // namespace

EarlyAnnouncer::EarlyAnnouncer(Repository& repository, std::function<EarlyComing()> state)
    : repository_(repository),
      state_(std::move(state)),
      thread_({"no early record: {}"}, [this](const Context& context, bool) {
        try {
          return announce(context);
        } catch (const std::exception& error) {
          log_debug(fmt::format("no early record: {}", error.what()));
          return WokenThread::kUntilWoken;
        }
      }) {}

/// While the next version is not known a hand-over is being published: its record stays.
/// Returns: when to look again, unless it is woken before.
Clock::duration EarlyAnnouncer::announce(const Context& context) {
  const EarlyComing state = state_();
  if (state.next == 0) return WokenThread::kUntilWoken;
  if (told_ != 0 && (told_ != state.next || !state.record)) remove_told(context);
  if (!state.record) return WokenThread::kUntilWoken;
  std::string bytes = state.record->serialize();
  if (told_ == state.next && bytes == bytes_) return WokenThread::kUntilWoken;
  const Clock::time_point now = Clock::now();
  if (now < not_before_) return not_before_ - now;
  told_ = state.next;  // also if the request fails: it may have been carried out
  bytes_.clear();
  if (!put(*state.record, context)) return pause_;
  bytes_ = std::move(bytes);
  return WokenThread::kUntilWoken;
}

/// Returns: false if the service has no time for it, or gives no answer.
bool EarlyAnnouncer::put(const EarlyRecord& record, const Context& context) {
  bool is_taken = true;
  try {
    put_early_record(repository_, record, context.within(kRequestTime).once());
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unavailable && error.code() != ErrorCode::timed_out) throw;
    log_debug(fmt::format("no early record yet: {}", error.what()));
    pause_ = std::clamp(pause_ * 2, kPauseMin, kPauseMax);
    is_taken = false;
  }
  not_before_ = Clock::now() + pause_;
  return is_taken;
}

/// Its version exists, or all its files were removed from staging.
void EarlyAnnouncer::remove_told(const Context& context) {
  const std::uint64_t told = std::exchange(told_, 0);
  bytes_.clear();
  pause_ = {};
  not_before_ = {};
  remove_early_record(repository_, told, context.within(kRequestTime));
}

}  // namespace weightfs
