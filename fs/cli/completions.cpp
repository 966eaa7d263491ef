#include "fs/cli/completions.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <vector>

#include "fs/cli/command_table.hpp"
#include "store/base/error.hpp"

namespace weightfs::fs {
namespace {

constexpr std::string_view kShells = "bash zsh fish";

enum class Values { none, directory, file, words };

/// What can be offered for a value: "yes|no" has words, "SECONDS|auto" one.
struct Offer {
  Values kind = Values::none;
  std::string words;
};

Offer offer_for(std::string_view value) {
  if (value == "DIR" || value == "MOUNTPOINT") return {Values::directory, ""};
  if (value == "FILE") return {Values::file, ""};
  std::string words;
  for (std::string_view rest = value; !rest.empty();) {
    const std::size_t end = std::min(rest.find('|'), rest.size());
    const std::string_view word = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const bool is_literal =
        std::all_of(word.begin(), word.end(), [](char c) { return c >= 'a' && c <= 'z'; });
    if (is_literal) words += (words.empty() ? "" : " ") + std::string(word);
  }
  return {words.empty() ? Values::none : Values::words, words};
}

/// What may follow a command: names of commands, of shells, or paths.
Offer operands_of(const CommandSpec& command) {
  if (command.command == Command::help) {
    return {Values::words, fmt::format("{}", fmt::join(command_names(), " "))};
  }
  if (command.command == Command::completion) return {Values::words, std::string(kShells)};
  return {Values::directory, ""};
}

/// The first clause of a help, on one line.
std::string brief(std::string_view help) {
  std::string text(help);
  std::replace(text.begin(), text.end(), '\n', ' ');
  std::size_t end = text.size();
  for (const std::string_view stop : {" (default", "; ", ". "}) {
    end = std::min(end, text.find(stop));
  }
  return text.substr(0, end);
}

std::vector<const OptionSpec*> options_of(const CommandSpec& command) {
  std::vector<const OptionSpec*> options;
  for (const OptionSpec& option : command.options) options.push_back(&option);
  for (const OptionSpec& option : common_options()) options.push_back(&option);
  return options;
}

std::string escaped(std::string_view text, std::string_view special) {
  std::string result;
  for (const char c : text) {
    if (special.find(c) != std::string_view::npos) result += '\\';
    result += c;
  }
  return result;
}

// ---- bash ----

std::string bash_words(const Offer& offer) {
  switch (offer.kind) {
    case Values::directory:
      return "compopt -o filenames; COMPREPLY=($(compgen -d -- \"$cur\"))";
    case Values::file:
      return "compopt -o filenames; COMPREPLY=($(compgen -f -- \"$cur\"))";
    case Values::words:
      return fmt::format("COMPREPLY=($(compgen -W \"{}\" -- \"$cur\"))", offer.words);
    case Values::none:
      break;
  }
  return ":";
}

std::string bash_script() {
  std::string script = fmt::format(
      "# bash completion for weightfs\n"
      "_weightfs() {{\n"
      "  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}}\n"
      "  local command= word options=\n"
      "  COMPREPLY=()\n"
      "  if [ \"$cur\" = = ]; then cur=\n"
      "  elif [ \"$prev\" = = ]; then prev=${{COMP_WORDS[COMP_CWORD-2]}}; fi\n"
      "  for word in \"${{COMP_WORDS[@]:1:COMP_CWORD-1}}\"; do\n"
      "    case \" {} \" in *\" $word \"*) command=$word; break ;; esac\n"
      "  done\n"
      "  if [ -z \"$command\" ]; then\n"
      "    COMPREPLY=($(compgen -W \"{} --help --version\" -- \"$cur\"))\n"
      "    return\n"
      "  fi\n"
      "  case \"$command $prev\" in\n",
      fmt::join(command_names(), " "), fmt::join(command_names(), " "));
  for (const CommandSpec& command : all_commands()) {
    for (const OptionSpec* option : options_of(command)) {
      if (option->value.empty()) continue;
      script += fmt::format("    \"{} --{}\") {}; return ;;\n", command.name, option->name,
                            bash_words(offer_for(option->value)));
    }
  }
  script += "  esac\n  case \"$command\" in\n";
  for (const CommandSpec& command : all_commands()) {
    std::vector<std::string> names;
    for (const OptionSpec* option : options_of(command))
      names.push_back("--" + std::string(option->name));
    script += fmt::format(
        "    {})\n"
        "      case \"$cur\" in\n"
        "        -*) COMPREPLY=($(compgen -W \"{}\" -- \"$cur\")) ;;\n"
        "        *) {} ;;\n"
        "      esac ;;\n",
        command.name, fmt::join(names, " "), bash_words(operands_of(command)));
  }
  return script + "  esac\n}\ncomplete -F _weightfs weightfs\n";
}

// ---- zsh ----

std::string zsh_quoted(std::string_view text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string zsh_action(const Offer& offer) {
  switch (offer.kind) {
    case Values::directory:
      return "_files -/";
    case Values::file:
      return "_files";
    case Values::words:
      return "(" + offer.words + ")";
    case Values::none:
      break;
  }
  return "";
}

std::string zsh_script() {
  std::string script =
      "#compdef weightfs\n"
      "_weightfs() {\n"
      "  local -a commands\n"
      "  commands=(\n";
  for (const CommandSpec& command : all_commands()) {
    script += "    " +
              zsh_quoted(fmt::format("{}:{}", command.name, escaped(command.summary, ":\\"))) +
              "\n";
  }
  script +=
      "  )\n"
      "  if (( CURRENT == 2 )); then\n"
      "    _describe command commands\n"
      "    return\n"
      "  fi\n"
      "  local command=$words[2]\n"
      "  shift words\n"
      "  (( CURRENT-- ))\n"
      "  case $command in\n";
  for (const CommandSpec& command : all_commands()) {
    script += fmt::format("    {})\n      _arguments \\\n", command.name);
    for (const OptionSpec* option : options_of(command)) {
      std::string text =
          fmt::format("{}--{}{}[{}]", option->is_list ? "*" : "", option->name,
                      option->value.empty() ? "" : "=", escaped(brief(option->help), "[]\\"));
      if (!option->value.empty()) {
        text += fmt::format(":{}:{}", escaped(option->value, ":\\"),
                            zsh_action(offer_for(option->value)));
      }
      script += "        " + zsh_quoted(text) + " \\\n";
    }
    script += "        " + zsh_quoted("*:operand:" + zsh_action(operands_of(command))) + " ;;\n";
  }
  return script +
         "  esac\n"
         "}\n"
         "if [ \"$funcstack[1]\" = _weightfs ]; then _weightfs \"$@\"; else compdef _weightfs "
         "weightfs; fi\n";
}

// ---- fish ----

std::string fish_quoted(std::string_view text) { return "'" + escaped(text, "'\\") + "'"; }

std::string fish_values(const Offer& offer) {
  switch (offer.kind) {
    case Values::directory:
      return " -xa '(__fish_complete_directories)'";
    case Values::file:
      return " -rF";
    case Values::words:
      return " -xa " + fish_quoted(offer.words);
    case Values::none:
      break;
  }
  return " -x";
}

std::string fish_script() {
  std::string script = "# fish completion for weightfs\ncomplete -c weightfs -f\n";
  for (const CommandSpec& command : all_commands()) {
    script += fmt::format("complete -c weightfs -n __fish_use_subcommand -a {} -d {}\n",
                          command.name, fish_quoted(command.summary));
    const std::string start =
        fmt::format("complete -c weightfs -n '__fish_seen_subcommand_from {}'", command.name);
    for (const OptionSpec* option : options_of(command)) {
      script += fmt::format("{} -l {}{} -d {}\n", start, option->name,
                            option->value.empty() ? "" : fish_values(offer_for(option->value)),
                            fish_quoted(brief(option->help)));
    }
    const Offer operands = operands_of(command);
    script += fmt::format("{} -a {}\n", start,
                          operands.kind == Values::words ? fish_quoted(operands.words)
                                                         : "'(__fish_complete_directories)'");
  }
  return script;
}

}  // namespace

std::string completion_script(std::string_view shell) {
  if (shell == "bash") return bash_script();
  if (shell == "zsh") return zsh_script();
  if (shell == "fish") return fish_script();
  throw Error(ErrorCode::invalid, fmt::format("'{}' is not bash, zsh or fish", shell));
}

}  // namespace weightfs::fs
