// WindowTroubles: why windows of a version are not here yet.
//
// Threads: none of its own; one caller at a time.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <string>

#include "store/base/error.hpp"

namespace weightfs {

/// Why a window is not here yet.  As text, because an exception object must not be shared between
/// threads.
struct Trouble {
  ErrorCode code{};
  std::string message;

  [[nodiscard]] bool is_damage() const {
    return code == ErrorCode::corrupt || code == ErrorCode::not_found;
  }
};

class WindowTroubles {
 public:
  void set(std::size_t window, const Trouble& trouble);
  void forget(std::size_t window);
  /// Requires: the window has one.
  [[nodiscard]] const Trouble& at(std::size_t window) const { return troubles_.at(window); }
  [[nodiscard]] bool has_damage() const noexcept { return !damaged_.empty(); }

  /// The last one, but damage, which is permanent, takes precedence over temporary errors.
  /// nullptr: none.
  [[nodiscard]] const Trouble* worst() const;

 private:
  std::map<std::size_t, Trouble> troubles_;  // by window
  std::set<std::size_t> damaged_;            // windows of `troubles_` that are damaged
  std::size_t last_ = 0;                     // window
};

}  // namespace weightfs
