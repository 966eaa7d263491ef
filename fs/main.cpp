#include <unistd.h>

#include <iostream>

#include "fs/commands.hpp"

int main(int argc, char** argv) {
  using namespace weightfs::fs;
  return run_command(parse_options(argc, argv),
                     {.out = std::cout, .err = std::cerr, .terminal = isatty(STDERR_FILENO) == 1});
}
