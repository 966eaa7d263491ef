// A whole host checked against the rule of eviction and the promises of a mount: the real store,
// sync, streaming and publish queue on a bucket in memory.  Another host publishes; this host
// syncs, publishes, runs out of disk, loses the bucket, and restarts; readers open any version by
// name, like an OPEN of the mount; pins, hooks and loaders hold versions.  All in random order,
// also within each call that an eviction makes, and before `latest` moves.
//
// The seed decides everything except how far the threads that fill a version get between two steps.
// $WEIGHTFS_MODEL_STEPS: more steps, for manual runs.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "store/base/ranked_mutex.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/model_host.hpp"
#include "tests/support/random.hpp"

namespace weightfs::test {
namespace {

namespace stdfs = std::filesystem;
using Numbers = std::set<std::uint64_t>;
using HostTree = std::map<std::string, std::string>;

constexpr std::uint64_t kGiB = 1ull << 30;

Context soon() { return Context{}.within(std::chrono::seconds(20)); }

/// How many tenths of a version fit; 0: the default.
class HostModel : public testing::TestWithParam<unsigned> {
 protected:
  static constexpr std::size_t kReaders = 5, kHolders = 2;

  HostModel() { std::signal(SIGIO, SIG_IGN); }  // see nobody_reads()
  ~HostModel() override {
    for (Reader& one : readers_) one = {};
    tap_->set_open(true);
    host_.reset();
  }

  void run(std::uint64_t steps) {
    publish_elsewhere();
    start();
    for (unsigned i = 0; i < steps && !HasFailure(); i++) {
      SCOPED_TRACE("step " + std::to_string(i));
      step();
      settle();
      check_all();
    }
    std::printf(
        "%zu versions (%u of this host), %u syncs, %u filled, %u evicted, %u opened, "
        "%u reads, %u without room, %u restarts\n",
        trees_.size(), published_here_, synced_, filled_, evicted_, opened_, reads_, without_room_,
        restarts_);
    if (HasFailure()) return;
    // No actor is stuck: all finish if they get time.
    EXPECT_GT(synced_, steps / 100);
    EXPECT_GT(filled_, steps / 200);
    EXPECT_GT(evicted_, steps / 200);
    EXPECT_GT(opened_, steps / 20);
    EXPECT_GT(published_here_, steps / 500);
  }

 private:
  // ---- the host ----

  void start() {
    main_ = std::this_thread::get_id();
    tap_->on_get = nullptr;
    if (!was_complete_.contains(latest_)) latest_ = 0;  // partial versions end with the process
    StoreLimits limits{{}, 0};
    if (GetParam() > 0) limits.store_bytes = limit();
    host_ = std::make_unique<ModelHost>(
        Repository::open(std::make_unique<TricklingBucket>(bucket_, tap_), soon()),
        dir_ / ("host-" + std::to_string(stores_)), limits,
        [this] {
          return Space{free_bytes_, 1000 * kGiB};
        },
        guard_answers(), sync_options(),
        CatalogListener{
            .prepare = [this](const CatalogVersion& version) { prepare(version.number); }},
        queue_options());
    host_->queue.start(host_->history.refresh(host_->store->manifests().newest().version, soon()));
    tap_->set_open(false);
    const Numbers here = complete();
    EXPECT_TRUE(std::includes(here.begin(), here.end(), was_complete_.begin(), was_complete_.end()))
        << "records and files survive";
    for (const auto& [version, time] : host_->pins.list()) {
      if (!here.contains(version)) host_->pins.remove(version);  // it was partial
    }
    tap_->on_get = [this] { at_bucket(); };
  }

  static SyncOptions sync_options() {
    SyncOptions options;
    options.partial = true;
    options.with_absent = true;
    return options;
  }

  GuardAnswers guard_answers() {
    return {.keeps = [this](std::uint64_t v) { return between(v, [&] { return keeps(v); }); },
            .withdraw =
                [this](std::uint64_t v) {
                  return between(v, [&] { return random(10) != 0 || !use(v); });
                },
            .release = [this](std::uint64_t v) { return between(v, [&] { return !is_open(v); }); }};
  }

