// One thread hands out the work: to each file a thread of its own, oldest file first, of those that
// have no result for the current parent.  One complete file is worked on at a time, and beside it
// kGrowingFilesMax that are still written: ranks save their shards side by side.  Each work has its
// own stop source, so that it ends at once when its file is dropped or replaced, or when nobody
// waits for its upload any more.
//
// A nonce belongs to the files of one directory (for a snapshot, whose files share it) or to one
// work (for packs).  No key is written twice with different bytes: a directory gets a new nonce
// when one of its uploaded files is added again or dropped.
#include "store/publish/pre_encoder.hpp"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/os/file.hpp"
#include "store/publish/early_coding.hpp"
#include "store/publish/pre_encoded.hpp"
#include "store/threads/work_threads.hpp"

namespace weightfs {
namespace {

constexpr int kEarlyNice = 10;

/// How often a file that is still written is looked at, until there is enough of it.
constexpr std::chrono::milliseconds kLookInterval{10};

/// While only the close of a file is waited for, how often it is asked whether that is of use.
constexpr std::chrono::milliseconds kAskInterval{50};

/// How long a file that is still written may be short before nobody looks any more.
constexpr std::chrono::seconds kGrowthPatience{10};

/// How many files are coded while they are written: as many as a host has ranks, as a rule.
constexpr std::ptrdiff_t kGrowingFilesMax = 8;

/// Threads that code one: more than its writer has.
constexpr unsigned kGrowingThreadsMax = 4;

void log_not_coded(const std::string& path, const std::exception& error) noexcept {
  try {
    log_debug(fmt::format("{} is not coded early: {}", path, error.what()));
  } catch (const std::bad_alloc&) {
    // Nor is there memory to say so.
  }
}

unsigned growing_threads(unsigned threads) {
  if (threads == 0) threads = work_threads();
  return std::min(threads, kGrowingThreadsMax);
}

}  // namespace

struct PreEncoder::State {
  using Key = std::pair<std::uint64_t, std::string>;  // directory, path

  struct Entry {
    EarlyFile file;
    std::uint64_t ticket = 0;  // ascending number of the add() call
    Clock::time_point added = Clock::now();
    std::optional<std::uint64_t> tried;  // the last parent it was, or is being, coded against
    std::shared_ptr<const EarlyResult> result;  // for `tried`; null: in progress or failed
    std::shared_ptr<const BegunFile> begun;     // for `tried`, until the result is uploaded
    unsigned parents = 0;                       // against which it was begun when it was complete
    std::optional<std::uint64_t> last_parent;   // of them
    bool is_over = false;                       // handed over: not started any more
    std::optional<Clock::time_point> left;      // when its last writer closed it, without its name

    [[nodiscard]] bool is_to_be_coded(std::uint64_t parent) const {
      return tried != parent && !is_over;
    }

    /// Whether it has been coded against so many parents that it may never be handed over.
    [[nodiscard]] bool has_had_its_turns(std::uint64_t parent) const {
      return parents >= kEarlyParentsMax && last_parent != parent;
    }

    void note_parent(std::uint64_t parent) {
      if (!file.is_written && std::exchange(last_parent, parent) != parent) parents++;
    }

    /// Whether it has this name, or may get it yet.
    [[nodiscard]] bool may_become(std::string_view path) const {
      return file.is_written || file.path == path;
    }

    /// What readers may be told of it; nullopt: nothing.
    [[nodiscard]] std::optional<BegunFile> coming(std::uint64_t parent) const {
      if (tried != parent) return std::nullopt;
      if (!result || !result->is_uploaded) return begun ? std::optional(*begun) : std::nullopt;
      if (!result->has_parents_tensors) return std::nullopt;
      return BegunFile{{file.path, {result->uploaded, result->delta.changed_elements}},
                       result->parent_sha256,
                       result->delta.needs_xr};
    }
  };

  /// The files of one snapshot.
  struct Directory {
    std::string nonce = random_hex(16);
    std::set<std::string> begun;  // paths uploaded, perhaps in part, below `nonce`
  };

