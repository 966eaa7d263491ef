// How a command line is parsed: split argv into the command, its operands and its options; take
// every missing option from the environment, then from the configuration files; then pass each
// value to the option's `set`.

#include "fs/cli/parse_options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <map>
#include <optional>
#include <string_view>

#include "fs/base/errno.hpp"
#include "fs/base/parse_values.hpp"
#include "fs/cli/command_table.hpp"
#include "fs/cli/config_file.hpp"
#include "fs/cli/mount_helper.hpp"
#include "kernels/dispatch/variant_table.hpp"
#include "store/base/error.hpp"
#include "store/base/suggest.hpp"
#include "store/os/file.hpp"
#include "store/repository/open_bucket.hpp"

namespace weightfs::fs {
namespace {

constexpr std::uint64_t kConfigBytesMax = 1u << 20;
constexpr std::array kSystemConfigs{"/etc/weightfs/weightfs.toml", "/etc/weightfs.toml"};
constexpr std::string_view kSimdKernels = "simd";  // the fastest variant
constexpr std::string_view kCudaKernels = "cuda";

/// The values of one option, and their origin for messages.
struct Setting {
  std::string origin;  // "--poll", "WEIGHTFS_POLL", "'poll' in FILE"
  std::vector<std::string> values;
};
using Settings = std::map<std::string, Setting, std::less<>>;  // by the option's name

constexpr std::string_view kVariablePrefix = "WEIGHTFS_";

[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorCode::invalid, message); }

// ---- argv ----

/// argv, split up.
struct Arguments {
  const CommandSpec* command = nullptr;
  std::vector<std::string> operands;
  std::vector<std::string> unknown;  // options that the command lacks
  Settings settings;
};

/// Splits "--name=value".
struct Flag {
  explicit Flag(const std::string& argument) : name(argument.substr(2)) {
    const std::size_t equals = name.find('=');
    if (equals == std::string::npos) return;
    value = name.substr(equals + 1);
    name.resize(equals);
  }
  std::string name;
  std::optional<std::string> value;
};

bool is_option(const std::string& argument) {
  return argument.size() > 1 && argument.front() == '-' && argument != "--";
}

/// The option `name` if the command has it.  Before the command is known any option matches, so
/// that its value is not mistaken for an operand.
const OptionSpec* find_option_now(const CommandSpec* command, const std::string& name) {
  return command == nullptr ? find_any_option(name) : find_option(*command, name);
}

/// Takes the option at arguments[i], and its value if that is the next argument.
/// Returns: the number of arguments taken.
std::size_t take_option(std::span<const std::string> arguments, std::size_t i, Arguments& parsed) {
  if (!arguments[i].starts_with("--")) {
    parsed.unknown.push_back(arguments[i]);
    return 1;
  }
  Flag flag(arguments[i]);
  const OptionSpec* option = find_option_now(parsed.command, flag.name);
  if (option == nullptr) {
    parsed.unknown.push_back("--" + flag.name);
    return 1;
  }
  const bool is_switch = option->value.empty();
  const bool takes_next = !is_switch && !flag.value;
  if (takes_next && i + 1 == arguments.size()) {
    refuse(fmt::format("--{} needs a value: --{} {}", flag.name, flag.name, option->value));
  }
  Setting& setting = parsed.settings[flag.name];
  setting.origin = "--" + flag.name;
  setting.values.push_back(takes_next ? arguments[i + 1] : flag.value.value_or("true"));
  return takes_next ? 2 : 1;
}

void take_operand(const std::string& argument, Arguments& parsed) {
  if (parsed.command != nullptr) {
    parsed.operands.push_back(argument);
    return;
  }
  parsed.command = find_command(argument);
  if (parsed.command == nullptr) refuse(no_such_command(argument));
}

/// Fills `parsed` as far as possible even if it throws: the caller needs the command for its
/// message.
void split_arguments(std::span<const std::string> arguments, Arguments& parsed) {
  bool options_ended = false;
  for (std::size_t i = 0; i < arguments.size();) {
    if (!options_ended && arguments[i] == "--") {
      options_ended = true;
      i++;
    } else if (!options_ended && is_option(arguments[i])) {
      i += take_option(arguments, i, parsed);
    } else {
      take_operand(arguments[i++], parsed);
    }
  }
}

bool is_path(const OptionSpec& option) { return option.value == "DIR" || option.value == "FILE"; }

/// An empty path would be the default, or the working directory: not what was meant.
void check_path(const OptionSpec& option, const Setting& setting) {
  if (!is_path(option) || !setting.values.front().empty()) return;
  refuse(fmt::format("--{} needs a path; it is empty (an unset variable?)", option.name));
}

void check_arguments(const Arguments& parsed) {
  const CommandSpec& command = *parsed.command;
  if (!parsed.unknown.empty()) refuse(no_such_option(command, parsed.unknown.front()));
  for (const auto& [name, setting] : parsed.settings) {
    const OptionSpec* option = find_option(command, name);
    if (option == nullptr) refuse(no_such_option(command, "--" + name));
    if (setting.values.size() > 1 && !option->is_list) {
      refuse(fmt::format("--{} is given more than once", name));
    }
    check_path(*option, setting);
  }
}

bool is_common(const OptionSpec& option) {
  const auto common = common_options();
  return option.name != "config" &&
         std::any_of(common.begin(), common.end(),
                     [&](const OptionSpec& other) { return other.name == option.name; });
}

/// The option that is given and replaces the command's operands, or nullptr.
/// Throws Error: invalid, if others are given that do not go with it.
const OptionSpec* find_replacing(const Arguments& parsed) {
  const OptionSpec* replacing = nullptr;
  for (const auto& [name, setting] : parsed.settings) {
    const OptionSpec* option = find_option(*parsed.command, name);
    if (!option->operands.empty() && parse_switch(setting.values.front())) replacing = option;
  }
  if (replacing == nullptr) return nullptr;
  for (const auto& [name, setting] : parsed.settings) {
    if (name == replacing->name || name == replacing->beside) continue;
    if (is_common(*find_option(*parsed.command, name))) continue;
    refuse(fmt::format("--{} does not go with --{}, which takes the options that there were", name,
                       replacing->name));
  }
  return replacing;
}

/// The name of the operand with this index: "DIR" for 1 of "URL|MOUNTPOINT [DIR]".
std::string_view operand_name(std::string_view operands, std::size_t index) {
  for (; index > 0; index--)
    operands.remove_prefix(std::min(operands.find(' '), operands.size()) + 1);
  operands = operands.substr(0, operands.find(' '));
  if (operands.starts_with('[') && operands.ends_with(']')) {
    operands = operands.substr(1, operands.size() - 2);
  }
  return operands;
}

/// Never taken as one that is left out: `status --check ""` would check all mounts.
void check_empty_operands(const Arguments& parsed, std::string_view operands) {
  const std::size_t known = std::min(parsed.operands.size(), operand_count(operands).most);
  for (std::size_t i = 0; i < known; i++) {
    if (!parsed.operands[i].empty()) continue;
    refuse(fmt::format("{} is given an empty {} (an unset variable?)", parsed.command->name,
                       operand_name(operands, i)));
  }
}

void check_operands(const Arguments& parsed, std::string_view operands) {
  const CommandSpec& command = *parsed.command;
  check_empty_operands(parsed, operands);
  const OperandCount count = operand_count(operands);
  if (parsed.operands.size() < count.least) {
    refuse(fmt::format("{} needs {}; {}", command.name, operands,
                       parsed.operands.empty()
                           ? std::string("none is given")
                           : fmt::format("only {} is given", fmt::join(parsed.operands, " "))));
  }
  if (parsed.operands.size() > count.most) {
    refuse(fmt::format("unexpected operand '{}'", parsed.operands[count.most]));
  }
}

// ---- environment ----

const char* find_environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value != nullptr && *value != '\0' ? value : nullptr;
}

