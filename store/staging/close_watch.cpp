// The thread waits in poll(2) for inotify, for an eventfd that note() signals, and for the next
// file that is due.
#include "store/staging/close_watch.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <stop_token>
#include <string_view>
#include <thread>
#include <utility>

#include "store/base/context.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/os/file.hpp"
#include "store/os/lease.hpp"

namespace weightfs {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kRest{20}, kFirstAsk{1}, kLastPause{500};

/// The id that a backing file's name stands for; 0 if the name is not an id.
StagingId id_of(std::string_view name) {
  StagingId id = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), id);
  return error == std::errc() && end == name.data() + name.size() ? id : 0;
}

/// Watches a directory; returns no descriptor if that is impossible.
File watch(const std::filesystem::path& directory) {
  File inotify(inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  if (inotify &&
      inotify_add_watch(inotify.fd(), directory.c_str(), IN_CLOSE_WRITE | IN_ONLYDIR) >= 0)
    return inotify;
  log_warning(fmt::format(
      "closed mappings cannot be detected, so some files are coded only after the "
      "hand-over: {} (see the sysctls fs.inotify.max_user_instances and max_user_watches)",
      describe_errno(errno, "watch " + directory.string())));
  return File();
}

}  // namespace

struct CloseWatch::State {
  explicit State(CloseWatchOptions the_options)
      : options(std::move(the_options)),
        inotify(watch(options.directory)),
        bell(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!bell) throw_errno(errno, "make an eventfd");
    thread = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }

  /// When a file is checked next, and the pause after that.
  struct Next {
    Clock::time_point due;
    milliseconds pause = kFirstAsk;
  };

  static Next in_a_while() { return {.due = Clock::now() + kRest}; }

  void run(const std::stop_token& stop) {
    const std::stop_callback wake(stop, [this] { ring(); });
    while (!stop.stop_requested()) {
      try {
        wait();
        take_notes();
        read_events();
        ask();
      } catch (const std::exception& error) {  // no memory, or no descriptor
        log_if_possible(LogLevel::debug, [&] {
          return fmt::format("cannot look for closed files: {}", error.what());
        });
      }
    }
  }

  void ring() const noexcept {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t ignored = ::write(bell.fd(), &one, sizeof one);
  }

  void wait() const {
    std::array<pollfd, 2> events{
        {{.fd = bell.fd(), .events = POLLIN, .revents = 0},
         {.fd = inotify ? inotify.fd() : -1, .events = POLLIN, .revents = 0}}};
    ::poll(events.data(), events.size(), timeout());
  }

  /// Time until the next file is due, as poll(2) takes it.
  [[nodiscard]] int timeout() const {
    if (asked.empty()) return -1;
    const auto next =
        std::min_element(asked.begin(), asked.end(),
                         [](const auto& a, const auto& b) { return a.second.due < b.second.due; });
    const auto left = std::chrono::ceil<milliseconds>(next->second.due - Clock::now());
    return static_cast<int>(std::clamp(left, milliseconds(0), kLastPause).count());
  }

  void take_notes() {
    std::uint64_t count = 0;
    [[maybe_unused]] const ssize_t ignored = ::read(bell.fd(), &count, sizeof count);
    std::set<StagingId> notes;
    bool notes_all = false;
    {
      const std::lock_guard lock(mutex);
      notes.swap(noted);
      asked_count = asked.size() + notes.size();
      notes_all = std::exchange(is_all_noted, false);
    }
    for (const StagingId file : notes) asked[file] = in_a_while();
    if (notes_all) begin_all();
  }

  void begin_all() {
    for (const StagingId file : options.all()) asked[file] = in_a_while();
  }

  void read_events() {
    if (!inotify) return;
    alignas(inotify_event) std::array<char, 16384> buffer;
    for (ssize_t got = 0; (got = ::read(inotify.fd(), buffer.data(), buffer.size())) > 0;) {
      for (const char* at = buffer.data(); at < buffer.data() + got;) {
        inotify_event event;
        std::memcpy(&event, at, sizeof event);
        const char* const name = at + sizeof event;
        at = name + event.len;
        if ((event.mask & IN_Q_OVERFLOW) != 0) begin_all();
        if (const StagingId file = event.len > 0 ? id_of(name) : 0; file != 0)
          asked[file] = in_a_while();
      }
    }
  }

  [[nodiscard]] bool is_closed(StagingId file) const {
    if (options.is_open && options.is_open(file)) return false;
    return nobody_writes(options.directory / std::to_string(file));
  }

  void ask() {
    const Clock::time_point now = Clock::now();
    for (auto at = asked.begin(); at != asked.end();) {
      auto& [file, next] = *at;
      if (next.due > now) {
        ++at;
      } else if (is_closed(file)) {
        options.closed(file);
        at = asked.erase(at);
      } else if (next.pause > kLastPause) {
        at = asked.erase(at);
      } else {
        if (next.pause == kFirstAsk && options.written) options.written(file);
        next.due = now + next.pause;
        next.pause =
            next.pause < kLastPause ? std::min(2 * next.pause, kLastPause) : 2 * kLastPause;
        ++at;
      }
    }
    asked_count = asked.size();
  }

  const CloseWatchOptions options;
  const File inotify, bell;

  // Guards the next two; held only briefly.
  RankedMutex mutex{LockRank::close_watch, "CloseWatch::State::mutex"};
  std::set<StagingId> noted;
  bool is_all_noted = false;

  std::map<StagingId, Next> asked;          // used by the thread only
  std::atomic<std::size_t> asked_count{0};  // size of `asked`, plus notes not yet taken
  std::jthread thread;                      // last: it uses the members above
};

CloseWatch::CloseWatch(CloseWatchOptions options)
    : state_(std::make_unique<State>(std::move(options))) {}

CloseWatch::~CloseWatch() = default;

void CloseWatch::note(StagingId file) noexcept {
  try {
    const std::lock_guard lock(state_->mutex);
    state_->noted.insert(file);
  } catch (const std::bad_alloc&) {
    return;  // the hand-over then does the work
  }
  state_->ring();
}

std::size_t CloseWatch::pending() const {
  const std::lock_guard lock(state_->mutex);
  return state_->noted.size() + state_->asked_count;
}

void CloseWatch::note_all() noexcept {
  {
    const std::lock_guard lock(state_->mutex);
    state_->is_all_noted = true;
  }
  state_->ring();
}

}  // namespace weightfs
