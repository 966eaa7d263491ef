// Four hosts publish versions in parts and are killed at random, round after round; every version
// is read back and compared with what exactly one run had.  A separate program, since a test that
// has threads cannot fork: it has none itself, and each host is a child process.
//
//     weightfs_kill_parts URL DIRECTORY SEED ROUNDS
//
// A round is a step of a trainer.  In some another run of the same step races it, with another
// token.  A host is killed (SIGKILL) at a named point by itself, or at any moment by its pid, and
// started again, with its store as it was.  Exit status 0: all is well; else stderr says what not.
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/error.hpp"
#include "store/base/json.hpp"
#include "store/materialize/materialize.hpp"
#include "store/publish/publish_part.hpp"
#include "store/publish/publish_store.hpp"
#include "tests/support/random.hpp"
#include "tests/support/support.hpp"

namespace weightfs::test {
namespace {

using Files = std::map<std::string, std::string>;

constexpr unsigned kHosts = 4;
constexpr unsigned kKillsMax = 3;  // of one host in a round
constexpr std::array kPoints{"scanned",       "parent",    "diffed",  "claimed",  "pack",
                             "part-objects",  "part",      "waiting", "complete", "united",
                             "before-commit", "committed", "removed"};

[[noreturn]] void fail(const std::string& message) {
  std::fprintf(stderr, "%s\n", message.c_str());
  std::exit(1);
}

/// One start of the trainer at one step.
struct Run {
  std::string name;  // of its stores
  std::string token, tag;
  std::uint64_t salt = 0;  // decides its bytes
  std::size_t width = 0;   // elements of a tensor
  bool snapshot = false, rebase = true;

  [[nodiscard]] std::string shard(unsigned part) const {
    return fmt::format("model-{:05}-of-{:05}.safetensors", part, kHosts);
  }

  [[nodiscard]] Files files_of(unsigned part) const {
    Random rng(salt * 31 + part);
    std::vector<TestTensor> tensors;
    for (const char* tensor : {"a", "b"}) {
      tensors.push_back(
          {fmt::format("layer{}.{}", part, tensor), Dtype::bf16, {width}, random_bf16(width, rng)});
    }
    Files files{{shard(part), make_safetensors(tensors)}};
    if (part == 1) files["config.json"] = fmt::format("{{\"salt\": {}}}", salt);
    return files;
  }

  /// All files of the version, with the index that whoever commits makes.
  [[nodiscard]] Files whole() const {
    Files all;
    Json map = Json::object();
    for (unsigned part = 1; part <= kHosts; part++) {
      all.merge(files_of(part));
      for (const char* tensor : {"a", "b"}) {
        map[fmt::format("layer{}.{}", part, tensor)] = shard(part);
      }
    }
    const Json index{{"metadata", {{"total_size", kHosts * 2 * 2 * width}}}, {"weight_map", map}};
    all["model.safetensors.index.json"] = index.dump(2) + "\n";
    return all;
  }
};

class Rounds {
 public:
  Rounds(std::string url, std::filesystem::path directory, std::uint64_t seed)
      : url_(std::move(url)), directory_(std::move(directory)), rng_(seed) {}

  void run(unsigned rounds) {
    for (round_ = 1; round_ <= rounds; round_++) play();
    std::printf("%u rounds, %llu versions, %u kills, %u races, %u races lost\n", rounds,
                static_cast<unsigned long long>(version_), kills_, races_, lost_);
  }

 private:
  /// A process of one host of a run.
  struct Worker {
    const Run* run = nullptr;
    unsigned part = 0;
    unsigned kills_left = 0;
    pid_t pid = 0;  // 0: it is done
    std::chrono::steady_clock::time_point killed_at = std::chrono::steady_clock::time_point::max();
    bool is_ok = false;
  };

  bool chance(unsigned percent) { return rng_() % 100 < percent; }

  void play() {
    std::vector<Run> runs(1);
    Run& first = runs.front();
    const bool is_changed = chance(5);
    if (is_changed) width_ = 40 + rng_() % 200;
    first = {"first",
             fmt::format("run-a-{}", round_),
             fmt::format("step-{}", round_),
             rng_(),
             width_,
             is_changed || chance(10),
             true};
    if (!is_changed && chance(25)) {
      Run second = first;
      second.name = "second";
      second.token = fmt::format("run-b-{}", round_);
      second.salt = rng_();
      second.rebase = chance(50);
      runs.push_back(second);
      races_++;
    }
    publish(runs);
    compare(runs);
  }

  void publish(const std::vector<Run>& runs) {
    std::vector<Worker> workers;
    for (const Run& run : runs) {
      for (unsigned part = 1; part <= kHosts; part++) {
        write(run, part);
        workers.push_back({&run, part, chance(60) ? kKillsMax : 0});
      }
    }
    for (Worker& worker : workers) start(worker);
    while (is_wanted(workers)) {
      reap(workers);
      kill_due(workers);
      ::usleep(300);
    }
    // A run that lost may wait for parts that will never come.
    for (Worker& worker : workers) {
      if (worker.pid == 0) continue;
      ::kill(worker.pid, SIGKILL);
      ::waitpid(worker.pid, nullptr, 0);
    }
  }

  /// Runs that follow whatever is the newest must all end.
  static bool is_wanted(const std::vector<Worker>& workers) {
    for (const Worker& worker : workers) {
      if (worker.pid != 0 && worker.run->rebase) return true;
    }
    return false;
  }

  [[nodiscard]] std::filesystem::path place(const Run& run, unsigned part, const char* what) const {
    return directory_ / run.name / fmt::format("{}-{}", what, part);
  }

