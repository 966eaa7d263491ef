// The thread: takes the first unfinished hand-over, and advances it as far as possible.
//
//     queued       link, publish                       -> committing, in publish()'s hook
//     committing   search the version by its nonce     -> committed; queued if another version has
//                                                         its number; otherwise publish again with
//                                                         the same nonce, still committing
//     committed    adopt the images, show, finish      -> gone
//
// Each step may be repeated, by this process or a later one.  Temporary failures are retried, while
// later hand-overs wait: they are published in order.  If an error leaves it open whether the
// version exists, the phase stays committing.  So it does if the version is absent: a request whose
// reply was lost may still be carried out while its number is free.
//
// Nothing is synced before the manifest is sent: from then on the bucket has the bytes.  So a
// process that finds the record of an earlier one syncs the files before it codes them.  Once a try
// has failed, all that waits is synced, and what ends in a conflict: nobody knows for how long.  A
// lost race that is run again says nothing of that, nor does a search for a lost one.
// After a reboot, files that were not synced may hold anything: nothing is coded or adopted from
// them.  A committing hand-over of such files is only searched for; later ones do not wait for it,
// because only another version with its number proves that it did not become one.
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>

#include "store/base/log.hpp"
#include "store/base/path_rules.hpp"
#include "store/base/retry_delay.hpp"
#include "store/format/own_meta.hpp"
#include "store/format/version_images.hpp"
#include "store/handover/queue_state.hpp"
#include "store/handover/seal.hpp"
#include "store/materialize/adopt.hpp"
#include "store/materialize/materialize.hpp"
#include "store/publish/publish_part.hpp"

