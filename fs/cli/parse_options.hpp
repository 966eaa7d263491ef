// Parse options: the command line: flags, then WEIGHTFS_<OPTION> in the environment, then a TOML
// file.
//
// `--opt value` and `--opt=value`, before or after operands; unknown options, and repeated ones
// that are not lists, are errors that name them (exit code 2).  fs/cli/command_table.hpp says which
// command has which options.
//
// WEIGHTFS_KERNELS is in the environment only: scalar, simd, the name of a variant, or cuda, which
// means --gpu 0 where there is --gpu.
#pragma once

#include "fs/cli/options.hpp"

namespace weightfs::fs {

/// Never throws for bad usage: the result then has `error` set.
Options parse_options(int argc, const char* const* argv);

}  // namespace weightfs::fs
