// Commands: runs the commands of the command line.  They print through an Output, so tests can run
// them in-process.
#pragma once

#include "fs/cli/options.hpp"
#include "fs/cli/output.hpp"

namespace weightfs::fs {

/// Runs a command.  Errors are printed to `err` (with --json also as an object on `out`) and become
/// exit codes; nothing is thrown.
///
/// Returns: the exit code.
/// Requires: for mount, the process has one thread.
int run_command(const Options& options, const Output& output) noexcept;

}  // namespace weightfs::fs
