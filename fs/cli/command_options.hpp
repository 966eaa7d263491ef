// Command options: options that several commands have, and what takes operands alike.
//
// Threads: immutable.
#pragma once

#include <chrono>
#include <span>
#include <string>
#include <vector>

#include "fs/cli/command_spec.hpp"
#include "store/format/manifest.hpp"

namespace weightfs::fs {

inline constexpr NumberRange kVersions{1, kVersionMax};

OptionSpec store_option();                    // of whatever has one
OptionSpec gpu_option();                      // of whatever makes versions
OptionSpec include_option(Setter set);        // of whatever publishes
OptionSpec version_option(std::string help);  // --version N|TAG|latest

// Of whatever follows a repository.
OptionSpec poll_option();
OptionSpec follow_option();
OptionSpec store_size_option();
OptionSpec min_free_option();
OptionSpec hook_option();
OptionSpec warm_option();

/// A default, for the help: "0.5".
std::string seconds_text(std::chrono::milliseconds time);

/// The command's own options, then those of a bucket: of every command that takes a URL.
std::vector<OptionSpec> with_bucket(std::vector<OptionSpec> options);

void take_target(Options& options, std::span<const std::string> operands);
void take_target_and_directory(Options& options, std::span<const std::string> operands);

}  // namespace weightfs::fs