  QueueOptions queue_options() {
    QueueOptions options;
    options.rebase = true;
    options.threads = 1;
    options.show = [this](std::uint64_t version) {
      trees_[version] = handed_over_;
      about_to_be_ = version;
      EXPECT_TRUE(host_->store->images().is_complete(version)) << "published, and not adopted";
      others(Freedom::light);
      host_->sync.show(version);
      EXPECT_GE(host_->sync.catalog()->latest, version);
      about_to_be_ = 0;
    };
    options.at = [this](std::string_view point) {
      if (point == "committing") actor_ = std::this_thread::get_id();
    };
    return options;
  }

  [[nodiscard]] std::uint64_t limit() const {
    return ModelCheckpoints::kVersionBytes * (GetParam() > 0 ? GetParam() : 30) / 10;
  }
  [[nodiscard]] Numbers complete() const {
    const auto list = host_->store->images().complete_versions();
    return {list.begin(), list.end()};
  }
  [[nodiscard]] Numbers partial() const {
    Numbers numbers;
    for (const auto& [version, progress] : host_->sync.status().partial) {
      if (host_->sync.find_partial(version)) numbers.insert(version);
    }
    return numbers;
  }
  [[nodiscard]] stdfs::path images(std::uint64_t version) const {
    return host_->store->images().image_directory(version);
  }
  /// A complete version cannot be recorded while the disk is full, so do not wait long.
  [[nodiscard]] Context patience() const {
    return free_bytes_ > 0 ? soon() : Context{}.within(std::chrono::milliseconds(100));
  }
  [[nodiscard]] bool is_short() const { return free_bytes_ == 0 || is_away_; }

  // ---- uses of versions ----

  [[nodiscard]] bool is_open(std::uint64_t version) const {
    return std::any_of(readers_.begin(), readers_.end(), [&](const Reader& one) {
      return one.state == Reader::open && one.version == version;
    });
  }
  [[nodiscard]] bool keeps(std::uint64_t version) const {
    const bool is_held = std::find(held_.begin(), held_.end(), version) != held_.end();
    return is_held || is_open(version) || host_->pins.contains(version);
  }
  /// Records that it was used at some time during this step.
  bool use(std::uint64_t version) {
    used_.insert(version);
    return true;
  }
  void note_used() {
    for (const std::uint64_t version : partial()) {
      if (keeps(version)) use(version);
      const auto filled = host_->sync.find_partial(version);
      if (!filled) continue;
      if (filled->plan().base) use(filled->plan().base->version->number());
      if (is_tap_open_) use(version);  // it may be being recorded
    }
    for (const Reader& one : readers_) {
      if (one.state != Reader::idle) use(one.version);
    }
    for (const std::uint64_t version : complete()) {
      if (keeps(version)) use(version);
    }
  }

  // ---- steps, and nested steps of other actors ----

  /// What may be done within other actors' calls.
  enum class Freedom {
    light,  // nothing that waits for a lock of the store, as images may be being made
    full,
  };

  std::uint64_t random(std::uint64_t below) { return rng_() % below; }

  /// Whether this is the thread that takes the steps, within whose calls others may act.
  [[nodiscard]] bool is_actor() const { return std::this_thread::get_id() == actor_; }

  void others(Freedom freedom) {
    if (!is_actor() || depth_ == 2 || !host_) return;
    const ActsAsAnotherThread another;
    depth_++;
    const bool was_locked = std::exchange(is_locked_, is_locked_ || freedom == Freedom::light);
    for (std::uint64_t n = random(3); n > 0; n--) {
      small_step(freedom);
      check();
    }
    note_used();
    is_locked_ = was_locked;
    depth_--;
  }

  /// Other actors run before and after the call.
  template <typename Body>
  bool between(std::uint64_t version, Body&& body) {
    const std::uint64_t before = std::exchange(asked_, version);
    others(Freedom::light);
    const bool answer = body();
    others(Freedom::light);
    asked_ = before;
    return answer;
  }

  /// Called when the thread that takes the steps sends a request to the bucket.
  void at_bucket() {
    if (!is_actor() || depth_ == 2 || random(3) != 0) return;
    others(Freedom::light);
    if (asked_ != 0 || random(2) != 0) return;
    const ActsAsAnotherThread another;
    depth_++;
    evict_one();
    check();
    depth_--;
  }

