// A writer's process that kills itself with SIGKILL at a named point of the publish queue, or is
// killed by the test at any time.  A separate program, since a test that has threads cannot fork.
//
//     weightfs_kill_queue URL STORE DIRECTORY NAME POINT [PART PARTS]
//
// Opens the store.  Unless the queue has an entry, or a version with the tag NAME exists, it stages
// a copy of DIRECTORY, with an additional file that is not published, as staging/NAME, and hands it
// over with the tag NAME.  DIRECTORY "rollback:N": an empty directory, to be published with the
// content of version N.  PART: what is handed over is that part of a version.  Prints "handed
// over", and ends when the queue is empty.  POINT "never": does not kill itself.
#include <signal.h>

#include <cstdio>
#include <exception>
#include <string>
#include <string_view>

#include "tests/support/writer.hpp"

namespace weightfs::test {
namespace {

bool has_version(Repository& repository, const std::string& tag) {
  for (std::uint64_t number = 1;; number++) {
    const auto version = repository.find_version(number, {});
    if (!version) return false;
    if (version->manifest.tag == tag) return true;
  }
}

/// 0: `what` is a directory.
std::uint64_t rollback_of(const std::string& what) {
  const std::string prefix = "rollback:";
  return what.starts_with(prefix) ? std::stoull(what.substr(prefix.size())) : 0;
}

/// Saves like a careful trainer: a directory with the final name is complete.
void stage(Writer& writer, const std::filesystem::path& from, const std::string& name) {
  const std::string partial = "partial-" + name;
  const auto left = writer.find(kStagingRoot, partial);
  const StagingId directory = left ? *left : writer.stage(partial, {});
  auto files = read_tree(from);
  files["optimizer.pt"] = "of " + name;
  for (const auto& [path, bytes] : files) writer.write(directory, path, bytes);
  writer.staging.rename(kStagingRoot, partial, kStagingRoot, name, 0);
}

int run(int count, char** arguments) {
  const std::string name = arguments[4];
  const std::string_view wanted = arguments[5];
  QueueOptions options;
  options.at = [wanted](std::string_view point) {
    if (point == wanted) ::raise(SIGKILL);
  };
  if (count == 8) {
    options.part = {static_cast<unsigned>(std::stoul(arguments[6])),
                    static_cast<unsigned>(std::stoul(arguments[7])), "run-1"};
  }
  Writer writer(Repository::open(arguments[1], {}), arguments[2], std::move(options));
  const bool is_needed = writer.queue.list().empty() && !has_version(*writer.repository, name);
  writer.start();
  if (is_needed) {
    HandOverOptions wanted_options;
    wanted_options.wishes.rollback = rollback_of(arguments[3]);
    if (!writer.find(kStagingRoot, name)) {
      if (wanted_options.wishes.rollback == 0) {
        stage(writer, arguments[3], name);
      } else {
        writer.stage(name, {});
      }
    }
    writer.hand_over(*writer.find(kStagingRoot, name), name, wanted_options);
  }
  std::puts("handed over");
  std::fflush(stdout);
  return writer.settles() && writer.queue.list().empty() ? 0 : 1;
}

}  // namespace
}  // namespace weightfs::test

int main(int count, char** arguments) {
  if (count != 6 && count != 8) return 2;
  try {
    return weightfs::test::run(count, arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
