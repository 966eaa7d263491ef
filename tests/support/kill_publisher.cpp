// Publishes a directory and kills itself with SIGKILL at a named point.  A separate program, since
// a test that has threads cannot fork.
//
//     weightfs_kill_publisher URL STORE DIRECTORY POINT      POINT "never": does not die
//
// DIRECTORY "rollback:N": publishes the content of version N again.
#include <signal.h>

#include <cstdio>
#include <exception>
#include <string>
#include <string_view>

#include "store/publish/publish.hpp"
#include "store/publish/publish_store.hpp"

int main(int count, char** arguments) {
  if (count != 5) return 2;
  try {
    const auto repository = weightfs::Repository::open(arguments[1], {});
    auto opened = weightfs::PublishStore::open(arguments[2], repository->id(), repository->url(),
                                               {std::nullopt, 0});
    weightfs::History history(*repository, &opened.store());
    weightfs::PublishOptions options;
    const std::string what = arguments[3], prefix = "rollback:";
    if (what.starts_with(prefix)) {
      options.wishes.rollback = std::stoull(what.substr(prefix.size()));
    } else {
      options.directory = what;
    }
    const std::string_view wanted = arguments[4];
    options.at = [wanted](std::string_view point) {
      if (point == wanted) ::raise(SIGKILL);
    };
    weightfs::publish(history, opened.store(), options, {}, {});
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
