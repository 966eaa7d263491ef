// Command table: all commands with their operands, options and help.  The parser, the environment,
// the configuration file and the help all use it.
//
// Threads: immutable.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fs/cli/command_spec.hpp"

namespace weightfs::fs {

/// All commands, in the order in which the help lists them.
std::span<const CommandSpec> all_commands();

/// Whether an option says where an S3 bucket is, or with which credentials to access it.
bool is_bucket_option(std::string_view name);

/// Options of every command: --json, --quiet, --config, --help.
std::span<const OptionSpec> common_options();

/// nullptr if there is no such command.
const CommandSpec* find_command(std::string_view name);

/// An option of the command, or a common one; nullptr if there is none.
const OptionSpec* find_option(const CommandSpec& command, std::string_view name);

/// An option of any command, or a common one; nullptr if there is none.
const OptionSpec* find_any_option(std::string_view name);

/// The names of all commands; the names of a command's options including the common ones, or of
/// every option if `command` is nullptr.
std::vector<std::string> command_names();
std::vector<std::string> option_names(const CommandSpec* command);

/// How many operands a command takes, by its usage: "URL [VERSION]" is 1 to 2.
struct OperandCount {
  std::size_t least = 0, most = 0;
};
OperandCount operand_count(std::string_view operands);

/// The hint for a mistyped command, or for an option (with its dashes) that a command does not
/// have: a similar name, or the commands that have it.
std::string no_such_command(std::string_view name);
std::string no_such_option(const CommandSpec& command, std::string_view option);

/// What `weightfs help` and `weightfs help COMMAND` print.
std::string help_text();
std::string help_text(const CommandSpec& command);

/// "weightfs log URL|MOUNTPOINT [OPTION...]"; a line more for each option that has operands.
std::string usage_line(const CommandSpec& command);

}  // namespace weightfs::fs
