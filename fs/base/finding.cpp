#include "fs/base/finding.hpp"

namespace weightfs::fs {

std::string_view to_string(Finding::State state) noexcept {
  switch (state) {
    case Finding::State::good:
      return "good";
    case Finding::State::note:
      return "note";
    case Finding::State::warning:
      return "warning";
    case Finding::State::bad:
      return "bad";
  }
  return "bad";
}

std::string_view prefix_of(Finding::State state) noexcept {
  if (state == Finding::State::warning) return "WARNING: ";
  return state == Finding::State::bad ? "BAD: " : "";
}

}  // namespace weightfs::fs
