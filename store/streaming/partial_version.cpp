// One mutex guards what is here and who waits. Windows are made, and callbacks called, without it.

#include "store/streaming/partial_version.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "store/base/bytes.hpp"
#include "store/base/log.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/local/store.hpp"
#include "store/materialize/image_files.hpp"
#include "store/materialize/pack_spool.hpp"
#include "store/materialize/segment_writer.hpp"
#include "store/os/file.hpp"
#include "store/os/lease.hpp"
#include "store/streaming/filled_files.hpp"
#include "store/streaming/snapshot_window.hpp"
#include "store/streaming/window_edges.hpp"
#include "store/streaming/window_queue.hpp"
#include "store/streaming/window_troubles.hpp"
#include "store/streaming/window_waiters.hpp"
#include "store/threads/work_threads.hpp"

namespace weightfs {
namespace {

/// Windows to read ahead after the requested ones: readers mostly read files front to back.
constexpr std::size_t kWindowsAhead = 8;

/// Where there is none now, there may be after a while.
constexpr std::chrono::milliseconds kWithoutMemory{100};

/// A way to the version, and the packs of its steps.
struct FillWay {
  FillWay(std::shared_ptr<const Plan> its_plan, Repository& repository,
          const PartialVersionOptions& options, const Context& context)
      : plan(std::move(its_plan)),
        spool(*plan, repository, options.spool, context, options.meter.get()) {}

  const std::shared_ptr<const Plan> plan;
  const PackSpool spool;
};

/// What a worker makes windows with; each is created on first use.
struct WindowMakers {
  std::shared_ptr<const FillWay> way;  // of `alone`
  std::unique_ptr<SegmentWriter> alone;
  std::unique_ptr<SnapshotWindow> of_snapshot;
};

/// Callbacks to call once the mutex is free.
struct Calls {
  std::vector<std::function<void()>> wakes;
  bool changed = false;
};

/// Whether readers get the error. Others are temporary: the bucket is unreachable, or refuses for
/// now.
bool is_told(ErrorCode code) {
  return code == ErrorCode::corrupt || code == ErrorCode::not_found ||
         code == ErrorCode::no_space || code == ErrorCode::no_memory || code == ErrorCode::io;
}

/// Runs `step`.  Throws nothing, also where there is no memory for words: a worker would end the
/// process.
template <typename Step>
std::optional<Trouble> trouble_of(const Step& step) noexcept {
  try {
    try {
      step();
      return std::nullopt;
    } catch (const Error& error) {
      return Trouble{error.code(), error.what()};
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {
      return Trouble{ErrorCode::io, error.what()};
    }
  } catch (const std::bad_alloc&) {
    return Trouble{ErrorCode::no_memory, "no memory"};  // lies in the string itself
  }
}

/// The number of requests that suit the bucket; if that is unknown, what suits this host.
unsigned count_workers(Repository& repository, unsigned threads, const Context& context) {
  try {
    return std::max(1u, request_threads(repository.bucket(context), threads));
  } catch (const Error&) {
    context.check("waiting for the bucket");
    return threads > 0 ? threads : work_threads();
  }
}

}  // namespace

struct PartialVersion::State {
  State(Plan its_plan, Repository& its_repository, PartialVersionOptions its_options);
  ~State() { stop_source.request_stop(); }  // in case not all workers could be started

  // Before the workers start:
  void add_files(std::vector<FilledFile> made);
  void begin(const Context& making);
  void start_workers(std::size_t count);
  void open_edges(std::size_t window_count);

  // The workers:
  void work(std::size_t worker);
  std::optional<std::size_t> wait_for_work(std::size_t worker, std::unique_lock<RankedMutex>& lock);
  std::optional<Trouble> try_to_make(std::size_t window, bool alone, WindowMakers& makers);
  void make_alone(std::size_t window, WindowMakers& makers);
  void write_alone(const FilledFile& file, std::size_t window, int fd, WindowMakers& makers);
  bool take_another_way(const FillWay& bad, const Error& cause);
  [[nodiscard]] std::shared_ptr<const FillWay> current_way() const;
  void make_of_snapshot(std::size_t window, WindowMakers& makers);
  enum class Settled { here, waits, wrong };
  Settled settle(std::size_t window, SnapshotWindow& maker, int fd);
  void finish_window(std::size_t window);
  void finish_file(FilledFile& file);
  void make_again(FilledFile& file, const Trouble& trouble);
  template <typename Step>
  void surely(const Step& step);
  void note_trouble(std::size_t window, const Trouble& trouble);
  void end_work(std::size_t count);

