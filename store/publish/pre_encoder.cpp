// The thread takes files one after another, oldest first, that have no result for the current
// parent; complete ones before those that are still written.  It gives up one that grows, where it
// would have to wait for bytes while another one is complete: nobody knows when they will come.
// That one has its turn when it is closed.  Each job has its own stop source, so that it ends at
// once when its file is dropped or replaced, or when nobody waits for its upload any more.
//
// A nonce belongs to the files of one directory (for a snapshot, whose files share it) or to one
// job (for packs).  No key is written twice with different bytes: a directory gets a new nonce when
// one of its uploaded files is added again or dropped.
#include "store/publish/pre_encoder.hpp"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <stop_token>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/coding/checkpoint_reader.hpp"
#include "store/coding/growing_file.hpp"
#include "store/materialize/bases.hpp"
#include "store/materialize/plan.hpp"
#include "store/os/file.hpp"
#include "store/publish/early_packs.hpp"
#include "store/publish/pre_encoded.hpp"

namespace weightfs {
namespace {

constexpr int kEarlyNice = 10;

/// How often a file that is still written is looked at, until there is enough of it.
constexpr std::chrono::milliseconds kLookInterval{10};

/// While only the close of a file is waited for, how often it is asked whether that is of use.
constexpr std::chrono::milliseconds kAskInterval{50};

/// How long a file that is still written may be short before nobody looks any more.
constexpr std::chrono::seconds kGrowthPatience{10};

/// Whether the one file of `layout` has the tensors of a file of the parent.
bool has_equal_tensors(const Layout& layout, const Layout& parent, const LayoutFile& before) {
  const auto is_equal = [](const LayoutTensor& a, const LayoutTensor& b) {
    return a.name == b.name && a.dtype == b.dtype && a.shape == b.shape;
  };
  return std::ranges::equal(layout.tensors(), parent.tensors_of(before), is_equal);
}

/// The file of the parent that the one file of `layout` will probably replace: savers give a file
/// its name when it is complete.  nullptr: none, or it is not certain.
const LayoutFile* find_file_before(const Layout& layout, const Layout& parent) {
  const auto fits = [&](const LayoutFile& file) { return has_equal_tensors(layout, parent, file); };
  const LayoutFile* const named = parent.find_file(layout.files().front().path);
  if (named != nullptr) return fits(*named) ? named : nullptr;
  const auto found = std::ranges::find_if(parent.files(), fits);
  if (found == parent.files().end()) return nullptr;
  const bool is_only =
      std::find_if(std::next(found), parent.files().end(), fits) == parent.files().end();
  return is_only ? &*found : nullptr;
}

}  // namespace

struct PreEncoder::State {
  using Key = std::pair<std::uint64_t, std::string>;  // directory, path

  /// Of a file that is still written, what is coded and uploaded.
  struct Begun {
    EarlyRecord::File file;
    Sha256 parent_sha256{};
    bool needs_xr = false;
  };

  struct Entry {
    EarlyFile file;
    std::uint64_t ticket = 0;  // ascending number of the add() call
    Clock::time_point added = Clock::now();
    std::optional<std::uint64_t> tried;  // the last parent it was, or is being, coded against
    std::shared_ptr<const EarlyResult> result;  // for `tried`; null: in progress or failed
    std::shared_ptr<const Begun> begun;         // for `tried`, until the result is uploaded
    bool is_over = false;                       // handed over: not started any more

    [[nodiscard]] bool is_to_be_coded(std::uint64_t parent) const {
      return tried != parent && !is_over;
    }

    /// Whether it has this name, or may get it yet.
    [[nodiscard]] bool may_become(std::string_view path) const {
      return file.is_written || file.path == path;
    }

