// Handing over: seal, look, link, scan; the last step is one synced write that has the record and
// the directory's place in publish/.  Before it nothing is changed that outlives the call; after it
// nothing of the call can fail.
//
// Withdrawing is the reverse, one write too.  It stops a publish at work and does not wait for it:
// what that still reads may be changed under it, but it cannot commit any more.
#include "store/handover/publish_queue.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <fstream>
#include <utility>

#include "store/base/log.hpp"
#include "store/base/path_rules.hpp"
#include "store/handover/queue_state.hpp"
#include "store/handover/seal.hpp"
#include "store/publish/pre_encoded.hpp"

namespace weightfs {
namespace {

constexpr auto kProbeTime = std::chrono::seconds(2);

/// What the kernel needs at most, in practice, to let go of a file after its last close.
constexpr auto kLetGoTime = std::chrono::milliseconds(20);

/// For what is in the store, as a rule.
constexpr auto kLayoutTime = std::chrono::seconds(1);
constexpr std::string_view kWriteProbeKey = ".probe-write";
constexpr auto kCopyFollows = std::chrono::seconds(10);  // a copy, after a move was refused
constexpr auto kChangeCheck = std::chrono::milliseconds(200);

using Phase = HandOverRecord::Phase;

/// Names this run of the machine.
std::string boot_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id.empty() ? "unknown" : id;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

std::string_view last_component(std::string_view path) { return path.substr(path.rfind('/') + 1); }

void check_name(std::string_view what, std::string_view name) {
  const std::string problem = tag_problem(name);
  if (problem.empty()) return;
  throw Error(ErrorCode::invalid, fmt::format("the {} '{}' {}", what, escape_name(name), problem));
}

/// Of what staging says while a directory is handed over.
ErrorCode code_of(const PosixError& error) {
  const bool is_known = error.code() == ErrorCode::busy || error.code() == ErrorCode::no_space;
  return is_known ? error.code() : ErrorCode::io;
}

bool is_in_publish(const Staging& staging, StagingId directory) {
  try {
    return staging.parent_of(directory) == kPublishRoot;
  } catch (const PosixError&) {
    return false;  // there is no such inode
  }
}

/// Refuses what is not text, or too much.
void check_meta(const std::map<std::string, std::string>& meta) {
  check_users_meta(meta);
  Manifest manifest;
  manifest.meta = meta;
  static_cast<void>(manifest.serialize());
}

/// Removes links that are not wanted after all.
class NewLinks {
 public:
  explicit NewLinks(std::filesystem::path tree) : tree_(std::move(tree)) {}
  ~NewLinks() {
    if (!tree_.empty()) remove_links(tree_);
  }
  NewLinks(const NewLinks&) = delete;
  NewLinks& operator=(const NewLinks&) = delete;
  void keep() noexcept { tree_.clear(); }

 private:
  std::filesystem::path tree_;
};

/// One that may not remove may publish all the same.
void remove_write_probe(Bucket& bucket, const Context& context) {
  try {
    bucket.remove(kWriteProbeKey, context);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::permission) throw;
    log_debug(fmt::format("cannot remove {}: {}", kWriteProbeKey, error.what()));
  }
}

HandOver::State state_of(const QueueItem& item) {
  switch (item.record.phase) {
    case Phase::queued:
      if (item.is_running) return HandOver::State::uploading;
      return item.error.empty() ? HandOver::State::queued : HandOver::State::waiting;
    case Phase::committing:
      return HandOver::State::committing;
    case Phase::committed:
      return item.error.empty() ? HandOver::State::committing : HandOver::State::waiting;
    case Phase::conflict:
      return HandOver::State::conflict;
    case Phase::failed:
      return HandOver::State::failed;
  }
  return HandOver::State::failed;
}

HandOver describe(const QueueItem& item) {
  const HandOverRecord& record = item.record;
  HandOver result;
  result.order = record.order;
  result.directory = record.directory;
  result.name = record.name;
  result.tag = record.tag;
  result.state = state_of(item);
  if (result.state == HandOver::State::uploading) {
    result.phase = item.step;
    result.done_bytes = item.done_bytes;
    result.total_bytes = item.total_bytes;
  }
  if (record.is_terminal()) {
    result.error = record.error;
    result.error_code = record.error_code;
  } else if (result.state != HandOver::State::uploading) {
    result.error = item.error;
    result.error_code = item.error_code;
  }
  result.early_bytes = item.early_bytes;
  result.time = record.time;
  result.version = record.version;
  return result;
}

/// The path of a file below the step before `first`.
std::string path_from(const std::vector<Staging::Step>& way, std::size_t first) {
  std::string path;
  for (std::size_t i = first; i < way.size(); i++) {
    path += (path.empty() ? "" : "/") + way[i].name;
  }
  return path;
}

/// Changes nothing else, as the thread may be reading the rest.
void rebase_record(HandOverRecord& record, std::uint64_t newest) {
  record.fence = std::max(record.fence, newest);
  if (record.phase != Phase::conflict) return;
  record.phase = Phase::queued;
  record.error.clear();
  record.error_code.clear();
}

bool is_hidden(const Staging::Step& step) { return step.name.starts_with('.'); }

}  // namespace

