// A writer's process is killed at every named point and at random times; the next process
// continues. In all cases each checkpoint that was handed over becomes exactly one version.

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <random>
#include <set>

#include "store/inspect/verify.hpp"
#include "tests/support/random.hpp"
#include "tests/support/writer.hpp"

extern char** environ;

namespace weightfs::test {
namespace {

namespace stdfs = std::filesystem;

const std::vector<std::string> kQueuePoints{
    "sealed",  "recorded", "scanned",       "parent",     "diffed",    "pack",
    "blobs",   "layout",   "before-commit", "committing", "committed", "committed-recorded",
    "adopted", "shown",    "finished"};

/// Of a part; the last ones are reached by whichever of the hosts finds all parts.
const std::vector<std::string> kPartPoints{
    "sealed", "recorded",           "scanned",   "diffed", "pack",     "part-objects", "committing",
    "part",   "committed-recorded", "adopted",   "shown",  "finished", "waiting",      "complete",
    "united", "before-commit",      "committed", "removed"};
const std::set<std::string> kPointsOfOne{"waiting",       "complete",  "united",
                                         "before-commit", "committed", "removed"};

/// A child process with its standard output.
class Child {
 public:
  explicit Child(const std::vector<std::string>& arguments) {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    output_ = File(ends[0]);
    const File write_end(ends[1]);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, write_end.fd(), STDOUT_FILENO);
    std::vector<char*> texts;
    for (const std::string& text : arguments) texts.push_back(const_cast<char*>(text.c_str()));
    texts.push_back(nullptr);
    EXPECT_EQ(::posix_spawn(&pid_, texts[0], &actions, nullptr, texts.data(), environ), 0);
    ::posix_spawn_file_actions_destroy(&actions);
  }
  ~Child() {
    if (pid_ > 0) {
      kill();
      wait();
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void kill() const { ::kill(pid_, SIGKILL); }

  /// Waits until it ends, or for `time`.
  void wait_for(std::chrono::milliseconds time) const {
    pollfd output{output_.fd(), 0, 0};  // POLLHUP: the child has ended
    ::poll(&output, 1, static_cast<int>(time.count()));
  }

  /// Returns: the status from waitpid().
  int wait() {
    std::array<char, 256> text{};
    for (ssize_t count = 1; count > 0;) {
      count = ::read(output_.fd(), text.data(), text.size());
      if (count > 0) said_.append(text.data(), static_cast<std::size_t>(count));
    }
    int status = 0;
    EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
    pid_ = 0;
    return status;
  }

  [[nodiscard]] bool has_handed_over() const { return said_.find("handed over") != said_.npos; }

 private:
  pid_t pid_ = 0;
  File output_;
  std::string said_;
};

class KilledQueue : public testing::Test {
 protected:
  KilledQueue() {
    bool created = false;
    Repository::init(url_, created, {});
  }

  stdfs::path checkpoint(unsigned version) {
    const stdfs::path directory = dir_ / ("checkpoint-" + std::to_string(version));
    if (!stdfs::exists(directory)) write_checkpoint(directory, version, elements_);
    return directory;
  }

  static std::string name_of(unsigned version) { return "step-" + std::to_string(version); }

  Child start(unsigned version, const std::string& point) {
    return Child(
        {WEIGHTFS_KILL_QUEUE, url_, dir_ / "store", checkpoint(version), name_of(version), point});
  }

  /// The files of a part of the checkpoint.
  stdfs::path part_of(unsigned part, unsigned version) {
    const stdfs::path directory = dir_ / fmt::format("part-{}-of-{}", part, version);
    if (stdfs::exists(directory)) return directory;
    for (const auto& [path, bytes] : read_tree(checkpoint(version))) {
      const bool is_of_second = path == "model-00002-of-00002.safetensors";
      if (is_of_second == (part == 2)) write_text(directory / path, bytes);
    }
    return directory;
  }

  static std::string store_of(unsigned part) { return fmt::format("store-{}", part); }

  Child start_part(unsigned part, unsigned version, const std::string& point) {
    return Child({WEIGHTFS_KILL_QUEUE, url_, dir_ / store_of(part), part_of(part, version),
                  name_of(version), point, std::to_string(part), "2"});
  }

  /// The numbers of the versions with this tag.
  std::vector<std::uint64_t> versions_of(Repository& repository, const std::string& tag) {
    std::vector<std::uint64_t> found;
    for (std::uint64_t v = 1;; v++) {
      const auto version = repository.find_version(v, {});
      if (!version) return found;
      if (version->manifest.tag == tag) found.push_back(v);
    }
  }

  /// Checks what a killed process left, before anything continues.
  void expect_in_one_place(unsigned version, bool is_handed_over) {
    Writer writer(Repository::open(url_, {}), dir_ / "store");
    const std::string name = name_of(version);
    const bool is_version = !versions_of(*writer.repository, name).empty();
    const auto staged = writer.find(kStagingRoot, name);
    const auto queued = writer.find(kPublishRoot, name);
    EXPECT_FALSE(staged && queued) << name;
    EXPECT_EQ(writer.queue.list().size(), queued ? 1u : 0u) << name;
    if (is_handed_over) {
      EXPECT_TRUE(queued || is_version) << name;
    }
    if (is_version && staged) {
      EXPECT_EQ(writer.read(*staged),
                (std::map<std::string, std::string>{{"optimizer.pt", "of " + name}}));
    }
    expect_no_strays(writer);
  }

  /// Every backing file belongs to a staged file, and no link tree is left without its record.
  void expect_no_strays(Writer& writer) {
    std::set<std::string> wanted, found;
    for (const StagingId root : {kStagingRoot, kPublishRoot}) {
      for (const StagedFile& file : writer.staging.list(root)) {
        if (S_ISREG(file.type)) wanted.insert(writer.staging.backing_path(file.id));
      }
    }
    for (const auto& entry : stdfs::directory_iterator(writer.store->path() / "staging")) {
      found.insert(entry.path());
    }
    EXPECT_EQ(found, wanted);
    const stdfs::path links = writer.store->path() / "handover";
    EXPECT_TRUE(!stdfs::exists(links) || stdfs::is_empty(links));
  }

  /// After a last process has emptied the queue: there is one version, with the right bytes.
  void expect_published(unsigned version, const std::string& store = "store") {
    Writer writer(Repository::open(url_, {}), dir_ / store);
    const std::string name = name_of(version);
    const auto numbers = versions_of(*writer.repository, name);
    ASSERT_EQ(numbers.size(), 1u) << name;
    EXPECT_TRUE(writer.queue.list().empty());
    EXPECT_FALSE(writer.find(kPublishRoot, name));
    const auto rest = writer.find(kStagingRoot, name);
    ASSERT_TRUE(rest) << name;
    EXPECT_EQ(writer.read(*rest),
              (std::map<std::string, std::string>{{"optimizer.pt", "of " + name}}));
    EXPECT_TRUE(writer.store->images().is_complete(numbers[0]));
    EXPECT_EQ(read_tree(writer.store->images().image_directory(numbers[0])),
              read_tree(checkpoint(version)));
    expect_no_strays(writer);
  }

  void expect_sound(std::uint64_t versions) {
    Host reader(Repository::open(url_, {}), dir_ / "reader");
    const auto report =
        verify_repository(reader.history, reader.store->temporary_directory(), {}, {});
    EXPECT_EQ(report.versions, versions);
    for (const Problem& problem : report.problems) {
      ADD_FAILURE() << problem.object << ": " << problem.message;
    }
    EXPECT_EQ(reader.read_version(versions),
              read_tree(checkpoint(static_cast<unsigned>(versions))));
  }

  std::size_t elements_ = 20'000;
  TempDir dir_;
  const std::string url_ = "file://" + (dir_ / "bucket").string();
};

class KilledAt : public KilledQueue, public testing::WithParamInterface<std::string> {};

TEST_P(KilledAt, PublishesExactlyOnce) {
  for (unsigned version = 1; version <= 3; version++) {
    Child child = start(version, GetParam());
    const int status = child.wait();
    if (GetParam() == "parent" && version == 1) {
      ASSERT_EQ(status, 0);  // a first version has no parent
    } else {
      ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
      expect_in_one_place(version, child.has_handed_over() || GetParam() != "sealed");
      ASSERT_EQ(start(version, "never").wait(), 0);
    }
    expect_published(version);
  }
  expect_sound(3);
}

/// The processes that continue are killed at the same point again.
TEST_P(KilledAt, PublishesExactlyOnceIfItIsKilledThreeTimes) {
  for (int k = 0; k < 3; k++) {
    start(1, GetParam()).wait();
    expect_in_one_place(1, k > 0 && GetParam() != "sealed");
  }
  ASSERT_EQ(start(1, "never").wait(), 0);
  expect_published(1);
  expect_sound(1);
}

/// A rollback too becomes exactly one version.
TEST_P(KilledAt, RollsBackExactlyOnce) {
  for (unsigned version = 1; version <= 2; version++) {
    ASSERT_EQ(start(version, "never").wait(), 0);
  }
  const auto roll_back = [&](const std::string& point) {
    return Child({WEIGHTFS_KILL_QUEUE, url_, dir_ / "store", "rollback:1", "back", point});
  };
  const int status = roll_back(GetParam()).wait();
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  ASSERT_EQ(roll_back("never").wait(), 0);
  Host reader(Repository::open(url_, {}), dir_ / "reader-of-rollback");
  EXPECT_EQ(versions_of(*reader.repository, "back"), (std::vector<std::uint64_t>{3}));
  EXPECT_EQ(reader.read_version(3), read_tree(checkpoint(1)));
  const auto report =
      verify_repository(reader.history, reader.store->temporary_directory(), {}, {});
  EXPECT_EQ(report.versions, 3u);
  EXPECT_TRUE(report.problems.empty());
}

INSTANTIATE_TEST_SUITE_P(PublishQueue, KilledAt, testing::ValuesIn(kQueuePoints),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::erase(name, '-');
                           return name;
                         });

class KilledPartAt : public KilledAt {};

/// Whatever becomes of one host, its part and that of the other are one version, on both.
TEST_P(KilledPartAt, MakesOneVersionWithTheOther) {
  for (unsigned version = 1; version <= 2; version++) {
    Child other = start_part(2, version, "never");
    const int status = start_part(1, version, GetParam()).wait();
    const bool is_killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    ASSERT_TRUE(is_killed || (status == 0 && kPointsOfOne.contains(GetParam()))) << status;
    if (is_killed) {
      ASSERT_EQ(start_part(1, version, "never").wait(), 0);
    }
    ASSERT_EQ(other.wait(), 0);
    for (const unsigned part : {1U, 2U}) expect_published(version, store_of(part));
  }
  expect_sound(2);
}

INSTANTIATE_TEST_SUITE_P(PartQueue, KilledPartAt, testing::ValuesIn(kPartPoints),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST_F(KilledQueue, PublishesExactlyOnceIfItIsKilledAtRandomTimes) {
  Random rng = make_rng();
  elements_ = 200'000;
  const auto began = Clock::now();
  ASSERT_EQ(start(1, "never").wait(), 0);
  const auto takes = std::chrono::duration<double, std::milli>(Clock::now() - began).count();
  std::uniform_real_distribution<double> share(0, 1);
  unsigned killed = 0, version = 2;
  for (int k = 0; k < 40; k++) {
    Child child = start(version, "never");
    // Most are killed early: a process that continues has less to do than the first one.
    const double part = share(rng) * share(rng);
    child.wait_for(std::chrono::milliseconds(static_cast<int>(takes * part)));
    child.kill();
    const int status = child.wait();
    killed += WIFSIGNALED(status) ? 1 : 0;
    expect_in_one_place(version, child.has_handed_over());
    if (k % 4 != 3 && WIFSIGNALED(status)) continue;  // several kills for the same hand-over
    ASSERT_EQ(start(version, "never").wait(), 0);
    expect_published(version++);
  }
  EXPECT_GT(killed, 0u);
  std::printf("killed %u of 40\n", killed);
  if (start(version, "never").wait() == 0) expect_published(version);
  expect_sound(version);
}

}  // namespace
}  // namespace weightfs::test
