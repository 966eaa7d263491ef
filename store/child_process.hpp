// Child process: runs a program without a shell and waits for its end.
//
// The child gets an environment of its own, /dev/null as its input, the directory "/", default
// signals, no descriptor of ours but the pipe of its output, and a process group, which is killed
// when it ends or is ended: nothing that it started in that group lives on.
//
// Threads: calls may run in parallel.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "store/context.hpp"

namespace weightfs {

struct ChildPlan {
  std::vector<std::string> argv;         // argv[0]: an absolute path
  std::vector<std::string> environment;  // all of it: "NAME=VALUE"
  std::size_t output_bytes_max = 64u << 10;
};

struct ChildEnd {
  int exit_code = 0;
  int signal = 0;       // that ended it; 0: it ended by itself
  std::string output;   // the last ChildPlan::output_bytes_max bytes of stdout and stderr together
  bool is_cut = false;  // there was more before them
  [[nodiscard]] bool ok() const noexcept { return signal == 0 && exit_code == 0; }
};

/// Throws Error: not_found, permission, io (it cannot be started, naming it); timed_out and
/// cancelled (of `context`; it was killed then).
ChildEnd run_child_process(const ChildPlan& plan, const Context& context);

}  // namespace weightfs