namespace weightfs {
namespace {

using std::chrono::milliseconds;
using Phase = HandOverRecord::Phase;

constexpr int kQueueNice = 10;
constexpr milliseconds kFirstRetry{500}, kWithoutMemory{1000};

/// This work must not slow down the trainer.  Threads started by this one inherit the priority.
void lower_priority() {
  const auto thread = static_cast<id_t>(::syscall(SYS_gettid));
  const int nice = std::max(kQueueNice, ::getpriority(PRIO_PROCESS, thread));
  if (::setpriority(PRIO_PROCESS, thread, nice) != 0) log_debug("the queue has normal priority");
}

}  // namespace

bool may_pass(ErrorCode code) noexcept {
  return code == ErrorCode::unavailable || code == ErrorCode::timed_out ||
         code == ErrorCode::no_space || code == ErrorCode::no_memory || code == ErrorCode::io ||
         code == ErrorCode::busy || code == ErrorCode::cancelled;
}

// ---- choosing ----

void PublishQueue::State::run(const std::stop_token& stop) {
  lower_priority();
  while (!stop.stop_requested()) {
    try {
      if (const std::shared_ptr<QueueItem> item = next(stop)) step(item, stop);
    } catch (const std::exception& error) {  // no memory, mostly: once more
      log_caught("publishing", error);
      std::unique_lock lock(mutex);
      changed.wait_for(lock, stop, kWithoutMemory, [] { return false; });
    }
  }
}

std::shared_ptr<QueueItem> PublishQueue::State::first() const {
  std::shared_ptr<QueueItem> lost;  // that is to be looked for later
  for (const auto& [order, item] : items) {
    if (item->record.is_terminal()) continue;
    if (item->is_withdrawn) break;  // it may come back: then it is before the later ones
    if (!item->is_lost || item->retry_at <= Clock::now()) return item;
    if (!lost) lost = item;
  }
  return lost;
}

std::shared_ptr<QueueItem> PublishQueue::State::next(const std::stop_token& stop) {
  std::unique_lock lock(mutex);
  while (!stop.stop_requested()) {
    const std::shared_ptr<QueueItem> item = first();
    if (!item) {
      changed.wait(lock, stop, [&] { return first() != nullptr; });
    } else if (item->retry_at > Clock::now()) {
      changed.wait_until(lock, stop, item->retry_at, [&] { return first() != item; });
    } else {
      item->stop = std::stop_source();
      item->is_running = true;
      item->step.clear();
      item->done_bytes = item->total_bytes = 0;
      return item;
    }
  }
  return nullptr;
}

void PublishQueue::State::step(const std::shared_ptr<QueueItem>& item,
                               const std::stop_token& stop) {
  const Context context{item->stop.get_token()};
  const std::stop_callback forward(stop,
                                   [source = item->stop]() mutable { source.request_stop(); });
  try {
    try {
      advance(*item, context);
    } catch (const FinalError& error) {
      failed(*item, error, true);
    } catch (const Error& error) {
      failed(*item, error, false);
    } catch (const std::exception& error) {
      failed(*item, Error(ErrorCode::io, error.what()), false);
    }
  } catch (...) {
    end_step(*item);
    throw;
  }
  end_step(*item);
}

void PublishQueue::State::end_step(QueueItem& item) {
  change([&] {
    item.is_running = false;
    item.missing.clear();
  });
  remove_if_gone(item);
}

void PublishQueue::State::advance(QueueItem& item, const Context& context) {
  // A search proves nothing of those behind it, and fails each time; a lost race is run again soon.
  const bool is_race = item.error_code == to_string(ErrorCode::conflict);
  if (item.failures > 0 && !item.is_lost && !is_race) sync_waiting(item, context);
  // A part looks for its version itself, and compares the bytes; lost ones cannot be compared.
  const bool looks = !item.record.part.is_part() || item.is_lost;
  if (item.record.phase == Phase::committing && looks) look_for_version(item, context);
  if (item.is_lost && item.record.phase != Phase::committed) throw lost_bytes_of(item.record);
  if (item.record.phase != Phase::committed) publish_item(item, context);
  settle(item, context);
}

// ---- queued, committing ----

/// If this hand-over became a version, its number is that of the last try, or a higher one after a
/// rebase.
void PublishQueue::State::look_for_version(QueueItem& item, const Context& context) {
  const HandOverRecord& record = item.record;
  // First: once the number is taken, by whom is final.  Asked in the other order, a manifest of
  // ours that arrives in between would pass for another writer's.
  if (!history.find(record.version, context)) return;  // it may still appear
  const std::uint64_t before = std::max<std::uint64_t>(record.version, 1) - 1;
  const auto found = record.part.is_part() ? find_part_version(history, before, record.part,
                                                               record.wishes.tag, context)
                                           : find_nonce(history, before, record.nonce, context);
  change([&] {
    item.record.phase = found ? Phase::committed : Phase::queued;
    item.record.version = found.value_or(0);
  });
}

void PublishQueue::State::publish_item(QueueItem& item, const Context& context) {
  if (!is_proven && options.prove) options.prove(context);
  is_proven = true;
  item.watch->lap(&HandOverTiming::wait);
  const std::uint64_t may_come_before =
      item.record.phase == Phase::committing ? item.record.version : 0;
  prepare_links(item, context);
  item.watch->lap(&HandOverTiming::seal);
  const Progress progress = [&](std::string_view step, std::uint64_t done, std::uint64_t total) {
    const std::lock_guard lock(mutex);
    item.step = step;
    item.done_bytes = done;
    item.total_bytes = total;
  };
  if (item.record.part.is_part()) return publish_part_item(item, context, progress);
  try {
    PublishResult result = publish(history, store, options_of(item), context, progress);
    if (result.images.version != 0) {
      item.images = std::move(result.images);
    } else {
      staging.note_lost(item.record.directory);  // they are not what the earlier try has sent
    }
    item.images_lock = std::move(result.images_lock);
    item.fresh = std::move(result.fresh);
    note_committed(item, result.version);
  } catch (const CommitUnknown&) {
    throw;
  } catch (const Error& error) {
    // A conflict concerns the number of the earlier try or a lower one, so another writer has it.
    const bool may_come = may_come_before != 0 && error.code() != ErrorCode::conflict;
    if (!may_come || item.record.version != may_come_before) set_queued(item);
    throw;
  }  // What is no Error says nothing of a manifest that may have been sent.
}

void PublishQueue::State::note_committed(QueueItem& item, std::uint64_t version) {
  change([&] {
    item.record.phase = Phase::committed;
    item.record.version = version;
    item.failures = 0;
    bucket_refusal.clear();
    for (const auto& [order, other] : items) {
      if (other->is_lost) other->retry_at = {};  // its number may be this one's
    }
  });
}

/// Nothing of it can be a version any more.
void PublishQueue::State::set_queued(QueueItem& item) {
  change([&] {
    item.record.phase = Phase::queued;
    item.record.version = 0;
  });
}

void PublishQueue::State::prepare_links(QueueItem& item, const Context& context) {
  if (!item.has_links) make_links(staging, item.record.directory, links_of(item.record));
  item.has_links = true;
  if (item.is_loaded && item.record.wishes.rollback == 0) sync_staged(item, context);
}

/// What was handed over outlives a reboot then.
void PublishQueue::State::sync_staged(QueueItem& item, const Context& context) {
  const auto tree = links_of(item.record);
  if (!item.has_links) make_links(staging, item.record.directory, tree);
  item.has_links = true;
  const std::string shown = "publish/" + escape_name(item.record.name);
  note_lost(item, [&] {
    sync_links(tree, store.path() / "staging", shown, context);
    require_no_mark(item.record);
    // What the disk did not take may have been told to a process that is gone, or to nobody: then
    // the files are too short.  They were a checkpoint when they were handed over.
    try {
      check_links(tree, item.record.wishes.include, scope_of(item.record), shown);
    } catch (const Error&) {
      require_not_withdrawn(item);  // who took it back may write to it
      throw;
    }
  });
  std::string unsynced = item.record.unsynced_boot;
  change([&] { item.record.unsynced_boot.clear(); });
  try {
    write_record(item);
  } catch (...) {  // no room: then later processes do not know it, and it is tried again
    change([&] { item.record.unsynced_boot = std::move(unsynced); });
    throw;
  }
  item.is_loaded = false;
}

/// Speed no longer matters once a try of `failed` has failed; those behind it wait as long.
void PublishQueue::State::sync_waiting(QueueItem& failed, const Context& context) {
  std::vector<std::shared_ptr<QueueItem>> waiting;
  {
    const std::lock_guard lock(mutex);
    for (const auto& [order, item] : items) {
      const Phase phase = item->record.phase;
      const bool is_ahead = phase == Phase::queued || phase == Phase::committing;
      if (!is_ahead || item->is_lost || item->is_withdrawn) continue;
      if (!item->record.unsynced_boot.empty()) waiting.push_back(item);
    }
  }
  std::optional<Error> lost;
  for (const std::shared_ptr<QueueItem>& item : waiting) {
    context.check("syncing the files that were handed over");
    std::optional<Error> found = sync_if_possible(*item, context);
    if (item.get() == &failed) lost = std::move(found);  // of others when their turn comes
    remove_if_gone(*item);
  }
  if (lost) throw Error(*lost);
}

/// Returns: that bytes are lost.  Whatever else keeps it from being synced keeps it from nothing.
std::optional<Error> PublishQueue::State::sync_if_possible(QueueItem& item,
                                                           const Context& context) {
  std::string why;
  try {
    sync_staged(item, context);
    return std::nullopt;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::corrupt) return error;
    why = error.what();
  } catch (const std::exception& error) {
    why = error.what();
  }
  log_debug(fmt::format("publish/{} is not synced: {}", escape_name(item.record.name), why));
  return std::nullopt;
}

