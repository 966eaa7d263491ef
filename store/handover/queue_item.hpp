// Queue item: a hand-over in the memory of the queue.
//
// Threads: see QueueItem.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "store/base/context.hpp"
#include "store/format/version_images.hpp"
#include "store/handover/handover_record.hpp"
#include "store/handover/handover_status.hpp"
#include "store/local/store.hpp"
#include "store/patches/fresh_patches.hpp"
#include "store/publish/pre_encoded.hpp"
#include "store/timing/phase_watch.hpp"

namespace weightfs {

/// Guarded by PublishQueue::State::mutex except for the last block.  Only the thread changes the
/// record, so it reads it without the mutex. Exceptions, which a rebase changes too: the fence, and
/// a phase of conflict, where the thread is done with the record.
struct QueueItem {
  HandOverRecord record;
  bool is_lost = false;       // HandOverRecord::may_be_lost(): it is not coded again
  bool is_withdrawn = false;  // being taken back or cancelled, or already done
  bool is_running = false;    // the thread is working on it
  bool is_gone = false;       // no longer in State::items
  std::string step;           // the current step of publish()
  std::uint64_t done_bytes = 0, total_bytes = 0;
  std::uint64_t early_bytes = 0;
  std::string error, error_code;  // why it waits
  std::vector<unsigned> missing;  // of a part: for which others it waits
  unsigned failures = 0;          // in a row
  Clock::time_point retry_at{};
  std::stop_source stop;  // of the current try

  // Used by the thread only.
  bool has_links = false;
  bool is_loaded = false;    // another process handed it over; not synced and checked by this one
  bool is_recorded = false;  // phase committed is in the store
  unsigned lost_races = 0;
  std::optional<std::uint64_t> tried_parent;  // the fence of the last try
  std::optional<VersionImages> images;
  ImagesLock images_lock;
  std::unique_ptr<FreshSpan> fresh;  // may be null
  std::shared_ptr<const PreEncoded> early;
  std::optional<HandOverWatch> watch;  // always set once it is in the queue
};

HandOver::State state_of(const QueueItem& item) noexcept;

/// What others are told of it.
HandOver describe(const QueueItem& item);

}  // namespace weightfs
