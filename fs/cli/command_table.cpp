#include "fs/cli/command_table.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "fs/cli/command_options.hpp"
#include "fs/cli/command_specs.hpp"
#include "store/base/error.hpp"
#include "store/base/suggest.hpp"

namespace weightfs::fs {
namespace {

void take_help(Options& options, std::span<const std::string> operands) {
  if (operands.empty()) {
    options.text = help_text();
    return;
  }
  const CommandSpec* command = find_command(operands[0]);
  if (command == nullptr) {
    throw Error(ErrorCode::invalid, no_such_command(operands[0]));
  }
  options.text = help_text(*command);
}

CommandSpec completion_command() {
  return {
      .command = Command::completion,
      .name = "completion",
      .operands = "bash|zsh|fish",
      .summary = "commands and options for the Tab key",
      .description =
          "Prints a script for a shell, which packages install where the shell looks:\n"
          "\n"
          "    source <(weightfs completion bash)          in ~/.bashrc, and so for zsh\n"
          "    weightfs completion fish | source           in ~/.config/fish/config.fish",
      .example = "weightfs completion bash",
      .options = {},
      .take = take_target,
  };
}

CommandSpec help_command() {
  return {
      .command = Command::help,
      .name = "help",
      .operands = "[COMMAND]",
      .summary = "this list, or the help of one command",
      .description = "Prints what a command does, its options and an example.",
      .example = "weightfs help mount",
      .options = {{.name = "man",
                   .value = "DIR",
                   .is_typed = true,
                   .help = "write all of it into DIR, which must exist, as pages for man\n"
                           "(default: print)",
                   .set = into<as_given, &Options::directory>}},
      .take = take_help,
  };
}

constexpr std::string_view kExitCodes =
    "Exit codes: 0 done, 1 failed, 2 usage, 3 conflict (another writer published first),\n"
    "4 corrupt, 5 timed out.\n";

constexpr std::size_t kOwnersShown = 4;  // commands named as having an option

/// "  --tag TAG", then the help, whose lines all begin in the same column.
std::string option_lines(const OptionSpec& option) {
  constexpr std::size_t kColumn = 22;
  std::string left = fmt::format("  --{}", option.name);
  if (!option.value.empty()) left += fmt::format(" {}", option.value);
  std::string text = fmt::format("{:<{}}", left, kColumn);
  if (left.size() >= kColumn) text += "\n" + std::string(kColumn, ' ');
  for (const char c : option.help) {
    text += c;
    if (c == '\n') text.append(kColumn, ' ');
  }
  return text + "\n";
}

}  // namespace

std::span<const CommandSpec> all_commands() {
  static const std::array commands{
      init_command(),  publish_command(), rollback_command(), mount_command(),
      sync_command(),  umount_command(),  wait_command(),     rebase_command(),
      pin_command(),   unpin_command(),   status_command(),   top_command(),
      fleet_command(), log_command(),     report_command(),   show_command(),
      diff_command(),  export_command(),  verify_command(),   doctor_command(),
      du_command(),    gc_command(),      skip_command(),     completion_command(),
      help_command(),
  };
  return commands;
}

const CommandSpec* find_command(std::string_view name) {
  for (const CommandSpec& command : all_commands()) {
    if (command.name == name) return &command;
  }
  return nullptr;
}

const OptionSpec* find_option(const CommandSpec& command, std::string_view name) {
  for (const OptionSpec& option : command.options) {
    if (option.name == name) return &option;
  }
  for (const OptionSpec& option : common_options()) {
    if (option.name == name) return &option;
  }
  return nullptr;
}

const OptionSpec* find_any_option(std::string_view name) {
  for (const CommandSpec& command : all_commands()) {
    if (const OptionSpec* option = find_option(command, name)) return option;
  }
  return nullptr;
}

std::vector<std::string> command_names() {
  std::vector<std::string> names;
  for (const CommandSpec& command : all_commands()) names.emplace_back(command.name);
  return names;
}

std::vector<std::string> option_names(const CommandSpec* command) {
  std::vector<std::string> names;
  for (const CommandSpec& one : all_commands()) {
    if (command != nullptr && command->name != one.name) continue;
    for (const OptionSpec& option : one.options) names.emplace_back(option.name);
  }
  for (const OptionSpec& option : common_options()) names.emplace_back(option.name);
  return names;
}

OperandCount operand_count(std::string_view operands) {
  OperandCount count;
  char before = ' ';
  for (const char c : operands) {
    const bool begins_word = before == ' ';
    if (begins_word) count.most++;
    if (begins_word && c != '[') count.least++;
    before = c;
  }
  return count;
}

std::string no_such_command(std::string_view name) {
  return fmt::format("there is no command '{}'{}", name, did_you_mean(name, command_names()));
}

std::string no_such_option(const CommandSpec& command, std::string_view option) {
  const std::string text = fmt::format("{} has no option {}", command.name, option);
  const std::string_view name =
      option.substr(std::min(option.find_first_not_of('-'), option.size()));
  if (find_any_option(name) == nullptr) {
    return text + did_you_mean(name, option_names(&command), "--");
  }
  const auto common = common_options();
  if (std::any_of(common.begin(), common.end(),
                  [&](const auto& one) { return one.name == name; })) {
    return fmt::format("{}; --{} is an option of every command", text, name);
  }
  std::vector<std::string_view> owners;
  for (const CommandSpec& one : all_commands()) {
    if (find_option(one, name) != nullptr) owners.push_back(one.name);
  }
  if (owners.size() > kOwnersShown) return text;
  return fmt::format("{}; --{} is an option of {}", text, name, fmt::join(owners, ", "));
}

std::string usage_line(const CommandSpec& command) {
  std::string text = fmt::format("weightfs {} {}{}[OPTION...]", command.name, command.operands,
                                 command.operands.empty() ? "" : " ");
  for (const OptionSpec& option : command.options) {
    if (option.operands.empty()) continue;
    text += fmt::format("\n       weightfs {} --{} {}", command.name, option.name, option.operands);
    if (!option.beside.empty()) text += fmt::format(" [--{}]", option.beside);
  }
  return text;
}

std::string help_text() {
  std::string text =
      "weightfs: a path that always holds a complete, immutable checkpoint\n"
      "\n"
      "usage: weightfs COMMAND OPERAND... [OPTION...]\n"
      "\n";
  for (const CommandSpec& command : all_commands()) {
    text += fmt::format("  {:<10} {:<20} {}\n", command.name, command.operands, command.summary);
  }
  text += "\nOptions of every command; --version, also -V, prints the version of weightfs:\n";
  for (const OptionSpec& option : common_options()) text += option_lines(option);
  text +=
      "\n--option VALUE or --option=VALUE, before or after operands. An option that is not given "
      "is\n"
      "taken from the environment (WEIGHTFS_STORE_SIZE for --store-size; lists: one entry per "
      "line),\n"
      "else from the configuration file, from its top level or the command's table:\n"
      "\n"
      "    store = \"/ssd/weightfs\"\n"
      "    [mount]\n"
      "    poll = 0.5\n"
      "\n";
  text += kExitCodes;
  text +=
      "\nExample:\n"
      "    weightfs init file:///srv/runs/a\n"
      "    weightfs publish file:///srv/runs/a out/step-0\n"
      "    weightfs mount file:///srv/runs/a /mnt/w\n"
      "    vllm serve /mnt/w/latest\n";
  return text;
}

std::string help_text(const CommandSpec& command) {
  std::string text = fmt::format("weightfs {}: {}\n\nusage: {}\n\n{}\n\nOptions:\n", command.name,
                                 command.summary, usage_line(command), command.description);
  for (const OptionSpec& option : command.options) text += option_lines(option);
  for (const OptionSpec& option : common_options()) text += option_lines(option);
  text += fmt::format("\n{}\nExample:\n    {}\n", kExitCodes, command.example);
  return text;
}

}  // namespace weightfs::fs
