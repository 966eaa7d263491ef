// One mutex guards what is here and who waits; windows are made, and everybody is told, without it.

#include "store/streaming/partial_version.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "store/base/bytes.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/format/version_images.hpp"
#include "store/local/store.hpp"
#include "store/materialize/image_files.hpp"
#include "store/materialize/pack_spool.hpp"
#include "store/materialize/segment_writer.hpp"
#include "store/os/file.hpp"
#include "store/os/lease.hpp"
#include "store/streaming/window_queue.hpp"

namespace weightfs {
namespace {

/// Windows behind those that are asked for that come next: readers go through a file.
constexpr std::size_t kWindowsAhead = 8;

/// A file that is filled: one of the layout, or a blob.
struct FilledFile {
  [[nodiscard]] std::size_t window_at(std::uint64_t offset_bytes) const {
    return blob != nullptr ? first_window
                           : first_window + static_cast<std::size_t>(offset_bytes / kWindowBytes);
  }
  [[nodiscard]] std::uint64_t window_bytes(std::size_t window) const {
    if (blob != nullptr) return size_bytes;
    return std::min(kWindowBytes, size_bytes - (window - first_window) * kWindowBytes);
  }

  const LayoutFile* weights = nullptr;
  const BlobRef* blob = nullptr;
  std::filesystem::path path;
  std::uint64_t size_bytes = 0;
  std::size_t first_window = 0, window_count = 0;  // none: it is linked
  std::size_t windows_left = 0;
  bool is_here = false;  // and sealed
};

/// Why a window is not here yet.  As text: an exception must not be shared by threads.
struct Trouble {
  ErrorCode code{};
  std::string message;

  [[nodiscard]] bool is_damage() const {
    return code == ErrorCode::corrupt || code == ErrorCode::not_found;
  }
};

/// Who asked for windows that were not here.
struct WindowWaiter {
  std::size_t windows_left = 0;
  std::function<void()> wake;  // empty: was told
};

/// What is to be called once the mutex is free.
struct Calls {
  std::vector<std::function<void()>> wakes;
  bool changed = false;
};

/// Else the bucket is out of reach, or says no for now: that passes.
bool is_told(ErrorCode code) {
  return code == ErrorCode::corrupt || code == ErrorCode::not_found ||
         code == ErrorCode::no_space || code == ErrorCode::no_memory || code == ErrorCode::io;
}

/// The bucket's requests; without a bucket, the cores.
unsigned count_workers(Repository& repository, unsigned threads, const Context& context) {
  try {
    return std::max(1u, request_threads(repository.bucket(context), threads));
  } catch (const Error&) {
    context.check("waiting for the bucket");
    return threads > 0 ? threads : std::max(1u, std::thread::hardware_concurrency());
  }
}

}  // namespace

struct PartialVersion::State {
  State(Plan its_plan, Repository& its_repository, PartialVersionOptions its_options);
  ~State() { stop_source.request_stop(); }  // if not all workers could be begun

  // Before the workers begin:
  void check_base();
  void add_files(const Context& making);
  void add(FilledFile file, bool is_linked);
  void begin(const Context& making);

  // The workers:
  void work(std::size_t worker);
  std::optional<std::size_t> wait_for_work(std::size_t worker, std::unique_lock<RankedMutex>& lock);
  std::optional<Trouble> try_to_make(std::size_t window, std::unique_ptr<SegmentWriter>& writer);
  void make(std::size_t window, std::unique_ptr<SegmentWriter>& writer);
  void finish_window(std::size_t window);
  void finish_file(FilledFile& file);
  void make_again(FilledFile& file, const Trouble& trouble);
  void note_trouble(std::size_t window, const Trouble& trouble);
  void end_work();

  // Requires: the mutex is held.
  void wake_some(std::size_t window, Calls& calls);
  void wake_all(std::size_t window, Calls& calls);
  void set_file_here(FilledFile& file);
  void set_trouble(std::size_t window, const Trouble& trouble);
  void forget_trouble(std::size_t window);
  [[nodiscard]] const Trouble* worst_trouble() const;
  void note_change(Calls& calls);
  std::size_t ask(std::size_t first, std::size_t last, std::function<void()> wake);

  void call(const Calls& calls) const;
  [[nodiscard]] FilledFile& file_of(std::size_t window);
  [[nodiscard]] const FilledFile& get_file(std::string_view path) const;

