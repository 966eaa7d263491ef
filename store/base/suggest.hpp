// Suggest: which of the known words a mistyped one was probably meant to be.
//
// Threads: pure functions.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace weightfs {

/// The known word nearest to `word`: at most a third of the letters are inserted, left out,
/// replaced or swapped with a neighbour, or it begins with `word`, of at least three letters.
/// Returns: never `word` itself; "" if none is near enough; the first one of several that are
/// equally near.
std::string nearest_word(std::string_view word, std::span<const std::string> known);

/// The suggestion for an error message: "; did you mean status?", or "".  `prefix`: put before the
/// suggested word, as "--" before an option.
std::string did_you_mean(std::string_view word, std::span<const std::string> known,
                         std::string_view prefix = "");

}  // namespace weightfs