    /// What readers may be told of it; nullopt: nothing.
    [[nodiscard]] std::optional<Begun> coming(std::uint64_t parent) const {
      if (tried != parent) return std::nullopt;
      if (!result || !result->is_uploaded) return begun ? std::optional(*begun) : std::nullopt;
      if (!result->has_parents_tensors) return std::nullopt;
      return Begun{{file.path, {result->uploaded, result->delta.changed_elements}},
                   result->parent_sha256,
                   result->delta.needs_xr};
    }
  };

  /// The files of one snapshot.
  struct Directory {
    std::string nonce = random_hex(16);
    std::set<std::string> begun;  // paths uploaded, perhaps in part, below `nonce`
  };

  /// The file that the thread is working on.
  struct Work {
    EarlyFile file;  // as it was when the work began, or when it was closed
    std::uint64_t ticket = 0, parent = 0;
    std::stop_source stop;
    bool was_written = false;  // still, when the work began
    bool is_growing = false;   // it is coded while it is written; guarded by the mutex
    std::shared_ptr<const Layout> parent_layout = {};  // once it was coded
  };

  State(History& the_history, Store& the_store, EarlyOptions the_options)
      : history(the_history), store(the_store), options(std::move(the_options)) {}

  void run(const std::stop_token& stop);
  void work_off(const std::stop_token& stop);
  std::shared_ptr<Work> next();
  [[nodiscard]] static bool has_grown(const EarlyFile& file);
  void work_on(Work& work);
  std::shared_ptr<EarlyResult> code_complete(Work& work, const Checkpoint& checkpoint,
                                             const Context& context);
  std::shared_ptr<EarlyResult> code_growing(Work& work, std::optional<EarlyPacks>& packs,
                                            const Context& context);
  [[nodiscard]] bool is_still_written(const Work& work) const;
  void wait_until_closed(Work& work, const Context& context);
  void check_grown(const Work& work, EarlyResult& result, const Checkpoint& checkpoint,
                   const Context& context) const;
  void hash(const Work& work, const CheckpointReader& reader, EarlyResult& result,
            const Context& context);
  void code(Work& work, const NewChunks& chunks, EarlyResult& result,
            std::optional<EarlyPacks>& packs, const Context& context);
  void begin_packs(const Work& work, const EarlyResult& result, CodeOptions& coding,
                   std::optional<EarlyPacks>& packs, const Context& context);
  void note_begun(const Work& work, Begun begun);
  static void number_tensors(const Work& work, EarlyResult& result);
  bool upload(const Work& work, const CheckpointReader& reader, EarlyResult& result,
              std::optional<EarlyPacks>& packs, const Context& context);
  void upload_file(const CheckpointReader& reader, EarlyResult& result, const Context& context);
  std::string begin_snapshot_file(const Work& work);
  bool put_result(const Work& work, const std::shared_ptr<EarlyResult>& result);
  void bound_notes(const std::shared_ptr<EarlyResult>& result);
  void end_work();
  void forget(std::map<Key, Entry>::iterator entry);
  void rename(std::map<Key, Entry>::iterator entry, const std::string& path);
  [[nodiscard]] std::map<Key, Entry>::iterator find_growing(std::uint64_t directory,
                                                            const std::filesystem::path& source);
  [[nodiscard]] const Entry* entry_of(const Work& work) const;
  [[nodiscard]] Entry* entry_of(const Work& work) {
    return const_cast<Entry*>(std::as_const(*this).entry_of(work));
  }
  [[nodiscard]] bool is_wanted(const Work& work) const { return entry_of(work) != nullptr; }
  void wait_for_work(std::unique_lock<RankedMutex>& lock, std::uint64_t directory,
                     const Context& context);
  template <typename Condition>
  void wait_while(std::unique_lock<RankedMutex>& lock, const Context& context,
                  Condition&& condition);
  [[nodiscard]] bool is_in_work(std::uint64_t directory, bool being_coded) const;
  void reached(std::string_view point, const EarlyFile& file) const {
    if (options.at) options.at(point, file.path);
  }

  History& history;
  Store& store;
  const EarlyOptions options;

