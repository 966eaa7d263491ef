// Child process: runs a program without a shell and waits for its end.
//
// The child gets /dev/null as its input, default signals, no descriptor of ours but the pipes of
// its output, and its own process group, which is killed if the child has to be killed.
//
// If this process is killed, the child lives on.  Whoever remembers its id can end it later.
//
// Threads: calls may run in parallel.
#pragma once

#include <cstddef>
#include <functional>
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
  /// Called with the id of the child when it runs; if it throws, the child is killed.  May be
  /// empty.
  std::function<void(const std::string& id)> started = {};
};

struct ChildEnd {
  int exit_code = 0;
  int signal = 0;       // that killed it; 0: it exited
  std::string output;   // of stdout, and of stderr unless they are kept apart
  std::string errors;   // of stderr, if kept apart
  bool is_cut = false;  // only the last output_bytes_max bytes of an output were kept
  [[nodiscard]] bool ok() const noexcept { return signal == 0 && exit_code == 0; }
};

/// Throws Error: not_found, permission, io (it cannot be started, naming it; or nobody learns how
/// it ended, since SIGCHLD is ignored); timed_out and cancelled (of `context`, after killing it);
/// what `started` throws.
ChildEnd run_child_process(const ChildPlan& plan, const Context& context);

/// Kills the group of a child that a process before this one has left, and waits for the child's
/// end.  Does nothing if it is gone, whoever has its number now, or if `id` is "".
/// Throws Error: permission, io (it cannot be killed); timed_out and cancelled (of `context`).
void end_left_child(const std::string& id, const Context& context);

/// Splits a command into words as a shell does: quotes and backslashes, nothing else.
/// Throws Error: invalid (a quote that is not closed, a backslash at the end).
std::vector<std::string> split_command(std::string_view text);

}  // namespace weightfs