  // Requires: the mutex is held.
  [[nodiscard]] bool is_made_alone(std::size_t window);
  [[nodiscard]] std::optional<std::size_t> find_beside(std::size_t window,
                                                       WindowQueue::State state) const;
  void make_beside_alone(std::size_t window);
  void set_here(std::size_t window, Calls& calls);
  void note_change(Calls& calls);
  std::size_t ask(std::size_t first, std::size_t last, std::function<void()> wake);

  void call(const Calls& calls) const noexcept;
  [[nodiscard]] FilledFile& file_of(std::size_t window);
  [[nodiscard]] const FilledFile& get_file(std::string_view path) const;

  const std::shared_ptr<const Plan> first_plan;
  const Plan& plan;  // that one
  Repository& repository;
  const PartialVersionOptions options;
  const ImageSeal image_seal;
  std::stop_source stop_source;
  const Context context{stop_source.get_token(), Clock::time_point::max()};
  std::map<std::string, std::size_t, std::less<>> by_path;  // index into `files`
  std::uint64_t bytes = 0;

  // Guards what follows.
  mutable RankedMutex mutex{LockRank::partial_version, "PartialVersion::State::mutex"};
  std::condition_variable_any changed;
  std::uint64_t changes = 0;      // number of changes that waiters for `changed` may want to see
  std::vector<FilledFile> files;  // by first window, except linked ones
  std::unique_ptr<WindowQueue> queue;
  std::optional<WindowEdges> edges;    // if windows are made by SnapshotWindow
  std::shared_ptr<const FillWay> way;  // until all is here
  WindowWaiters waiters;
  WindowTroubles troubles;
  std::string told_trouble;  // message of the last call of `changed`
  std::size_t files_left = 0;
  std::uint64_t bytes_here = 0;
  std::uint64_t snapshot_bytes = 0,
                spooled_bytes = 0;  // fetched; spooled_bytes: by ways that are left
  std::size_t working = 0;          // workers that run, or are still to be started
  bool is_complete = false;

  // Held while another way is planned; before the mutex.
  RankedMutex plan_mutex{LockRank::partial_plan, "PartialVersion::State::plan_mutex"};

