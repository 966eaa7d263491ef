// A host's history checked against plain copies: another host publishes versions that change a
// little, wholly, come back, or have other tensors; this host follows them, opens any version by
// name, rolls back to it, loses the bucket, runs out of disk, restarts, and is killed.
//
// A run is a chain of sessions, each a process of its own (this program again), because a session
// may end by SIGKILL at any moment:
//
//     test      starts sessions until the operations are done, and adds up what they count
//     session   opens bucket and store, finds out what the last one has left, goes on at random
//
// What is promised (docs/SEMANTICS.md): a version that opens has its bytes; what patches lead to
// opens without the bucket; `latest` never goes back, whatever happened in between.
//
// $WEIGHTFS_HISTORY_SEED: another run; $WEIGHTFS_HISTORY_STEPS: a longer one (scripts/soak.sh).

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "store/base/error.hpp"
#include "store/bucket/dir_bucket.hpp"
#include "store/os/child_process.hpp"
#include "store/os/file.hpp"
#include "store/patches/patch_path.hpp"
#include "store/publish/publish.hpp"
#include "store/sync/sync.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/hosts.hpp"
#include "tests/support/random.hpp"
#include "tests/support/sanitized.hpp"

namespace weightfs::test {
namespace {

namespace stdfs = std::filesystem;
using HostTree = std::map<std::string, std::string>;

constexpr const char* kSessionVariable = "WEIGHTFS_HISTORY_SESSION";  // "SEED DIRECTORY HOME"
constexpr std::uint64_t kStepsOfSession = 60;
constexpr std::chrono::milliseconds kRecordTime{500};

Context patience() { return Context{}.within(std::chrono::seconds(30)); }

// ---- what both processes see ----

/// What all sessions did, and what they must not forget; in memory that the processes share.
struct Counts {
  std::atomic<std::uint64_t> steps, sessions, kills, published, back, new_tables, followed, opened,
      from_patches, offline, offline_starts, unreachable, full, spans_seen, folded_seen,
      rolled_back, rolled_back_here, rolled_back_by_patches;
  std::atomic<std::uint64_t> latest;  // highest that was shown
  std::atomic<bool> is_on_disk;       // one was: without it a start without the bucket has nothing
};

class SharedCounts {
 public:
  explicit SharedCounts(const stdfs::path& path) : file_(File::open(path, O_RDWR | O_CREAT, 0600)) {
    if (::ftruncate(file_.fd(), sizeof(Counts)) != 0) throw Error(ErrorCode::io, "ftruncate");
    void* mapped =
        ::mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED, file_.fd(), 0);
    if (mapped == MAP_FAILED) throw Error(ErrorCode::io, "mmap");
    counts_ = static_cast<Counts*>(mapped);
  }
  SharedCounts(const SharedCounts&) = delete;
  SharedCounts& operator=(const SharedCounts&) = delete;
  ~SharedCounts() { ::munmap(counts_, sizeof(Counts)); }

  Counts* operator->() const noexcept { return counts_; }

 private:
  File file_;
  Counts* counts_ = nullptr;
};

/// A directory bucket that can be out of reach, and counts what is read of packs and snapshots.
class LeashedBucket final : public Bucket {
 public:
  struct Leash {
    std::atomic<bool> is_away = false;
    std::atomic<std::uint64_t> data_reads = 0;
  };

  LeashedBucket(const stdfs::path& root, std::shared_ptr<Leash> leash)
      : bucket_(root, false), leash_(std::move(leash)) {}