  void write(const Run& run, unsigned part) const {
    std::filesystem::remove_all(place(run, part, "files"));
    for (const auto& [path, bytes] : run.files_of(part)) {
      write_text(place(run, part, "files") / path, bytes);
    }
  }

  void start(Worker& worker) {
    std::string point;
    worker.killed_at = std::chrono::steady_clock::time_point::max();
    unsigned passes = 0;
    if (worker.kills_left > 0) {
      worker.kills_left--;
      if (chance(60)) {
        point = kPoints[rng_() % kPoints.size()];
        passes = rng_() % 2;
      } else {
        worker.killed_at =
            std::chrono::steady_clock::now() + std::chrono::microseconds(rng_() % 80'000);
      }
    }
    worker.pid = in_child([&] { return publish_as(*worker.run, worker.part, point, passes); });
  }

  static pid_t in_child(const std::function<int()>& body) {
    const pid_t pid = ::fork();
    if (pid < 0) fail("fork failed");
    if (pid > 0) return pid;
    int status = 99;
    try {
      status = body();
    } catch (const Error& error) {
      status = 10 + static_cast<int>(error.code());
      if (error.code() != ErrorCode::conflict) std::fprintf(stderr, "%s\n", error.what());
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
    }
    ::_exit(status);
  }

  int publish_as(const Run& run, unsigned part, const std::string& point, unsigned passes) const {
    const auto repository = Repository::open(url_, {});
    auto opened = PublishStore::open(place(run, part, "store"), repository->id(), repository->url(),
                                     {std::nullopt, 0});
    History history(*repository, &opened.store());
    PublishOptions options;
    options.directory = place(run, part, "files");
    options.wishes.tag = run.tag;
    options.wishes.snapshot = run.snapshot;
    options.wishes.rebase = run.rebase;
    options.part = {part, kHosts, run.token};
    options.keeps_images = true;
    options.threads = 1;
    std::atomic<unsigned> left = passes;
    options.at = [&](std::string_view reached) {
      if (reached == point && left-- == 0) ::raise(SIGKILL);
    };
    publish_part(history, opened.store(), options, {}, {});
    return 0;
  }

  void reap(std::vector<Worker>& workers) {
    for (Worker& worker : workers) {
      int status = 0;
      if (worker.pid == 0 || ::waitpid(worker.pid, &status, WNOHANG) != worker.pid) continue;
      worker.pid = 0;
      if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
        kills_++;
        start(worker);
        continue;
      }
      worker.is_ok = WIFEXITED(status) && WEXITSTATUS(status) == 0;
      const bool may_lose = !worker.run->rebase && WIFEXITED(status) &&
                            WEXITSTATUS(status) == 10 + static_cast<int>(ErrorCode::conflict);
      if (worker.is_ok) continue;
      if (!may_lose) {
        fail(fmt::format("round {}: part {} of {} ended with status {:#x}", round_, worker.part,
                         worker.run->token, status));
      }
      lost_++;
    }
  }

  static void kill_due(const std::vector<Worker>& workers) {
    const auto now = std::chrono::steady_clock::now();
    for (const Worker& worker : workers) {
      if (worker.pid != 0 && now >= worker.killed_at) ::kill(worker.pid, SIGKILL);
    }
  }

  /// Each new version has exactly the files of one run, and each run that had to end has one.
  void compare(const std::vector<Run>& runs) {
    std::map<std::string, unsigned> versions_of;
    for (;;) {
      // The child says whose the next version is: 0: there is none.
      const pid_t pid = in_child([&] { return whose(runs, version_ + 1); });
      int status = 0;
      ::waitpid(pid, &status, 0);
      if (!WIFEXITED(status) || static_cast<std::size_t>(WEXITSTATUS(status)) > runs.size()) {
        fail(fmt::format("round {}: version {} is wrong", round_, version_ + 1));
      }
      if (WEXITSTATUS(status) == 0) break;
      version_++;
      versions_of[runs[static_cast<std::size_t>(WEXITSTATUS(status)) - 1].token]++;
    }
    for (const Run& run : runs) {
      const unsigned versions = versions_of[run.token];
      if (versions == 1 || (versions == 0 && !run.rebase)) continue;
      fail(fmt::format("round {}: {} has {} versions", round_, run.token, versions));
    }
  }

  int whose(const std::vector<Run>& runs, std::uint64_t version) const {
    const auto repository = Repository::open(url_, {});
    if (!repository->find_version(version, {})) return 0;
    auto opened = PublishStore::open(directory_ / "reader", repository->id(), repository->url(),
                                     {std::nullopt, 0});
    History history(*repository, &opened.store());
    materialize(opened.store(), history, version, {}, {});
    const Files found = read_tree(opened.store().images().image_directory(version));
    const std::string tag = history.get(version, {})->manifest.tag;
    for (std::size_t i = 0; i < runs.size(); i++) {
      if (found == runs[i].whole() && tag == runs[i].tag) return static_cast<int>(i) + 1;
    }
    std::fprintf(stderr, "version %llu has the files of no run\n",
                 static_cast<unsigned long long>(version));
    return 99;
  }

  const std::string url_;
  const std::filesystem::path directory_;
  Random rng_;
  unsigned round_ = 0, kills_ = 0, races_ = 0, lost_ = 0;
  std::size_t width_ = 100;
  std::uint64_t version_ = 0;  // the newest that was compared
};

}  // namespace
}  // namespace weightfs::test

int main(int count, char** arguments) {
  if (count != 5) return 2;
  try {
    const std::uint64_t seed = std::stoull(arguments[3]);
    std::fprintf(stderr, "seed %llu\n", static_cast<unsigned long long>(seed));
    weightfs::test::Rounds(arguments[1], arguments[2], seed)
        .run(static_cast<unsigned>(std::stoul(arguments[4])));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
