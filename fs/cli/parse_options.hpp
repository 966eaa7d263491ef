// Parse options: the command line, then WEIGHTFS_<OPTION> in the environment, then a TOML file.
//
// `--opt value` and `--opt=value`, before or after operands.  An unknown option, and a repeated one
// that is not a list, is an error that names it (exit code 2). fs/cli/command_table.hpp says which
// command has which options.
//
// WEIGHTFS_KERNELS exists only in the environment: scalar, simd, the name of a variant, or cuda,
// which means --gpu 0 for commands that have --gpu.
#pragma once

#include "fs/cli/options.hpp"

namespace weightfs::fs {

/// By the name of mount.weightfs the program takes what mount(8) gives it (mount_helper.hpp).
/// Never throws for bad usage: then `error` of the result is set.
Options parse_options(int argc, const char* const* argv);

}  // namespace weightfs::fs
