#include "fs/runtime/announcer.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>

#include "fs/runtime/health.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/readers/reader_id.hpp"

namespace weightfs::fs {
namespace {

constexpr std::chrono::seconds kPutDeadline{10};
constexpr std::chrono::seconds kLeaveDeadline{2};
constexpr std::chrono::seconds kBetweenRecords{1};
constexpr std::chrono::seconds kLook{1};  // nobody says when an engine, or the last byte, is there

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

std::vector<ReaderEngine> engines_of(const std::vector<HookStatus>& hooks) {
  std::vector<ReaderEngine> engines;
  for (const HookStatus& hook : hooks) {
    engines.push_back({fmt::format("{} {}", hook.type, hook.target),
                       std::string(to_string(hook.state)), hook.reported.value_or(hook.told)});
  }
  return engines;
}

bool are_same(const std::vector<ReaderEngine>& a, const std::vector<ReaderEngine>& b) {
  return std::ranges::equal(a, b, [](const ReaderEngine& one, const ReaderEngine& other) {
    return one.version == other.version && one.state == other.state;
  });
}

/// Whether all bytes of `latest` that this host keeps are here.
bool is_whole(const DaemonState& state) {
  return std::ranges::binary_search(state.versions, state.sync.latest) && !state.kept.lacks_files;
}

std::uint64_t positive(std::int64_t seconds) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(seconds, 0));
}

}  // namespace

ReaderRecord reader_record_of(const DaemonState& state, std::int64_t now) {
  const SyncStatus& sync = state.sync;
  ReaderRecord record;
  record.repository = state.repository;
  record.host = host_name();
  record.place = state.mount_point.string();
  record.pid = static_cast<std::uint64_t>(state.pid);
  record.follow = to_string(sync.follow);
  record.version = sync.latest;
  record.newest = std::max(sync.newest, sync.latest);
  record.is_whole = is_whole(state);
  record.lag_versions = sync.lag_versions();
  record.lag_seconds = positive(sync.lag_seconds(now));
  DaemonState others = state;  // that announcing failed before is over when somebody reads this
  others.announce.reset();
  record.health = to_string(health_of(troubles_of(others, now)));
  record.engines = engines_of(state.hooks);
  record.time = positive(now);
  return record;
}

Announcer::Announcer(Repository& repository, Db& db, const AnnounceOptions& options,
                     Sources sources)
    : repository_(repository),
      db_(db),
      options_(options),
      sources_(std::move(sources)),
      state_{.every = options.every},
      thread_({.failed = "announce: {}; it is tried again"},
              [this](const Context& context, bool) { return work(context); }) {}

void Announcer::start() {
  thread_.wake();
  thread_.start();
}

void Announcer::stop() {
  thread_.stop();
  if (!last_ || last_->has_left || !state().error.empty()) return;
  last_->has_left = true;
  last_->time = positive(seconds_now());
  try {
    put(*last_, Context{}.within(kLeaveDeadline));
  } catch (const std::exception& error) {
    log_info(fmt::format("cannot say in the bucket that this reader has left: {}", error.what()));
  }
}

AnnounceState Announcer::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

Announcer::Sight Announcer::look() const {
  return {sources_.shown(), engines_of(sources_.hooks())};
}

/// The state is not cheap: it is asked only while the bytes of a version come.
bool Announcer::is_new(const Sight& sight) const {
  if (sight.version != seen_.version || !are_same(sight.engines, seen_.engines)) return true;
  return sight.version != 0 && !seen_.is_whole && is_whole(sources_.state());
}

/// Returns: when to look again.  What looking throws does not end it: nobody would wake the thread.
Clock::duration Announcer::work(const Context& context) {
  try {
    return look_and_write(context);
  } catch (const std::exception& error) {
    if (!context.stop.stop_requested()) note(error.what());
    due_ = {};  // a record, as soon as there can be one, says that this is over
    return kLook;
  }
}

Clock::duration Announcer::look_and_write(const Context& context) {
  const Sight sight = look();
  const bool has_changed = is_new(sight);
  const auto now = Clock::now();
  if (now >= due_ || (has_changed && now >= free_)) {
    seen_ = sight;  // before the record is made, which may say more
    due_ = now + options_.every;
    free_ = now + kBetweenRecords;
    write(context);
  }
  const bool waits_its_turn = has_changed && Clock::now() < free_;
  const bool looks = !sight.engines.empty() || (sight.version != 0 && !seen_.is_whole);
  const auto next = looks ? std::min(due_, Clock::now() + kLook) : due_;
  const auto wake_at = waits_its_turn ? std::min(next, free_) : next;
  return std::max<Clock::duration>(wake_at - Clock::now(), std::chrono::milliseconds(1));
}

void Announcer::write(const Context& context) {
  try {
    const DaemonState state = sources_.state();
    ReaderRecord record = reader_record_of(state, seconds_now());
    if (id_.empty()) id_ = take_reader_id(db_, record.host, record.place);
    record.id = id_;
    record.since = positive(since_);
    record.every_s = static_cast<std::uint64_t>(options_.every.count());
    seen_.is_whole = record.is_whole;  // also if it fails: then it is repeated when it is due
    put(record, context.within(kPutDeadline));
    last_ = std::move(record);
    note("");
  } catch (const std::exception& error) {
    if (context.stop.stop_requested()) return;
    note(error.what());
  }
}

void Announcer::put(const ReaderRecord& record, const Context& context) {
  repository_.bucket(context).put(keys::reader(record.id), TextSource(record.serialize()), context);
}

void Announcer::note(const std::string& error) {
  const std::lock_guard lock(mutex_);
  if (!error.empty() && state_.error.empty()) {
    log_warning(
        fmt::format("announcing this reader fails, and is tried again every {} s (it needs PUT on "
                    "readers/*): {}",
                    options_.every.count(), error));
  } else if (error.empty() && !state_.error.empty()) {
    log_info("this reader is announced again");
  }
  state_.id = id_;
  state_.error = error;
  if (error.empty()) {
    state_.records++;
    state_.last_time = seconds_now();
  }
}

}  // namespace weightfs::fs
