#include "store/threads/woken_thread.hpp"

#include <fmt/format.h>

#include <exception>
#include <mutex>
#include <new>
#include <utility>

#include "store/base/log.hpp"

namespace weightfs {

WokenThread::WokenThread(Options options, Work work)
    : options_(std::move(options)), work_(std::move(work)) {}

WokenThread::~WokenThread() { stop(); }

void WokenThread::start() {
  if (thread_.joinable()) return;
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

void WokenThread::stop() {
  if (!thread_.joinable()) return;
  thread_.request_stop();
  thread_.join();
}

void WokenThread::wake() {
  const std::lock_guard lock(mutex_);
  is_woken_ = true;
  changed_.notify_all();
}

std::string WokenThread::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

// ---- the thread ----

void WokenThread::run(const std::stop_token& stop) {
  if (options_.begin != nullptr) options_.begin();
  const Context context{stop, Clock::time_point::max()};
  Clock::duration pause = kUntilWoken;
  for (;;) {
    const bool is_woken = wait(stop, pause);
    if (stop.stop_requested()) return;
    pause = work(context, is_woken);
  }
}

/// Returns: whether it was woken.
bool WokenThread::wait(const std::stop_token& stop, Clock::duration pause) {
  std::unique_lock lock(mutex_);
  const auto woken = [this] { return is_woken_; };
  if (pause == kUntilWoken) {
    changed_.wait(lock, stop, woken);
  } else {
    changed_.wait_for(lock, stop, pause, woken);
  }
  return std::exchange(is_woken_, false);
}

Clock::duration WokenThread::work(const Context& context, bool is_woken) {
  try {
    const Clock::duration pause = work_(context, is_woken);
    note({});
    return pause;
  } catch (const std::exception& error) {
    if (!context.stop.stop_requested()) note_failure(error);
    return options_.retry_pause;
  }
}

void WokenThread::note_failure(const std::exception& error) noexcept {
  try {
    note(error.what());
  } catch (const std::bad_alloc&) {
    // Nor is there memory to say so.
  }
}

void WokenThread::note(std::string error) {
  {
    const std::lock_guard lock(mutex_);
    if (error == error_) return;
    error_ = error;
  }
  if (!error.empty()) log_warning(fmt::format(fmt::runtime(options_.failed), error));
}

}  // namespace weightfs