  // Ensures that the workers are joined once.
  RankedMutex stop_mutex{LockRank::partial_stop, "PartialVersion::State::stop_mutex"};
  std::vector<std::jthread> workers;  // last: they use the members above
};

// ---- before the workers begin ----

PartialVersion::State::State(Plan its_plan, Repository& its_repository,
                             PartialVersionOptions its_options)
    : first_plan(std::make_shared<const Plan>(std::move(its_plan))),
      plan(*first_plan),
      repository(its_repository),
      options(std::move(its_options)),
      image_seal{options.mode, plan.version->manifest.time, false} {}

void PartialVersion::State::add_files(std::vector<FilledFile> made) {
  files = std::move(made);
  for (std::size_t i = 0; i < files.size(); i++) {
    const FilledFile& file = files[i];
    by_path.emplace(file.blob != nullptr ? file.blob->path : file.weights->path, i);
    bytes += file.size_bytes;
    if (file.is_here) bytes_here += file.size_bytes;
    if (!file.is_here) files_left++;
  }
}

void PartialVersion::State::begin(const Context& making) {
  way = std::make_shared<const FillWay>(first_plan, repository, options, context);
  check_base_files(plan);
  make_image_directories(plan, options.directory, options.files);
  add_files(make_filled_files(plan, options.directory, options.files, making));
  if (files_left == 0) {
    is_complete = true;
    return;
  }
  working = count_workers(repository, options.threads, making);
  const std::size_t windows = files.back().first_window + files.back().window_count;
  queue = std::make_unique<WindowQueue>(windows, working, options.in_background);
  for (const FilledFile& file : files) {
    // No reader will ever request a part of an empty file.
    if (file.size_bytes == 0 && file.window_count > 0) queue->ask(file.first_window);
  }
  if (options.in_background && SnapshotWindow::suits(plan)) open_edges(windows);
  start_workers(working);
}

/// Goes on with fewer, but at least one, where the system refuses threads.
void PartialVersion::State::start_workers(std::size_t count) {
  try {
    for (std::size_t i = 0; i < count; i++) {
      workers.emplace_back([this, i] { work(i); });
    }
  } catch (const std::system_error& error) {
    if (workers.empty()) throw;
    log_warning(fmt::format("{} of {} threads fill version {}: {}", workers.size(), count,
                            plan.version->number(), error.what()));
    end_work(count - workers.size());
  }
}

void PartialVersion::State::open_edges(std::size_t window_count) {
  edges.emplace(window_count);
  for (const FilledFile& file : files) {
    if (file.weights == nullptr) continue;
    for (std::size_t i = 1; i < file.window_count; i++) {
      const bool is_across =
          SnapshotWindow::is_across(*plan.layout, *file.weights, i * kWindowBytes);
      if (is_across) edges->open(file.first_window + i);
    }
  }
}

// ---- the workers ----

void PartialVersion::State::work(std::size_t worker) {
  {
    WindowMakers makers;
    for (;;) {
      std::unique_lock lock(mutex);
      const auto window = wait_for_work(worker, lock);
      if (!window) break;
      const bool alone = is_made_alone(*window);
      lock.unlock();
      const auto trouble = try_to_make(*window, alone, makers);
      if (!trouble) continue;
      if (context.stop.stop_requested()) break;
      surely([&] { note_trouble(*window, *trouble); });
    }
  }
  end_work(1);
}

/// Repeats what fails for want of memory.  Otherwise a window would be made by nobody, and its
/// readers would wait.
template <typename Step>
void PartialVersion::State::surely(const Step& step) {
  while (!context.stop.stop_requested()) {
    try {
      return step();
    } catch (const std::bad_alloc&) {
      std::unique_lock lock(mutex);
      changed.wait_for(lock, context.stop, kWithoutMemory, [] { return false; });
    }
  }
}

/// Returns: nullopt at the end.
std::optional<std::size_t> PartialVersion::State::wait_for_work(
    std::size_t worker, std::unique_lock<RankedMutex>& lock) {
  constexpr auto kLookAgain = std::chrono::hours(1);  // there may be no next_time()
  while (!is_complete && !context.stop.stop_requested()) {
    const auto now = Clock::now();
    auto until = now + kWithoutMemory;
    try {
      if (const auto window = queue->take(worker, now)) return window;
      until = std::min(queue->next_time(now), now + kLookAgain);
    } catch (const std::bad_alloc&) {
      // It is tried again.
    }
    changed.wait_until(lock, context.stop, until, [&, seen = changes] { return changes != seen; });
  }
  return std::nullopt;
}

std::optional<Trouble> PartialVersion::State::try_to_make(std::size_t window, bool alone,
                                                          WindowMakers& makers) {
  return trouble_of([&] {
    if (alone) {
      make_alone(window, makers);
    } else {
      make_of_snapshot(window, makers);
    }
  });
}

void PartialVersion::State::make_alone(std::size_t window, WindowMakers& makers) {
  const FilledFile& file = file_of(window);
  const File opened = File::open(file.path, O_WRONLY);
  if (file.blob != nullptr) {
    if (!copy_equal_blob(plan, *file.blob, opened.fd(), file.path)) {
      write_blob(repository, *file.blob, opened.fd(), file.path, context, options.meter.get());
    }
  } else {
    write_alone(file, window, opened.fd(), makers);
    if (makers.way->plan != first_plan) {
      // It does not vouch for the other half of a chunk that a neighbour made, or makes, of the
      // snapshot.
      const std::lock_guard lock(mutex);
      if (edges) {
        for (const std::size_t other : edges->neighbours(window)) edges->set_alone(other);
      }
      make_beside_alone(window);
    }
  }
  finish_window(window);
}

/// Where there is another way, what is missing or damaged on this one is no trouble of the window.
void PartialVersion::State::write_alone(const FilledFile& file, std::size_t window, int fd,
                                        WindowMakers& makers) {
  const std::uint64_t begin = (window - file.first_window) * kWindowBytes;
  const std::uint64_t end = std::min(begin + kWindowBytes, file.size_bytes);
  for (;;) {
    const auto now = current_way();
    if (makers.way != now) {
      makers.alone = std::make_unique<SegmentWriter>(*now->plan, now->spool, repository,
                                                     *options.coder, context, options.meter.get());
      makers.way = now;
    }
    try {
      return makers.alone->write(*now->plan->layout->find_file(file.weights->path), fd, file.path,
                                 begin, end);
    } catch (const ObjectError& error) {
      if (!take_another_way(*now, error)) throw;
    } catch (const BaseDamaged& error) {
      if (!take_another_way(*now, error)) throw;
    } catch (const PatchDamaged& error) {
      if (!take_another_way(*now, error)) throw;
    }
  }
}

std::shared_ptr<const FillWay> PartialVersion::State::current_way() const {
  const std::lock_guard lock(mutex);
  return way;
}

/// Returns: false if there is no other.
bool PartialVersion::State::take_another_way(const FillWay& bad, const Error& cause) {
  if (!options.plan_again) return false;
  // The first worker that meets the trouble plans; the others find the way that it took.
  const std::lock_guard planning(plan_mutex);
  if (current_way().get() != &bad) return true;
  std::optional<Plan> other = options.plan_again(cause, context);
  if (!other) return false;
  auto made = std::make_shared<const FillWay>(std::make_shared<const Plan>(std::move(*other)),
                                              repository, options, context);
  const std::lock_guard lock(mutex);
  spooled_bytes += way->spool.fetched_bytes();
  way = std::move(made);
  return true;
}

/// If anything is wrong, SegmentWriter says what, or does better; also if an object is: by another
/// way.
void PartialVersion::State::make_of_snapshot(std::size_t window, WindowMakers& makers) {
  if (current_way()->plan != first_plan) return make_alone(window, makers);  // it was left
  const FilledFile& file = file_of(window);
  if (!makers.of_snapshot) {
    makers.of_snapshot =
        std::make_unique<SnapshotWindow>(plan, repository, context, options.meter.get());
  }
  const File opened = File::open(file.path, O_RDWR);
  const std::uint64_t begin = (window - file.first_window) * kWindowBytes;
  SnapshotWindow& maker = *makers.of_snapshot;
  Settled settled = Settled::wrong;
  try {
    if (maker.write(*file.weights, opened.fd(), file.path, begin)) {
      settled = settle(window, maker, opened.fd());
    }
  } catch (const ObjectError& error) {
    if (!is_told(error.code())) throw;  // temporary
  }
  if (settled == Settled::here) finish_window(window);
  if (settled == Settled::wrong) make_alone(window, makers);
}

/// Compares the chunks that the window shares with neighbours that are written.  Whoever comes
/// second does it, so that each is done once.
PartialVersion::State::Settled PartialVersion::State::settle(std::size_t window,
                                                             SnapshotWindow& maker, int fd) {
  const FilledFile& file = file_of(window);
  std::unique_lock lock(mutex);
  while (const auto other = find_beside(window, WindowQueue::State::written)) {
    lock.unlock();
    const std::size_t end = std::max(window, *other);
    const bool is_right =
        maker.check_across(*file.weights, fd, file.path, (end - file.first_window) * kWindowBytes);
    lock.lock();
    if (!is_right) {
      make_beside_alone(window);
      return Settled::wrong;
    }
    const auto beside = edges->neighbours(*other);
    const bool waits_for_another =
        std::any_of(beside.begin(), beside.end(), [&](std::size_t one) { return one != window; });
    // It may have been set aside, to be made alone.
    const bool still_waits = queue->state(*other) == WindowQueue::State::written;
    if (!still_waits || waits_for_another) {
      edges->close(end);
      continue;
    }
    lock.unlock();
    finish_window(*other);  // closes its ends; if anything fails before, it waits as it did
    lock.lock();
  }
  if (edges->is_alone(window)) return Settled::wrong;  // a neighbour came by another way meanwhile
  if (!edges->is_open(window)) return Settled::here;
  if (find_beside(window, WindowQueue::State::failed)) return Settled::wrong;
  queue->set_written(window);
  troubles.forget(window);
  if (waiters.contains(window)) {
    for (const std::size_t other : edges->neighbours(window)) queue->ask(other);
  }
  changes++;
  changed.notify_all();
  return Settled::waits;
}

/// The window is here, and so are those that waited for it.
void PartialVersion::State::finish_window(std::size_t window) {
  Calls calls;
  FilledFile& file = file_of(window);
  bool is_last = false;
  {
    const std::lock_guard lock(mutex);
    WindowEdges::Neighbours beside;
    if (edges) beside = edges->neighbours(window);
    // Nothing may fail once a window counts as here, or as compared with its neighbours.
    waiters.make_room(window, calls.wakes);
    for (const std::size_t other : beside) waiters.make_room(other, calls.wakes);
    if (edges) {
      edges->close(window);
      edges->close(window + 1);
    }
    set_here(window, calls);
    for (const std::size_t other : beside) {
      const bool waited = queue->state(other) == WindowQueue::State::written;
      if (waited && !edges->is_open(other)) set_here(other, calls);
    }
    is_last = file.windows_left == 0;
    note_change(calls);
  }
  call(calls);
  if (is_last) finish_file(file);
}

/// All windows of it are here.  Who syncs the version does it when it is complete.
void PartialVersion::State::finish_file(FilledFile& file) {
  const auto trouble = trouble_of([&] {
    const File opened = File::open(file.path, O_WRONLY);
    seal_image(opened.fd(), file.path, image_seal);
  });
  if (trouble) return make_again(file, *trouble);
  Calls calls;
  {
    const std::lock_guard lock(mutex);
    file.is_here = true;
    is_complete = --files_left == 0;
    calls.changed = true;
    note_change(calls);
  }
  call(calls);
}

void PartialVersion::State::make_again(FilledFile& file, const Trouble& trouble) {
  static_cast<void>(::chmod(file.path.c_str(), S_IRUSR | S_IWUSR));  // else opening it says why
  Calls calls;
  {
    const std::lock_guard lock(mutex);
    file.windows_left = file.window_count;
  }
  for (std::size_t i = 0; i < file.window_count; i++) {
    const std::size_t window = file.first_window + i;
    surely([&] {
      const std::lock_guard lock(mutex);
      troubles.set(window, trouble);
      queue->fail(window, Clock::now(), options.tell_failures_for);
      bytes_here -= file.window_bytes(window);
    });
  }
  {
    const std::lock_guard lock(mutex);
    note_change(calls);
  }
  call(calls);
}

void PartialVersion::State::note_trouble(std::size_t window, const Trouble& trouble) {
  Calls calls;
  {
    const std::lock_guard lock(mutex);
    // Counted already: for want of memory, something failed after it was done.
    const WindowQueue::State state = queue->state(window);
    if (state == WindowQueue::State::here || state == WindowQueue::State::failed) return;
    troubles.set(window, trouble);
    if (is_told(trouble.code)) {
      waiters.make_room(window, calls.wakes);
      make_beside_alone(window);
      queue->fail(window, Clock::now(), options.tell_failures_for);
      waiters.take_all(window, calls.wakes);
    } else {
      queue->pause(window, Clock::now());
    }
    note_change(calls);
  }
  call(calls);
}

/// Of `count` workers.  The last one frees what is no longer needed.
void PartialVersion::State::end_work(std::size_t count) {
  const std::lock_guard lock(mutex);
  working -= count;
  if (working > 0 || !is_complete) return;
  spooled_bytes += way->spool.fetched_bytes();
  way.reset();
}

// ---- state, under the mutex ----

/// Whether a window is made without its neighbours.  If somebody waits for it, it does not wait for
/// a neighbour that nobody makes.
bool PartialVersion::State::is_made_alone(std::size_t window) {
  if (!edges || edges->is_alone(window) || file_of(window).blob != nullptr) return true;
  if (!waiters.contains(window)) return false;
  using enum WindowQueue::State;
  return find_beside(window, absent) || find_beside(window, paused) || find_beside(window, failed);
}

/// A neighbour in that state with which the window shares a chunk that was not compared yet.
std::optional<std::size_t> PartialVersion::State::find_beside(std::size_t window,
                                                              WindowQueue::State state) const {
  for (const std::size_t other : edges->neighbours(window)) {
    if (queue->state(other) == state) return other;
  }
  return std::nullopt;
}

/// What is written and waits for this window would wait for nothing.
void PartialVersion::State::make_beside_alone(std::size_t window) {
  if (!edges) return;
  for (const std::size_t other : edges->neighbours(window)) {
    if (queue->state(other) != WindowQueue::State::written) continue;
    edges->set_alone(other);
    queue->make_again(other);
  }
}

void PartialVersion::State::set_here(std::size_t window, Calls& calls) {
  FilledFile& file = file_of(window);
  queue->set_here(window);
  file.windows_left--;  // before anything that may fail for want of memory
  bytes_here += file.window_bytes(window);
  if (plan.snapshot && file.blob == nullptr) snapshot_bytes += file.window_bytes(window);
  troubles.forget(window);
  waiters.take_ready(window, calls.wakes);
}

/// Called after each change, so that waiters look again.
void PartialVersion::State::note_change(Calls& calls) {
  try {
    const Trouble* trouble = troubles.worst();
    const std::string message = trouble != nullptr ? trouble->message : "";
    if (message != told_trouble) {
      told_trouble = message;
      calls.changed = true;
    }
  } catch (const std::bad_alloc&) {
    calls.changed = true;  // told without a comparison
  }
  changes++;
  changed.notify_all();
}

/// Nothing of the version depends on those who are told, nor does one of them on another.
void PartialVersion::State::call(const Calls& calls) const noexcept {
  const auto tell = [](const std::function<void()>& told) {
    try {
      told();
    } catch (const std::exception& error) {
      log_caught("telling that files of a version have come", error);
    }
  };
  for (const auto& wake : calls.wakes) tell(wake);
  if (calls.changed && options.changed) tell(options.changed);
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

// ---- requests ----

/// Registers a request for those of the windows [first, last] that are not here, and moves them to
/// the front.  Returns: how many there are.
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
  if (wake) waiters.add(missing, std::move(wake));
  for (const std::size_t window : missing) {
    queue->ask(window);
    if (queue->state(window) == WindowQueue::State::written) {
      for (const std::size_t other : edges->neighbours(window)) queue->ask(other);
    }
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

bool PartialVersion::nobody_reads(RefusedLeases* refused_leases) const {
  std::vector<std::filesystem::path> here;
  {
    const std::lock_guard lock(state_->mutex);
    for (const FilledFile& file : state_->files) {
      if (file.is_here) here.push_back(file.path);
    }
  }
  return std::all_of(here.begin(), here.end(), [&](const std::filesystem::path& path) {
    std::error_code error;
    return std::filesystem::hard_link_count(path, error) > 1 ||
           nobody_reads_file(path, refused_leases);
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
    state_->waiters.take_all(calls.wakes);
    state_->changes++;
    state_->changed.notify_all();
  }
  state_->call(calls);
}

void PartialVersion::wait_complete(const Context& context) {
  constexpr auto kLookAgain = std::chrono::hours(1);  // the deadline may be infinite
  std::unique_lock lock(state_->mutex);
  while (!state_->is_complete) {
    if (state_->troubles.has_damage()) {
      const Trouble& trouble = *state_->troubles.worst();
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
  const auto& snapshot = state_->plan.snapshot;
  const bool has_seed = snapshot && snapshot->seed;
  progress.fetched_bytes = (has_seed ? snapshot->seed->fetched_bytes() : state_->snapshot_bytes) +
                           state_->spooled_bytes +
                           (state_->way ? state_->way->spool.fetched_bytes() : 0);
  if (const Trouble* trouble = state_->troubles.worst()) {
    progress.error.emplace(trouble->code, trouble->message);
    progress.is_damaged = trouble->is_damage();
  }
  return progress;
}

}  // namespace weightfs