  const Plan plan;
  Repository& repository;
  const PartialVersionOptions options;
  const ImageSeal image_seal;
  std::stop_source stop_source;
  const Context context{stop_source.get_token(), Clock::time_point::max()};
  std::unique_ptr<PackSpool> spool;  // until all is here
  std::vector<std::filesystem::path> directories;
  std::map<std::string, std::size_t, std::less<>> by_path;  // index into `files`
  std::uint64_t bytes = 0;

  // Guards what follows.
  mutable RankedMutex mutex{LockRank::partial_version, "PartialVersion::State::mutex"};
  std::condition_variable_any changed;
  std::uint64_t changes = 0;      // counts what may be news to who waits for `changed`
  std::vector<FilledFile> files;  // by first window, but the linked ones
  std::unique_ptr<WindowQueue> queue;
  std::unordered_map<std::size_t, std::vector<std::shared_ptr<WindowWaiter>>> waiters;
  std::map<std::size_t, Trouble> troubles;  // by window
  std::set<std::size_t> damaged;            // of those
  std::size_t last_trouble = 0;             // window
  std::string told_trouble;                 // message that `changed` was called for last
  std::size_t files_left = 0;
  std::uint64_t bytes_here = 0;
  std::uint64_t snapshot_bytes = 0,
                spooled_bytes = 0;  // fetched; the latter when there is no spool
  std::size_t working = 0;          // workers
  bool is_complete = false;