  void prepare(std::uint64_t version) {
    EXPECT_TRUE(host_->store->images().is_complete(version)) << "about to be latest";
    if (!is_actor()) return;
    EXPECT_TRUE(is_locked_ || can_lock_images()) << "it is prepared while others wait";
    const std::uint64_t before = std::exchange(about_to_be_, version);
    others(is_locked_ ? Freedom::light : Freedom::full);
    check();
    about_to_be_ = before;
  }

  bool can_lock_images() {
    try {
      return static_cast<bool>(host_->store->images().lock_images(Context{}.within({})));
    } catch (const Error&) {
      return false;
    }
  }

  void step() {
    actor_ = main_;
    const Numbers before = complete(), filling = partial();
    used_.clear();
    note_used();
    const std::uint64_t what = random(100);
    if (what < 4) {
      publish_elsewhere();
    } else if (what < 12) {
      sync();
    } else if (what < 14) {
      publish_here();
    } else if (what < 30) {
      tap_->give(1 + static_cast<unsigned>(random(3)));
    } else if (what < 33) {
      fill_all();
    } else if (what < 35) {
      evict_one();
    } else if (what < (is_short() ? 40u : 36u)) {
      change_luck();
    } else if (what == 40 && random(3) == 0) {
      restart();
      return;
    } else {
      for (std::uint64_t n = 1 + random(4); n > 0; n--) small_step(Freedom::full);
    }
    count_changes(before, filling);
  }

  void small_step(Freedom freedom) {
    const std::uint64_t who = random(kReaders + 3);
    if (who < kReaders) {
      read(readers_[who], freedom);
    } else if (who == kReaders) {
      pin();
    } else {
      hold(held_[who - kReaders - 1]);
    }
  }

  void count_changes(const Numbers& complete_before, const Numbers& partial_before) {
    const Numbers now = complete(), filling = partial();
    for (const std::uint64_t v : complete_before) evicted_ += !now.contains(v);
    for (const std::uint64_t v : partial_before)
      evicted_ += !now.contains(v) && !filling.contains(v);
    for (const std::uint64_t v : partial_before) filled_ += now.contains(v);
  }

  // ---- events ----

  void publish_elsewhere() {
    const stdfs::path directory = dir_ / "checkpoint";
    stdfs::remove_all(directory);
    const HostTree tree = checkpoints_.next();
    for (const auto& [path, bytes] : tree) write_text(directory / path, bytes);
    PublishOptions options;
    options.directory = directory;
    options.wishes.snapshot = random(8) == 0;
    options.threads = 1;
    trees_[elsewhere_.publish(std::move(options)).version] = tree;
  }

  /// A partial version must be complete before it can be brought in: lets its threads continue.
  void open_tap(bool is_open_now) {
    is_tap_open_ = is_open_now;
    tap_->set_open(is_open_now);
  }

  void sync() {
    const auto catalog = host_->sync.catalog();
    const bool is_first = catalog->latest > 0 && !catalog->versions.contains(catalog->latest);
    const Numbers filling = partial();  // asked once: its threads may complete it meanwhile
    const bool waits = !is_first && !filling.empty() && *filling.rbegin() > catalog->latest;
    if (waits) open_tap(true);
    note_used();
    const Numbers before = complete();
    try {
      host_->sync.run_once(patience());
      synced_++;
      EXPECT_TRUE(is_first || host_->sync.catalog()->latest == trees_.rbegin()->first);
      if (!is_first && !before.contains(host_->sync.catalog()->latest)) check_bound();
    } catch (const Error& error) {
      EXPECT_TRUE(is_short()) << "sync: " << error.what();
    }
    if (waits) open_tap(false);
  }

