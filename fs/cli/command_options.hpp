// Command options: options that several commands have, and what takes operands alike.
//
// Threads: immutable.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fs/base/parse_values.hpp"
#include "fs/cli/command_spec.hpp"
#include "store/format/manifest.hpp"

namespace weightfs::fs {

inline constexpr NumberRange kVersions{1, kVersionMax};

extern const OptionSpec kStore;    // of whatever has one
extern const OptionSpec kGpu;      // of whatever makes versions
extern const OptionSpec kInclude;  // of whatever publishes

// Of whatever follows a repository.
extern const OptionSpec kPoll;
extern const OptionSpec kFollow;
extern const OptionSpec kStoreSize;
extern const OptionSpec kMinFree;
extern const OptionSpec kHook;
extern const OptionSpec kWarm;

/// The command's own options, then those of a bucket: of every command that takes a URL.
std::vector<OptionSpec> with_bucket(std::vector<OptionSpec> options);

/// --version N|TAG|latest, as `help` says.
OptionSpec version_option(std::string_view help);

void take_target(Options& options, std::span<const std::string> operands);
void take_target_and_directory(Options& options, std::span<const std::string> operands);

}  // namespace weightfs::fs
