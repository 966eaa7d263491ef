// Finding: the result of one check of `weightfs doctor`.
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
    warning,  // works, but less well than expected
    bad,      // a mount of the bucket would not work
  };
  std::string what;  // "endpoint", "credentials", "write", "memory" ...
  State state{};
  std::string text;  // what was found, and what to do
};
std::string_view to_string(Finding::State state) noexcept;

/// "", "WARNING: " or "BAD: ", to be put before the text.
std::string_view prefix_of(Finding::State state) noexcept;

}  // namespace weightfs::fs