  /// A file, and the thread that works on it.
  struct Work final : EarlyJob {
    Work(State& the_state, const Entry& entry, std::uint64_t the_parent)
        : state(the_state),
          file(entry.file),
          ticket(entry.ticket),
          parent(the_parent),
          path(entry.file.path) {}

    [[nodiscard]] bool is_still_written(std::chrono::milliseconds wait,
                                        const Context& context) const override {
      if (wait.count() > 0 && state.options.at) state.options.at("waiting", path);
      return state.is_still_written(*this, wait, context);
    }
    std::string wait_until_closed(const Context& context) override {
      return path = state.wait_until_closed(*this, context);
    }
    std::string begin_snapshot_file() override { return state.begin_snapshot_file(*this); }
    void begun(BegunFile of_file) override { state.note_begun(*this, std::move(of_file)); }
    bool put(const std::shared_ptr<EarlyResult>& result) override {
      return state.put_result(*this, result);
    }
    void uploaded() override {
      if (state.options.changed) state.options.changed();
      reached("uploaded");
    }
    void grows() override;
    void reached(std::string_view point) override;

    State& state;
    const EarlyFile file;  // as it was when the work began
    const std::uint64_t ticket, parent;
    std::string path;         // once it was closed, the name that it got; its thread's
    bool is_growing = false;  // it is coded while it is written; guarded by the mutex
    std::stop_source stop;
    std::jthread thread;
  };
  using Works = std::list<std::unique_ptr<Work>>;

  State(History& the_history, Store& the_store, EarlyOptions the_options);

  // The thread that hands out the work.
  void run(const std::stop_token& stop);
  Work* next();
  void forget_those_left(std::uint64_t parent);
  [[nodiscard]] Entry* find_next(std::uint64_t parent);
  [[nodiscard]] bool may_begin(const Entry& entry, std::uint64_t parent);
  [[nodiscard]] static bool has_grown(const EarlyFile& file);
  [[nodiscard]] bool is_abandoned(const Entry& entry) const;
  void begin(Work& work);
  void end_all();

  // A work, and its threads.
  void work_on(Work& work);
  void end_work(const Work& work);
  [[nodiscard]] bool is_still_written(const Work& work, std::chrono::milliseconds wait,
                                      const Context& context);
  [[nodiscard]] bool keeps_parent(const Work& work) const;
  std::string wait_until_closed(const Work& work, const Context& context);
  std::string begin_snapshot_file(const Work& work);
  void note_begun(const Work& work, BegunFile file);
  bool put_result(const Work& work, const std::shared_ptr<EarlyResult>& result);
  void bound_notes(const std::shared_ptr<EarlyResult>& result);

  // Anybody.  Those that take no lock require that the mutex is held.
  void forget(std::map<Key, Entry>::iterator entry);
  void rename(std::map<Key, Entry>::iterator entry, const std::string& path);
  void resume(Entry& entry);
  [[nodiscard]] std::map<Key, Entry>::iterator find_growing(std::uint64_t directory,
                                                            const std::filesystem::path& source);
  [[nodiscard]] const Entry* entry_of(const Work& work) const;
  [[nodiscard]] Entry* entry_of(const Work& work) {
    return const_cast<Entry*>(std::as_const(*this).entry_of(work));
  }
  [[nodiscard]] Work* find_work(const Entry& entry) const;
  [[nodiscard]] bool is_in_work(std::uint64_t directory, bool being_coded) const;
  void wait_for_work(std::unique_lock<RankedMutex>& lock, std::uint64_t directory,
                     const Context& context);
  template <typename Condition>
  void wait_while(std::unique_lock<RankedMutex>& lock, const Context& context,
                  Condition&& condition);

  History& history;
  Store& store;
  const EarlyOptions options;
  const EarlyCoder coder;

  // Guards what follows; held only briefly.
  mutable RankedMutex mutex{LockRank::pre_encoder, "PreEncoder::State::mutex"};
  std::condition_variable_any changed;
  bool is_poked = false;  // there may be work
  std::uint64_t tickets = 0;
  std::map<Key, Entry> entries;
  std::map<std::uint64_t, Directory> directories;
  Works works, ended;              // the threads of `ended` have nothing more to do
  bool is_growth_awaited = false;  // some file is still too short to begin with
  std::vector<std::weak_ptr<const EarlyResult>> noted;  // that have noted what changed