/// It may have been taken back while links of it were made.
void PublishQueue::State::remove_if_gone(const QueueItem& item) const {
  {
    const std::lock_guard lock(mutex);
    if (!item.is_gone) return;
  }
  remove_links(links_of(item.record));
}

std::shared_ptr<const PreEncoded> PublishQueue::State::take_early(QueueItem& item,
                                                                  const Context& context) {
  if (!item.early) {
    item.early = early.take(item.record.directory, context);
    change([&] { item.early_bytes = item.early->bytes(); });
  }
  return item.early;
}

PublishOptions PublishQueue::State::options_of(QueueItem& item) {
  const HandOverRecord& record = item.record;
  PublishOptions result;
  result.directory = links_of(record);
  result.wishes = record.wishes;
  result.wishes.rebase = false;  // the queue does that itself, and finds lost ones in between
  result.snapshots = options.snapshots;
  result.threads = options.threads;
  result.coder = options.coder;
  result.nonce = record.nonce;
  result.keeps_uploads = true;
  if (!record.wishes.rebase && !options.rebase) {
    const std::lock_guard lock(mutex);
    result.fence_parent = own.parent_for(record.fence);
  }
  item.tried_parent = result.fence_parent;
  if (record.phase == Phase::committing) result.may_exist_from = record.version;
  result.committing = [this, &item](std::uint64_t version) { begin_commit(item, version); };
  result.lock_images = record.wishes.rollback == 0;  // else there is nothing to adopt
  result.early = [this, &item](const Context& context) { return take_early(item, context); };
  result.watch = &*item.watch;
  result.at = options.at;
  return result;
}

