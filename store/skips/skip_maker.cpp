#include "store/skips/skip_maker.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/os/priority.hpp"
#include "store/patches/patch_path.hpp"
#include "store/repository/skips.hpp"
#include "store/skips/make_skip.hpp"
#include "store/skips/skip_rules.hpp"
#include "store/threads/work_threads.hpp"

namespace weightfs {
namespace {

std::string text_of(const VersionPair& skip) { return fmt::format("{}..{}", skip.from, skip.to); }

/// The trainer on this host has the other cores.
unsigned coding_threads() { return std::max(1u, work_threads() / 2); }

}  // namespace

void let_publish_go_first(Store& store, std::uint64_t newest,
                          const std::function<void(const Context& context)>& give_way,
                          const Context& context) {
  const auto check_room = [&] {
    if (store.manifests().newest().version <= newest) return;
    if (store.evictor().has_free_bytes(store.images().newest_bytes())) return;
    throw Error(ErrorCode::no_space,
                "the store has no room for another version beside the one that it is made of");
  };
  check_room();
  if (!give_way) return;
  give_way(context);
  context.check("making a skip delta");
  check_room();
}

SkipMaker::SkipMaker(Store& store, History& history, SkipMakerOptions options)
    : store_(store),
      history_(history),
      options_(std::move(options)),
      thread_({"skip deltas are not made: {}", take_lowest_priority, options_.retry_pause},
              [this](const Context& context, bool) {
                return make_one(context) == Outcome::none ? pause() : Clock::duration::zero();
              }) {
  status_.off = options_.off;
}

SkipMaker::~SkipMaker() { stop(); }

SkipMaker::Outcome SkipMaker::make_one(const Context& context) {
  if (!options_.off.empty()) return Outcome::none;
  std::vector<VersionPair> due = find_due(context);
  if (due.empty()) return Outcome::none;
  retired_ = read_gc_log(history_.repository(), context);
  due = find_due(context);  // what was retired may change the rules
  if (due.empty()) return Outcome::none;
  settle_what_is_there(due, context);
  for (const VersionPair& skip : due) {
    if (settled_.contains(skip)) continue;
    if (const Outcome outcome = make(skip, context); outcome != Outcome::none) return outcome;
  }
  return Outcome::none;
}

/// Those that can be made now, as far as this host knows.  Forgets failures of all that is not to
/// be made any more, or is out of reach: what brings it back wakes this.
std::vector<VersionPair> SkipMaker::find_due(const Context& context) {
  const std::uint64_t newest = store_.manifests().newest().version;
  std::vector<VersionPair> due, out_of_reach;
  std::map<VersionPair, Failure> failed;
  for (const VersionPair& skip :
       skips_by_rule(history_, newest, options_.versions, retired_, context)) {
    if (settled_.contains(skip)) continue;
    const auto failure = failed_.find(skip);
    const bool waits = failure != failed_.end() && failure->second.again > Clock::now();
    const bool can_be_read =
        waits || (is_in_reach(skip.from, context) && is_in_reach(skip.to, context));
    if (!can_be_read) out_of_reach.push_back(skip);
    if (can_be_read && !waits) due.push_back(skip);
    if (can_be_read && failure != failed_.end()) failed.insert(*failure);
  }
  const std::uint64_t oldest = newest - std::min(newest, options_.versions);
  std::erase_if(settled_, [&](const VersionPair& skip) { return skip.to <= oldest; });
  failed_ = std::move(failed);
  show_failed();
  const std::lock_guard lock(mutex_);
  status_.out_of_reach = std::move(out_of_reach);
  return due;
}

/// One request, however many are due.
void SkipMaker::settle_what_is_there(const std::vector<VersionPair>& due, const Context& context) {
  const auto oldest = std::ranges::min_element(due);
  for (const ListedSkip& skip : list_skips(history_.repository(), oldest->to - 1, context)) {
    settle(skip.versions);
  }
}

/// It is there, or never to be made.
void SkipMaker::settle(const VersionPair& skip) {
  settled_.insert(skip);
  if (failed_.erase(skip) != 0) show_failed();
}

/// Whether images are here, or patches lead to it from those that are.  Reads no patch.
bool SkipMaker::is_in_reach(std::uint64_t version, const Context& context) const {
  const auto name_of = [&](std::uint64_t number) {
    return PatchVersion{number, history_.get(number, context)->manifest_sha256};
  };
  const std::vector<SpanInfo> spans = store_.patches().list();
  const PatchVersion wanted = name_of(version);
  return std::ranges::any_of(store_.images().complete_versions(), [&](std::uint64_t number) {
    return store_.images().has_all_files(number) &&
           (number == version || find_path(spans, name_of(number), wanted).has_value());
  });
}

/// Returns: none: it is not to be made.
SkipMaker::Outcome SkipMaker::make(const VersionPair& skip, const Context& context) {
  try {
    if (is_wanted(history_, skip, retired_, context)) return code_and_put(skip, context);
    settle(skip);
    return Outcome::none;
  } catch (const std::exception& error) {
    show_making(std::nullopt);
    if (context.stop.stop_requested() || Clock::now() >= context.deadline) throw;
    note_failure(skip, error.what());
    return Outcome::failed;
  }
}

SkipMaker::Outcome SkipMaker::code_and_put(const VersionPair& skip, const Context& context) {
  const std::uint64_t newest = store_.manifests().newest().version;
  MakeSkipOptions options;
  options.claim = Eviction::Claim::in_use;
  options.threads = coding_threads();
  options.coder = options_.coder;
  const auto wait_turn = [&](const Context& its) {
    let_publish_go_first(store_, newest, options_.give_way, its);
  };
  options.before_batch = wait_turn;
  wait_turn(context);
  show_making(skip);
  const auto made = make_skip(store_, history_, skip, options, context, {});
  show_making(std::nullopt);
  settle(skip);
  if (!made || !made->is_new) return Outcome::made;  // by somebody else
  log_info(
      fmt::format("made the skip delta {}: {}", text_of(skip), human_bytes(made->uploaded_bytes)));
  const std::lock_guard lock(mutex_);
  status_.made++;
  status_.bytes += made->uploaded_bytes;
  status_.last = skip;
  return Outcome::made;
}

void SkipMaker::note_failure(const VersionPair& skip, const std::string& error) {
  Failure& failure = failed_[skip];
  if (failure.error != error) {
    log_warning(fmt::format("the skip delta {} was not made, and will be tried again: {}",
                            text_of(skip), error));
  }
  failure = {Clock::now() + options_.retry_pause, error};
  show_failed();
  const std::lock_guard lock(mutex_);
  status_.error = error;
}

void SkipMaker::show_failed() {
  const std::lock_guard lock(mutex_);
  status_.failed.clear();
  for (const auto& [skip, failure] : failed_) status_.failed.push_back(skip);
  if (failed_.empty()) status_.error.clear();
}

void SkipMaker::show_making(std::optional<VersionPair> skip) {
  const std::lock_guard lock(mutex_);
  status_.making = skip;
}

/// After Outcome::none.
Clock::duration SkipMaker::pause() const {
  Clock::time_point next = Clock::time_point::max();
  for (const auto& [skip, failure] : failed_) next = std::min(next, failure.again);
  if (next == Clock::time_point::max()) return WokenThread::kUntilWoken;
  return std::max(next - Clock::now(), Clock::duration::zero());
}

SkipMakerStatus SkipMaker::status() const {
  const std::string error = thread_.error();
  const std::lock_guard lock(mutex_);
  SkipMakerStatus status = status_;
  if (!error.empty()) status.error = error;
  return status;
}

}  // namespace weightfs