  std::jthread thread;
};

PreEncoder::State::State(History& the_history, Store& the_store, EarlyOptions the_options)
    : history(the_history),
      store(the_store),
      options(std::move(the_options)),
      coder{history,         store,
            options.threads, growing_threads(options.threads),
            options.coder,   options.growth_pauses} {}

void PreEncoder::State::Work::grows() {
  {
    const std::lock_guard lock(state.mutex);
    is_growing = true;
  }
  reached("growing");
}

void PreEncoder::State::Work::reached(std::string_view point) {
  if (state.options.at) state.options.at(point, path);
}

// ---- the thread that hands out the work ----

void PreEncoder::State::run(const std::stop_token& stop) {
  // Applies to this thread, and is inherited by the threads it starts.
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kEarlyNice);
  while (!stop.stop_requested()) {
    Works joined;
    {
      std::unique_lock lock(mutex);
      if (is_growth_awaited) {
        changed.wait_for(lock, stop, kLookInterval, [&] { return is_poked; });
      } else {
        changed.wait(lock, stop, [&] { return is_poked; });
      }
      is_poked = false;
      joined.swap(ended);
    }
    try {
      while (!stop.stop_requested()) {
        Work* const work = next();
        if (work == nullptr) break;
        begin(*work);
      }
    } catch (const std::bad_alloc&) {
      // The rest is coded when it is published.
    }
  }
  end_all();
}

/// nullptr if there is nothing to begin, or if the parent is unknown or not in the store.
PreEncoder::State::Work* PreEncoder::State::next() {
  const std::optional<std::uint64_t> parent = options.parent();
  const bool has_parent = parent && (*parent == 0 || store.images().has_all_files(*parent)) &&
                          !(options.is_in_vain && options.is_in_vain());
  const std::lock_guard lock(mutex);
  is_growth_awaited = false;
  if (!has_parent) return nullptr;
  forget_those_left(*parent);
  Entry* const entry = find_next(*parent);
  if (entry == nullptr) return nullptr;
  entry->tried = parent;
  entry->note_parent(*parent);
  entry->result.reset();
  entry->begun.reset();
  return works.emplace_back(std::make_unique<Work>(*this, *entry, *parent)).get();
}

/// Complete files that were coded against many parents, and are of no use with this one.
/// Requires: the mutex is held.
void PreEncoder::State::forget_those_left(std::uint64_t parent) {
  for (auto entry = entries.begin(); entry != entries.end();) {
    const auto at = entry++;
    if (at->second.has_had_its_turns(parent) && find_work(at->second) == nullptr) forget(at);
  }
}

/// The oldest file not yet tried with the current parent, a complete one if there is any.  One that
/// is still worked on against another parent waits until that has ended.
/// Requires: the mutex is held.
PreEncoder::State::Entry* PreEncoder::State::find_next(std::uint64_t parent) {
  const auto rank = [](const Entry& entry) {
    return std::pair(entry.file.is_written, entry.ticket);
  };
  Entry* oldest = nullptr;
  for (auto& [key, entry] : entries) {
    if (!entry.is_to_be_coded(parent) || find_work(entry) != nullptr) continue;
    if (!may_begin(entry, parent)) continue;
    if (oldest == nullptr || rank(entry) < rank(*oldest)) oldest = &entry;
  }
  return oldest;
}

/// Requires: the mutex is held.
bool PreEncoder::State::may_begin(const Entry& entry, std::uint64_t parent) {
  const bool is_written = entry.file.is_written;
  const auto beside = std::ranges::count_if(
      works, [&](const auto& work) { return work->file.is_written == is_written; });
  if (!is_written) return beside == 0;
  if (parent == 0) return false;  // it is uploaded as it is: nothing is coded
  if (beside >= kGrowingFilesMax || is_abandoned(entry)) return false;
  if (has_grown(entry.file)) return true;
  if (Clock::now() < entry.added + kGrowthPatience) is_growth_awaited = true;
  return false;
}