  // Guards what follows; held only briefly.
  mutable RankedMutex mutex{LockRank::pre_encoder, "PreEncoder::State::mutex"};
  std::condition_variable_any changed;
  bool is_poked = false;  // there may be work
  std::uint64_t tickets = 0;
  std::map<Key, Entry> entries;
  std::map<std::uint64_t, Directory> directories;
  std::shared_ptr<Work> current;
  bool is_growth_awaited = false;  // some file is still too short to begin with
  std::vector<std::weak_ptr<const EarlyResult>> noted;  // that have noted what changed

  std::jthread thread;
};

void PreEncoder::State::run(const std::stop_token& stop) {
  // Applies to this thread, and is inherited by the threads it starts.
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kEarlyNice);
  while (!stop.stop_requested()) {
    {
      std::unique_lock lock(mutex);
      if (is_growth_awaited) {
        changed.wait_for(lock, stop, kLookInterval, [&] { return is_poked; });
      } else {
        changed.wait(lock, stop, [&] { return is_poked; });
      }
      is_poked = false;
    }
    work_off(stop);
  }
}

void PreEncoder::State::work_off(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    const std::shared_ptr<Work> work = next();
    if (!work) return;
    const std::stop_callback stop_it(stop, [&] { work->stop.request_stop(); });
    try {
      work_on(*work);
    } catch (const std::exception& error) {
      log_debug(fmt::format("{} is not coded early: {}", work->file.path, error.what()));
    }
    end_work();
  }
}

/// The oldest file not yet tried with the current parent, a complete one if there is any; nullptr
/// if there is none, or if the parent is unknown or not in the store.
std::shared_ptr<PreEncoder::State::Work> PreEncoder::State::next() {
  const std::optional<std::uint64_t> parent = options.parent();
  const bool may_begin = parent && (*parent == 0 || store.images().has_all_files(*parent));
  const std::lock_guard lock(mutex);
  is_growth_awaited = false;
  if (!may_begin) return nullptr;
  const auto rank = [](const Entry& entry) {
    return std::pair(entry.file.is_written, entry.ticket);
  };
  Entry* oldest = nullptr;
  for (auto& [key, entry] : entries) {
    if (!entry.is_to_be_coded(*parent)) continue;
    if (entry.file.is_written) {
      if (*parent == 0) continue;  // it is uploaded as it is: nothing is coded
      if (!has_grown(entry.file)) {
        if (Clock::now() < entry.added + kGrowthPatience) is_growth_awaited = true;
        continue;
      }
    }
    if (oldest == nullptr || rank(entry) < rank(*oldest)) oldest = &entry;
  }
  if (oldest == nullptr) return nullptr;
  oldest->tried = parent;
  oldest->result.reset();
  oldest->begun.reset();
  current = std::make_shared<Work>(
      Work{oldest->file, oldest->ticket, *parent, {}, oldest->file.is_written});
  return current;
}

/// Whether there is enough of a file that is still written.
bool PreEncoder::State::has_grown(const EarlyFile& file) {
  std::error_code error;
  const std::uint64_t size = std::filesystem::file_size(file.source, error);
  return !error && size >= kEarlyBytesMin;
}

void PreEncoder::State::work_on(Work& work) {
  reached("begin", work.file);
  const Context context{work.stop.get_token(), Clock::time_point::max()};
  std::shared_ptr<EarlyResult> result;
  std::optional<EarlyPacks> packs;  // of a file that grows
  if (work.was_written) result = code_growing(work, packs, context);
  const Checkpoint checkpoint = scan_one_file(work.file.source, work.file.path);
  if (!result) result = code_complete(work, checkpoint, context);
  if (result->is_grown) check_grown(work, *result, checkpoint, context);
  result->file = checkpoint.files.front();
  if (work.parent != 0) number_tensors(work, *result);
  const CheckpointReader reader(checkpoint, *result->layout);
  reader.check_untouched();
  if (!put_result(work, result)) return;
  reached("coded", work.file);
  if (!upload(work, reader, *result, packs, context)) return;
  reader.check_untouched();
  result->is_uploaded = true;
  if (options.changed) options.changed();
  reached("uploaded", work.file);
}

