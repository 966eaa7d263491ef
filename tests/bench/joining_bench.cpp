// What it costs to join, and to catch up, in bytes and requests, over the versions of a run.
//
//     weightfs_joining_bench [--params P] [--versions N] [--snapshot-every N] [--every N]
//                            [--bucket URL]
//
// A run as of reinforcement learning is made in memory: each weight takes a small random step, so
// that about 1.1 % of the bf16 values change in a version, mostly near those that changed before.
// It has the skip deltas of docs/FORMAT.md: from N - 8, from N - 64, and from the newest snapshot.
// At every N-th version a host without anything plans its way there, and so do hosts that are 1, 8,
// 64, ... versions behind, each with skips and without any.  What planning asks for is counted;
// packs and snapshots are counted as planned.  A row for each, in JSON, on standard output:
//
//     {"version": 64, "behind": 0, "skips": true, "hops": ..., "requests": ..., "bytes": ...,
//      "snapshot_requests": ..., "snapshot_bytes": ...}     behind 0: the host joins
//
// With --bucket the run is copied there, to an empty place, and read from there by the real client:
// a host that joins writes the version as files, one that is behind gets the packs.  Before each
// way a line {"begin": true} is printed, and a line is awaited: who started this counts what comes
// to the service from then on until the row, of which only "hops" is then measured here.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "store/base/bytes.hpp"
#include "store/materialize/plan.hpp"
#include "store/materialize/write_version.hpp"
#include "store/repository/open_bucket.hpp"
#include "store/repository/pieces.hpp"
#include "tests/support/random.hpp"
#include "tests/support/repository_builder.hpp"
#include "tests/support/watched_bucket.hpp"

namespace weightfs::test {
namespace {

constexpr std::uint64_t kFetchBytes = kPiecesPerFetch * kPieceBytes;

struct JoiningOptions {
  std::uint64_t params = 20'000'000, versions = 1000, every = 8, snapshot_every = 0;
  std::string bucket = {};  // a URL; empty: in memory
};

/// bf16 weights whose float32 masters walk at random.
class WalkingRun {
 public:
  explicit WalkingRun(std::uint64_t params) : masters_(params), moves_(params + kSlack) {
    std::normal_distribution<float> weights(0, 0.02F), moves(0, kStep);
    for (float& master : masters_) master = weights(rng_);
    for (float& move : moves_) move = moves(rng_);
  }

  [[nodiscard]] Tree tree() const {
    Bytes data(2 * masters_.size());
    for (std::size_t i = 0; i < masters_.size(); i++) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, &masters_[i], sizeof(bits));
      const auto rounded = static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
      std::memcpy(&data[2 * i], &rounded, sizeof(rounded));
    }
    return {{"model.safetensors",
             make_safetensors({{"w", Dtype::bf16, {masters_.size()}, std::move(data)}})}};
  }

  void step() {
    const std::size_t at = rng_() % kSlack;
    const float sign = rng_() % 2 == 0 ? 1.0F : -1.0F;
    for (std::size_t i = 0; i < masters_.size(); i++) masters_[i] += sign * moves_[at + i];
  }

 private:
  static constexpr std::size_t kSlack = 65536;
  static constexpr float kStep = 0.28e-6F;  // about 1.1 % of the values change

  Random rng_{5};
  std::vector<float> masters_, moves_;
};

struct JoiningCost {
  std::uint64_t hops = 0, requests = 0, bytes = 0, snapshot_requests = 0, snapshot_bytes = 0;
};

std::uint64_t fetches_of(std::uint64_t bytes) { return (bytes + kFetchBytes - 1) / kFetchBytes; }

class Joining {
 public:
  explicit Joining(const JoiningOptions& options) : options_(options), run_(options.params) {}

  void run() {
    for (std::uint64_t version = 1; version <= options_.versions; version++) {
      if (version > 1) run_.step();
      const bool is_snapshot =
          version == 1 || (options_.snapshot_every != 0 && version % options_.snapshot_every == 0);
      builder_.add(run_.tree(), {.snapshot = is_snapshot});
      add_skips(version);
      if (is_snapshot) snapshot_ = version;
      if (!options_.bucket.empty()) copy_out();
      forget_trees(version);
      if (version % options_.every == 0 || version <= options_.every) report(version);
    }
  }

 private:
  void add_skips(std::uint64_t to) {
    std::vector<std::uint64_t> froms;
    if (to % 8 == 0 && to > 8) froms.push_back(to - 8);
    if (to % 64 == 0 && to > 64) froms.push_back(to - 64);
    const bool is_there =
        std::find(froms.begin(), froms.end(), snapshot_) != froms.end() || snapshot_ + 2 > to;
    if (to % 16 == 0 && !is_there) froms.push_back(snapshot_);
    for (const std::uint64_t from : froms) builder_.add_skip({from, to});
  }

  void forget_trees(std::uint64_t newest) {
    for (std::uint64_t version = newest - std::min<std::uint64_t>(newest - 1, 72); version < newest;
         version++) {
      const bool is_needed = version == snapshot_ || (version % 8 == 0 && version + 8 >= newest) ||
                             (version % 64 == 0 && version + 64 >= newest);
      if (!is_needed) builder_.forget_tree(version);
    }
  }