  // Guards that they are joined once.
  RankedMutex stop_mutex{LockRank::partial_stop, "PartialVersion::State::stop_mutex"};
  std::vector<std::jthread> workers;  // last: they use all of the above
};

// ---- before the workers begin ----

PartialVersion::State::State(Plan its_plan, Repository& its_repository,
                             PartialVersionOptions its_options)
    : plan(std::move(its_plan)),
      repository(its_repository),
      options(std::move(its_options)),
      image_seal{options.mode, plan.version->manifest.time, true} {}

/// Looks for the first file of the base that is here: a host need not have all of them.
void PartialVersion::State::check_base() {
  if (!plan.base) return;
  const Base& base = *plan.base;
  const auto its_files = files_of(base.version->manifest, *base.layout);
  for (const auto& file : its_files) {
    if (std::filesystem::exists(base.directory / file.path)) return;
  }
  if (its_files.empty()) return;
  const std::uint64_t number = base.version->number();
  throw BaseDamaged(number, fmt::format("the images of version {} are damaged: no file of it is in "
                                        "{}",
                                        number, base.directory.string()));
}

void PartialVersion::State::add_files(const Context& making) {
  for (const BlobRef& blob : plan.version->manifest.blobs) {
    making.check("making files");
    FilledFile file{.blob = &blob,
                    .path = options.directory / blob.path,
                    .size_bytes = blob.size_bytes,
                    .window_count = 1};
    by_path.emplace(blob.path, files.size());
    const bool is_linked = link_equal_blob(plan, blob, file.path);
    add(std::move(file), is_linked);
  }
  for (std::uint32_t i = 0; i < plan.layout->files().size(); i++) {
    const LayoutFile& weights = plan.layout->files()[i];
    if (!options.files.empty() && !contains(options.files, i)) continue;
    making.check("making files");
    FilledFile file{.weights = &weights,
                    .path = options.directory / weights.path,
                    .size_bytes = weights.size_bytes};
    const std::uint64_t windows = (file.size_bytes + kWindowBytes - 1) / kWindowBytes;
    file.window_count = static_cast<std::size_t>(std::max<std::uint64_t>(1, windows));
    by_path.emplace(weights.path, files.size());
    const bool is_linked = link_equal_file(plan, weights, file.path);
    add(std::move(file), is_linked);
  }
}

void PartialVersion::State::add(FilledFile file, bool is_linked) {
  bytes += file.size_bytes;
  file.first_window = files.empty() ? 0 : files.back().first_window + files.back().window_count;
  if (is_linked) {
    file.window_count = 0;
    file.is_here = true;
    bytes_here += file.size_bytes;
  } else {
    const File made = File::open(file.path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    reserve_image(made.fd(), file.size_bytes, file.path);
    file.windows_left = file.window_count;
    files_left++;
  }
  files.push_back(std::move(file));
}

void PartialVersion::State::begin(const Context& making) {
  spool = std::make_unique<PackSpool>(plan, repository, options.spool, context);
  check_base();
  directories = make_image_directories(plan, options.directory, options.files);
  add_files(making);
  if (files_left == 0) {
    for (const std::filesystem::path& directory : directories) fsync_directory(directory);
    is_complete = true;
    return;
  }
  working = count_workers(repository, options.threads, making);
  const std::size_t windows = files.back().first_window + files.back().window_count;
  queue = std::make_unique<WindowQueue>(windows, working, options.in_background);
  for (const FilledFile& file : files) {
    // Nobody can ask for a part of it.
    if (file.size_bytes == 0 && file.window_count > 0) queue->ask(file.first_window);
  }
  // Not up to `working`: the first may have ended before the last is begun.
  for (std::size_t i = 0, count = working; i < count; i++) {
    workers.emplace_back([this, i] { work(i); });
  }
}

// ---- the workers ----

void PartialVersion::State::work(std::size_t worker) {
  {
    std::unique_ptr<SegmentWriter> writer;
    for (;;) {
      std::unique_lock lock(mutex);
      const auto window = wait_for_work(worker, lock);
      if (!window) break;
      lock.unlock();
      const auto trouble = try_to_make(*window, writer);
      if (trouble && context.stop.stop_requested()) break;
      if (trouble) {
        note_trouble(*window, *trouble);
      } else {
        finish_window(*window);
      }
    }
  }
  end_work();
}

/// Returns: nullopt at the end.
std::optional<std::size_t> PartialVersion::State::wait_for_work(
    std::size_t worker, std::unique_lock<RankedMutex>& lock) {
  constexpr auto kLookAgain = std::chrono::hours(1);  // there may be nothing to wait for
  while (!is_complete && !context.stop.stop_requested()) {
    const auto now = Clock::now();
    if (const auto window = queue->take(worker, now)) return window;
    const auto until = std::min(queue->next_time(now), now + kLookAgain);
    changed.wait_until(lock, context.stop, until, [&, seen = changes] { return changes != seen; });
  }
  return std::nullopt;
}

std::optional<Trouble> PartialVersion::State::try_to_make(std::size_t window,
                                                          std::unique_ptr<SegmentWriter>& writer) {
  try {
    make(window, writer);
    return std::nullopt;
  } catch (const Error& error) {
    return Trouble{error.code(), error.what()};
  } catch (const std::exception& error) {
    return Trouble{ErrorCode::io, error.what()};
  }
}

void PartialVersion::State::make(std::size_t window, std::unique_ptr<SegmentWriter>& writer) {
  const FilledFile& file = file_of(window);
  if (file.blob != nullptr) {
    const std::string text = repository.get_blob(*file.blob, context);
    const File opened = File::open(file.path, O_WRONLY);
    return write_at(opened.fd(), 0, as_bytes(text), file.path);
  }
  if (!writer) {
    writer = std::make_unique<SegmentWriter>(plan, *spool, repository, *options.coder, context);
  }
  const std::uint64_t begin = (window - file.first_window) * kWindowBytes;
  const std::uint64_t end = std::min(begin + kWindowBytes, file.size_bytes);
  const File opened = File::open(file.path, O_WRONLY);
  writer->write(*file.weights, opened.fd(), file.path, begin, end);
}

void PartialVersion::State::finish_window(std::size_t window) {
  Calls calls;
  FilledFile& file = file_of(window);
  bool is_last = false;
  {
    const std::lock_guard lock(mutex);
    queue->set_here(window);
    forget_trouble(window);
    bytes_here += file.window_bytes(window);
    if (plan.snapshot && file.blob == nullptr) snapshot_bytes += file.window_bytes(window);
    wake_some(window, calls);
    note_change(calls);
    is_last = --file.windows_left == 0;
  }
  call(calls);
  if (is_last) finish_file(file);
}

/// All windows of it are here.  What cannot be synced may be lost: it is made again.
void PartialVersion::State::finish_file(FilledFile& file) {
  bool is_last = false;
  try {
    const File opened = File::open(file.path, O_WRONLY);
    seal_image(opened.fd(), file.path, image_seal);
    {
      const std::lock_guard lock(mutex);
      is_last = files_left == 1;
      if (!is_last) set_file_here(file);
    }
    if (is_last) {
      for (const std::filesystem::path& directory : directories) fsync_directory(directory);
    }
  } catch (const Error& error) {
    return make_again(file, {error.code(), error.what()});
  }
  Calls calls;
  {
    const std::lock_guard lock(mutex);
    if (is_last) set_file_here(file);
    is_complete = files_left == 0;
    calls.changed = true;
    note_change(calls);
  }
  call(calls);
}

void PartialVersion::State::make_again(FilledFile& file, const Trouble& trouble) {
  std::error_code ignored;
  std::filesystem::permissions(
      file.path, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write, ignored);
  Calls calls;
  {
    const std::lock_guard lock(mutex);
    file.windows_left = file.window_count;
    for (std::size_t i = 0; i < file.window_count; i++) {
      const std::size_t window = file.first_window + i;
      bytes_here -= file.window_bytes(window);
      set_trouble(window, trouble);
      queue->fail(window, Clock::now() + options.tell_failures_for);
    }
    note_change(calls);
  }
  call(calls);
}

void PartialVersion::State::note_trouble(std::size_t window, const Trouble& trouble) {
  Calls calls;
  {
    const std::lock_guard lock(mutex);
    set_trouble(window, trouble);
    if (is_told(trouble.code)) {
      queue->fail(window, Clock::now() + options.tell_failures_for);
      wake_all(window, calls);
    } else {
      queue->pause(window, Clock::now());
    }
    note_change(calls);
  }
  call(calls);
}

/// The last one lets go of what is not needed any more.
void PartialVersion::State::end_work() {
  const std::lock_guard lock(mutex);
  if (--working > 0 || !is_complete) return;
  spooled_bytes = spool->fetched_bytes();
  spool.reset();
}

// ---- what is here, under the mutex ----

/// The window is here: wakes those who have waited for no other.
void PartialVersion::State::wake_some(std::size_t window, Calls& calls) {
  const auto found = waiters.find(window);
  if (found == waiters.end()) return;
  for (const auto& waiter : found->second) {
    if (--waiter->windows_left > 0 || !waiter->wake) continue;
    calls.wakes.push_back(std::exchange(waiter->wake, nullptr));
  }
  waiters.erase(found);
}

/// There is something to tell of the window.
void PartialVersion::State::wake_all(std::size_t window, Calls& calls) {
  const auto found = waiters.find(window);
  if (found == waiters.end()) return;
  for (const auto& waiter : found->second) {
    if (waiter->wake) calls.wakes.push_back(std::exchange(waiter->wake, nullptr));
  }
  waiters.erase(found);
}

void PartialVersion::State::set_file_here(FilledFile& file) {
  file.is_here = true;
  files_left--;
}

void PartialVersion::State::set_trouble(std::size_t window, const Trouble& trouble) {
  troubles.insert_or_assign(window, trouble);
  last_trouble = window;
  if (trouble.is_damage()) {
    damaged.insert(window);
  } else {
    damaged.erase(window);
  }
}

void PartialVersion::State::forget_trouble(std::size_t window) {
  troubles.erase(window);
  damaged.erase(window);
}

/// The last one; but one that does not pass by itself comes before one that does.
const Trouble* PartialVersion::State::worst_trouble() const {
  if (troubles.empty()) return nullptr;
  const auto last = troubles.find(last_trouble);
  const bool has_last = last != troubles.end();
  if (damaged.empty()) return has_last ? &last->second : &troubles.begin()->second;
  if (has_last && last->second.is_damage()) return &last->second;
  return &troubles.at(*damaged.begin());
}

/// After each change: who waits looks again.
void PartialVersion::State::note_change(Calls& calls) {
  const Trouble* trouble = worst_trouble();
  const std::string message = trouble != nullptr ? trouble->message : "";
  if (message != told_trouble) {
    told_trouble = message;
    calls.changed = true;
  }
  changes++;
  changed.notify_all();
}

void PartialVersion::State::call(const Calls& calls) const {
  for (const auto& wake : calls.wakes) wake();
  if (calls.changed && options.changed) options.changed();
}

FilledFile& PartialVersion::State::file_of(std::size_t window) {
  const auto behind = std::partition_point(files.begin(), files.end(), [&](const FilledFile& file) {
    return file.first_window <= window;
  });
  return *std::prev(behind);
}

const FilledFile& PartialVersion::State::get_file(std::string_view path) const {
  const auto found = by_path.find(path);
  if (found != by_path.end()) return files[found->second];
  throw Error(ErrorCode::not_found, fmt::format("version {}: '{}' is not being filled here",
                                                plan.version->number(), path));
}

// ---- asking ----

/// Registers for the windows [first, last] that are not here, and moves them to the front.
/// Returns: how many they are.
std::size_t PartialVersion::State::ask(std::size_t first, std::size_t last,
                                       std::function<void()> wake) {
  std::vector<std::size_t> missing;
  for (std::size_t window = first; window <= last; window++) {
    const WindowQueue::State state = queue->state(window);
    if (state == WindowQueue::State::failed) {
      const Trouble& trouble = troubles.at(window);
      throw Error(trouble.code, trouble.message);
    }
    if (state != WindowQueue::State::here) missing.push_back(window);
  }
  if (missing.empty()) return 0;
  if (context.stop.stop_requested()) {
    throw Error(ErrorCode::cancelled,
                fmt::format("version {} is no longer being filled", plan.version->number()));
  }
  const auto waiter = std::make_shared<WindowWaiter>(
      WindowWaiter{.windows_left = missing.size(), .wake = std::move(wake)});
  for (const std::size_t window : missing) {
    queue->ask(window);
    if (waiter->wake) waiters[window].push_back(waiter);
  }
  return missing.size();
}

PartialVersion::PartialVersion(Plan plan, Repository& repository, PartialVersionOptions options,
                               const Context& context)
    : state_(std::make_unique<State>(std::move(plan), repository, std::move(options))) {
  state_->begin(context);
}

PartialVersion::~PartialVersion() { stop(); }

const Plan& PartialVersion::plan() const noexcept { return state_->plan; }

bool PartialVersion::is_here(std::string_view path) const {
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->by_path.find(path);
  return found != state_->by_path.end() && state_->files[found->second].is_here;
}

bool PartialVersion::is_complete() const {
  const std::lock_guard lock(state_->mutex);
  return state_->is_complete;
}

bool PartialVersion::nobody_reads() const {
  std::vector<std::filesystem::path> here;
  {
    const std::lock_guard lock(state_->mutex);
    for (const FilledFile& file : state_->files) {
      if (file.is_here) here.push_back(file.path);
    }
  }
  return std::all_of(here.begin(), here.end(), [](const std::filesystem::path& path) {
    std::error_code error;
    return std::filesystem::hard_link_count(path, error) > 1 || nobody_reads_file(path);
  });
}

bool PartialVersion::ask(std::string_view path, std::uint64_t offset_bytes,
                         std::uint64_t size_bytes, std::function<void()> wake) {
  const std::lock_guard lock(state_->mutex);
  const FilledFile& file = state_->get_file(path);
  const std::uint64_t begin = std::min(offset_bytes, file.size_bytes);
  const std::uint64_t end = begin + std::min(size_bytes, file.size_bytes - begin);
  if (file.window_count == 0 || file.is_here || begin == end) return true;

  const std::size_t first = file.window_at(begin), last = file.window_at(end - 1);
  const std::size_t missing = state_->ask(first, last, std::move(wake));
  const std::size_t file_end = file.first_window + file.window_count;
  for (std::size_t i = last + 1; i < std::min(last + 1 + kWindowsAhead, file_end); i++) {
    state_->queue->read_ahead(i);
  }
  state_->changes++;
  state_->changed.notify_all();
  return missing == 0;
}

void PartialVersion::stop() {
  const std::lock_guard stopping(state_->stop_mutex);
  state_->stop_source.request_stop();
  state_->workers.clear();  // joins
  Calls calls;
  {
    const std::lock_guard lock(state_->mutex);
    while (!state_->waiters.empty()) state_->wake_all(state_->waiters.begin()->first, calls);
    state_->changes++;
    state_->changed.notify_all();
  }
  for (const auto& wake : calls.wakes) wake();
}

void PartialVersion::wait_complete(const Context& context) {
  constexpr auto kLookAgain = std::chrono::hours(1);  // a deadline may be as far off as can be
  std::unique_lock lock(state_->mutex);
  while (!state_->is_complete) {
    if (!state_->damaged.empty()) {
      const Trouble& trouble = *state_->worst_trouble();
      throw Error(trouble.code, trouble.message);
    }
    state_->context.check("filling a version");
    context.check("waiting until a version is complete");
    state_->changed.wait_until(lock, context.stop,
                               std::min(context.deadline, Clock::now() + kLookAgain),
                               [&, seen = state_->changes] { return state_->changes != seen; });
  }
}

PartialProgress PartialVersion::progress() const {
  const std::lock_guard lock(state_->mutex);
  PartialProgress progress;
  progress.bytes = state_->bytes;
  progress.bytes_here = state_->bytes_here;
  progress.fetched_bytes = state_->snapshot_bytes +
                           (state_->spool ? state_->spool->fetched_bytes() : state_->spooled_bytes);
  if (const Trouble* trouble = state_->worst_trouble()) {
    progress.error.emplace(trouble->code, trouble->message);
    progress.is_damaged = trouble->is_damage();
  }
  return progress;
}

}  // namespace weightfs
