#include <sys/ioctl.h>
#include <unistd.h>

#include <csignal>
#include <iostream>

#include "fs/cli/parse_options.hpp"
#include "fs/commands/commands.hpp"

namespace {

/// Width of the terminal behind a descriptor; 0: not a terminal, or unknown.
std::size_t columns_of(int fd) {
  winsize size{};
  return ioctl(fd, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace weightfs::fs;
  // Sent when a process opens an image during a check of its lease (weightfs::nobody_reads); the
  // default action would end this process.
  std::signal(SIGIO, SIG_IGN);
  return run_command(parse_options(argc, argv), {.out = std::cout,
                                                 .err = std::cerr,
                                                 .terminal = isatty(STDERR_FILENO) == 1,
                                                 .columns = columns_of(STDOUT_FILENO),
                                                 .err_columns = columns_of(STDERR_FILENO)});
}
