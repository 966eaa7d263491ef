// Finding: one thing that `weightfs doctor` has looked at.
//
// Threads: a value.
#pragma once

#include <string>
#include <string_view>

namespace weightfs::fs {

struct Finding {
  enum class State {
    good,
    note,
    warning,  // works, but not as well as somebody will expect
    bad,      // a mount of the bucket could not work
  };
  std::string what;  // "endpoint", "credentials", "write", "memory" ...
  State state{};
  std::string text;  // what was found, and what to do
};
std::string_view to_string(Finding::State state) noexcept;

/// "", or "WARNING: " or "BAD: ", to stand before the text.
std::string_view prefix_of(Finding::State state) noexcept;

}  // namespace weightfs::fs