std::shared_ptr<EarlyResult> PreEncoder::State::code_complete(Work& work,
                                                              const Checkpoint& checkpoint,
                                                              const Context& context) {
  auto result = std::make_shared<EarlyResult>();
  result->file = checkpoint.files.front();
  result->layout = Layout::from_checkpoint(checkpoint);
  result->parent = work.parent;
  const CheckpointReader reader(checkpoint, *result->layout);
  if (work.parent == 0) {
    hash(work, reader, *result, context);
  } else {
    std::optional<EarlyPacks> none;
    code(work, CheckpointChunks(reader), *result, none, context);
  }
  return result;
}

// ---- files that are still written ----

/// Returns when the file is closed.
std::shared_ptr<EarlyResult> PreEncoder::State::code_growing(Work& work,
                                                             std::optional<EarlyPacks>& packs,
                                                             const Context& context) {
  const GrowingFile growing(
      work.file.source, work.file.path, [&] { return is_still_written(work); }, context);
  {
    const std::lock_guard lock(mutex);
    work.is_growing = true;
  }
  reached("growing", work.file);
  auto result = std::make_shared<EarlyResult>();
  result->is_grown = true;
  result->file = growing.file();
  result->layout = growing.shared_layout();
  result->parent = work.parent;
  code(work, growing, *result, packs, context);
  reached("grown", work.file);
  wait_until_closed(work, context);
  return result;
}

/// Throws Error: cancelled, if nobody waits any more for what is still to come.
bool PreEncoder::State::is_still_written(const Work& work) const {
  const bool has_parent = options.parent() == work.parent;
  const std::lock_guard lock(mutex);
  const Entry* const entry = entry_of(work);
  if (entry == nullptr) throw Error(ErrorCode::cancelled, "it was dropped");
  if (!entry->file.is_written) return false;
  if (!has_parent) throw Error(ErrorCode::cancelled, "it follows another version now");
  for (const auto& [key, other] : entries) {
    if (!other.file.is_written && other.is_to_be_coded(work.parent)) {
      throw Error(ErrorCode::cancelled, "another file is complete");
    }
  }
  return true;
}

/// It may have got its name meanwhile.
void PreEncoder::State::wait_until_closed(Work& work, const Context& context) {
  const auto is_over = [&] {
    const Entry* const entry = entry_of(work);
    return entry == nullptr || !entry->file.is_written;
  };
  while (is_still_written(work)) {
    context.check("waiting until a file is closed");
    std::unique_lock lock(mutex);
    changed.wait_for(lock, context.stop, kAskInterval, is_over);
  }
  const std::lock_guard lock(mutex);
  if (const Entry* const entry = entry_of(work)) work.file = entry->file;
}

/// Throws Error: busy, if the file is not the one that was coded.  What its tensors are coded
/// against depends on its name.
void PreEncoder::State::check_grown(const Work& work, EarlyResult& result,
                                    const Checkpoint& checkpoint, const Context& context) const {
  const CheckpointFile& coded = result.file;
  const CheckpointFile& closed = checkpoint.files.front();
  if (closed.head != coded.head || closed.stamp.size_bytes != coded.stamp.size_bytes) {
    throw Error(ErrorCode::busy, "what was coded of it was written again");
  }
  const auto layout = Layout::from_checkpoint(checkpoint);
  const Layout& parent = *work.parent_layout;
  if (counterparts(*layout, parent) != counterparts(*result.layout, parent)) {
    throw Error(ErrorCode::busy, "with this name it is coded against other tensors");
  }
  result.layout = layout;
  const CheckpointReader reader(checkpoint, *layout);
  if (!has_hashes(reader, result.delta.hashes, options.threads, context)) {
    throw Error(ErrorCode::busy, "what was coded of it was written again");
  }
}