  std::size_t get(std::string_view key, std::uint64_t offset_bytes, std::span<std::byte> into,
                  const Context& context) override {
    check(key);
    if (key.starts_with("packs/") || key.starts_with("snapshots/")) leash_->data_reads++;
    return bucket_.get(key, offset_bytes, into, context);
  }
  void put(std::string_view key, const Source& source, const Context& context) override {
    check(key);
    bucket_.put(key, source, context);
  }
  Put put_if_absent(std::string_view key, std::string_view bytes, const Context& context) override {
    check(key);
    return bucket_.put_if_absent(key, bytes, context);
  }
  std::vector<ObjectInfo> list_objects(std::string_view prefix, std::string_view after,
                                       const Context& context) override {
    check(prefix);
    return bucket_.list_objects(prefix, after, context);
  }
  Time now(const Context& context) override {
    check("now");
    return bucket_.now(context);
  }
  void remove(std::string_view key, const Context& context) override {
    check(key);
    bucket_.remove(key, context);
  }
  [[nodiscard]] const std::string& url() const noexcept override { return bucket_.url(); }

 private:
  void check(std::string_view key) const {
    if (!leash_->is_away) return;
    throw Error(ErrorCode::unavailable, fmt::format("object {}: out of reach", key));
  }

  DirBucket bucket_;
  std::shared_ptr<Leash> leash_;
};

// ---- checkpoints ----

/// Where the tensors of a file begin.
std::size_t data_begin(const std::string& file) {
  std::uint64_t header = 0;
  std::memcpy(&header, file.data(), sizeof header);
  return sizeof header + static_cast<std::size_t>(header);
}

/// Changes about `share` of a file's bf16 elements by one unit in the last place.
void nudge_file(std::string& file, double share, Random& rng) {
  const std::size_t begin = data_begin(file), elements = (file.size() - begin) / 2;
  const auto changes = static_cast<std::size_t>(static_cast<double>(elements) * share) + 1;
  for (std::size_t i = 0; i < changes; i++) {
    char& low = file[begin + 2 * (rng() % elements)];
    low = static_cast<char>(low ^ 1);
  }
}

/// Trainers write the step into the header, so that every version has a layout of its own.
void set_step(std::string& file, std::uint64_t step) {
  constexpr std::string_view kBefore = R"("step":")";
  const std::size_t found = file.find(kBefore);
  if (found == std::string::npos) throw Error(ErrorCode::corrupt, "a header without a step");
  file.replace(found + kBefore.size(), 6, fmt::format("{:06}", step % 1'000'000));
}

HostTree new_checkpoint(Random& rng) {
  HostTree tree;
  const std::uint64_t files = 1 + rng() % 3;
  for (std::uint64_t i = 0; i < files; i++) {
    std::vector<TestTensor> tensors;
    for (std::uint64_t k = 0; k <= rng() % 3; k++) {
      const std::size_t elements = 500 + rng() % 6000;
      tensors.push_back(
          {fmt::format("layer.{}.{}", i, k), Dtype::bf16, {elements}, random_bf16(elements, rng)});
    }
    tree[fmt::format("model-{}.safetensors", i)] = make_safetensors(tensors, {{"step", "000000"}});
  }
  tree["config.json"] = fmt::format("{{\"run\": {}}}", rng() % 1000);
  return tree;
}

// ---- a session ----

class Session {
 public:
  Session(std::uint64_t seed, const stdfs::path& directory, bool is_memory)
      : rng_(seed),
        dir_(directory),
        is_memory_(is_memory),
        counts_(directory / "counts"),
        publisher_(Repository::open(url(), patience()), directory / "publisher") {
    const std::uint64_t newest = publisher_.history.refresh(0, patience());
    for (std::uint64_t n = 1; n <= newest; n++) learn(n);
  }

