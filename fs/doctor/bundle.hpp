// Bundle: what somebody who helps wants to know of a host and a mount, as one archive
// (weightfs doctor --bundle FILE).
//
//     README          what is in it, and what was taken out
//     doctor.txt      what weightfs doctor prints, and doctor.json with --json
//     status.json     of the mount or sync, and its health; or why they cannot be read
//     command.txt     how it was made: its record's command line, hooks without their options
//     environment.txt variables that decide how a mount is made; of secrets only the names
//     config-N.txt    the configuration files; of hooks the target alone
//     log.txt         the end of the daemon's log
//     host.txt        kernel, memory, limits, FUSE, mounts, space
//
// Each text should have no secret; all of it goes through a Scrubber nevertheless.  What cannot be
// read is no error: the text says why.
//
// Threads: pure functions of the system's state.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "fs/doctor/scrubber.hpp"

namespace weightfs::fs {

/// The last bytes of a log that a bundle has.
inline constexpr std::uint64_t kBundleLogBytes = 1u << 20;

using BundleFiles = std::map<std::string, std::string>;  // by name

struct BundleSubject {
  std::string doctor_text = {}, doctor_json = {};
  std::filesystem::path mount_point = {};  // or a sync's directory; empty: the host alone
  std::string url = {};                    // canonical; empty: none
  std::vector<std::filesystem::path> configs = {};
};

/// The texts, scrubbed.
BundleFiles collect_bundle(const BundleSubject& subject);

/// What this process, the daemon at `mount_point` (as far as its environment may be read) and this
/// user's files have of secrets.
Scrubber find_secrets(const std::filesystem::path& mount_point);

/// A tar archive (POSIX ustar), compressed by gzip: for tar -xf FILE.  All names are below
/// `directory`.  Requires: names of at most 100 bytes, files below 8 GiB.
std::string pack_bundle(const BundleFiles& files, const std::string& directory, std::int64_t time);

}  // namespace weightfs::fs