// ---- coding ----

/// For a first version.
void PreEncoder::State::hash(const Work& work, const CheckpointReader& reader, EarlyResult& result,
                             const Context& context) {
  CheckpointHashes hashes = hash_checkpoint(reader, {}, options.threads, context, {});
  result.delta.hashes = std::move(hashes.chunks);
  result.marks = std::move(hashes.marks.front());
  result.nonce = begin_snapshot_file(work);
}

void PreEncoder::State::code(Work& work, const NewChunks& chunks, EarlyResult& result,
                             std::optional<EarlyPacks>& packs, const Context& context) {
  if (space_of(store.temporary_directory()).free_bytes / 2 < result.file.stamp.size_bytes) {
    throw Error(ErrorCode::no_space, "the disk is too full for early coding");
  }
  const Base base = base_of(store, history, work.parent, context);
  CodeOptions coding;
  coding.spool = store.temporary_directory();
  coding.threads = options.threads;
  coding.coder = options.coder;
  result.parent_sha256 = base.version->manifest_sha256;
  result.fresh = store.fresh_patches().begin(result.file.stamp.size_bytes);
  coding.fresh = result.fresh.get();
  result.nonce = random_hex(16);
  work.parent_layout = base.layout;
  if (result.is_grown) begin_packs(work, result, coding, packs, context);
  result.delta = code_delta(chunks, base, coding, context, {});
}

/// Of a file of which it is known what it replaces.
void PreEncoder::State::begin_packs(const Work& work, const EarlyResult& result,
                                    CodeOptions& coding, std::optional<EarlyPacks>& packs,
                                    const Context& context) {
  const Layout& parent = *work.parent_layout;
  const LayoutFile* const before = find_file_before(*result.layout, parent);
  if (before == nullptr) return;
  packs.emplace(
      history.repository(), EarlyPacks::Names{work.parent + 1, result.nonce, before->first_tensor},
      context,
      [this, &work, parent_sha256 = result.parent_sha256, before](auto uploaded,
                                                                  const CodedSoFar& so_far) {
        const LayoutTensor& tensor =
            work.parent_layout->tensors()[before->first_tensor + so_far.last.tensor];
        const std::uint64_t end = tensor.offset_bytes +
                                  tensor.chunk_offset_bytes(so_far.last.chunk) +
                                  tensor.chunk_size_bytes(so_far.last.chunk);
        note_begun(
            work,
            {{before->path, {{uploaded.begin(), uploaded.end()}, so_far.changed_elements}, end},
             parent_sha256,
             so_far.needs_xr});
      });
  coding.piece_bytes = early_piece_bytes(result.file.stamp.size_bytes, parent.files().size());
  coding.closed = [&packs](std::shared_ptr<const SpooledPack> pack, const CodedSoFar& so_far) {
    packs->add(std::move(pack), so_far);
  };
}

void PreEncoder::State::note_begun(const Work& work, Begun begun) {
  {
    const std::lock_guard lock(mutex);
    Entry* const entry = entry_of(work);
    if (entry == nullptr || !entry->may_become(begun.file.path)) return;
    entry->begun = std::make_shared<const Begun>(std::move(begun));
  }
  if (options.changed) options.changed();
}

void PreEncoder::State::number_tensors(const Work& work, EarlyResult& result) {
  const Layout& parent = *work.parent_layout;
  const LayoutFile* const before = parent.find_file(result.file.path);
  result.first_tensor = before != nullptr ? before->first_tensor : EarlyResult::kNoTensor;
  result.has_parents_tensors =
      before != nullptr && has_equal_tensors(*result.layout, parent, *before);
}

// ---- results ----

