// Child process: runs a program without a shell and waits for its end.
//
// The child gets /dev/null as its input, default signals, no descriptor of ours but the pipes of
// its output, and its own process group, which is killed if the child has to be killed.
//
// Threads: calls may run in parallel.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/context.hpp"

namespace weightfs {

struct ChildPlan {
  std::vector<std::string> argv;  // argv[0]: looked up in PATH if it has no '/'
  /// All of it: "NAME=VALUE"; nullopt: ours.
  std::optional<std::vector<std::string>> environment = {};
  std::string directory = {};                // its working directory; empty: ours
  bool ends_group = false;                   // kill the rest of its process group when it ends
  bool keeps_apart = false;                  // stderr goes to ChildEnd::errors
  std::size_t output_bytes_max = 64u << 10;  // of each
};

struct ChildEnd {
  int exit_code = 0;
  int signal = 0;       // that killed it; 0: it exited
  std::string output;   // of stdout, and of stderr unless they are kept apart
  std::string errors;   // of stderr, if kept apart
  bool is_cut = false;  // only the last output_bytes_max bytes of an output were kept
  [[nodiscard]] bool ok() const noexcept { return signal == 0 && exit_code == 0; }
};

/// Throws Error: not_found, permission, io (it cannot be started, naming it); timed_out and
/// cancelled (of `context`, after killing it).
ChildEnd run_child_process(const ChildPlan& plan, const Context& context);

/// Splits a command into words as a shell does: quotes and backslashes, nothing else.
/// Throws Error: invalid (a quote that is not closed, a backslash at the end).
std::vector<std::string> split_command(std::string_view text);

}  // namespace weightfs