/// Whether there is enough of a file that is still written.
bool PreEncoder::State::has_grown(const EarlyFile& file) {
  std::error_code error;
  const std::uint64_t size = std::filesystem::file_size(file.source, error);
  return !error && size >= kEarlyBytesMin;
}

/// Whether nobody will name the file, as nobody has been writing to its checkpoint for long.
/// Requires: the mutex is held.
bool PreEncoder::State::is_abandoned(const Entry& entry) const {
  if (!entry.left) return false;
  const Clock::time_point long_ago = Clock::now() - options.name_patience;
  return std::ranges::none_of(entries, [&](const auto& one) {
    const Entry& beside = one.second;
    return one.first.first == entry.file.directory && beside.file.is_written &&
           (!beside.left || *beside.left > long_ago);
  });
}

void PreEncoder::State::begin(Work& work) {
  try {
    work.thread = std::jthread([this, &work] { work_on(work); });
  } catch (const std::exception& error) {
    log_not_coded(work.file.path, error);
    end_work(work);
  }
}

void PreEncoder::State::end_all() {
  Works joined;
  std::unique_lock lock(mutex);
  for (const auto& work : works) work->stop.request_stop();
  changed.wait(lock, [&] { return works.empty(); });
  joined.swap(ended);
  lock.unlock();
}

// ---- a work, and its threads ----

void PreEncoder::State::work_on(Work& work) {
  work.reached("begin");
  try {
    EarlyCoding coding(coder, work, work.file.source, work.file.path, work.parent,
                       {work.stop.get_token(), Clock::time_point::max()});
    coding.run(work.file.is_written);
  } catch (const std::exception& error) {
    log_not_coded(work.path, error);
  }
  end_work(work);
}

void PreEncoder::State::end_work(const Work& work) {
  {
    const std::lock_guard lock(mutex);
    Entry* const entry = entry_of(work);
    const bool is_closed = entry != nullptr && work.file.is_written && !entry->file.is_written;
    if (is_closed && !entry->result) entry->tried.reset();  // now that it is complete
    if (entry != nullptr && !entry->result) entry->begun.reset();
    const auto own = std::ranges::find(works, &work, &std::unique_ptr<Work>::get);
    ended.splice(ended.end(), works, own);  // takes no memory: nothing may fail here
    is_poked = true;
  }
  changed.notify_all();
}

/// After waiting for so long, or until it is not.  Whoever waits for its last bytes, which are
/// known to be there only when it is closed, goes on at once.
/// Throws Error: cancelled, if nobody waits any more for what is still to come.
bool PreEncoder::State::is_still_written(const Work& work, std::chrono::milliseconds wait,
                                         const Context& context) {
  const auto is_over = [&] {
    const Entry* const entry = entry_of(work);
    return entry == nullptr || !entry->file.is_written;
  };
  if (wait.count() > 0) {
    std::unique_lock lock(mutex);
    changed.wait_for(lock, context.stop, wait, is_over);
  }
  context.check("waiting for a file to grow");
  const bool has_parent = keeps_parent(work);
  const std::lock_guard lock(mutex);
  const Entry* const entry = entry_of(work);
  if (entry == nullptr) throw Error(ErrorCode::cancelled, "it was dropped");
  if (is_over()) return false;
  if (is_abandoned(*entry)) throw Error(ErrorCode::cancelled, "who wrote it has not named it");
  if (!has_parent) throw Error(ErrorCode::cancelled, "it follows another version now");
  return true;
}

/// That its last writer has closed it may be told after its checkpoint was handed over.
bool PreEncoder::State::keeps_parent(const Work& work) const {
  const std::optional<std::uint64_t> parent = options.parent();
  if (parent) return *parent == work.parent;
  return options.is_handed_over && options.is_handed_over(work.file.directory);
}

/// Returns: its name, which it may have got meanwhile.
std::string PreEncoder::State::wait_until_closed(const Work& work, const Context& context) {
  while (is_still_written(work, kAskInterval, context)) {
  }
  const std::lock_guard lock(mutex);
  const Entry* const entry = entry_of(work);
  return entry != nullptr ? entry->file.path : work.path;
}