/// Returns: false if the numbers of its tensors are not known yet.
bool PreEncoder::State::upload(const Work& work, const CheckpointReader& reader,
                               EarlyResult& result, std::optional<EarlyPacks>& packs,
                               const Context& context) {
  if (work.parent == 0) {
    upload_file(reader, result, context);
    return true;
  }
  if (result.first_tensor == EarlyResult::kNoTensor) return false;
  if (packs && packs->names().first_tensor != result.first_tensor) {  // it had another name
    packs.reset();
    result.nonce = random_hex(16);
  }
  if (!packs) {
    packs.emplace(history.repository(),
                  EarlyPacks::Names{work.parent + 1, result.nonce, result.first_tensor}, context);
  }
  result.uploaded = packs->finish(result.delta.packs);
  return true;
}

/// For a first version.
void PreEncoder::State::upload_file(const CheckpointReader& reader, EarlyResult& result,
                                    const Context& context) {
  const CheckpointFile& file = *reader.weights().front();
  const SnapshotSource source(reader, file, result.marks);
  const Context uploading = early_upload_context(context, source.size_bytes());
  history.repository().bucket(uploading).put(keys::snapshot_file(1, result.nonce, file.path),
                                             source, uploading);
  result.pieces = source.pieces();
}

std::string PreEncoder::State::begin_snapshot_file(const Work& work) {
  const std::lock_guard lock(mutex);
  if (!is_wanted(work)) throw Error(ErrorCode::cancelled, "it was dropped");
  Directory& directory = directories[work.file.directory];
  directory.begun.insert(work.file.path);
  return directory.nonce;
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

void PreEncoder::State::end_work() {
  {
    const std::lock_guard lock(mutex);
    Entry* const entry = entry_of(*current);
    const bool is_closed = entry != nullptr && current->was_written && !entry->file.is_written;
    if (is_closed && !entry->result) entry->tried.reset();  // now that it is complete
    if (entry != nullptr && !entry->result) entry->begun.reset();
    current.reset();
  }
  changed.notify_all();
}

/// Requires: the mutex is held.
void PreEncoder::State::forget(std::map<Key, Entry>::iterator entry) {
  if (current && current->ticket == entry->second.ticket) current->stop.request_stop();
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

/// Whether the thread is working on a file of this directory.  Requires: the mutex is held.
bool PreEncoder::State::is_in_work(std::uint64_t directory, bool being_coded) const {
  if (!current || current->file.directory != directory) return false;
  const Entry* const entry = entry_of(*current);
  return entry != nullptr && !(being_coded && entry->result);
}

/// Waits for the current file if it belongs to this directory, and prevents others from starting.
void PreEncoder::State::wait_for_work(std::unique_lock<RankedMutex>& lock, std::uint64_t directory,
                                      const Context& context) {
  for (auto& [key, entry] : entries) {
    if (key.first == directory && !entry.result) entry.is_over = true;
    const bool is_current = current && current->ticket == entry.ticket;
    if (key.first == directory && is_current && entry.file.is_written) current->stop.request_stop();
  }
  wait_while(lock, context, [&] { return is_in_work(directory, true); });
  const Context grace = context.within(options.upload_grace);
  try {
    wait_while(lock, grace, [&] { return is_in_work(directory, false); });
  } catch (const Error&) {
    context.check("waiting for an early upload");
    current->stop.request_stop();
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
      if (file.is_written) return state_->rename(growing, file.path);
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
    if (!state_->current || state_->current->ticket != entry.ticket) return false;
    state_->rename(known, file.path);
    entry.file = file;
  }
  state_->changed.notify_all();
  return true;
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
  std::map<std::string, std::pair<std::uint64_t, State::Begun>> told;  // by path, with the ticket
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
      const auto& work = state_->current;
      if (work && work->ticket == entry.ticket && work->is_growing) status.growing_files++;
    } else if (!entry.tried || (state_->current && state_->current->ticket == entry.ticket)) {
      status.waiting_files++;
    }
  }
  return status;
}

}  // namespace weightfs