/// Remembers what `check` finds out, because the kernel tells it once.  What is queued fails at
/// once; what may be a version already must not be coded again.
void PublishQueue::State::note_lost(QueueItem& item, const std::function<void()>& check) {
  try {
    check();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::corrupt) throw;
    staging.note_lost(item.record.directory);  // it may be taken back, and handed over again
    change([&] {
      if (item.record.phase == Phase::committing) item.is_lost = true;
      item.record.unsynced_boot = "lost";  // no boot id: later daemons know it too
    });
    try {
      write_record(item);  // now: this one may be stopping
    } catch (const Error& full) {
      log_error(fmt::format("publish/{}: not recorded that bytes were lost: {}",
                            escape_name(item.record.name), full.what()));
    }
    throw;
  }
}

/// Why an unpublished hand-over with lost files is not coded.
Error PublishQueue::State::lost_bytes_of(const HandOverRecord& record) const {
  const std::string shown = escape_name(record.name);
  const std::string what = fmt::format(
      "the machine restarted, or its disk failed, before the files of publish/{} were on it, and "
      "their bytes may be lost",
      shown);
  if (record.phase == Phase::committing) {
    return {ErrorCode::corrupt,
            fmt::format("{}; its {} was on its way to the bucket and may still become {}version "
                        "{}: save it again and hand that over under another name, which shows "
                        "what became of this one",
                        what, record.part.is_part() ? "part" : "manifest",
                        record.part.is_part() ? "one of " : "", record.version)};
  }
  return {ErrorCode::corrupt,
          fmt::format("{}; it is not published: save it again, remove what is left (rm -r "
                      "publish/{}), and hand over again",
                      what, shown)};
}

/// What an fsync of somebody else was told, the kernel does not tell again.
void PublishQueue::State::require_no_mark(const HandOverRecord& record) const {
  const auto lost = staging.find_lost(record.directory);
  if (!lost) return;
  const std::string shown = escape_name(record.name);
  throw Error(ErrorCode::corrupt,
              fmt::format("publish/{0}: some bytes of {1} may be lost: the disk did not take them, "
                          "or the machine was restarted before it had them; save it again, remove "
                          "what is left (rm -r publish/{0}), and hand over again",
                          shown, escape_name(*lost)));
}

/// From here on the manifest may be in the bucket, so the hand-over cannot be taken back.  All
/// bytes have been read.
void PublishQueue::State::begin_commit(QueueItem& item, std::uint64_t version) {
  const std::string shown = "publish/" + escape_name(item.record.name);
  note_lost(item, [&] {
    require_no_lost_writes(links_of(item.record), shown);
    require_no_mark(item.record);
  });
  change([&] {
    if (item.is_withdrawn) {
      throw Error(ErrorCode::cancelled, fmt::format("publish/{} was taken back", item.record.name));
    }
    item.record.phase = Phase::committing;
    item.record.version = version;
    item.error.clear();
    item.error_code.clear();
  });
  write_record(item);
  reached("committing");
}

// ---- committed ----

void PublishQueue::State::settle(QueueItem& item, const Context& context) {
  if (!item.is_recorded) write_record(item);
  item.is_recorded = true;
  reached("committed-recorded");
  // Reserved until `latest` names it.
  const auto adopting =
      store.eviction().reserve(item.record.version, Eviction::Claim::stays, context);
  bring_images(item, context);
  reached("adopted");
  if (options.show) options.show(item.record.version);
  reached("shown");
  item.watch->lap(&HandOverTiming::adopt);
  trim_images();
  finish(item, context);
}

/// An adopted version needed no new room, but counts from now on.
void PublishQueue::State::trim_images() {
  try {
    store.evictor().evict_for_images(0);
  } catch (const Error& error) {
    log_debug(fmt::format("cannot remove old images: {}", error.what()));
  }
}