/// For a first version.
std::string PreEncoder::State::begin_snapshot_file(const Work& work) {
  const std::lock_guard lock(mutex);
  if (entry_of(work) == nullptr) throw Error(ErrorCode::cancelled, "it was dropped");
  Directory& directory = directories[work.file.directory];
  directory.begun.insert(work.file.path);
  return directory.nonce;
}

void PreEncoder::State::note_begun(const Work& work, BegunFile file) {
  {
    const std::lock_guard lock(mutex);
    Entry* const entry = entry_of(work);
    if (entry == nullptr || !entry->may_become(file.file.path)) return;
    entry->begun = std::make_shared<const BegunFile>(std::move(file));
  }
  if (options.changed) options.changed();
}

/// Returns: false if the file was dropped or replaced meanwhile.
bool PreEncoder::State::put_result(const Work& work, const std::shared_ptr<EarlyResult>& result) {
  {
    const std::lock_guard lock(mutex);
    Entry* const entry = entry_of(work);
    if (entry == nullptr) return false;
    bound_notes(result);
    entry->result = result;
  }
  changed.notify_all();
  return true;
}

/// Results wait until their checkpoint is handed over, which may be never, and then until that is
/// published.  Requires: the mutex is held.
void PreEncoder::State::bound_notes(const std::shared_ptr<EarlyResult>& result) {
  if (!result->fresh) return;
  noted.emplace_back(result);
  std::uint64_t bytes = 0, file_bytes = 0;
  std::erase_if(noted, [&](const std::weak_ptr<const EarlyResult>& one) {
    const auto held = one.lock();
    if (!held) return true;
    bytes += held->fresh->size_bytes();
    file_bytes += held->file.stamp.size_bytes;
    return false;
  });
  if (bytes > fresh_bytes_max(file_bytes)) result->fresh->give_up("early results have too many");
}

// ---- anybody ----

/// Requires: the mutex is held.
void PreEncoder::State::forget(std::map<Key, Entry>::iterator entry) {
  if (Work* const work = find_work(entry->second)) work->stop.request_stop();
  const auto directory = directories.find(entry->first.first);
  if (directory != directories.end() && directory->second.begun.contains(entry->first.second)) {
    directory->second = Directory();
  }
  entries.erase(entry);
}

/// Takes the place of another file that had this name.  Requires: the mutex is held.
void PreEncoder::State::rename(std::map<Key, Entry>::iterator entry, const std::string& path) {
  if (entry->first.second == path) return;
  auto node = entries.extract(entry);
  node.key().second = node.mapped().file.path = path;
  if (node.mapped().begun && node.mapped().begun->file.path != path) node.mapped().begun.reset();
  if (const auto replaced = entries.find(node.key()); replaced != entries.end()) forget(replaced);
  entries.insert(std::move(node));
}

/// Somebody writes to it again.  Requires: the mutex is held.
void PreEncoder::State::resume(Entry& entry) {
  if (!std::exchange(entry.left, std::nullopt) || find_work(entry) != nullptr) return;
  entry.tried.reset();  // it may have been given up
  is_poked = true;
  changed.notify_all();
}

/// Of the files that were added while they were written, and not closed.  Requires: the mutex is
/// held.
std::map<PreEncoder::State::Key, PreEncoder::State::Entry>::iterator
PreEncoder::State::find_growing(std::uint64_t directory, const std::filesystem::path& source) {
  return std::ranges::find_if(entries, [&](const auto& entry) {
    return entry.first.first == directory && entry.second.file.is_written &&
           entry.second.file.source == source;
  });
}

/// nullptr: the file was dropped, replaced or taken.  By its number: it may have another name now.
/// Requires: the mutex is held.
const PreEncoder::State::Entry* PreEncoder::State::entry_of(const Work& work) const {
  const auto found = std::ranges::find_if(
      entries, [&](const auto& entry) { return entry.second.ticket == work.ticket; });
  return found == entries.end() ? nullptr : &found->second;
}

