// Suggest: which of the known words a mistyped one was probably meant to be.
//
// Threads: pure functions.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace weightfs {

/// The known word that is nearest to `word`: at most a third of its letters inserted, left out,
/// replaced or exchanged with their neighbours, or its first letters, three at least.
/// Returns: never `word` itself; "" if none is near enough; the first one of several that are
/// equally near.
std::string nearest_word(std::string_view word, std::span<const std::string> known);

/// What an error message says about it: "; did you mean status?", or "".  `prefix`: stands before
/// the suggested word, as "--" does before an option.
std::string did_you_mean(std::string_view word, std::span<const std::string> known,
                         std::string_view prefix = "");

}  // namespace weightfs