/// Adopts the staged files as images, unless their bytes may be lost, or they are but a part.  If
/// that fails, the sync fetches the version like any other, and the next try finds it.
void PublishQueue::State::bring_images(QueueItem& item, const Context& context) {
  ImagesLock lock = std::move(item.images_lock);
  const std::uint64_t version = item.record.version;
  const bool is_part = item.record.part.is_part();
  const std::vector<std::uint64_t> complete = store.images().complete_versions();
  // Of a part's version only the own files may be here.
  const std::uint64_t enough = is_part ? version + 1 : version;
  if (!complete.empty() && complete.back() >= enough) return;
  const bool is_lost = item.is_lost || staging.find_lost(item.record.directory);
  if (is_lost || item.record.wishes.rollback != 0 || is_part) {
    lock.unlock();
    return materialize(store, history, version, context, {}, options.coder);
  }
  if (!lock) lock = store.images().lock_images(context);
  if (!item.images) item.images = images_of(history, store, version, context);
  if (!item.has_links) make_links(staging, item.record.directory, links_of(item.record));
  item.has_links = true;
  store.fresh_patches().put(std::move(item.fresh));  // first, since others may show it at once
  adopt_images(store, *item.images, links_of(item.record), lock);
}

void PublishQueue::State::finish(QueueItem& item, const Context& context) {
  const HandOverRecord& record = item.record;
  const auto version = history.get(record.version, context);
  const auto layout = history.layout(*version, context);
  const auto handed_over = own_paths(item);
  std::set<std::string> paths;
  std::uint64_t bytes = 0;
  for (const auto& file : files_of(version->manifest, *layout)) {
    if (handed_over && !handed_over->contains(file.path)) continue;
    paths.insert(file.path);
    bytes += file.size_bytes;
  }
  const std::uint64_t early_bytes = find_early_bytes(version->manifest.meta).value_or(0);
  std::vector<StagingId> published;
  for (const StagedFile& file : staging.list(record.directory)) {
    if (S_ISREG(file.type) && paths.contains(file.path)) published.push_back(file.id);
  }
  if (item.is_lost) staging.note_lost(record.directory);  // what goes back may hold anything
  // Only this thread changes it.  One whose bytes were lost may be found behind later ones, and a
  // part that was handed over twice is the same version.
  const PublishedRange with_this = own.last >= record.version ? own : own.with(record.version);
  const std::string left =
      staging.finish(record.directory, published, record.origin, record.version,
                     {{ColumnFamily::handovers, record.key(), std::nullopt},
                      {ColumnFamily::store, std::string(kOwnKey), with_this.serialize()}});
  reached("finished");
  HandOverTiming& timing = item.watch->timing;
  timing.version = record.version;  // and its bytes: it may have been found in the bucket
  timing.bytes = bytes;
  timing.early_bytes = early_bytes;
  store.timings().put(timing);
  remove_links(links_of(record));
  log_info(fmt::format("publish/{} is version {}; {} of {} bytes were coded before",
                       escape_name(record.name), record.version, early_bytes, bytes));
  change([&] {
    own = with_this;
    item.is_gone = true;
    items.erase(record.order);
    note_end({record.order, record.name, record.wishes.tag, HandOverEnd::How::published,
              record.version, "", left, bytes, early_bytes});
    totals.versions++;
    totals.bytes += bytes;
    totals.early_bytes += early_bytes;
  });
  early.drop(record.directory);
  early.parent_changed();
}

// ---- failures ----

void PublishQueue::State::failed(QueueItem& item, const Error& error, bool is_final) {
  item.images_lock.unlock();
  item.watch->lap(&HandOverTiming::wait);
  item.watch->timing.attempts++;
  if (item.stop.stop_requested()) return;  // taken back, or the queue stops
  change([&] { totals.failures[std::string(to_string(error.code()))]++; });
  switch (item.record.phase) {
    case Phase::committed:
      return wait(item,
                  fmt::format("version {} is published, but could not be finished on this host: {}",
                              item.record.version, error.what()),
                  error.code());
    case Phase::committing:
      return wait(item, error.what(), error.code());
    default:
      break;
  }
  if (is_final) return end(item, Phase::failed, error);
  if (may_pass(error.code())) return wait(item, error.what(), error.code());
  if (error.code() != ErrorCode::conflict) return end(item, Phase::failed, error);
  if (look_for_lost_first(item)) return wait(item, error.what(), error.code());
  if (has_moved(item)) return;  // retried at once
  const bool rebases = item.record.wishes.rebase || options.rebase;
  if (!rebases) return end_in_conflict(item, conflict_of(item));
  if (++item.lost_races >= kRebaseTries) return end_in_conflict(item, lost_races_of(item));
  wait(item, "another writer published first; coding again on top of that version", error.code());
}