  void publish_here() {
    if (is_short()) return;
    const std::string name = "own-" + std::to_string(published_here_ + 1);
    handed_over_ = checkpoints_.next();
    open_tap(true);
    note_used();
    is_locked_ = true;           // for part of the time
    actor_ = std::thread::id();  // the queue's thread, once it is known
    host_->hand_over(name, handed_over_);
    ASSERT_TRUE(eventually([&] { return host_->queue.list().empty(); })) << why_not_published();
    actor_ = main_;
    is_locked_ = false;
    const HandOverEnd end = host_->queue.ended().back();
    ASSERT_EQ(end.how, HandOverEnd::How::published) << end.error;
    published_here_++;
    check_bound();
    open_tap(false);
  }
  std::string why_not_published() {
    return host_->queue.list().empty() ? "" : host_->queue.list().front().error;
  }

  /// The bucket answers until all partial versions are complete.
  void fill_all() {
    open_tap(true);
    if (free_bytes_ > 0) {
      EXPECT_TRUE(eventually([&] { return partial().empty(); }))
          << testing::PrintToString(partial());
    }
    open_tap(false);
  }

  /// Like RoomAhead.
  void evict_ahead() {
    const std::uint64_t latest = host_->sync.catalog()->latest;
    const Numbers before = complete();
    host_->store->evictor().evict_ahead(latest);
    const Numbers now = complete();
    for (const std::uint64_t version : before) {
      EXPECT_TRUE(now.contains(version) || !keeps(version)) << version << " is used";
    }
    const auto found = before.find(latest);
    if (found == before.end() || found == before.begin()) return;
    EXPECT_TRUE(now.contains(latest));
    EXPECT_TRUE(now.contains(*std::prev(found))) << "the one before latest";
  }

  /// Like a caller that needs room for something else.
  void evict_one() {
    if (random(2) == 0) return evict_ahead();
    const std::uint64_t version = 1 + random(trees_.rbegin()->first);
    if (!host_->store->evictor().evict(version)) return;
    EXPECT_FALSE(keeps(version)) << version << " is used";
    for (const Reader& one : readers_) EXPECT_FALSE(one.reserved && one.version == version);
  }

  void change_luck() {
    if (is_short()) return end_bad_luck();
    if (random(3) == 0) {
      free_bytes_ = 0;
    } else {
      is_away_ = true;
      tap_->set_away(true);
    }
  }

  void end_bad_luck() {
    free_bytes_ = 100 * kGiB;
    is_away_ = false;
    tap_->set_away(false);
  }

  void restart() {
    end_bad_luck();  // starting without disk or bucket is tested elsewhere
    for (Reader& one : readers_) one = {};
    held_ = {};
    settle();
    was_complete_ = complete();
    host_.reset();
    if (random(6) == 0) {
      stores_++;  // a new store
      was_complete_.clear();
    }
    restarts_++;
    tap_->set_open(true);
    start();
  }

  // ---- readers and other holders of versions ----

  struct Reader {
    enum { idle, parked, open } state = idle;
    bool is_busy = false;
    std::uint64_t version = 0;
    std::string path = {};
    unsigned tries = 0;
    std::optional<Eviction::Reservation> reserved = {};
    bool was_here = false;                        // at the time of the reservation
    std::shared_ptr<PartialVersion> filled = {};  // read through this
    File file = {};
  };

  void read(Reader& one, Freedom freedom) {
    if (std::exchange(one.is_busy, true)) return;  // one of its own steps called others
    step_of(one, freedom);
    one.is_busy = false;
  }

  void step_of(Reader& one, Freedom freedom) {
    switch (one.state) {
      case Reader::idle:
        return begin_open(one);
      case Reader::parked:
        return freedom == Freedom::full ? go_on_opening(one) : reserve(one);
      case Reader::open:
        break;
    }
    if (random(5) == 0) {
      one = {};
    } else {
      read_piece(one);
    }
  }

  /// Like op_open() of fs/fuse/operations.cpp, after a lookup of the version.
  void begin_open(Reader& one) {
    const auto catalog = host_->sync.catalog();
    if (catalog->latest == 0 || random(3) == 0) return;
    const std::uint64_t version = choose_version(*catalog);
    if (!host_->sync.catalog()->find(version) && !name(version)) return;
    const auto reserved = host_->sync.try_reserve(version);
    if (reserved) use(version);
    const auto now = host_->sync.catalog();
    ASSERT_NE(now->find(version), nullptr) << "no such version: " << version;
    const HostTree& tree = trees_.at(version);
    one.version = version;
    one.path = std::next(tree.begin(), static_cast<std::ptrdiff_t>(random(tree.size())))->first;
    if (reserved && now->versions.contains(version)) return open(one, nullptr);
    const bool is_listed = reserved && now->incomplete.contains(version) &&
                           now->incomplete.at(version).state == ImageState::partial;
    auto filled = is_listed ? host_->sync.find_partial(version) : nullptr;
    if (filled) return open(one, std::move(filled));
    one.state = Reader::parked;
  }

