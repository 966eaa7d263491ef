#include "fs/hooks/reconciler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <random>

#include "fs/hooks/engine_http.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/http/client.hpp"

namespace weightfs::fs {
namespace {

using HookState = HookStatus::State;

constexpr auto kHookAskTimeout = std::chrono::seconds(10);
constexpr Clock::duration kHookPauseMin = std::chrono::seconds(1);
constexpr Clock::duration kHookPauseMax = std::chrono::seconds(60);
constexpr std::size_t kUnendedMax = 2;

/// ", in-place: paused for 0.052 s"; nothing if there is only one way.
std::string shown_update(const std::optional<HookUpdate>& update) {
  if (!update) return "";
  std::string text =
      fmt::format(", {}: paused for {:.3f} s", to_string(update->how), update->pause.count());
  if (!update->reason.empty()) text += fmt::format("; not in place: {}", update->reason);
  return text;
}

/// Whether the engine may be loading still: it has not answered.
bool has_no_end(const Error& error) {
  if (const auto* answer = dynamic_cast<const EngineError*>(&error)) return answer->is_of_proxy();
  return error.code() == ErrorCode::timed_out ||
         dynamic_cast<const TransportError*>(&error) != nullptr;
}

double random_share() {
  thread_local std::minstd_rand generator{std::random_device{}()};
  return std::uniform_real_distribution<double>(0, 1)(generator);
}

}  // namespace

std::string_view to_string(HookState state) noexcept {
  switch (state) {
    case HookState::idle:
      return "idle";
    case HookState::current:
      return "current";
    case HookState::telling:
      return "telling";
    case HookState::failed:
      return "failed";
    case HookState::unreachable:
      return "unreachable";
  }
  return "failed";
}

std::string_view to_string(HookUpdate::How how) noexcept {
  switch (how) {
    case HookUpdate::How::reload:
      return "reload";
    case HookUpdate::How::in_place:
      return "in-place";
    case HookUpdate::How::proof:
      return "proof";
  }
  return "reload";
}

HookReconciler::HookReconciler(std::unique_ptr<Hook> hook, ReconcilerOptions options)
    : hook_(std::move(hook)), options_(std::move(options)), record_(options_.record) {
  status_.type = options_.type;
  status_.target = options_.target;
  status_.url = options_.url;
  status_.since = std::time(nullptr);
  status_.told = record_.told;  // held until the engine answers
  telling_ = record_.telling;
  note_unended(record_.telling);
  if (hook_->is_told_for_good()) told_ = record_.told;
}

HookReconciler::Next HookReconciler::round(const FindWish& find_wish, const Context& context) {
  const Next next = reconcile(find_wish, context);
  const std::lock_guard lock(mutex_);
  base_of_change_ = hook_->base_of_change();
  return next;
}

HookReconciler::Next HookReconciler::reconcile(const FindWish& find_wish, const Context& context) {
  try {
    const auto wish = find_wish();
    if (!wish) return {options_.now() + jittered(options_.every), true};
    note_wanted(wish->target.version);
    const std::lock_guard engine(*options_.engine);
    if (!is_right(*wish, context)) tell(begin_telling(*wish, find_wish), context);
    return note_current();
  } catch (const TransportError& error) {
    return error.may_have_arrived() ? note_failure(error.what()) : note_unreachable(error.what());
  } catch (const std::exception& error) {
    if (context.stop.stop_requested()) return {options_.now(), false};
    return note_failure(error.what());
  }
}

/// Whether there is nothing to tell.  A number proves nothing by itself: another run has the same
/// ones, and an engine that is new to this store may have been left between two versions.
bool HookReconciler::is_right(const HookWish& wish, const Context& context) {
  const auto reported = hook_->find_reported(context.within(kHookAskTimeout));
  // What it was being told when a daemon was killed may have arrived.
  const std::uint64_t known = reported.value_or(std::max(told_, record_.telling));
  const std::uint64_t wanted = wish.target.version;
  const bool is_behind = known > wanted && !wish.is_newest;
  {
    const std::lock_guard lock(mutex_);
    label_ = reported;
    // A label may be set by an update that failed after it, or be of another run.
    const bool is_unfinished = record_.telling != 0 && reported == record_.telling;
    const bool is_believed =
        !reported || (!is_unfinished && (*reported == record_.told || is_behind));
    status_.reported = is_believed ? reported : 0;
  }
  if (is_behind) return true;
  return record_.telling == 0 && known == wanted && record_.told == wanted;
}

/// Holds the wanted version first, and only then checks that it still exists: a thread that removes
/// versions hides them first and then calls holds().
HookWish HookReconciler::begin_telling(HookWish wish, const FindWish& find_wish) {
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      telling_ = status_.wanted = wish.target.version;
    }
    auto again = find_wish();
    if (!again || again->target.version == wish.target.version) return wish;
    wish = std::move(*again);
  }
}

