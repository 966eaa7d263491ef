// Mount helper: the program by the name of mount.weightfs, as mount(8) calls it for
//
//     mount -t weightfs URL MOUNTPOINT -o OPTION[,OPTION...]
//
// and for a line of fstab.  Options of `weightfs mount` are written without dashes (`writer`,
// `poll=0.5`; `store_size` is the same as `store-size`); those that every file system has, and that
// say nothing here, are taken and have no effect.  A comma in a value is written `\,`, or the value
// stands in double quotes, as for libmount.
//
// Threads: pure functions.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weightfs::fs {

struct MountHelperCall {
  std::vector<std::string> arguments;  // of weightfs: mount URL MOUNTPOINT --NAME=VALUE...
  bool is_fake = false;                // -f: check, and mount nothing
  bool is_verbose = false;             // -v
};

/// Whether a program's name, argv[0], is that of the helper.
bool is_mount_helper(std::string_view program);

/// `arguments`: without the program's name.
/// Throws Error: invalid, for an option that neither `weightfs mount` has nor is taken without
/// effect (-s takes those too), and for `remount`.
MountHelperCall parse_mount_helper(std::span<const std::string> arguments);

}  // namespace weightfs::fs
