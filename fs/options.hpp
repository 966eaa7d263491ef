// Options: the command line: flags, then WEIGHTFS_* environment, then a TOML file.  Home of CLI11.
//
// `--opt value` and `--opt=value`, before or after operands; unknown options, and repeated ones that
// are not lists, are errors that name them (exit code 2).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fs/daemon.hpp"
#include "store/publish.hpp"

namespace weightfs::fs {

enum class Command {
  init, publish, mount, umount, status, log, show, diff, export_, verify, help, version,
};

/// One parsed command line.  Fields that the command does not have keep their defaults.
struct Options {
  Command command = Command::help;
  std::string text;          // of help and version
  int exit_code = 0;         // of help: 2 after a usage error
  bool json = false;
  bool quiet = false;        // no progress

  std::string target;        // URL or mount point, as given
  std::string directory;     // publish, export
  std::uint64_t version_a = 0, version_b = 0;  // show N, diff A B, export --version
  std::string tag;
  std::vector<std::string> meta, include;
  bool snapshot = false;
  bool lazy = false;         // umount
  std::uint64_t limit = 0;   // log
  std::string store;
  MountOptions mount;        // everything else of mount
};

/// Never throws for bad usage: the result then is `help` with exit code 2 and the message.
Options parse_options(int argc, const char* const* argv);

}  // namespace weightfs::fs
