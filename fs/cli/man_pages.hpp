// Man pages: the help of the command table as pages of man(7), for packages.
//
// Threads: pure functions.
#pragma once

#include <string>
#include <vector>

namespace weightfs::fs {

struct ManPage {
  std::string name;  // "weightfs-mount.1"
  std::string text;
};

/// weightfs(1), a page for each command, weightfs-COMMAND(1), and mount.weightfs(8).
std::vector<ManPage> man_pages();

}  // namespace weightfs::fs
