#include <unistd.h>

#include <csignal>
#include <iostream>

#include "fs/commands.hpp"

int main(int argc, char** argv) {
  using namespace weightfs::fs;
  // Sent when somebody opens an image whose lease is being asked (weightfs::nobody_reads); its
  // default would end the process.
  std::signal(SIGIO, SIG_IGN);
  return run_command(parse_options(argc, argv),
                     {.out = std::cout, .err = std::cerr, .terminal = isatty(STDERR_FILENO) == 1});
}
