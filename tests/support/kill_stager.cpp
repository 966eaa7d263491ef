// Applies a random history to a staging, and prints a line after each completed operation, until it
// is killed.  A separate program, since a test that has threads cannot fork.
//
//     weightfs_kill_stager DIRECTORY SEED
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <string>

#include "tests/support/random.hpp"
#include "tests/support/staging_history.hpp"

int main(int count, char** arguments) {
  if (count != 3) return 2;
  try {
    const std::filesystem::path directory = arguments[1];
    const auto db = weightfs::Db::open(directory / "db");
    weightfs::Staging staging(*db, directory / "staging", {});
    weightfs::test::Random rng(std::stoull(arguments[2]));
    for (;;) {
      weightfs::test::do_next(staging, rng);
      if (::write(STDOUT_FILENO, ".", 1) != 1) return 1;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