/// nullptr: nobody works on it.  Requires: the mutex is held.
PreEncoder::State::Work* PreEncoder::State::find_work(const Entry& entry) const {
  const auto found =
      std::ranges::find_if(works, [&](const auto& work) { return work->ticket == entry.ticket; });
  return found == works.end() ? nullptr : found->get();
}

/// Whether somebody works on a file of this directory.  Requires: the mutex is held.
bool PreEncoder::State::is_in_work(std::uint64_t directory, bool being_coded) const {
  return std::ranges::any_of(works, [&](const auto& work) {
    if (work->file.directory != directory) return false;
    const Entry* const entry = entry_of(*work);
    return entry != nullptr && !(being_coded && entry->result);
  });
}

/// Waits for the files of this directory that are worked on, and prevents others from starting.
void PreEncoder::State::wait_for_work(std::unique_lock<RankedMutex>& lock, std::uint64_t directory,
                                      const Context& context) {
  for (auto& [key, entry] : entries) {
    if (key.first != directory) continue;
    if (!entry.result) entry.is_over = true;
    Work* const work = find_work(entry);
    if (work != nullptr && entry.file.is_written) work->stop.request_stop();
  }
  wait_while(lock, context, [&] { return is_in_work(directory, true); });
  const Context grace = context.within(options.upload_grace);
  try {
    wait_while(lock, grace, [&] { return is_in_work(directory, false); });
  } catch (const Error&) {
    context.check("waiting for an early upload");
    for (const auto& work : works) {
      if (work->file.directory == directory) work->stop.request_stop();
    }
  }
}

template <typename Condition>
void PreEncoder::State::wait_while(std::unique_lock<RankedMutex>& lock, const Context& context,
                                   Condition&& condition) {
  constexpr std::chrono::hours kLookAgain{1};  // the deadline may be infinite
  while (!changed.wait_until(lock, context.stop,
                             std::min(context.deadline, Clock::now() + kLookAgain),
                             [&] { return !condition(); })) {
    context.check("waiting for a file that is coded early");
  }
}

PreEncoder::PreEncoder(History& history, Store& store, EarlyOptions options)
    : state_(std::make_unique<State>(history, store, std::move(options))) {
  state_->thread =
      std::jthread([state = state_.get()](const std::stop_token& stop) { state->run(stop); });
}

PreEncoder::~PreEncoder() = default;

void PreEncoder::add(EarlyFile file) {
  if (!file.is_written && (!file.path.ends_with(".safetensors") || close(file))) return;
  const bool is_worth_it = file.is_written || State::has_grown(file);
  {
    const std::lock_guard lock(state_->mutex);
    const auto growing = state_->find_growing(file.directory, file.source);
    if (growing != state_->entries.end()) {
      if (file.is_written) {
        State::Entry& entry = growing->second;
        state_->rename(growing, file.path);
        return state_->resume(entry);
      }
      state_->forget(growing);  // it had another name
    }
    State::Key key(file.directory, file.path);
    const auto known = state_->entries.find(key);
    if (known != state_->entries.end()) state_->forget(known);
    if (!is_worth_it || state_->entries.size() >= kEarlyFilesMax) return;
    State::Entry& entry = state_->entries[std::move(key)];
    entry.file = std::move(file);
    entry.ticket = ++state_->tickets;
    state_->is_poked = true;
  }
  state_->changed.notify_all();
}

bool PreEncoder::close(const EarlyFile& file) {
  {
    const std::lock_guard lock(state_->mutex);
    const auto known = state_->find_growing(file.directory, file.source);
    if (known == state_->entries.end()) return false;
    State::Entry& entry = known->second;
    if (state_->find_work(entry) == nullptr) return false;
    state_->rename(known, file.path);
    entry.file = file;
  }
  state_->changed.notify_all();
  return true;
}

void PreEncoder::leave(std::uint64_t directory, const std::filesystem::path& source) {
  const std::lock_guard lock(state_->mutex);
  const auto growing = state_->find_growing(directory, source);
  if (growing != state_->entries.end() && !growing->second.left) {
    growing->second.left = Clock::now();
  }
}

