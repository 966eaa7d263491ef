// Output: where a command prints, so that tests can run one in-process.
#pragma once

#include <cstddef>
#include <iosfwd>

namespace weightfs::fs {

/// Where a command prints: data to `out`, everything else to `err`; progress only if `terminal`.
struct Output {
  std::ostream& out;
  std::ostream& err;
  bool terminal = false;        // `err` is one
  std::size_t columns = 0;      // of the terminal that `out` is; 0: it is none
  std::size_t err_columns = 0;  // the same of `err`
};

}  // namespace weightfs::fs