void HookReconciler::tell(const HookWish& wish, const Context& context) {
  const std::uint64_t version = wish.target.version;
  save({record_.told, version});
  {
    const std::lock_guard lock(mutex_);
    enter(HookState::telling);
  }
  const auto begin = options_.now();
  try {
    hook_->tell(wish.target, context.within(options_.timeout));
  } catch (const Error& error) {
    // A command ends before this is thrown.
    if (!hook_->is_told_for_good() && has_no_end(error)) note_unended(version);
    throw;
  }
  const auto reported = hook_->find_reported(context.within(kHookAskTimeout));
  if (reported && *reported != version) {
    throw Error(ErrorCode::io, fmt::format("accepted version {}, but reports {}", version,
                                           *reported == 0 ? "none" : std::to_string(*reported)));
  }
  save({version, 0});
  told_ = version;
  const auto update = hook_->find_update();
  log_info(fmt::format(
      "hook {} {}: has version {}, after {:.2f} s{}", options_.type, options_.target, version,
      std::chrono::duration<double>(options_.now() - begin).count(), shown_update(update)));
  const std::lock_guard lock(mutex_);
  status_.reported = label_ = reported;
  status_.told = version;
  status_.update = update;
  status_.updates++;
  telling_ = 0;
  unended_.clear();
}

/// Of many the first is kept, which a request that hangs is about, and the last: an engine that
/// never answers must not fill a disk.
void HookReconciler::note_unended(std::uint64_t version) {
  if (version == 0) return;
  const std::lock_guard lock(mutex_);
  std::erase(unended_, version);
  unended_.push_back(version);
  if (unended_.size() > kUnendedMax) unended_.erase(std::prev(unended_.end(), 2));
}

void HookReconciler::save(const HookRecord& record) {
  record_ = record;
  if (!options_.save) return;
  try {
    options_.save(record);
  } catch (const std::exception& error) {
    log_warning(fmt::format("hook {} {}: cannot record the update: {}", options_.type,
                            options_.target, error.what()));
  }
}

void HookReconciler::note_wanted(std::uint64_t version) {
  const std::lock_guard lock(mutex_);
  status_.wanted = version;
}

HookReconciler::Next HookReconciler::note_current() {
  const std::lock_guard lock(mutex_);
  enter(HookState::current);
  status_.error.clear();
  status_.error_time = 0;
  status_.failures = 0;
  return {options_.now() + jittered(options_.every), true};
}

/// The first pause is a second, or less if rounds are more frequent.
HookReconciler::Next HookReconciler::note_failure(const std::string& message) {
  set_error(message, HookState::failed);
  const std::lock_guard lock(mutex_);
  const auto doublings = std::min<std::uint64_t>(status_.failures++, 16);
  const Clock::duration pause = std::min(
      kHookPauseMax, std::min(options_.every, kHookPauseMin) * (std::int64_t{1} << doublings));
  return {options_.now() + jittered(pause), false};
}

HookReconciler::Next HookReconciler::note_unreachable(const std::string& message) {
  set_error(message, HookState::unreachable);
  if (!hook_->is_told_for_good()) told_ = 0;
  const std::lock_guard lock(mutex_);
  status_.failures = 0;
  status_.reported.reset();
  label_.reset();
  status_.told = told_;
  telling_ = 0;
  unended_.clear();
  return {options_.now() + jittered(options_.every), true};
}

void HookReconciler::enter(HookState state) {
  if (status_.state == state) return;
  status_.state = state;
  status_.since = std::time(nullptr);
}

/// Logs each new reason once.
void HookReconciler::set_error(const std::string& message, HookState state) {
  const std::lock_guard lock(mutex_);
  if (status_.error != message) {
    log_warning(fmt::format("hook {} {}: {}", options_.type, options_.target, message));
  }
  enter(state);
  status_.all_failures++;
  status_.error = message;
  status_.error_time = std::time(nullptr);
}

/// Between a half and all of `delay`.
Clock::duration HookReconciler::jittered(Clock::duration delay) const {
  const double share = options_.random ? options_.random() : random_share();
  return std::chrono::duration_cast<Clock::duration>(delay * (0.5 + share / 2));
}

bool HookReconciler::holds(std::uint64_t version) const {
  const std::lock_guard lock(mutex_);
  return version == telling_ || version == label_.value_or(status_.told) ||
         std::ranges::find(unended_, version) != unended_.end();
}

std::optional<DeltaId> HookReconciler::wanted_delta(std::uint64_t newest) const {
  const std::lock_guard lock(mutex_);
  if (base_of_change_ == 0 || base_of_change_ == newest) return std::nullopt;
  return DeltaId({.from = base_of_change_, .to = newest}, true);
}

HookStatus HookReconciler::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

}  // namespace weightfs::fs