  /// The version that is being evicted, if any; `latest`; or any version.
  std::uint64_t choose_version(const Catalog& catalog) {
    if (asked_ != 0 && random(3) == 0) return asked_;
    return random(3) == 0 ? catalog.latest : 1 + random(host_->sync.status().newest);
  }

  bool name(std::uint64_t version) {
    try {
      host_->sync.name_version(version, soon());
      return true;
    } catch (const Error& error) {
      EXPECT_TRUE(is_away_) << error.what();
      return false;
    }
  }

  /// The first step of a parked open.
  void reserve(Reader& one) {
    if (one.reserved) return;
    one.reserved = host_->sync.try_reserve(one.version);
    if (!one.reserved) return;
    use(one.version);
    one.was_here = complete().contains(one.version) || partial().contains(one.version);
  }

  void go_on_opening(Reader& one) {
    reserve(one);
    if (!one.reserved) return;
    const std::uint64_t version = one.version;
    std::shared_ptr<PartialVersion> filled;
    const bool is_begun = host_->sync.find_partial(version) != nullptr;
    try {
      note_used();
      filled = host_->sync.fill_version(version, patience());
    } catch (const Error& error) {
      const bool may_lack_room = error.code() == ErrorCode::no_space &&
                                 (GetParam() < 40 || about_to_be_ != 0 || free_bytes_ == 0);
      EXPECT_TRUE(is_short() || may_lack_room) << "open of " << version << ": " << error.what();
      without_room_++;
      if (++one.tries == 3) one = {};  // EIO
      return;
    }
    ASSERT_TRUE(host_->sync.catalog()->has_images(version)) << "no images of " << version;
    open(one, std::move(filled));
    one.reserved.reset();
    if (depth_ == 0 && one.filled && !is_begun) check_bound();
  }

  void open(Reader& one, std::shared_ptr<PartialVersion> filled) {
    if (filled && filled->is_here(one.path)) filled = nullptr;
    const stdfs::path path = images(one.version) / one.path;
    try {
      one.file = File::open(path, O_RDONLY);
    } catch (const Error& error) {
      ADD_FAILURE() << "open of " << one.version << "/" << one.path << ": " << error.what();
      return;
    }
    one.filled = std::move(filled);
    one.state = Reader::open;
    opened_++;
  }

  void read_piece(Reader& one) {
    const std::string& all = trees_.at(one.version).at(one.path);
    const std::uint64_t offset = random(all.size());
    const std::uint64_t size = 1 + random(std::min<std::uint64_t>(all.size() - offset, 9000));
    if (one.filled) {
      try {
        if (!one.filled->ask(one.path, offset, size, {})) return;  // asked again later
      } catch (const Error& error) {
        ADD_FAILURE() << "read of " << one.version << "/" << one.path << ": " << error.what();
        return;
      }
    }
    std::string got(size, '\0');
    const auto count = ::pread(one.file.fd(), got.data(), size, static_cast<off_t>(offset));
    EXPECT_TRUE(count == static_cast<ssize_t>(size) && all.compare(offset, size, got) == 0)
        << "wrong bytes of " << one.version << "/" << one.path << " at " << offset;
    reads_++;
  }

  /// Like `weightfs pin` and `unpin`: pins first, then looks.
  void pin() {
    if (free_bytes_ == 0) return;  // it could not be recorded
    const auto pinned = host_->pins.list();
    if (!pinned.empty() && random(5) == 0) {
      host_->pins.remove(pinned.begin()->first);
    } else if (pinned.size() < 2 && random(3) == 0) {
      const std::uint64_t version = 1 + random(trees_.rbegin()->first);
      host_->pins.add(version, 1);
      if (!host_->sync.catalog()->has_images(version)) host_->pins.remove(version);
    }
  }