  void report(std::uint64_t version) {
    for (const std::uint64_t behind : {0, 1, 2, 4, 8, 16, 32, 63, 64, 100, 128, 256, 512, 999}) {
      if (behind >= version) break;
      for (const bool skips : {true, false}) {
        const JoiningCost cost = cost_of(version, behind, skips);
        fmt::print(
            "{{\"version\": {}, \"behind\": {}, \"skips\": {}, \"hops\": {}, \"requests\": {}, "
            "\"bytes\": {}, \"snapshot_requests\": {}, \"snapshot_bytes\": {}}}\n",
            version, behind, skips, cost.hops, cost.requests, cost.bytes, cost.snapshot_requests,
            cost.snapshot_bytes);
      }
    }
    std::fflush(stdout);
  }

  /// Of a host that has seen nothing, or the version that it is behind at, and nothing since.
  JoiningCost cost_of(std::uint64_t version, std::uint64_t behind, bool skips) {
    const bool is_memory = options_.bucket.empty();
    const auto repository =
        is_memory ? builder_.open() : Repository::open(open_bucket(options_.bucket, false), {});
    History history(*repository, nullptr);
    std::vector<Base> bases;
    if (behind > 0) bases.push_back(base(history, version - behind));
    if (!is_memory) await_count();
    const MemoryBucket& bucket = *builder_.bucket();
    const std::uint64_t gets = bucket.calls(), read = bucket.bytes_read();
    history.refresh(version - std::max<std::uint64_t>(behind, 1), {});
    const PlanOptions options{.skips = skips ? SkipUse::allowed : SkipUse::none};
    const Plan plan = make_plan(history, history.get(version, {}), bases, {}, options);
    if (!is_memory) {
      fetch(plan, *repository);
      return {.hops = plan.steps.size()};
    }
    JoiningCost cost{plan.steps.size(), bucket.calls() - gets, bucket.bytes_read() - read};
    for (const Step& step : plan.steps) {
      for (const PackRef& pack : step.delta().packs) {
        cost.requests += fetches_of(pack.size_bytes - pack.head_bytes);
        cost.bytes += pack.size_bytes - pack.head_bytes;
      }
    }
    if (!plan.snapshot) return cost;
    for (const LayoutFile& file : plan.snapshot->layout->files()) {
      cost.snapshot_requests += fetches_of(file.size_bytes);
      cost.snapshot_bytes += file.size_bytes;
    }
    return cost;
  }

  /// What is not there yet.
  void copy_out() {
    const auto bucket = open_bucket(options_.bucket, true);
    for (const auto& [key, bytes] : builder_.bucket()->objects()) {
      if (copied_.insert(key).second) bucket->put(key, TextSource(bytes), {});
    }
  }

  static void await_count() {
    fmt::print("{{\"begin\": true}}\n");
    std::fflush(stdout);
    for (int c = std::getchar(); c != '\n' && c != EOF;) c = std::getchar();
  }

  /// What a plan names: of a host that joins as files, else only the packs, since the base is none.
  static void fetch(const Plan& plan, Repository& repository) {
    if (plan.snapshot) {
      const TempDir directory;
      WriteOptions options;
      options.directory = directory / "files";
      options.spool = directory.path();
      options.sync = false;
      std::filesystem::create_directories(options.directory);
      return write_version(plan, repository, options, {}, {});
    }
    for (const Step& step : plan.steps) {
      const auto packs = step.delta().packs;
      for (std::size_t i = 0; i < packs.size(); i++) {
        for (std::uint64_t at = packs[i].head_bytes; at < packs[i].size_bytes; at += kFetchBytes) {
          Bytes bytes(std::min(kFetchBytes, packs[i].size_bytes - at));
          (void)repository.bucket({}).get(step.pack_key(i), at, bytes, {});
        }
      }
    }
  }

  Base base(History& history, std::uint64_t version) {
    Base base;
    base.version = history.get(version, {});
    base.layout = history.layout(*base.version, {});
    base.hashes = builder_.hashes(version);
    return base;
  }

  const JoiningOptions options_;
  WalkingRun run_;
  RepositoryBuilder builder_;
  std::uint64_t snapshot_ = 0;
  std::set<std::string> copied_;
};

JoiningOptions parse(int argc, char** argv) {
  JoiningOptions options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const std::uint64_t value = std::strtoull(argv[i + 1], nullptr, 10);
    if (name == "--params") options.params = value;
    if (name == "--versions") options.versions = value;
    if (name == "--every") options.every = value;
    if (name == "--snapshot-every") options.snapshot_every = value;
    if (name == "--bucket") options.bucket = argv[i + 1];
  }
  return options;
}

}  // namespace
}  // namespace weightfs::test

int main(int argc, char** argv) {
  weightfs::test::Joining(weightfs::test::parse(argc, argv)).run();
  return 0;
}
