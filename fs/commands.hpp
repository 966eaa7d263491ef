// Commands: what the verbs of the command line do.  They print through an Output, so tests run them
// in-process.
#pragma once

#include <iosfwd>

#include "fs/options.hpp"

namespace weightfs::fs {

/// Where a command prints: data to `out`, everything else to `err`; progress only if `terminal`.
struct Output {
  std::ostream& out;
  std::ostream& err;
  bool terminal = false;        // `err` is one
  std::size_t columns = 0;      // of the terminal that `out` is; 0: it is none
  std::size_t err_columns = 0;  // the same of `err`
};

/// Runs a command.  Returns: the exit code.  Errors are printed to `err` (with --json as an object
/// on `out` too) and become exit codes; nothing is thrown.
///
/// Requires: for mount, the process has one thread.
int run_command(const Options& options, const Output& output) noexcept;

}  // namespace weightfs::fs
