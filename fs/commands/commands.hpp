// Commands: what the verbs of the command line do.  They print through an Output, so tests run them
// in-process.
#pragma once

#include "fs/cli/options.hpp"
#include "fs/cli/output.hpp"

namespace weightfs::fs {

/// Runs a command.  Returns: the exit code.  Errors are printed to `err` (with --json as an object
/// on `out` too) and become exit codes; nothing is thrown.
///
/// Requires: for mount, the process has one thread.
int run_command(const Options& options, const Output& output) noexcept;

}  // namespace weightfs::fs