std::string_view to_string(HandOver::State state) noexcept {
  switch (state) {
    case HandOver::State::queued:
      return "queued";
    case HandOver::State::uploading:
      return "uploading";
    case HandOver::State::waiting:
      return "waiting";
    case HandOver::State::committing:
      return "committing";
    case HandOver::State::conflict:
      return "conflict";
    case HandOver::State::failed:
      return "failed";
  }
  return "failed";
}

// ---- loading ----

PublishQueue::State::State(Staging& the_staging, Store& the_store, History& the_history,
                           QueueOptions the_options)
    : staging(the_staging),
      store(the_store),
      history(the_history),
      options(std::move(the_options)),
      early(the_history, the_store, early_options()),
      closes(watch_options()) {
  // All links: those of records are made again when they are needed.
  remove_links(links_root());
  load_counters();
  load_records();
}

EarlyOptions PublishQueue::State::early_options() {
  EarlyOptions result;
  result.parent = [this] { return early_parent(); };
  result.threads = options.threads;
  result.coder = options.coder;
  return result;
}

CloseWatchOptions PublishQueue::State::watch_options() {
  return {.directory = store.path() / "staging",
          .all = [this] { return staging.staged_files(); },
          .closed =
              [this](StagingId file) {
                try {
                  closed(file);
                } catch (const std::exception& error) {  // it is gone, mostly
                  log_debug(fmt::format("no early work: {}", error.what()));
                }
              }};
}