  void run() {
    counts_->sessions++;
    std::optional<std::jthread> killer;
    if (chance(2)) killer.emplace([this, after = rng_() % 250'000] { kill_after(after); });
    if (newest() == 0) publish();
    start(chance(8));
    for (std::uint64_t i = 0; i < kStepsOfSession && !testing::Test::HasFailure(); i++) {
      SCOPED_TRACE(fmt::format("step {}", i));
      step();
      if (!host_->store->images().versions_on_disk().empty()) counts_->is_on_disk = true;
      counts_->steps++;
    }
    note_patches();
    stop();
    if (killer) killer.reset();
  }

 private:
  [[nodiscard]] std::string url() const { return "file://" + (dir_ / "bucket").string(); }
  [[nodiscard]] stdfs::path copy_of(const std::string& tag) const { return dir_ / "plain" / tag; }
  [[nodiscard]] std::uint64_t newest() const { return tags_.empty() ? 0 : tags_.rbegin()->first; }
  [[nodiscard]] bool chance(std::uint64_t one_of) { return rng_() % one_of == 0; }

  /// A random point of what goes on: no wait for anything.
  void kill_after(std::uint64_t microseconds) {
    const auto until = Clock::now() + std::chrono::microseconds(microseconds);
    while (Clock::now() < until) {
      if (is_over_) return;
      std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
    counts_->kills++;
    static_cast<void>(::kill(::getpid(), SIGKILL));
  }

  void learn(std::uint64_t version) {
    tags_[version] = publisher_.history.get(version, patience())->manifest.tag;
  }

  // ---- the host ----

  /// `is_offline`: it has no bucket until it starts again.
  void start(bool is_offline) {
    leash_->is_away = has_no_bucket_ = is_offline;
    counts_->offline_starts += is_offline;
    auto bucket = std::make_unique<LeashedBucket>(dir_ / "bucket", leash_);
    const std::string nowhere = "file://" + (dir_ / "no-bucket").string();
    auto repository = is_offline ? Repository::assume(nowhere, publisher_.repository->id())
                                 : Repository::open(std::move(bucket), patience());
    // Room for some of the largest versions that new_checkpoint() makes.
    const StoreLimits limits{(3 + rng_() % 4) * 120'000, 0};
    host_.emplace(std::move(repository), dir_ / "host", limits, [this] {
      return Space{is_full_ ? 0 : 1ull << 40, 1ull << 41};
    });
    if (is_memory_) host_->store->use_memory([] { return std::optional<MemoryRoom>(); });
    SyncOptions options;
    options.partial = true;
    options.with_absent = true;
    options.follow.poll = {std::chrono::milliseconds(2), false};
    sync_.emplace(*host_->store, host_->history, std::move(options));
    sync_->start();
    if (is_offline && !counts_->is_on_disk) return;
    sync_->wait_ready(patience(), {});
    if (!is_offline) return follow();
    // It may have been shown before its patches were taken, and is then only in the bucket.
    const std::uint64_t shown = sync_->catalog()->latest;
    if (shown > 0 && sync_->catalog()->versions.contains(shown)) check_bytes(shown);
  }

  void restart(bool is_offline) {
    sync_.reset();
    host_.reset();
    is_full_ = false;
    start(is_offline);
  }

  /// The host has its bucket, and room.
  void be_online() {
    leash_->is_away = is_full_ = false;
    if (has_no_bucket_) restart(false);
  }

  void stop() {
    sync_.reset();
    host_.reset();
    is_over_ = true;
  }

  void step() {
    const std::uint64_t what = rng_() % 100;
    if (what < 27) {
      publish();
    } else if (what < 30) {
      const std::uint64_t near = std::min<std::uint64_t>(newest(), 10);
      roll_back(chance(2) ? 1 + rng_() % newest() : newest() - rng_() % near);
    } else if (what < 50) {
      follow();
    } else if (what < 85) {
      open(1 + rng_() % newest());
    } else if (what < 93) {
      leash_->is_away ? be_online() : lose_bucket();
    } else if (what < 96) {
      is_full_ = !is_full_;
      counts_->full += is_full_;
    } else if (what < 98) {
      restart(chance(4));
    } else {
      open_all_of_history();
    }
  }

  void lose_bucket() { leash_->is_away = true; }

  // ---- operations ----

  void publish() {
    const std::string tag = fmt::format("t-{}", random_hex(8));
    const HostTree tree = next_checkpoint();
    for (const auto& [path, bytes] : tree) write_text(copy_of(tag) / path, bytes);
    PublishOptions options;
    options.directory = copy_of(tag);
    options.wishes.tag = tag;
    options.wishes.snapshot = chance(20);
    options.threads = 1;
    tags_[publisher_.publish(std::move(options), patience()).version] = tag;
    counts_->published++;
  }

  /// As the command does it: from another host (`rollback URL`), or from this one, whose patches
  /// may lead there, while it goes on following (`rollback MOUNTPOINT`).
  void roll_back(std::uint64_t version) {
    const std::string tag = fmt::format("t-{}", random_hex(8));
    for (const auto& [path, bytes] : plain(version)) write_text(copy_of(tag) / path, bytes);
    PublishOptions options;
    options.wishes.tag = tag;
    options.wishes.rollback = version;
    options.threads = 1;
    const bool is_here = chance(2);
    if (is_here) follow();
    if (is_here && chance(2)) keep_newest_and_patches();
    Host& host = is_here ? *host_ : publisher_;
    const bool was_here = host.store->images().is_complete(version);
    const std::uint64_t reads = leash_->data_reads;
    std::uint64_t reads_coded = 0;  // when it comes, this host reads what was made of it
    options.at = [&](std::string_view point) {
      if (point == "diffed") reads_coded = leash_->data_reads;
    };
    const PublishResult result = host.publish(std::move(options), patience());
    ASSERT_TRUE(result.rollback);
    EXPECT_EQ(result.version, newest() + 1);
    tags_[result.version] = tag;
    counts_->rolled_back++;
    counts_->rolled_back_here += is_here;
    const bool has_changes = result.rollback->patched + result.rollback->other > 0;
    counts_->rolled_back_by_patches += is_here && !was_here && has_changes && reads == reads_coded;
  }

  /// As if the store had room for one version, besides the base of those in memory: without it a
  /// restart has nothing.
  void keep_newest_and_patches() {
    // Until patches lead to it; there may be none of dense changes, so not for long.
    const auto until = Clock::now() + kRecordTime;
    while (Clock::now() < until && sync_->status().history.recorded != newest()) {
      std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
    for (const std::uint64_t version : host_->store->images().complete_versions()) {
      const bool stays = version == newest() || version == host_->store->images().base_version();
      if (!stays) static_cast<void>(host_->store->evictor().evict(version));
    }
  }

  HostTree next_checkpoint() {
    if (newest() == 0) return new_checkpoint(rng_);
    const std::uint64_t what = rng_() % 100;
    if (what < 3) {
      counts_->new_tables++;
      return new_checkpoint(rng_);
    }
    if (what < 10) {
      counts_->back++;
      return plain(1 + rng_() % newest());
    }
    HostTree tree = plain(newest());
    const double share = what < 15 ? 0.6 : 0.01;
    for (auto& [path, bytes] : tree) {
      if (path.ends_with(".json")) continue;
      if (!chance(4)) nudge_file(bytes, share, rng_);
      if (chance(8)) set_step(bytes, rng_());
    }
    if (chance(5)) tree["config.json"] = fmt::format("{{\"run\": {}}}", rng_() % 1000);
    return tree;
  }

  HostTree plain(std::uint64_t version) { return read_tree(copy_of(tags_.at(version))); }

  /// Until `latest` is the newest version.
  void follow() {
    be_online();
    ASSERT_TRUE(eventually([this] { return sync_->catalog()->latest == newest(); }))
        << "latest is " << sync_->catalog()->latest << " of " << newest() << ": "
        << sync_->status().error;
    ASSERT_GE(newest(), counts_->latest);
    counts_->latest = newest();
    check_bytes(newest());
    counts_->followed++;
  }

  void check_bytes(std::uint64_t version) {
    const auto reserved = sync_->reserve(version, patience());
    const auto found = sync_->catalog()->versions;
    const auto here = found.find(version);
    if (here == found.end()) return;  // evicted before it was reserved
    ASSERT_EQ(read_tree(here->second->directory), plain(version)) << "version " << version;
  }

  /// Patches lead to it from a complete image here, and its small files are here too: those of a
  /// version whose images went before its patches were written are not.
  [[nodiscard]] bool is_promised(std::uint64_t version) {
    const auto spans = host_->store->patches().list();
    const auto here = host_->store->images().complete_versions();
    const PatchVersion wanted = named(version);
    const bool is_led_to = std::any_of(here.begin(), here.end(), [&](std::uint64_t image) {
      return find_path(spans, named(image), wanted).has_value();
    });
    const auto& blobs = publisher_.history.get(version, patience())->manifest.blobs;
    return is_led_to && std::all_of(blobs.begin(), blobs.end(), [&](const BlobRef& blob) {
             return stdfs::exists(host_->store->small_files().path_of(blob.sha256)) ||
                    std::all_of(here.begin(), here.end(),
                                [&](std::uint64_t image) { return has_blob(image, blob); });
           });
  }
  [[nodiscard]] PatchVersion named(std::uint64_t version) {
    return {version, publisher_.history.get(version, patience())->manifest_sha256};
  }
  [[nodiscard]] bool has_blob(std::uint64_t version, const BlobRef& wanted) {
    const auto& blobs = publisher_.history.get(version, patience())->manifest.blobs;
    return std::any_of(blobs.begin(), blobs.end(), [&](const BlobRef& blob) {
      return blob.path == wanted.path && blob.sha256 == wanted.sha256;
    });
  }

  void open(std::uint64_t version) {
    const bool is_promised_before = is_promised(version);
    const bool was_here = host_->store->images().is_complete(version);
    const std::uint64_t reads = leash_->data_reads;
    try {
      const auto reserved = sync_->reserve(version, patience());
      sync_->name_version(version, patience());
      const auto filled = sync_->fill_version(version, patience());
      if (filled) filled->wait_complete(patience());
      check_bytes(version);
      counts_->opened++;
      counts_->offline += leash_->is_away && !was_here;
      counts_->from_patches += is_promised_before && !was_here && reads == leash_->data_reads;
    } catch (const Error& error) {
      counts_->unreachable++;
      if (is_full_) return;
      EXPECT_TRUE(leash_->is_away) << "version " << version << ": " << error.what();
      // They may have been folded, or their images have gone, while it was opened.
      const bool is_still = is_promised_before && is_promised(version);
      EXPECT_FALSE(is_still) << "version " << version << ": " << error.what();
    }
  }

  /// Whatever patches lead to, without the bucket.
  void open_all_of_history() {
    is_full_ = false;
    lose_bucket();
    for (std::uint64_t n = newest(); n > 0 && newest() - n < 64; n--) {
      if (is_promised(n)) open(n);
    }
    leash_->is_away = has_no_bucket_;
  }

  void note_patches() {
    for (const SpanInfo& span : host_->store->patches().list()) {
      counts_->spans_seen++;
      counts_->folded_seen += span.ends.level != PatchLevel::one;
    }
  }

  Random rng_;
  const stdfs::path dir_;
  const bool is_memory_;
  SharedCounts counts_;
  Host publisher_;
  std::map<std::uint64_t, std::string> tags_;  // of versions, which name their plain copies
  std::shared_ptr<LeashedBucket::Leash> leash_ = std::make_shared<LeashedBucket::Leash>();
  std::atomic<bool> is_full_ = false, is_over_ = false;
  bool has_no_bucket_ = false;
  std::optional<Host> host_;
  std::optional<Sync> sync_;
};

/// Only as a process of its own.
TEST(HistoryModelSession, Runs) {
  const char* given = std::getenv(kSessionVariable);
  if (given == nullptr) GTEST_SKIP() << "HistoryModel starts it";
  const std::vector<std::string> words = split_command(given);
  ASSERT_EQ(words.size(), 3U);
  const std::string log = words[1] + "/log";  // what is there when the time is over, too
  ASSERT_NE(std::freopen(log.c_str(), "w", stdout), nullptr);
  ASSERT_GE(::dup2(::fileno(stdout), STDERR_FILENO), 0);
  Session(std::strtoull(words[0].c_str(), nullptr, 10), words[1], words[2] == "memory").run();
}

// ---- the test ----

class HistoryModel : public testing::TestWithParam<const char*> {
 protected:
  /// Files that no power cut will meet: in memory, if there is room.
  static stdfs::path fast_directory() {
    const stdfs::path memory = "/dev/shm";
    std::error_code failed;
    const auto space = stdfs::space(memory, failed);
    const bool has_room = !failed && space.available > (1u << 30);
    return has_room ? memory : stdfs::temp_directory_path();
  }

  void run(std::uint64_t steps) {
    const std::uint64_t seed = number_from("WEIGHTFS_HISTORY_SEED", std::random_device{}());
    std::printf("WEIGHTFS_HISTORY_SEED=%llu\n", static_cast<unsigned long long>(seed));
    bool created = false;
    Repository::init("file://" + (dir_ / "bucket").string(), created, patience());
    for (std::uint64_t i = 0; counts_->steps < steps; i++) {
      ASSERT_NO_FATAL_FAILURE(run_session(seed + i));
    }
  }

  void run_session(std::uint64_t seed) {
    ChildPlan plan;
    plan.argv = {"/proc/self/exe", "--gtest_filter=HistoryModelSession.Runs"};
    plan.environment = {
        {fmt::format("{}={} {} {}", kSessionVariable, seed, dir_.path().string(), GetParam()),
         "PATH=/usr/bin:/bin"}};
    ChildEnd end;
    try {
      end = run_child_process(plan, Context{}.within(std::chrono::seconds(180)));
    } catch (const Error& error) {
      end.exit_code = 1;
      ADD_FAILURE() << error.what();
    }
    ASSERT_TRUE(end.ok() || end.signal == SIGKILL) << "session " << seed << ":\n"
                                                   << read_text(dir_ / "log");
  }

  void tell() const {
    std::printf(
        "%llu steps in %llu sessions, %llu killed: %llu versions (%llu came back, %llu with other "
        "tensors), %llu times followed; opened by name %llu, of patches alone %llu, offline %llu, "
        "refused %llu; %llu starts offline, %llu times full; %llu rollbacks, %llu of them here, "
        "%llu "
        "by patches alone\n",
        of(counts_->steps), of(counts_->sessions), of(counts_->kills), of(counts_->published),
        of(counts_->back), of(counts_->new_tables), of(counts_->followed), of(counts_->opened),
        of(counts_->from_patches), of(counts_->offline), of(counts_->unreachable),
        of(counts_->offline_starts), of(counts_->full), of(counts_->rolled_back),
        of(counts_->rolled_back_here), of(counts_->rolled_back_by_patches));
  }
  static unsigned long long of(const std::atomic<std::uint64_t>& count) { return count.load(); }

  TempDir dir_{fast_directory()};
  SharedCounts counts_{dir_ / "counts"};
};

TEST_P(HistoryModel, EveryVersionThatOpensHasItsBytes) {
  // A step costs more, the longer its history is.
  const std::uint64_t steps = number_from("WEIGHTFS_HISTORY_STEPS", kSanitized ? 200 : 1000);
  run(steps);
  tell();
  if (HasFailure() || kSanitized) return;  // 200 are too few to have met all of it
  EXPECT_GT(counts_->kills, steps / 1000);
  EXPECT_GT(counts_->followed, steps / 20);
  EXPECT_GT(counts_->opened, steps / 20);
  EXPECT_GT(counts_->from_patches, steps / 100) << "the history was not used";
  EXPECT_GT(counts_->offline, steps / 200);
  EXPECT_GT(counts_->folded_seen, 0U) << "nothing was folded";
  EXPECT_GT(counts_->rolled_back, steps / 100);
  EXPECT_GE(counts_->rolled_back_by_patches, steps / 5000);
}

INSTANTIATE_TEST_SUITE_P(Homes, HistoryModel, testing::Values("disk", "memory"),
                         [](const auto& one) { return std::string(one.param); });

}  // namespace
}  // namespace weightfs::test