/// The version that won the race may be an earlier hand-over whose files were lost: then that one
/// is searched for before the next try.  One whose number nobody has yet is not that one, and may
/// be searched for in vain for ever.
/// Returns: false if there is none.
bool PublishQueue::State::look_for_lost_first(const QueueItem& item) {
  const std::uint64_t newest = store.manifests().newest().version;
  // That of the try may be taken and not be known here yet.
  const std::uint64_t taken = std::max(newest, item.tried_parent.value_or(newest) + 1);
  bool is_any = false;
  change([&] {
    for (const auto& [order, other] : items) {
      if (order >= item.record.order || !other->is_lost || other->record.is_terminal()) continue;
      if (other->record.version > taken) continue;
      other->retry_at = {};
      is_any = true;
    }
  });
  return is_any;
}

/// Whether a rebase happened during the try, of one that does not rebase itself.
bool PublishQueue::State::has_moved(const QueueItem& item) const {
  if (item.record.wishes.rebase || options.rebase) return false;
  const std::lock_guard lock(mutex);
  return own.parent_for(item.record.fence) != item.tried_parent;
}

Error PublishQueue::State::conflict_of(const QueueItem& item) const {
  const std::string shown = escape_name(item.record.name);
  const std::lock_guard lock(mutex);
  return {ErrorCode::conflict,
          fmt::format(
              "publish/{0} should follow version {1}, but another writer has published since. To "
              "continue from that version, run: {2} (this also publishes publish/{0}); otherwise "
              "take it back (mv publish/{0} staging/)",
              shown, own.parent_for(item.record.fence), options.rebase_command)};
}

Error PublishQueue::State::lost_races_of(const QueueItem& item) const {
  return {
      ErrorCode::conflict,
      fmt::format("lost to other writers {} times in a row; when they are done, run: {} (this also "
                  "publishes publish/{})",
                  kRebaseTries, options.rebase_command, escape_name(item.record.name))};
}

void PublishQueue::State::wait(QueueItem& item, const std::string& why, ErrorCode code) {
  if (item.error != why) {
    log_warning(fmt::format("publish/{} waits: {}", escape_name(item.record.name), why));
  }
  change([&] {
    item.failures++;
    item.error = why;
    item.error_code = to_string(code);
    item.retry_at = Clock::now() + retry_delay(kFirstRetry, item.failures - 1, random);
  });
}

/// Until a person decides, which may take days.
void PublishQueue::State::end_in_conflict(QueueItem& item, const Error& why) {
  if (!item.record.unsynced_boot.empty()) {
    const std::optional<Error> lost = sync_if_possible(item, Context{item.stop.get_token()});
    if (item.stop.stop_requested()) return;  // as in failed()
    if (lost) return end(item, Phase::failed, *lost);
    if (has_moved(item)) return;  // syncing may take minutes; as in failed()
  }
  end(item, Phase::conflict, why);
}

void PublishQueue::State::end(QueueItem& item, Phase phase, const Error& error) {
  const HandOverRecord& record = item.record;
  log_error(fmt::format("publish/{}: {}", escape_name(record.name), error.what()));
  // The links hold the bytes of files that the user may want to remove, and what was coded of them
  // early is of no use: it holds descriptors and space.
  remove_links(links_of(record));
  item.has_links = false;
  item.early.reset();
  early.drop(record.directory);  // if it was not taken yet
  item.images.reset();
  item.fresh.reset();
  change([&] {
    if (error.code() == ErrorCode::permission) bucket_refusal = error.what();
    item.record.phase = phase;
    item.record.error = error.what();
    item.record.error_code = to_string(error.code());
    note_end({record.order, record.name, record.wishes.tag,
              phase == Phase::conflict ? HandOverEnd::How::conflict : HandOverEnd::How::failed, 0,
              error.what(), ""});
  });
  try {
    write_record(item);
  } catch (const Error& unwritten) {
    // A later process tries again, with the same result.
    log_warning(fmt::format("cannot record why publish/{} failed: {}", escape_name(record.name),
                            unwritten.what()));
  }
  early.parent_changed();
}

}  // namespace weightfs
