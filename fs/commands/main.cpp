#include <sys/ioctl.h>
#include <unistd.h>

#include <csignal>
#include <iostream>

#include "fs/base/descriptors.hpp"
#include "fs/cli/mount_helper.hpp"
#include "fs/cli/parse_options.hpp"
#include "fs/commands/commands.hpp"

namespace {

/// Width of the terminal behind a descriptor; 0: not a terminal, or unknown.
std::size_t columns_of(int fd) {
  winsize size{};
  return ioctl(fd, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

/// What mount(8) expects of its helper.
int mount_exit_code(int code) {
  constexpr int kUsage = 1, kMountFailure = 32;
  if (code == 0) return 0;
  return code == 2 ? kUsage : kMountFailure;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace weightfs::fs;
  fill_standard_descriptors();  // before anything else is opened
  // Sent when a process opens an image during a check of its lease (weightfs::nobody_reads); the
  // default action would end this process.
  std::signal(SIGIO, SIG_IGN);
  // Ignored by who started this process, it would hide how a child ended.
  std::signal(SIGCHLD, SIG_DFL);
  const int code =
      run_command(parse_options(argc, argv), {.out = std::cout,
                                              .err = std::cerr,
                                              .terminal = isatty(STDERR_FILENO) == 1,
                                              .columns = columns_of(STDOUT_FILENO),
                                              .err_columns = columns_of(STDERR_FILENO)});
  return argc > 0 && is_mount_helper(argv[0]) ? mount_exit_code(code) : code;
}
