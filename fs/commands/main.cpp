#include <sys/ioctl.h>
#include <unistd.h>

#include <csignal>
#include <iostream>

#include "fs/cli/parse_options.hpp"
#include "fs/commands/commands.hpp"

namespace {

/// Of the terminal behind a descriptor; 0: there is none, or it does not say.
std::size_t columns_of(int fd) {
  winsize size{};
  return ioctl(fd, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace weightfs::fs;
  // Sent when somebody opens an image whose lease is being asked (weightfs::nobody_reads); its
  // default would end the process.
  std::signal(SIGIO, SIG_IGN);
  return run_command(parse_options(argc, argv), {.out = std::cout,
                                                 .err = std::cerr,
                                                 .terminal = isatty(STDERR_FILENO) == 1,
                                                 .columns = columns_of(STDOUT_FILENO),
                                                 .err_columns = columns_of(STDERR_FILENO)});
}
