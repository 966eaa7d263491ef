#include "store/sync/poller.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "store/base/retry_delay.hpp"

namespace weightfs {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kMoment{250};  // versions do not follow each other so closely

constexpr milliseconds kRefusedDelay{10'000};  // between polls that need a person's help

bool is_bad_manifest(ErrorCode code) {
  return code == ErrorCode::corrupt || code == ErrorCode::unsupported;
}

/// Whether a person must change a key, a policy or a setting, so that polling may slow down.
bool is_refused(ErrorCode code) {
  return code == ErrorCode::permission || code == ErrorCode::invalid ||
         code == ErrorCode::unsupported;
}

}  // namespace

bool is_offline(ErrorCode code) noexcept {
  return code == ErrorCode::unavailable || code == ErrorCode::timed_out ||
         code == ErrorCode::permission || code == ErrorCode::io || code == ErrorCode::not_found ||
         code == ErrorCode::invalid;
}

Poller::Poller(Store& store, History& history, CatalogBuilder& tags, VersionWatches& watches,
               FollowOptions follow)
    : store_(store),
      history_(history),
      tags_(tags),
      watches_(watches),
      follow_(std::move(follow)),
      newest_(store.manifests().newest().version) {}

void Poller::has(std::uint64_t version) noexcept { wanted_ = std::max(wanted_, version); }

void Poller::poll(const Context& context, bool can_wait) {
  is_reachable_ = is_back_ = false;
  const std::uint64_t known = newest_;
  try {
    ask(context, can_wait);
    check_bucket(newest_ > known, context);
  } catch (const Error& error) {
    failures_++;
    is_refused_ = is_refused(error.code());
    throw;
  } catch (const std::exception&) {  // a problem of this host (memory, threads), not of the bucket
    failures_++;
    is_refused_ = false;
    throw;
  }
  is_reachable_ = true;
  is_refused_ = false;
  is_back_ = failures_ > 0 && !beyond_;
  failures_ = beyond_ ? failures_ + 1 : 0;
}

void Poller::ask(const Context& context, bool can_wait) {
  using Reach = History::Reach;
  const Clock::time_point begin = Clock::now();
  const std::uint64_t known = newest_;
  const bool is_near = can_wait && !may_have_more_ && is_dense();
  may_have_more_ = false;
  find_newest(context, is_near ? Reach::next : Reach::newest);
  may_have_more_ = is_near && newest_ > known;
  took_ = Clock::now() - begin;
  watches_.note_poll(begin, newest_);
  if (newest_ > known) rhythm_.saw_version(Clock::now());
  if (newest_ > 0) tags_.note(*history_.get(newest_, context));
  find_wanted(context);
}

/// That there is no next version says nothing of a bucket that was emptied, or begun anew.  Asked
/// only where nothing waits for the answer: after a poll that found nothing, and while polls are
/// dense, so that a version may be due, half as often.
void Poller::check_bucket(bool found, const Context& context) {
  const auto interval = follow_.poll.check_interval * (is_dense() ? 2 : 1);
  const bool is_due = failures_ > 0 || Clock::now() - checked_ >= interval;
  if (!found && !is_due) return;
  if (!found) history_.check_bucket(newest_, context);  // each version names its parent
  checked_ = Clock::now();
}

bool Poller::is_dense() const { return paused_ && *paused_ < kMoment; }

void Poller::find_newest(const Context& context, History::Reach reach) {
  const std::uint64_t known = std::max(newest_, store_.manifests().newest().version);
  beyond_.reset();
  try {
    newest_ = history_.refresh(known, context, reach);
  } catch (const Error& error) {
    if (!is_bad_manifest(error.code())) throw;
    newest_ = known;
    walk_to_newest(context);
    if (!beyond_) beyond_ = error;
  }
}

/// Advances one version at a time: a later manifest is broken, but those before it are not.
void Poller::walk_to_newest(const Context& context) {
  try {
    while (history_.find(newest_ + 1, context)) newest_++;
  } catch (const Error& error) {
    if (!is_bad_manifest(error.code())) throw;
    beyond_ = error;
  }
}

void Poller::find_wanted(const Context& context) {
  const Follow& what = follow_.what;
  const bool by_tag = what.kind == Follow::Kind::tag;
  has(version_to_bring(what, newest_, by_tag ? tags_.find_carrier(what.tag, newest_, context) : 0));
  if (by_tag) hidden_tag_ = tags_.find_unreadable(wanted_);
}

std::chrono::microseconds Poller::delay() {
  paused_ = find_delay();
  return *paused_;
}

std::chrono::microseconds Poller::find_delay() {
  const Poll& poll = follow_.poll;
  if (may_have_more_) return std::chrono::microseconds::zero();
  if (is_refused_) return retry_delay(std::max(poll.interval, kRefusedDelay), 0, random_);
  if (failures_ > 0 || !poll.learns) return retry_delay(poll.interval, failures_, random_);
  return retry_delay(rhythm_.pause(Clock::now(), poll.interval, took_), 0, random_);
}

std::optional<milliseconds> Poller::rhythm() const {
  const std::optional<Clock::duration> interval = rhythm_.interval();
  if (!follow_.poll.learns || !interval) return std::nullopt;
  return std::chrono::round<milliseconds>(*interval);
}

}  // namespace weightfs
