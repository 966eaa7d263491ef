// Command spec: one command, with its operands, options and help.
//
// Threads: immutable.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fs/cli/setters.hpp"

namespace weightfs::fs {

struct OptionSpec {
  std::string_view name;        // "store-size": --store-size, WEIGHTFS_STORE_SIZE, store-size = ...
  std::string_view value = {};  // "SIZE"; empty: a switch
  bool is_list = false;         // may be given several times
  std::string_view needs = {};  // on the command line: valid only with this switch
  bool is_typed = false;        // on the command line only: neither in the environment nor in files
  std::string_view operands = {};  // a switch that replaces the command's operands by these, and
                                   // goes only with the common options and with `beside`
  std::string_view beside = {};    // the name of one option
  std::string help;                // with its default
  Setter set = nullptr;            // nullptr: handled by the parser
};

struct CommandSpec {
  Command command{};
  std::string_view name;
  std::string_view operands;     // "URL [N]": for the usage line and the operand count
  std::string_view summary;      // one line
  std::string_view description;  // paragraphs, wrapped by hand
  std::string_view example;
  std::vector<OptionSpec> options;  // without the common ones
  /// Takes all operands; their number has been checked.
  /// Throws Error: invalid.
  void (*take)(Options& options, std::span<const std::string> operands) = nullptr;
};

}  // namespace weightfs::fs