std::vector<std::string> split_lines(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (end != 0) lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

std::string variable_of(const OptionSpec& option) {
  std::string name(kVariablePrefix);
  for (const char c : option.name) {
    name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return name;
}

std::vector<std::string> known_variables() {
  std::vector<std::string> names{"WEIGHTFS_CONFIG", "WEIGHTFS_KERNELS"};
  const auto add = [&](std::span<const OptionSpec> options) {
    for (const OptionSpec& option : options) {
      if (option.set != nullptr) names.push_back(variable_of(option));
    }
  };
  for (const CommandSpec& command : all_commands()) add(command.options);
  add(common_options());
  return names;
}

/// Warns only of names that look mistyped: others may be legitimate.
std::vector<std::string> warn_of_variables() {
  std::vector<std::string> warnings;
  std::vector<std::string> known = known_variables();
  for (std::string& name : known) name.erase(0, kVariablePrefix.size());
  for (char** entry = environ; *entry != nullptr; entry++) {
    const std::string_view text(*entry);
    if (!text.starts_with(kVariablePrefix)) continue;
    const std::string_view name = text.substr(0, text.find('=')).substr(kVariablePrefix.size());
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    // Kubernetes sets it for a service `weightfs`, and it looks like WEIGHTFS_PART.
    if (name == "PORT") continue;
    const std::string meant = did_you_mean(name, known, kVariablePrefix);
    if (meant.empty()) continue;
    warnings.push_back(
        fmt::format("the environment variable {}{} is not an option and is ignored{}",
                    kVariablePrefix, name, meant));
  }
  return warnings;
}

std::optional<Setting> find_in_environment(const OptionSpec& option) {
  const std::string name = variable_of(option);
  const char* value = find_environment(name);
  if (value == nullptr) return std::nullopt;
  if (option.is_list) return Setting{name, split_lines(value)};
  return Setting{name, {value}};
}

// ---- configuration files ----

/// The names of a command's operands in its table: "URL MOUNTPOINT" is url, mountpoint.  None for a
/// command that may have fewer, or one of several kinds.
std::vector<std::string> operand_keys(const CommandSpec& command) {
  std::vector<std::string> keys;
  for (const char c : command.operands) {
    if (c == '[' || c == '|' || c == '.') return {};
    if (keys.empty() || c == ' ') keys.emplace_back();
    if (c != ' ') keys.back() += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return keys;
}

/// The files to read, in order of precedence.
std::vector<std::filesystem::path> config_files(const Arguments& parsed) {
  const auto given = parsed.settings.find("config");
  if (given != parsed.settings.end()) return {given->second.values.front()};
  if (const char* path = find_environment("WEIGHTFS_CONFIG")) return {path};

  std::vector<std::filesystem::path> files;
  if (const char* config = find_environment("XDG_CONFIG_HOME")) {
    files.push_back(std::filesystem::path(config) / "weightfs/config.toml");
  } else if (const char* home = find_environment("HOME")) {
    files.push_back(std::filesystem::path(home) / ".config/weightfs/config.toml");
  }
  files.insert(files.end(), kSystemConfigs.begin(), kSystemConfigs.end());
  std::erase_if(files, [](const auto& file) {
    std::error_code ignored;
    return !std::filesystem::exists(file, ignored);
  });
  return files;
}

/// An operand of the table's command, by its name: url, mountpoint, dir.
bool is_operand_key(const CommandSpec* table, std::string_view key) {
  if (table == nullptr) return false;
  const auto names = operand_keys(*table);
  return std::find(names.begin(), names.end(), key) != names.end();
}

/// Refuses a key that no command knows, so that a typo is noticed.
void check_entry(const ConfigEntry& entry, const std::string& file) {
  const CommandSpec* table = entry.table.empty() ? nullptr : find_command(entry.table);
  if (!entry.table.empty() && table == nullptr) {
    refuse(fmt::format("{}: there is no command for the table [{}]{}", file, entry.table,
                       did_you_mean(entry.table, command_names())));
  }
  if (is_operand_key(table, entry.key)) {
    if (entry.is_array)
      refuse(fmt::format("{}: '{}' takes one value, not an array", file, entry.key));
    return;
  }
  const OptionSpec* option = find_option_now(table, entry.key);
  if (option == nullptr || option->set == nullptr) {
    refuse(fmt::format("{}: unknown key '{}'{}{}", file, entry.key,
                       table == nullptr ? "" : fmt::format(" in [{}]", entry.table),
                       did_you_mean(entry.key, option_names(table))));
  }
  if (option->is_typed) {
    refuse(fmt::format("{}: '{}' is taken from the command line only", file, entry.key));
  }
  if (entry.is_array && !option->is_list) {
    refuse(fmt::format("{}: '{}' takes one value, not an array", file, entry.key));
  }
}

/// The operands that the command's table has, if it has all of them.
std::vector<std::string> operands_in(const std::vector<ConfigEntry>& entries,
                                     const CommandSpec& command) {
  std::vector<std::string> operands;
  for (const std::string& key : operand_keys(command)) {
    for (const ConfigEntry& entry : entries) {
      if (entry.table == command.name && entry.key == key) operands.push_back(entry.values.front());
    }
  }
  if (operands.size() != operand_keys(command).size()) operands.clear();
  return operands;
}

/// Adds values from the file for options that have no setting yet, and for the operands if there
/// are none; the command's table takes precedence.
void add_config(const std::filesystem::path& path, const CommandSpec& command, Settings& settings,
                std::vector<std::string>& operands) {
  const std::string file = path.string();
  const std::vector<ConfigEntry> entries = parse_config(read_file(path, kConfigBytesMax), file);
  for (const ConfigEntry& entry : entries) check_entry(entry, file);
  if (operands.empty()) operands = operands_in(entries, command);
  for (const std::string_view table : {command.name, std::string_view()}) {
    for (const ConfigEntry& entry : entries) {
      const OptionSpec* option = find_option(command, entry.key);
      // Of the same name, but typed: another command's is meant.
      if (entry.table != table || option == nullptr || option->is_typed) continue;
      settings.try_emplace(entry.key,
                           Setting{fmt::format("'{}' in {}", entry.key, file), entry.values});
    }
  }
}

// ---- together ----

void add_environment(const CommandSpec& command, Settings& settings) {
  const auto add = [&](const OptionSpec& option) {
    if (option.set == nullptr || option.is_typed || settings.contains(option.name)) return;
    if (auto setting = find_in_environment(option)) {
      settings.emplace(option.name, std::move(*setting));
    }
  };
  for (const OptionSpec& option : command.options) add(option);
  for (const OptionSpec& option : common_options()) add(option);
}

void apply(const CommandSpec& command, const Settings& settings, Options& options) {
  for (const auto& [name, setting] : settings) {
    const OptionSpec* option = find_option(command, name);
    if (option->set == nullptr) continue;
    for (const std::string& value : setting.values) {
      try {
        option->set(options, value);
      } catch (const Error& error) {
        throw error.within(setting.origin);
      }
    }
  }
}

bool is_directory_url(const std::string& url) {
  try {
    return !directory_of_url(canonical_url(url)).empty();
  } catch (const Error&) {  // whoever opens it says why
    return false;
  }
}

/// Whether the option that this one needs is given.
bool has_needed(const CommandSpec& command, const OptionSpec& option, const Settings& settings) {
  if (option.needs.empty()) return true;
  const auto needed = settings.find(option.needs);
  if (needed == settings.end()) return false;
  const bool is_switch = find_option(command, option.needs)->value.empty();
  return !is_switch || parse_switch(needed->second.values.front());
}

/// A value that means the same in any directory.
std::string absolute_value(const OptionSpec& option, const std::string& value) {
  if (is_path(option)) return std::filesystem::absolute(value).string();
  constexpr std::string_view kUnix = "unix:";
  const bool has_path = option.name == "metrics" && value.starts_with(kUnix) && value != kUnix;
  if (!has_path) return value;
  return fmt::format("{}{}", kUnix, std::filesystem::absolute(value.substr(kUnix.size())).string());
}

/// The options `given` as flags.  As flags they would be errors where they do not apply, which in
/// the environment, meant for other commands, they are not: such are left out.
/// Paths are made absolute: the flags may be used in another directory.
std::vector<std::string> flags_of(const Arguments& parsed, const Settings& given,
                                  const Settings& settings) {
  const CommandSpec& command = *parsed.command;
  const bool is_directory = !parsed.operands.empty() && is_directory_url(parsed.operands.front());
  std::vector<std::string> flags;
  for (const auto& [name, setting] : given) {
    const OptionSpec& option = *find_option(command, name);
    if (is_common(option)) continue;
    const bool is_meant =
        has_needed(command, option, settings) && !(is_directory && is_bucket_option(option.name));
    if (!is_meant && !parsed.settings.contains(name)) continue;
    for (const std::string& value : setting.values) {
      const std::string text = absolute_value(option, value);
      const bool is_plain = option.value.empty() && text == "true";
      flags.push_back(is_plain ? "--" + name : fmt::format("--{}={}", name, text));
    }
  }
  const char* const config = find_environment("WEIGHTFS_CONFIG");
  if (config != nullptr && !settings.contains("config")) {
    flags.push_back("--config=" + std::filesystem::absolute(config).string());
  }
  return flags;
}

std::string variant_names() {
  std::string names;
  for (const kernels::Variant& variant : kernels::variants()) {
    names += fmt::format("{}, ", variant.name);
  }
  return names;
}

/// Whether this machine has the variant, or the name is another known one.
bool is_kernels_name(std::string_view name) {
  const auto variants = kernels::variants();
  return name == kSimdKernels || std::any_of(variants.begin(), variants.end(),
                                             [&](const auto& v) { return v.name == name; });
}

void take_kernels(const CommandSpec& command, Options& options) {
  const char* const name = find_environment("WEIGHTFS_KERNELS");
  if (name == nullptr || command.command == Command::help) return;
  if (name == kCudaKernels) {
    if (!options.host.gpu && find_option(command, "gpu") != nullptr) options.host.gpu = 0;
    return;
  }
  if (!is_kernels_name(name)) {
    refuse(fmt::format("WEIGHTFS_KERNELS: '{}' is not among those of this machine: {}{} and {}",
                       name, variant_names(), kSimdKernels, kCudaKernels));
  }
  options.kernels = name;
}

/// Checks only the command line: in the environment and in a file an option may be meant for
/// another command.
void check_needs(const Arguments& parsed, const Settings& settings) {
  for (const auto& [name, setting] : parsed.settings) {
    const OptionSpec* option = find_option(*parsed.command, name);
    if (has_needed(*parsed.command, *option, settings)) continue;
    refuse(fmt::format("--{} needs --{}", name, option->needs));
  }
}

void read_command(Arguments& parsed, Options& options) {
  const CommandSpec& command = *parsed.command;
  options.command = command.command;
  check_arguments(parsed);
  if (const OptionSpec* replacing = find_replacing(parsed)) {
    check_operands(parsed, replacing->operands);
    apply(command, parsed.settings, options);
    options.directory = parsed.operands.front();
    return;
  }
  if (!parsed.operands.empty()) check_operands(parsed, command.operands);
  Settings settings = parsed.settings;
  add_environment(command, settings);
  const Settings given = settings;
  options.configs = config_files(parsed);
  for (const auto& file : options.configs) add_config(file, command, settings, parsed.operands);
  check_operands(parsed, command.operands);
  check_needs(parsed, settings);
  options.flags = flags_of(parsed, given, settings);
  apply(command, settings, options);
  options.bucket_flagged =
      std::any_of(parsed.settings.begin(), parsed.settings.end(),
                  [](const auto& setting) { return is_bucket_option(setting.first); });
  options.gpu_flagged = parsed.settings.contains("gpu");
  options.snapshots_flagged = parsed.settings.contains("snapshot-every");
  take_kernels(command, options);
  command.take(options, parsed.operands);
}

bool has_switch(const Arguments& parsed, std::string_view name) {
  const auto setting = parsed.settings.find(name);
  return setting != parsed.settings.end() && setting->second.values.front() == "true";
}

Options make_help(const CommandSpec* command) {
  Options options;
  options.command = Command::help;
  options.text = command == nullptr ? help_text() : help_text(*command);
  return options;
}

Options make_version() {
  Options options;
  options.command = Command::version;
  options.text = "weightfs " WEIGHTFS_VERSION "\n";
  return options;
}

/// A line for the problem, one for the usage, one for where to find more.
Options make_usage_error(const CommandSpec* command, const std::string& problem, bool json) {
  Options options;
  options.command = Command::help;
  options.json = json;
  options.error = problem;
  options.text = fmt::format(
      "weightfs: {}\nusage: {}\nrun weightfs help{}\n", problem,
      command == nullptr ? "weightfs COMMAND OPERAND... [OPTION...]" : usage_line(*command),
      command == nullptr || command->command == Command::help ? ""
                                                              : fmt::format(" {}", command->name));
  return options;
}

}  // namespace

Options parse_options(int argc, const char* const* argv) {
  std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  std::replace(arguments.begin(), arguments.end(), std::string("-h"), std::string("--help"));
  const bool is_helper = argc > 0 && is_mount_helper(argv[0]);
  if (!is_helper) {  // whose -o is mount(8)'s
    std::replace(arguments.begin(), arguments.end(), std::string("-o"), std::string("--output"));
  }
  const bool wants_json =
      std::find(arguments.begin(), arguments.end(), "--json") != arguments.end();
  if (!arguments.empty() && (arguments.front() == "--version" || arguments.front() == "-V")) {
    return make_version();
  }

  Arguments parsed;
  try {
    std::optional<Options::Helper> helper;
    if (is_helper) {
      parsed.command = find_command("mount");  // for the message of an error
      MountHelperCall call = parse_mount_helper(arguments);
      helper = {call.is_fake, call.is_verbose};
      arguments = std::move(call.arguments);
      parsed.command = nullptr;
    }
    split_arguments(arguments, parsed);
    if (has_switch(parsed, "help")) return make_help(parsed.command);
    if (parsed.command == nullptr) refuse("no command given");
    Options options;
    options.helper = helper;
    read_command(parsed, options);
    options.warnings = warn_of_variables();
    return options;
  } catch (const Error& error) {
    return make_usage_error(parsed.command, error.what(), wants_json);
  } catch (const std::filesystem::filesystem_error& error) {
    // Of all paths only the working directory is looked at here.
    return make_usage_error(
        parsed.command,
        describe_errno(error.code().value(), "find the working directory of a relative path"),
        wants_json);
  }
}

}  // namespace weightfs::fs