  /// A hook, or a loader that was told `latest`: holds first, then looks again.
  void hold(std::uint64_t& held) {
    if (held != 0) {
      if (random(6) == 0) held = 0;
      return;
    }
    held = host_->sync.catalog()->latest;
    if (!host_->sync.catalog()->has_images(held)) held = 0;
  }

  // ---- invariants ----

  /// These hold even in the middle of a step.
  void check() {
    const auto catalog = host_->sync.catalog();
    EXPECT_GE(catalog->latest, latest_) << "latest went back, or away";
    latest_ = std::max(latest_, catalog->latest);
    EXPECT_TRUE(latest_ == 0 || catalog->has_images(latest_)) << "latest: " << latest_;
    EXPECT_TRUE(about_to_be_ == 0 || has_files(about_to_be_)) << "about to be " << about_to_be_;
    for (const auto& [version, shown] : catalog->versions) {
      EXPECT_TRUE(has_files(version)) << version << " is shown";
    }
    for (const auto& [version, shown] : catalog->incomplete) {
      EXPECT_TRUE(shown.state != ImageState::partial || has_files(version)) << version;
    }
    for (const Reader& one : readers_) {
      EXPECT_TRUE(one.state != Reader::open || has_files(one.version)) << one.version << " is open";
    }
    for (const Reader& one : readers_) {
      const bool must_be_here = one.reserved && one.was_here;
      EXPECT_TRUE(!must_be_here || has_files(one.version)) << one.version << " is reserved";
    }
    for (const std::uint64_t version : held_) {
      EXPECT_TRUE(version == 0 || has_files(version)) << version << " is held";
    }
    for (const auto& [version, time] : host_->pins.list()) {
      EXPECT_TRUE(has_files(version)) << version << " is pinned";
    }
  }

  [[nodiscard]] bool has_files(std::uint64_t version) const {
    const HostTree& tree = trees_.at(version);
    return std::all_of(tree.begin(), tree.end(), [&](const auto& file) {
      struct stat found {};
      return ::stat((images(version) / file.first).c_str(), &found) == 0 &&
             static_cast<std::size_t>(found.st_size) == file.second.size();
    });
  }

  /// Between two steps no actor is busy, except threads that wait for the bucket.
  void settle() {
    EXPECT_TRUE(eventually([&] {
      const Numbers filling = partial();
      if (filling.empty()) tap_->set_open(false);
      const bool all_whole =
          std::all_of(filling.begin(), filling.end(), [&](std::uint64_t version) {
            const auto filled = host_->sync.find_partial(version);
            return !filled || filled->is_complete();
          });
      if (free_bytes_ == 0) return all_whole || tap_->left() == 0;
      if (all_whole) return filling.empty();
      return tap_->left() == 0;
    }));
    // A recorded version is shown a moment later.
    EXPECT_TRUE(eventually([&] { return listed() == complete(); }))
        << testing::PrintToString(listed()) << " is listed, complete is "
        << testing::PrintToString(complete());
    EXPECT_TRUE(eventually([&] { return host_->sync.catalog()->latest >= latest_to_be(); }))
        << host_->sync.catalog()->latest << ", not " << latest_to_be();
  }

  [[nodiscard]] Numbers listed() const {
    Numbers numbers;
    const auto catalog = host_->sync.catalog();
    for (const auto& [version, shown] : catalog->versions) numbers.insert(version);
    return numbers;
  }
  /// The newest complete version, unless an older one was opened by name before the first is
  /// complete.
  [[nodiscard]] std::uint64_t latest_to_be() const {
    const Numbers here = complete();
    return std::max(latest_, here.empty() ? 0 : *here.rbegin());
  }

  void check_all() {
    check();
    if (checked_latest_ != latest_ && complete().contains(latest_)) {
      EXPECT_TRUE(read_tree(images(latest_)) == trees_.at(latest_)) << latest_;
      checked_latest_ = latest_;
    }
    const auto catalog = host_->sync.catalog();
    const auto some = std::next(trees_.begin(), static_cast<std::ptrdiff_t>(random(trees_.size())));
    if (catalog->versions.contains(some->first)) {
      EXPECT_TRUE(read_tree(images(some->first)) == some->second) << some->first;
    }
    check_disk();
    check_reservations();
  }

