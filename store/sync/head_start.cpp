#include "store/sync/head_start.hpp"

#include <fmt/format.h>

#include <chrono>
#include <exception>
#include <mutex>
#include <utility>

#include "store/base/log.hpp"
#include "store/base/retry_delay.hpp"
#include "store/format/own_meta.hpp"
#include "store/repository/early_records.hpp"

namespace weightfs {
namespace {

constexpr std::chrono::seconds kRecordTime{30};
constexpr std::chrono::milliseconds kFirstPause{1'000};  // after a failure

}  // namespace

HeadStart::HeadStart(Store& store, History& history, kernels::SharedCoder coder,
                     std::function<void()> due_changed)
    : store_(store),
      history_(history),
      coder_(std::move(coder)),
      due_changed_(std::move(due_changed)),
      thread_({"no head start: {}"}, [this](const Context& context, bool) {
        try {
          // While it was making these, more may have come.
          if (look(context) > 0) return Clock::duration::zero();
        } catch (const std::exception& error) {
          log_debug(fmt::format("nothing of the next version is made early: {}", error.what()));
        }
        return WokenThread::kUntilWoken;
      }) {}

std::uint64_t HeadStart::look(const Context& context) {
  const std::optional<EarlyRecord> record = find_record(context);
  if (!record) {
    set_due(std::nullopt);
    return 0;
  }
  const auto parent = history_.get(record->version - 1, context.within(kRecordTime));
  if (const auto layout = history_.find_layout(*parent)) {
    set_due(pace_.note(progress_of(*record, *layout), Clock::now()));
  }
  const EarlyMade made = make(*record, context);
  fetched_bytes_ += made.fetched_bytes;
  return made.bytes;
}

EarlyMade HeadStart::make(const EarlyRecord& record, const Context& context) {
  if (failure_ && failure_->record != record) failure_.reset();
  if (failure_ && Clock::now() < failure_->until) return {};
  try {
    const EarlyMade made = make_early(store_, history_, record, coder_, context);
    failure_.reset();
    return made;
  } catch (const std::exception&) {
    note_failure(record);
    throw;
  }
}

void HeadStart::note_failure(const EarlyRecord& record) {
  if (!failure_) failure_ = {record, 0, {}};
  failure_->until = Clock::now() + retry_delay(kFirstPause, failure_->count++, random_);
}

/// Of the version after the newest one here.
std::optional<EarlyRecord> HeadStart::find_record(const Context& context) {
  const std::uint64_t newest = store_.manifests().newest().version;
  // One that is not here yet is being made, and is about to claim what was made early.
  if (newest == 0 || !store_.images().has_all_files(newest)) return std::nullopt;
  store_.early_images().drop_until(newest);
  const auto version = history_.get(newest, context.within(kRecordTime));
  if (find_early_bytes(version->manifest.meta).value_or(0) == 0) return std::nullopt;
  // The next poll asks again, before a request would be repeated.  Ceph fails one now and then
  // while the record is written over.
  const Context asking = context.within(kRecordTime).once();
  auto record = find_early_record(history_.repository(), newest + 1, asking);
  const bool follows = record && record->parent_sha256 == version->manifest_sha256;
  return follows ? std::move(record) : std::nullopt;
}

void HeadStart::set_due(std::optional<Clock::time_point> due) {
  {
    const std::lock_guard lock(mutex_);
    if (due_ == due) return;
    due_ = due;
  }
  if (due_changed_) due_changed_();
}

std::optional<Clock::time_point> HeadStart::due() const {
  const std::lock_guard lock(mutex_);
  return due_;
}

HeadStartStatus HeadStart::status() const {
  HeadStartStatus status{store_.early_images().size_bytes(), store_.early_images().taken_bytes()};
  if (const auto due = this->due()) {
    status.due_in = std::chrono::duration_cast<std::chrono::milliseconds>(*due - Clock::now());
  }
  return status;
}

}  // namespace weightfs
