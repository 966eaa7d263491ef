// Command table: every command with its operands, options and help, in one place.  The parser, the
// environment, the configuration file and the help all read it.
//
// Threads: immutable.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fs/options.hpp"

namespace weightfs::fs {

struct OptionSpec {
  std::string_view name;        // "store-size": --store-size, WEIGHTFS_STORE_SIZE, store-size = ...
  std::string_view value = {};  // "SIZE"; empty: a switch
  bool is_list = false;         // may be repeated
  std::string_view needs = {};  // on the command line: only with this switch
  std::string_view help;        // with its default
  /// Takes one value.  Throws Error: invalid.
  void (*set)(Options& options, std::string_view value) = nullptr;
};

struct CommandSpec {
  Command command{};
  std::string_view name;
  std::string_view operands;  // "URL [N]": as the usage line shows them
  std::size_t operands_min = 0, operands_max = 0;
  std::string_view summary;      // one line
  std::string_view description;  // paragraphs, wrapped by hand
  std::string_view example;
  std::vector<OptionSpec> options;  // without the common ones
  /// Takes all operands, their number being right.  Throws Error: invalid.
  void (*take)(Options& options, std::span<const std::string> operands) = nullptr;
};

/// All commands, in the order of the help.
std::span<const CommandSpec> all_commands();

/// Whether an option says where a bucket of S3 is, or who asks.
bool is_bucket_option(std::string_view name);

/// Options of every command: --json, --quiet, --config, --help.
std::span<const OptionSpec> common_options();

/// nullptr if there is none of this name.
const CommandSpec* find_command(std::string_view name);

/// An option of the command, or a common one; nullptr if there is none.
const OptionSpec* find_option(const CommandSpec& command, std::string_view name);

/// An option of any command, or a common one; nullptr if there is none.
const OptionSpec* find_any_option(std::string_view name);

/// Names of all commands; names of the options of a command, the common ones among them, or of
/// every option if it is nullptr.
std::vector<std::string> command_names();
std::vector<std::string> option_names(const CommandSpec* command);

/// What to say of a mistyped command, or of an option (with its dashes) that a command lacks:
/// which one is meant, or which commands have it.
std::string no_such_command(std::string_view name);
std::string no_such_option(const CommandSpec& command, std::string_view option);

/// What `weightfs help` and `weightfs help COMMAND` print.
std::string help_text();
std::string help_text(const CommandSpec& command);

/// "weightfs log URL|MOUNTPOINT [OPTION...]".
std::string usage_line(const CommandSpec& command);

}  // namespace weightfs::fs
