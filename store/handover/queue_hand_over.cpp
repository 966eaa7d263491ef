// Handing over: seal, check, link, scan; the last step is one synced write of the record and the
// directory's place in publish/.  Before that write, nothing changes that outlives the call; after
// it, nothing in the call can fail.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/base/log.hpp"
#include "store/base/path_rules.hpp"
#include "store/base/sha256.hpp"
#include "store/handover/queue_state.hpp"
#include "store/handover/seal.hpp"
#include "store/publish/version_wishes.hpp"

namespace weightfs {
namespace {

constexpr auto kProbeTime = std::chrono::seconds(2);

/// The time that the kernel needs, in practice, to release a file after its last close.
constexpr auto kLetGoTime = std::chrono::milliseconds(20);

constexpr std::string_view kWriteProbeKey = ".probe-write";

void check_name(std::string_view name) {
  const std::string problem = tag_problem(name);
  if (problem.empty()) return;
  throw Error(ErrorCode::invalid, fmt::format("the name '{}' {}", escape_name(name), problem));
}

/// Removes new links unless they are kept.
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

/// A rollback's directory only has its place in publish/: what is in it would not be published.
void require_empty(const Staging& staging, StagingId directory) {
  if (staging.list(directory).empty()) return;
  throw Error(ErrorCode::invalid,
              fmt::format("{} is not empty: the directory of a rollback must be",
                          escape_name(staging.path_of(directory))));
}

bool is_taken(const Staging& staging, std::string_view name) {
  try {
    static_cast<void>(staging.lookup(kPublishRoot, name));
    return true;
  } catch (const PosixError& error) {
    if (error.number() != ENOENT) throw;
    return false;
  }
}

/// A publisher without permission to remove may still publish.
void remove_write_probe(Bucket& bucket, const Context& context) {
  try {
    bucket.remove(kWriteProbeKey, context);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::permission) throw;
    log_debug(fmt::format("cannot remove {}: {}", kWriteProbeKey, error.what()));
  }
}

}  // namespace

std::uint64_t PublishQueue::State::hand_over(StagingId directory, std::string_view name,
                                             const HandOverOptions& given, const Context& context) {
  HandOverWatch watch((std::string(name)));
  check_name(name);
  check_wishes(given.wishes);
  check_part(given.wishes);
  check_free(name);
  check_bucket(given.caller.uid, context);
  if (given.wishes.rollback != 0) {
    // Said at once, not by a hand-over that fails.
    static_cast<void>(history.get(given.wishes.rollback, context));
  }
  HandOverRecord record = make_record(directory, name, given);
  const std::string shown = escape_name(staging.path_of(directory));

  const Staging::Seal seal(staging, directory);
  require_own_files(staging, directory, given.caller);
  wait_for_writers(directory, given.caller.uid, context);
  require_not_lost(directory, shown);
  NewLinks links(links_of(record));
  make_links(staging, directory, links_of(record));
  if (record.wishes.rollback == 0) {
    check_links(links_of(record), record.wishes.include, scope_of(record), shown);
  } else {
    require_empty(staging, directory);
  }
  context.check("handing over " + shown);
  reached("sealed");
  const std::uint64_t order = enqueue(std::move(record), std::move(watch));
  links.keep();
  reached("recorded");
  return order;
}

/// In memory such files may look right, and the disk has said what it has to say.
void PublishQueue::State::require_not_lost(StagingId directory, const std::string& shown) const {
  const auto lost = staging.find_lost(directory);
  if (!lost) return;
  throw Error(ErrorCode::io,
              fmt::format("{}: some bytes of {} may be lost: the disk did not take them, or the "
                          "machine was restarted before it had them; remove that file, save it "
                          "again, and hand over again",
                          shown, escape_name(*lost)));
}

HandOverRecord PublishQueue::State::make_record(StagingId directory, std::string_view name,
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
  record.nonce = random_hex(16);
  record.origin = {staging.parent_of(directory),
                   std::string(last_component(staging.path_of(directory)))};
  record.wishes = given.wishes;
  std::vector<std::string>& include = record.wishes.include;
  include.insert(include.begin(), options.include.begin(), options.include.end());
  record.wishes.rebase = given.wishes.rebase || options.rebase;
  record.part = options.part;
  record.time = static_cast<std::int64_t>(std::time(nullptr));
  if (given.wishes.rollback == 0) record.unsynced_boot = boot;  // else there are no files
  static_cast<void>(record.serialize());                        // rejects what is not text
  return record;
}

/// Said at once, not by a hand-over that fails.
void PublishQueue::State::check_part(const VersionWishes& wishes) const {
  if (!options.part.is_part()) return;
  check_choice(options.part, wishes.tag);
  if (wishes.rollback == 0) return;
  throw Error(ErrorCode::invalid,
              fmt::format("this mount hands over parts (--part {}/{}), and there is no part of a "
                          "rollback: weightfs rollback {} {}",
                          options.part.part, options.part.parts, history.repository().url(),
                          wishes.rollback));
}

void PublishQueue::State::check_free(std::string_view name) {
  const std::lock_guard one_writer(record_mutex);
  require_free(name);
}

/// Nothing is handed over meanwhile: its directory is in publish/ before it is in `items`.
void PublishQueue::State::require_free(std::string_view name) const {
  {
    const std::lock_guard lock(mutex);
    for (const auto& [order, item] : items) {
      if (item->record.name != name) continue;
      throw Error(ErrorCode::busy,
                  fmt::format("publish/{} is already being published ({}); wait for it, take it "
                              "back, or use another name",
                              escape_name(name), to_string(state_of(*item))));
    }
  }
  if (!is_taken(staging, name)) return;
  throw Error(ErrorCode::busy,
              fmt::format("publish/{} is what is left of a hand-over that was taken back; move it "
                          "back to staging/ or remove it, or use another name",
                          escape_name(name)));
}

/// If the bucket last refused writes, probes it again first, within the user's wait budget.
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

/// The wait is bounded, because the kernel blocks the caller's rename meanwhile, and all other
/// renames.
void PublishQueue::State::wait_for_writers(StagingId directory, uid_t user,
                                           const Context& context) {
  const WaitBudget::Turn turn(waits, user);
  const Clock::time_point until = std::max(turn.until(), Clock::now() + kLetGoTime);
  wait_unwritten(staging, directory, options.holders, until, context);
}

/// The write that hands the directory over.
std::uint64_t PublishQueue::State::enqueue(HandOverRecord record, HandOverWatch watch) {
  const std::uint64_t newest = store.manifests().newest().version;
  const auto item = std::make_shared<QueueItem>();
  item->has_links = true;
  const std::lock_guard one_writer(record_mutex);
  require_free(record.name);  // somebody else may have handed it over meanwhile
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
  watch.lap(&HandOverTiming::seal);
  item->watch = std::move(watch);
  change([&] { items.emplace(order, item); });
  return order;
}

// ---- renames that are no hand-overs ----

void PublishQueue::check_free(std::string_view name) {
  try {
    state_->check_free(name);
  } catch (const Error& error) {
    state_->note_refusal(name, error.what());
    throw;
  }
}

void PublishQueue::note_rename(std::string_view name) {
  const std::string shown = escape_name(name);
  state_->note_refusal(
      name, fmt::format("what is in publish/ is not renamed: mv publish/{0} staging/{0} takes it "
                        "back as a whole, and it can be handed over again",
                        shown));
}

}  // namespace weightfs
