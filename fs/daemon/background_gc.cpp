#include "fs/daemon/background_gc.hpp"

#include <fmt/format.h>

#include <exception>
#include <mutex>
#include <utility>

#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/os/priority.hpp"
#include "store/readers/reader_list.hpp"

namespace weightfs::fs {
namespace {

constexpr auto kTurnPause = std::chrono::milliseconds(100);

}  // namespace

BackgroundGc::BackgroundGc(Repository& repository, const BackgroundGcOptions& options,
                           Sources sources)
    : repository_(repository),
      options_(options),
      sources_(std::move(sources)),
      seen_(sources_.newest()),
      thread_({.failed = "gc: {}; it is tried again later", .begin = take_lowest_priority},
              [this](const Context& context, bool) { return work(context); }) {
  thread_.start();
}

GcState BackgroundGc::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

Clock::duration BackgroundGc::work(const Context& context) {
  if (!is_due() || gives_way()) return WokenThread::kUntilWoken;
  has_run_ = true;
  last_run_ = Clock::now();
  const std::uint64_t newest = sources_.newest();
  seen_ = 0;  // unless it succeeds, there is still something to do
  run(context);
  seen_ = newest;
  return WokenThread::kUntilWoken;
}

bool BackgroundGc::is_due() const {
  const bool is_new = sources_.newest() != seen_;
  const bool is_over = Clock::now() - last_run_ >= options_.interval;
  if (!has_run_) return is_new || is_over;
  const std::int64_t due = state().next_due;
  return is_over && (is_new || (due != 0 && due <= seconds_now()));
}

void BackgroundGc::run(const Context& context) {
  const auto set_running = [&](bool is_running) {
    const std::lock_guard lock(mutex_);
    state_.is_running = is_running;
  };
  set_running(true);
  CollectOptions options = options_.collect;
  options.wait_turn = [this](const Context& waiting) { wait_turn(waiting); };
  try {
    note(collect(repository_, options, sources_.skips, context));
    remove_old(context);
    set_running(false);
  } catch (const std::exception& error) {  // also of a thread or memory that the system refuses
    const auto* const known = dynamic_cast<const Error*>(&error);
    const bool is_cancelled = known != nullptr && known->code() == ErrorCode::cancelled;
    const std::lock_guard lock(mutex_);
    state_.is_running = false;
    if (!is_cancelled) state_.error = error.what();
    throw;
  }
}

void BackgroundGc::remove_old(const Context& context) {
  const auto removed = remove_old_readers(repository_, context,
                                          [this](const Context& waiting) { wait_turn(waiting); });
  const std::lock_guard lock(mutex_);
  state_.removed_objects += removed.size();
  for (const ObjectInfo& object : removed) state_.removed_bytes += object.size_bytes;
}

/// Whether a hand-over goes first; says so in the state.
bool BackgroundGc::gives_way() const {
  const bool is_busy = sources_.is_busy();
  const std::lock_guard lock(mutex_);
  state_.gives_way = is_busy;
  return is_busy;
}

void BackgroundGc::wait_turn(const Context& context) const {
  while (gives_way()) context.pause(kTurnPause, "waiting for hand-overs");
}

void BackgroundGc::note(const CollectReport& report) {
  log_info(fmt::format("gc retired {} versions and {} objects, and removed {} of {} bytes",
                       report.retired.versions.count(), report.retired.objects.size(),
                       report.removed.objects, report.removed.bytes));
  const std::lock_guard lock(mutex_);
  state_.runs++;
  state_.last_time = seconds_now();
  state_.removed_objects += report.removed.objects;
  state_.removed_bytes += report.removed.bytes;
  state_.retired_versions += report.retired.versions.count();
  state_.skips_made += report.made.size();
  state_.waiting_objects = report.waiting.objects;
  state_.waiting_bytes = report.waiting.bytes;
  state_.next_due = report.next_due.value_or(0);
  state_.error.clear();
}

}  // namespace weightfs::fs
