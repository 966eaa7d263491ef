// Command options: options and operands that several commands share.
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
inline constexpr NumberRange kEvery{0, kVersionMax};  // 0: none

OptionSpec store_option();                     // commands with a store
OptionSpec gpu_option();                       // commands that build versions
OptionSpec include_option(Setter set);         // commands that publish
OptionSpec snapshot_every_option(Setter set);  // likewise
OptionSpec version_option(std::string help);   // --version N|TAG|latest

// Commands that publish parts:
OptionSpec part_option();
OptionSpec run_option();
OptionSpec part_wait_option();

// Commands that follow a repository:
OptionSpec poll_option();
OptionSpec follow_option();
OptionSpec seed_option();
OptionSpec store_size_option();
OptionSpec history_option();
OptionSpec min_free_option();
OptionSpec hook_option();
OptionSpec warm_option();
OptionSpec max_lag_option();
OptionSpec announce_option();
OptionSpec announce_every_option();
OptionSpec metrics_option();
OptionSpec log_format_option();
OptionSpec log_level_option();

/// --gc of a writer's mount, and what it is told.
std::vector<OptionSpec> background_gc_options();

/// A default value for the help: "0.5".
std::string seconds_text(std::chrono::milliseconds time);

/// The command's own options, then the bucket's; for every command that takes a URL.
std::vector<OptionSpec> with_bucket(std::vector<OptionSpec> options);

void take_target(Options& options, std::span<const std::string> operands);
void take_target_and_directory(Options& options, std::span<const std::string> operands);

}  // namespace weightfs::fs