void PublishQueue::State::load_counters() {
  own = PublishedRange::parse(store.db().find(ColumnFamily::store, kOwnKey).value_or(""));
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

void PublishQueue::State::take_record(HandOverRecord record) {
  next_order = std::max(next_order, record.order + 1);
  if (!is_in_publish(staging, record.directory)) {
    log_error(fmt::format("publish/{} is gone; it is not published", escape_name(record.name)));
    store.db().write({{ColumnFamily::handovers, record.key(), std::nullopt}});
    return;
  }
  const bool may_be_lost = !record.unsynced_boot.empty() && record.unsynced_boot != boot_id();
  if (record.phase == Phase::queued && may_be_lost) {
    record.phase = Phase::failed;
    record.error_code = to_string(ErrorCode::corrupt);
    record.error =
        "the machine restarted before all bytes were on its disk; check the files, move them "
        "back into staging and hand them over again";
    store.db().write({{ColumnFamily::handovers, record.key(), record.serialize()}});
  }
  auto item = std::make_shared<QueueItem>();
  item->is_recorded = record.phase == Phase::committed;
  item->record = std::move(record);
  items.emplace(item->record.order, std::move(item));
}

// ---- handing over ----

std::uint64_t PublishQueue::State::hand_over(StagingId directory, std::string_view name,
                                             std::string_view tag, const HandOverOptions& given,
                                             const Context& context) {
  check_name("name", name);
  if (!tag.empty()) check_name("tag", tag);
  check_meta(given.meta);
  check_free(name);
  check_bucket(given.caller.uid, context);
  HandOverRecord record = make_record(directory, name, tag, given);
  const std::string shown = escape_name(staging.path_of(directory));

  const Staging::Seal seal(staging, directory);
  require_own_files(staging, directory, given.caller);
  wait_for_writers(directory, given.caller.uid, context);
  NewLinks links(links_of(record));
  make_links(staging, directory, links_of(record));
  check_links(links_of(record), record.include, shown);
  context.check("handing over " + shown);
  reached("sealed");
  const std::uint64_t order = enqueue(std::move(record));
  links.keep();
  reached("recorded");
  return order;
}

HandOverRecord PublishQueue::State::make_record(StagingId directory, std::string_view name,
                                                std::string_view tag,
                                                const HandOverOptions& given) {
  const auto top = staging.top_of(directory);
  if (!top || top->root != kStagingRoot || !S_ISDIR(staging.attributes(directory).st_mode)) {
    throw Error(ErrorCode::invalid,
                fmt::format("publish/{}: only a directory in staging can be handed over",
                            escape_name(name)));
  }
  HandOverRecord record;
  record.directory = directory;
  record.name = name;
  record.tag = tag;
  record.nonce = random_hex(16);
  record.origin = {staging.parent_of(directory),
                   std::string(last_component(staging.path_of(directory)))};
  record.meta = given.meta;
  record.include = options.include;
  record.include.insert(record.include.end(), given.include.begin(), given.include.end());
  record.snapshot = given.snapshot;
  record.rebase = given.rebase || options.rebase;
  record.time = static_cast<std::int64_t>(std::time(nullptr));
  record.unsynced_boot = boot_id();
  static_cast<void>(record.serialize());  // refuses what is no text
  return record;
}

void PublishQueue::State::check_free(std::string_view name) const {
  const std::lock_guard lock(mutex);
  for (const auto& [order, item] : items) {
    if (item->record.name != name) continue;
    throw Error(
        ErrorCode::busy,
        fmt::format("publish/{} is already being published ({}); wait for it, take it back, or use "
                    "another name",
                    escape_name(name), to_string(state_of(*item))));
  }
}

/// Once the bucket has said that it may not be written, it is asked again first, by users who have
/// not asked just now.
void PublishQueue::State::check_bucket(uid_t user, const Context& context) {
  std::string refusal;
  {
    const std::lock_guard lock(mutex);
    refusal = bucket_refusal;
  }
  if (refusal.empty()) return;
  const WaitBudget::Turn turn(waits, user);
  Context soon = context.within(kProbeTime);
  soon.deadline = std::min(soon.deadline, turn.until());
  try {
    soon.check("asking the bucket whether it may be written");
    Bucket& bucket = history.repository().bucket(soon);
    bucket.put(kWriteProbeKey, TextSource("1"), soon);
    remove_write_probe(bucket, soon);
    refusal.clear();
  } catch (const Error& error) {
    context.check("asking the bucket whether it may be written");
    if (error.code() != ErrorCode::timed_out) refusal = error.what();
  }
  const std::lock_guard lock(mutex);
  bucket_refusal = refusal;
  if (refusal.empty()) return;
  throw Error(ErrorCode::permission,
              fmt::format("the bucket {} is not writable: {}; fix that, then hand over again",
                          history.repository().url(), refusal));
}

/// The kernel holds the caller's rename, and all others with it.
void PublishQueue::State::wait_for_writers(StagingId directory, uid_t user,
                                           const Context& context) {
  const WaitBudget::Turn turn(waits, user);
  const Clock::time_point until = std::max(turn.until(), Clock::now() + kLetGoTime);
  wait_unwritten(staging, directory, options.holders, until, context);
}

/// The hand-over happens here.
std::uint64_t PublishQueue::State::enqueue(HandOverRecord record) {
  const std::uint64_t newest = store.newest().version;
  const auto item = std::make_shared<QueueItem>();
  item->has_links = true;
  const std::lock_guard one_writer(record_mutex);
  const std::uint64_t order = record.order = next_order;
  {
    const std::lock_guard lock(mutex);
    record.fence = std::max(seen.value_or(newest), own.last);
  }
  std::string orders;
  append_be64(orders, order + 1);
  item->record = std::move(record);
  staging.hand_over(item->record.directory, item->record.name,
                    {{ColumnFamily::handovers, item->record.key(), item->record.serialize()},
                     {ColumnFamily::store, std::string(kOrdersKey), orders}});
  next_order++;
  change([&] { items.emplace(order, item); });
  return order;
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

/// Returns: nullptr if no record is about that directory: the removal of its files was interrupted.
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
  const std::shared_ptr<QueueItem> item = begin_withdrawal(directory);
  try {
    const std::lock_guard one_writer(record_mutex);
    std::vector<Db::Change> also;
    if (item) also.push_back({ColumnFamily::handovers, item->record.key(), std::nullopt});
    body(also);
  } catch (...) {
    if (item) change([&] { item->is_withdrawn = false; });
    throw;
  }
  if (item) end_withdrawal(*item);
  drop_early(directory);
  early.parent_changed();
}

void PublishQueue::State::end_withdrawal(QueueItem& item) {
  bool is_running = false;
  change([&] {
    is_running = item.is_running;
    item.is_gone = true;
    items.erase(item.record.order);
    note_end({item.record.order, item.record.name, item.record.tag, HandOverEnd::How::taken_back, 0,
              "", ""});
  });
  // Else the thread removes them when it is done with them.
  if (!is_running) remove_links(links_of(item.record));
}

void PublishQueue::State::note_end(HandOverEnd end) {
  ended.push_back(std::move(end));
  if (ended.size() > kEndedMax) ended.pop_front();
}

// ---- records ----

void PublishQueue::State::write_record(QueueItem& item) {
  const std::lock_guard one_writer(record_mutex);
  {
    const std::lock_guard lock(mutex);
    if (item.is_withdrawn) {
      throw Error(ErrorCode::cancelled, fmt::format("publish/{} was taken back", item.record.name));
    }
  }
  store.db().write({{ColumnFamily::handovers, item.record.key(), item.record.serialize()}});
}

// ---- early work ----

/// What is handed over next follows the newest version if nothing is on its way.
std::optional<std::uint64_t> PublishQueue::State::early_parent() const {
  const std::uint64_t newest = store.newest().version;
  const std::lock_guard lock(mutex);
  const bool is_idle = std::all_of(items.begin(), items.end(), [](const auto& entry) {
    return entry.second->record.is_terminal();
  });
  if (!seen || !is_idle) return std::nullopt;
  const std::uint64_t fence = std::max(*seen, own.last);
  return options.rebase ? std::max(fence, newest) : fence;
}

bool PublishQueue::State::may_hand_over(Caller caller) const {
  const struct stat root = staging.attributes(kPublishRoot);
  if (caller.uid == 0) return true;
  if (caller.uid == root.st_uid) return (root.st_mode & S_IWUSR) != 0;
  if (caller.gid == root.st_gid) return (root.st_mode & S_IWGRP) != 0;
  return (root.st_mode & S_IWOTH) != 0;
}

/// A directory stands for the files in it.
void PublishQueue::State::look_at(StagingId id) {
  if (S_ISREG(staging.attributes(id).st_mode)) return closes.note(id);
  for (const StagedFile& file : staging.list(id)) {
    if (S_ISREG(file.type)) closes.note(file.id);
  }
}

/// Nobody can write to the file.  It may be told again for the same bytes.
void PublishQueue::State::closed(StagingId file) {
  std::optional<EarlyFile> found = find_early_file(file);
  const struct stat now = staging.attributes(file);
  if (found && !may_hand_over({now.st_uid, now.st_gid})) found.reset();
  const std::lock_guard lock(early_mutex);
  drop_stale_early();
  if (!found) return;
  const EarlySource source{file, found->generation, now.st_mtim};
  const auto [known, is_new] =
      early_files.try_emplace({found->directory, found->path}, EarlySource{});
  if (!is_new && known->second == source) return;
  known->second = source;
  early.add(std::move(*found));
}

/// Which checkpoint a file belongs to is not known before that is handed over.  The parent tells,
/// if it has a file of that path; else it is the directory directly below staging/.
std::optional<EarlyFile> PublishQueue::State::find_early_file(StagingId file) {
  const std::vector<Staging::Step> way = staging.way_to(file);
  if (way.size() < 3 || way.front().id != kStagingRoot || is_hidden(way.back()) ||
      !way.back().name.ends_with(".safetensors")) {
    return std::nullopt;
  }
  // Hidden files are not published: below the last hidden directory.
  std::size_t top = way.size() - 2;
  while (top > 1 && !is_hidden(way[top])) top--;
  std::size_t at = top;
  if (top + 2 < way.size()) {
    const auto layout = newest_layout();
    const auto is_known = [&](std::size_t i) {
      return layout && layout->find_file(path_from(way, i + 1)) != nullptr;
    };
    while (at + 2 < way.size() && !is_known(at)) at++;
    if (!is_known(at)) at = top;
  }
  return EarlyFile{way[at].id, path_from(way, at + 1), staging.backing_path(file),
                   staging.generation(file)};
}

/// nullptr if there is none, or it cannot be had soon.
std::shared_ptr<const Layout> PublishQueue::State::newest_layout() {
  const std::uint64_t newest = store.newest().version;
  if (newest == 0) return nullptr;
  try {
    const Context soon = Context{}.within(kLayoutTime);
    const auto version = history.find(newest, soon);
    return version ? history.layout(*version, soon) : nullptr;
  } catch (const Error& error) {
    log_debug(fmt::format("the layout of version {} is not here: {}", newest, error.what()));
    return nullptr;
  }
}

/// Early work holds what it coded until somebody takes it: what nobody will take is given up.
void PublishQueue::State::drop_stale_early() {
  std::erase_if(early_files, [this](const auto& entry) {
    const auto& [directory, path] = entry.first;
    const EarlySource& source = entry.second;
    try {
      const std::vector<Staging::Step> way = staging.way_to(source.file);
      const auto at = std::ranges::find(way, directory, &Staging::Step::id);
      const bool is_there =
          at != way.end() && path_from(way, static_cast<std::size_t>(at - way.begin()) + 1) == path;
      // Handed over: the thread takes it, or a withdrawal drops it.
      if (is_there && way.front().id == kPublishRoot && at == way.begin() + 1) return true;
      const bool is_staged = is_there && way.front().id == kStagingRoot;
      if (is_staged && staging.generation(source.file) == source.generation) return false;
    } catch (const PosixError&) {
      // The file is gone.
    }
    early.drop(directory, path);
    return true;
  });
}

/// What was coded of the files of a directory is of no use any more.
void PublishQueue::State::drop_early(StagingId directory) {
  const std::lock_guard lock(early_mutex);
  std::erase_if(early_files, [&](const auto& entry) { return entry.first.first == directory; });
  early.drop(directory);
}

// ---- fences ----

/// Written first, so that what is in memory is never more than a restart would find.  A phase that
/// the thread changes meanwhile is written by it after this.
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

// ---- for everybody ----

PublishQueue::PublishQueue(Staging& staging, Store& store, History& history, QueueOptions options)
    : state_(std::make_unique<State>(staging, store, history, std::move(options))) {}

PublishQueue::~PublishQueue() { stop(); }

void PublishQueue::start(std::uint64_t newest) {
  const std::lock_guard lock(state_->thread_mutex);
  state_->change([&] { state_->seen = newest; });
  state_->early.parent_changed();
  state_->closes.note_all();
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

void PublishQueue::look_at(StagingId id) noexcept {
  try {
    state_->look_at(id);
  } catch (const std::exception& error) {  // it is gone, mostly
    log_debug(fmt::format("no early work: {}", error.what()));
  }
}

bool PublishQueue::may_hand_over(Caller caller) const { return state_->may_hand_over(caller); }

std::uint64_t PublishQueue::hand_over(StagingId directory, std::string_view name,
                                      std::string_view tag, const HandOverOptions& options,
                                      const Context& context) {
  try {
    return state_->hand_over(directory, name, tag, options, context);
  } catch (const PosixError& error) {
    // An errno of staging's says nothing about a hand-over.
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
  const std::uint64_t newest = state_->history.refresh(state_->store.newest().version, context);
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

EarlyStatus PublishQueue::early() const {
  const std::size_t pending = state_->closes.pending();  // first: then none is missed on its way
  EarlyStatus status = state_->early.status();
  status.waiting_files += pending;
  return status;
}

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
  // What changed since the caller looked is not seen here, so it looks again before long.
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
