// Steps of a trainer on four hosts that are killed at random (tests/support/kill_parts.cpp).
//
// $WEIGHTFS_PART_ROUNDS: how many for each program (scripts/soak.sh: 4 x 125).
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>

#include <array>
#include <string>

#include "store/repository/repository.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/support.hpp"

extern char** environ;

namespace weightfs::test {
namespace {

/// Several programs, each with its share of the rounds, since tests run side by side.
class KilledParts : public testing::TestWithParam<unsigned> {};

TEST_P(KilledParts, EveryVersionHasTheFilesOfExactlyOneRun) {
  const TempDir directory{memory_directory()};  // what is killed is a process, not the machine
  const std::string url = "file://" + (directory.path() / "bucket").string();
  bool created = false;
  static_cast<void>(Repository::init(url, created, {}));
  const std::string seed = std::to_string((test::seed() + GetParam()) % 1'000'000'000);
  // Under sanitizers a process takes ten times as long.
  const std::string rounds =
      std::to_string(number_from("WEIGHTFS_PART_ROUNDS", kSanitized ? 4 : 25));
  const std::string hosts = directory.path() / "hosts";
  const std::array<const char*, 6> arguments{WEIGHTFS_KILL_PARTS, url.c_str(),    hosts.c_str(),
                                             seed.c_str(),        rounds.c_str(), nullptr};
  pid_t pid = 0;
  ASSERT_EQ(::posix_spawn(&pid, arguments[0], nullptr, nullptr,
                          const_cast<char**>(arguments.data()), environ),
            0);
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0) << "seed " << seed;
}

INSTANTIATE_TEST_SUITE_P(Rounds, KilledParts, testing::Range(0U, 4U));

}  // namespace
}  // namespace weightfs::test
