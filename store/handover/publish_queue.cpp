// Withdrawing is the reverse of handing over (queue_hand_over.cpp), and one write too.  It stops a
// running publish without waiting for it: the files that the publish still reads may change, but it
// cannot commit any more.
#include "store/handover/publish_queue.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/base/log.hpp"
#include "store/base/path_rules.hpp"
#include "store/handover/queue_state.hpp"
#include "store/handover/seal.hpp"
#include "store/local/store_directory.hpp"
#include "store/os/boot_id.hpp"

namespace weightfs {
namespace {

constexpr auto kCopyFollows = std::chrono::seconds(10);  // a copy that follows a refused move
constexpr auto kChangeCheck = std::chrono::milliseconds(200);

using Phase = HandOverRecord::Phase;

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

/// The code for an error of staging during a hand-over.
ErrorCode code_of(const PosixError& error) {
  const bool is_known = error.code() == ErrorCode::busy || error.code() == ErrorCode::no_space;
  return is_known ? error.code() : ErrorCode::io;
}

bool is_in_publish(const Staging& staging, StagingId directory) {
  try {
    return staging.parent_of(directory) == kPublishRoot;
  } catch (const PosixError&) {
    return false;  // no such inode
  }
}

/// Changes only these fields, as the thread may be reading the others.
void rebase_record(HandOverRecord& record, std::uint64_t newest) {
  record.fence = std::max(record.fence, newest);
  if (record.phase != Phase::conflict) return;
  record.phase = Phase::queued;
  record.error.clear();
  record.error_code.clear();
}

}  // namespace

// ---- loading ----

PublishQueue::State::State(Staging& the_staging, Store& the_store, History& the_history,
                           QueueOptions the_options)
    : staging(the_staging),
      store(the_store),
      history(the_history),
      options(std::move(the_options)),
      boot(boot_id()),
      early(the_staging, the_store, the_history, early_options(), !options.part.is_part()) {
  require_leases(marker_path(store.path()));
  // Removes all links: those of queued records are made again on demand.
  remove_links(links_root());
  load_counters();
  load_records();
}

EarlyOptions PublishQueue::State::early_options() {
  EarlyOptions result;
  result.parent = [this] { return early_parent(); };
  result.is_in_vain = [this] { return is_in_conflict(); };
  result.is_handed_over = [this](StagingId directory) { return is_handed_over(directory); };
  result.threads = options.threads;
  result.coder = options.coder;
  result.name_patience = options.name_patience;
  return result;
}

void PublishQueue::State::load_counters() {
  const auto loaded = store.db().find(ColumnFamily::store, kOwnKey).value_or("");
  change([&] { own = PublishedRange::parse(loaded); });  // early work asks already
  const std::string orders = store.db().find(ColumnFamily::store, kOrdersKey).value_or("");
  if (orders.size() == 8) next_order = load_be(orders);
}

void PublishQueue::State::load_records() {
  std::vector<HandOverRecord> records;
  store.db().scan(ColumnFamily::handovers, "", [&](std::string_view key, std::string_view value) {
    try {
      records.push_back(HandOverRecord::parse(key, value));
    } catch (const Error& error) {
      log_error(fmt::format("{}; it was not published: move its directory back out of publish/",
                            error.what()));
    }
  });
  for (HandOverRecord& record : records) take_record(std::move(record));
}

/// No room for it is no reason to serve nothing: the next process finds out the same.
void PublishQueue::State::write_loaded(std::string key, std::optional<std::string> value) {
  try {
    store.db().write({{ColumnFamily::handovers, std::move(key), std::move(value)}});
  } catch (const Error& error) {
    if (error.code() != ErrorCode::no_space) throw;
    log_warning(error.what());
  }
}

void PublishQueue::State::take_record(HandOverRecord record) {
  next_order = std::max(next_order, record.order + 1);
  if (!is_in_publish(staging, record.directory)) {
    log_error(fmt::format("publish/{} is gone; it is not published", escape_name(record.name)));
    write_loaded(record.key(), std::nullopt);
    return;
  }
  auto item = std::make_shared<QueueItem>();
  item->is_lost = record.may_be_lost(boot);
  item->is_loaded = true;
  item->watch = HandOverWatch::since(record.name, record.time);
  item->is_recorded = record.phase == Phase::committed;
  // A conflict too: a rebase would queue it again.
  const bool is_version = record.phase == Phase::committing || record.phase == Phase::committed;
  if (item->is_lost && !is_version && record.phase != Phase::failed) {
    const Error error = lost_bytes_of(record);
    record.phase = Phase::failed;
    record.error_code = to_string(error.code());
    record.error = error.what();
    log_error(record.error);
    write_loaded(record.key(), record.serialize());
  }
  if (item->is_lost && !is_version) staging.note_lost(record.directory);
  item->record = std::move(record);
  change([&] { items.emplace(item->record.order, item); });
}

void PublishQueue::State::note_refusal(std::string_view name, std::string_view why) {
  const std::string shown = escape_name(name);
  log_warning(fmt::format("publish/{}: {}", shown, why));
  const std::string text = fmt::format("{:%Y-%m-%d %H:%M:%S} UTC publish/{}: {}",
                                       fmt::gmtime(std::time(nullptr)), shown, why);
  change([&] {
    last_error = text;
    last_refused = name;
    last_refused_at = Clock::now();
  });
}

// ---- withdrawing ----

/// Returns: nullptr if no record names that directory: the removal of its files was interrupted.
std::shared_ptr<QueueItem> PublishQueue::State::begin_withdrawal(StagingId directory) {
  std::unique_lock lock(mutex);
  const auto found = std::find_if(items.begin(), items.end(), [&](const auto& entry) {
    return entry.second->record.directory == directory;
  });
  if (found == items.end()) return nullptr;
  const std::shared_ptr<QueueItem> item = found->second;
  const std::string shown = escape_name(item->record.name);
  if (item->record.phase == Phase::committed) {
    throw Error(
        ErrorCode::busy,
        fmt::format(
            "publish/{} is already version {}; it disappears when the version is complete here",
            shown, item->record.version));
  }
  if (item->record.phase == Phase::committing) {
    if (!item->missing.empty()) {
      throw Error(
          ErrorCode::busy,
          fmt::format(
              "publish/{} waits for part{} {} of {}, and may become version {} with them at "
              "any moment: it can be taken back when the wait has failed (--part-wait)",
              shown, item->missing.size() == 1 ? "" : "s", parts_text(item->missing),
              item->record.part.parts, item->record.version));
    }
    throw Error(
        ErrorCode::busy,
        fmt::format("publish/{} may already be version {}; try again when the bucket has answered",
                    shown, item->record.version));
  }
  if (item->is_withdrawn) {
    throw Error(ErrorCode::busy, fmt::format("publish/{} is already being taken back", shown));
  }
  item->is_withdrawn = true;
  std::stop_source stop = item->stop;
  lock.unlock();
  stop.request_stop();
  return item;
}

void PublishQueue::State::withdraw(
    StagingId directory, const std::function<void(const std::vector<Db::Change>& also)>& body) {
  std::shared_ptr<QueueItem> item = begin_withdrawal(directory);
  try {
    const std::lock_guard one_writer(record_mutex);
    if (!item) item = begin_withdrawal(directory);  // it may just have been handed over
    std::vector<Db::Change> also;
    if (item) also.push_back({ColumnFamily::handovers, item->record.key(), std::nullopt});
    if (item && item->is_lost) staging.note_lost(directory);  // its record said so
    body(also);
  } catch (...) {
    if (item) change([&] { item->is_withdrawn = false; });
    throw;
  }
  if (item) end_withdrawal(*item);
  early.drop(directory);
  early.parent_changed();
}

void PublishQueue::State::end_withdrawal(QueueItem& item) {
  bool is_running = false;
  change([&] {
    is_running = item.is_running;
    item.is_gone = true;
    items.erase(item.record.order);
    note_end({item.record.order, item.record.name, item.record.wishes.tag,
              HandOverEnd::How::taken_back, 0, "", ""});
  });
  // Otherwise the thread removes them when it is done with them.
  if (!is_running) remove_links(links_of(item.record));
}

void PublishQueue::State::note_end(HandOverEnd end) {
  end.newest = store.manifests().newest().version;
  ended.push_back(std::move(end));
  if (ended.size() > kEndedMax) ended.pop_front();
}

// ---- records ----

void PublishQueue::State::write_record(QueueItem& item) {
  const std::lock_guard one_writer(record_mutex);
  require_not_withdrawn(item);
  store.db().write({{ColumnFamily::handovers, item.record.key(), item.record.serialize()}});
}

void PublishQueue::State::require_not_withdrawn(const QueueItem& item) const {
  const std::lock_guard lock(mutex);
  if (!item.is_withdrawn) return;
  throw Error(ErrorCode::cancelled, fmt::format("publish/{} was taken back", item.record.name));
}

// ---- early work ----

/// The version that the next hand-over may follow; nullopt if one is in progress, or before
/// start().
std::optional<std::uint64_t> PublishQueue::State::early_parent() const {
  const std::uint64_t newest = store.manifests().newest().version;
  const std::lock_guard lock(mutex);
  const bool is_idle = std::all_of(items.begin(), items.end(), [](const auto& entry) {
    return entry.second->record.is_terminal() || entry.second->is_lost;
  });
  if (!seen || !is_idle) return std::nullopt;
  const std::uint64_t fence = std::max(*seen, own.last);
  return options.rebase ? std::max(fence, newest) : fence;
}

/// Whether somebody else has published: until a person intervenes each hand-over is a conflict.
bool PublishQueue::State::is_in_conflict() const {
  const std::uint64_t newest = store.manifests().newest().version;
  const std::lock_guard lock(mutex);
  return !options.rebase && seen && newest > std::max(*seen, own.last);
}

bool PublishQueue::State::is_handed_over(StagingId directory) const {
  const std::lock_guard lock(mutex);
  return std::any_of(items.begin(), items.end(), [&](const auto& entry) {
    const HandOverRecord& record = entry.second->record;
    return record.directory == directory && !record.is_terminal();
  });
}

// ---- fences ----

/// Writes the records first, so that memory is never ahead of what a restart would find.  If the
/// thread changes a phase meanwhile, it writes that record again afterwards.
/// Returns: the names of those in conflict, which are queued again.
std::vector<std::string> PublishQueue::State::move_fences(std::uint64_t newest) {
  const auto is_movable = [](const QueueItem& item) {
    return !item.is_withdrawn && item.record.phase != Phase::failed &&
           item.record.phase != Phase::committed;
  };
  const std::lock_guard one_writer(record_mutex);
  std::vector<Db::Change> records;
  {
    const std::lock_guard lock(mutex);
    for (const auto& [order, item] : items) {
      if (!is_movable(*item)) continue;
      HandOverRecord moved = item->record;
      rebase_record(moved, newest);
      records.push_back({ColumnFamily::handovers, moved.key(), moved.serialize()});
    }
  }
  if (!records.empty()) store.db().write(records);
  std::vector<std::string> retried;
  change([&] {
    seen = std::max(seen.value_or(0), newest);
    for (const auto& [order, item] : items) {
      if (!is_movable(*item)) continue;
      const bool is_retried = item->record.phase == Phase::conflict;
      rebase_record(item->record, newest);
      if (!is_retried) continue;
      item->error.clear();
      item->error_code.clear();
      item->failures = item->lost_races = 0;
      item->retry_at = {};
      std::erase_if(ended, [of = order](const HandOverEnd& end) { return end.order == of; });
      retried.push_back(item->record.name);
    }
  });
  early.parent_changed();
  return retried;
}

// ---- public calls ----

PublishQueue::PublishQueue(Staging& staging, Store& store, History& history, QueueOptions options)
    : state_(std::make_unique<State>(staging, store, history, std::move(options))) {}

PublishQueue::~PublishQueue() { stop(); }

void PublishQueue::start(std::uint64_t newest) {
  const std::lock_guard lock(state_->thread_mutex);
  state_->change([&] { state_->seen = newest; });
  state_->early.parent_changed();
  state_->early.look_at_all();
  if (state_->thread.joinable()) return;
  state_->thread = std::jthread([this](const std::stop_token& stop) { state_->run(stop); });
}

void PublishQueue::stop() {
  const std::lock_guard lock(state_->thread_mutex);
  if (!state_->thread.joinable()) return;
  state_->thread.request_stop();
  state_->thread.join();
  state_->thread = {};
}

void PublishQueue::parent_arrived() { state_->early.parent_changed(); }

void PublishQueue::look_at(StagingId id) noexcept { state_->early.look_at(id); }

bool PublishQueue::may_hand_over(Caller caller) const {
  return weightfs::may_hand_over(state_->staging, caller);
}

std::uint64_t PublishQueue::hand_over(StagingId directory, std::string_view name,
                                      const HandOverOptions& options, const Context& context) {
  try {
    return state_->hand_over(directory, name, options, context);
  } catch (const PosixError& error) {
    // An errno of staging says nothing about a hand-over.
    state_->note_refusal(name, error.what());
    throw Error(code_of(error), error.what());
  } catch (const Error& error) {
    state_->note_refusal(name, error.what());
    throw;
  } catch (const std::exception& error) {
    state_->note_refusal(name, error.what());
    throw Error(ErrorCode::io, error.what());
  }
}

void PublishQueue::take_back(StagingId directory, StagingId new_parent, std::string_view new_name) {
  const std::string path = state_->staging.path_of(directory);
  try {
    state_->withdraw(directory, [&](const std::vector<Db::Change>& also) {
      state_->staging.take_back(directory, new_parent, new_name, also);
    });
  } catch (const Error& error) {
    state_->note_refusal(last_component(path), error.what());
    throw;
  }
  look_at(directory);
}

PublishQueue::Rebased PublishQueue::rebase(const Context& context) {
  const std::uint64_t newest =
      state_->history.refresh(state_->store.manifests().newest().version, context);
  Rebased result{newest, state_->move_fences(newest)};
  log_info(fmt::format("this mount continues from version {}; retrying: {}", newest,
                       result.retried.empty() ? "nothing" : escape_name(joined(result.retried))));
  return result;
}

void PublishQueue::cancel(StagingId directory) {
  state_->withdraw(directory, [&](const std::vector<Db::Change>& also) {
    if (!also.empty()) state_->store.db().write(also);
    state_->staging.allow_removal(directory);
  });
}

std::vector<HandOver> PublishQueue::list() const {
  const std::lock_guard lock(state_->mutex);
  std::vector<HandOver> result;
  for (const auto& [order, item] : state_->items) result.push_back(describe(*item));
  return result;
}

std::vector<HandOverEnd> PublishQueue::ended() const {
  const std::lock_guard lock(state_->mutex);
  return {state_->ended.begin(), state_->ended.end()};
}

PublishedTotals PublishQueue::published() const {
  const std::lock_guard lock(state_->mutex);
  return state_->totals;
}

EarlyStatus PublishQueue::early() const { return state_->early.status(); }

void PublishQueue::note_copy(std::string_view name) {
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->last_refused == name && Clock::now() < state_->last_refused_at + kCopyFollows) {
      return;
    }
  }
  const std::string shown = escape_name(name);
  state_->note_refusal(
      name, fmt::format(
                "files cannot be copied into publish/: save into staging/{0}, then mv staging/{0} "
                "publish/{0}",
                shown));
}

std::string PublishQueue::last_error() const {
  const std::lock_guard lock(state_->mutex);
  return state_->last_error;
}

void PublishQueue::wait_change(Clock::time_point until, const std::stop_token& stop) const {
  // A change between the caller's last look and this call is missed, so return early now and then.
  std::unique_lock lock(state_->mutex);
  const std::uint64_t before = state_->change_count;
  state_->changed.wait_until(lock, stop, std::min(until, Clock::now() + kChangeCheck),
                             [&] { return state_->change_count != before; });
}

std::vector<std::string> queued_names(Db& db) {
  std::vector<std::string> names;
  db.scan(ColumnFamily::handovers, "", [&](std::string_view key, std::string_view value) {
    try {
      names.push_back(HandOverRecord::parse(key, value).name);
    } catch (const Error& error) {
      log_warning(error.what());
    }
  });
  return names;
}

}  // namespace weightfs