  /// The files on disk match the tables.
  void check_disk() {
    Numbers here = partial(), found;
    here.merge(complete());
    for (const auto& entry : stdfs::directory_iterator(host_->store->path() / "images")) {
      found.insert(std::stoull(entry.path().filename()));
    }
    EXPECT_EQ(found, here);
    if (partial().empty()) {
      EXPECT_TRUE(eventually([&] { return stdfs::is_empty(host_->store->temporary_directory()); }));
    }
    for (const char* const name : {"staging", "handover"}) {
      const stdfs::path directory = host_->store->path() / name;
      EXPECT_TRUE(!stdfs::exists(directory) || stdfs::is_empty(directory)) << name;
    }
  }

  /// Nothing stays reserved that is not in use.
  void check_reservations() {
    for (const auto& each : trees_) {
      const std::uint64_t version = each.first;
      EXPECT_TRUE(eventually([&] {
        return host_->store->eviction().stays(version) ==
               (version == host_->sync.catalog()->latest);
      })) << version;
      EXPECT_TRUE(eventually([&] {
        return may_be_reserved(version) || host_->store->eviction().leave(version).has_value();
      })) << version
          << " is still reserved";
    }
  }
  /// To be asked anew: who took the last answer of the bucket may complete its version only now,
  /// and `latest` moves there.
  [[nodiscard]] bool may_be_reserved(std::uint64_t version) const {
    if (version == host_->sync.catalog()->latest) return true;
    for (const std::uint64_t number : partial()) {
      if (number == version) return true;  // in case it is being recorded
      const auto filled = host_->sync.find_partial(number);
      if (filled && filled->plan().base && filled->plan().base->version->number() == version) {
        return true;
      }
    }
    return std::any_of(readers_.begin(), readers_.end(), [version](const Reader& one) {
      return one.reserved && one.version == version;
    });
  }

  /// After a version was brought in or begun: what counts is what is not in use, and what must
  /// stay.
  void check_bound() {
    std::vector<stdfs::path> counted;
    Numbers here = partial();
    here.merge(complete());
    for (const std::uint64_t version : here) {
      if (!used_.contains(version) || host_->store->eviction().stays(version)) {
        counted.push_back(images(version));
      }
    }
    EXPECT_LE(bytes_below(counted), limit()) << counted.size() << " versions";
  }

  TempDir dir_{memory_directory()};  // a disk would take long to sync
  Random rng_ = make_rng();
  ModelCheckpoints checkpoints_{rng_};
  std::shared_ptr<MemoryBucket> bucket_ = make_memory_repository();
  std::shared_ptr<TricklingBucket::Tap> tap_ = std::make_shared<TricklingBucket::Tap>();
  std::atomic<std::uint64_t> free_bytes_ = 100 * kGiB;
  Host elsewhere_{bucket_, dir_ / "elsewhere"};
  std::map<std::uint64_t, HostTree> trees_;  // published versions
  HostTree handed_over_;
  std::unique_ptr<ModelHost> host_;

  std::thread::id main_;
  std::atomic<std::thread::id> actor_;
  int depth_ = 0;
  bool is_locked_ = false, is_tap_open_ = false, is_away_ = false;
  std::uint64_t asked_ = 0;  // the version whose use is being asked about
  std::uint64_t latest_ = 0, about_to_be_ = 0, checked_latest_ = 0;
  std::array<Reader, kReaders> readers_;
  std::array<std::uint64_t, kHolders> held_{};
  Numbers used_, was_complete_;
  unsigned stores_ = 0, published_here_ = 0, synced_ = 0, filled_ = 0, evicted_ = 0, opened_ = 0,
           reads_ = 0, without_room_ = 0, restarts_ = 0;
};

TEST_P(HostModel, HoldsInRandomInterleavings) { run(number_from("WEIGHTFS_MODEL_STEPS", 800)); }

INSTANTIATE_TEST_SUITE_P(Rooms, HostModel, testing::Values(25, 35, 45, 0));

}  // namespace
}  // namespace weightfs::test