void PreEncoder::drop(std::uint64_t directory, std::string_view path) {
  const std::lock_guard lock(state_->mutex);
  const auto entry = state_->entries.find({directory, std::string(path)});
  if (entry != state_->entries.end()) state_->forget(entry);
}

void PreEncoder::drop(std::uint64_t directory) {
  const std::lock_guard lock(state_->mutex);
  auto entry = state_->entries.lower_bound({directory, ""});
  while (entry != state_->entries.end() && entry->first.first == directory) {
    state_->forget(entry++);
  }
  state_->directories.erase(directory);
}

void PreEncoder::parent_changed() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->is_poked = true;
  }
  state_->changed.notify_all();
}

std::shared_ptr<const PreEncoded> PreEncoder::take(
    std::uint64_t directory, const std::function<bool(const EarlyFile&)>& is_valid,
    const Context& context) {
  State& state = *state_;
  std::vector<State::Entry> taken;
  State::Directory snapshot;
  {
    std::unique_lock lock(state.mutex);
    state.wait_for_work(lock, directory, context);
    auto entry = state.entries.lower_bound({directory, ""});
    while (entry != state.entries.end() && entry->first.first == directory) {
      taken.push_back(std::move(entry->second));
      entry = state.entries.erase(entry);
    }
    if (auto node = state.directories.extract(directory)) snapshot = std::move(node.mapped());
  }
  std::vector<std::shared_ptr<const EarlyResult>> results;
  for (const State::Entry& entry : taken) {
    if (!entry.result || !is_valid(entry.file)) continue;
    snapshot.begun.erase(entry.file.path);
    results.push_back(entry.result);
  }
  // Other objects below the nonce may not be what is published, so it must not be used.
  if (!snapshot.begun.empty()) snapshot.nonce.clear();
  return std::make_shared<const PreEncoded>(std::move(results), std::move(snapshot.nonce));
}

EarlyComing PreEncoder::coming() const {
  const std::optional<std::uint64_t> parent = state_->options.parent();
  if (!parent || *parent == 0) return {};
  const std::lock_guard lock(state_->mutex);
  EarlyComing coming{*parent + 1, std::nullopt};
  // The checkpoint that was worked on last.
  std::uint64_t directory = 0, ticket = 0;
  for (const auto& [key, entry] : state_->entries) {
    if (entry.ticket < ticket || !entry.coming(*parent)) continue;
    std::tie(directory, ticket) = std::pair(key.first, entry.ticket);
  }
  if (ticket == 0) return coming;
  std::map<std::string, std::pair<std::uint64_t, BegunFile>> told;  // by path, with the ticket
  for (const auto& [key, entry] : state_->entries) {
    if (key.first != directory) continue;
    auto one = entry.coming(*parent);
    if (!one) continue;
    auto& [newest, of_newest] = told[one->file.path];
    if (entry.ticket <= newest) continue;  // it is written again, under another name yet
    newest = entry.ticket;
    of_newest = std::move(*one);
  }
  EarlyRecord& record = coming.record.emplace();
  record.repository = state_->history.repository().id();
  record.version = coming.next;
  for (auto& [path, one] : told) {
    record.parent_sha256 = one.second.parent_sha256;
    if (one.second.needs_xr) record.features = {std::string(kFeatureXr)};
    record.files.push_back(std::move(one.second.file));
  }
  return coming;
}

EarlyStatus PreEncoder::status() const {
  const std::lock_guard lock(state_->mutex);
  EarlyStatus status;
  for (const auto& [key, entry] : state_->entries) {
    if (entry.result) {
      status.coded_files++;
      const std::uint64_t bytes = entry.result->file.stamp.size_bytes;
      status.coded_bytes += bytes;
      if (entry.result->is_uploaded) status.uploaded_bytes += bytes;
      if (entry.result->is_grown) status.grown_bytes += bytes;
    } else if (entry.file.is_written) {
      const State::Work* const work = state_->find_work(entry);
      if (work != nullptr && work->is_growing) status.growing_files++;
    } else if (!entry.tried || state_->find_work(entry) != nullptr) {
      status.waiting_files++;
    }
  }
  return status;
}

}  // namespace weightfs
