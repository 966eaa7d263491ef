// Output: where a command prints.  Tests can run a command in-process.
#pragma once

#include <cstddef>
#include <iosfwd>

namespace weightfs::fs {

/// Data goes to `out`, everything else to `err`; progress is shown only if `terminal`.
struct Output {
  std::ostream& out;
  std::ostream& err;
  bool terminal = false;        // `err` is a terminal
  std::size_t columns = 0;      // of the terminal behind `out`; 0: not a terminal
  std::size_t err_columns = 0;  // the same for `err`
};

}  // namespace weightfs::fs
