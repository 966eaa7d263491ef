// Setters: store the value of an option in its field, given by a parser and the members that lead
// there.
//
//     .set = into<parse_seconds, &Options::host, &HostOptions::follow, &FollowOptions::poll>
//
// Threads: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "fs/base/parse_values.hpp"
#include "fs/cli/options.hpp"

namespace weightfs::fs {

/// Takes one value.  Throws Error: invalid.
using Setter = void (*)(Options& options, std::string_view value);

/// Sets a field.
template <auto kParse, auto... kMembers>
void into(Options& options, std::string_view value) {
  (options.*....*kMembers) = kParse(value);
}

/// Adds to a list.
template <auto kParse, auto... kMembers>
void append(Options& options, std::string_view value) {
  (options.*....*kMembers).push_back(kParse(value));
}

// Parsers in addition to those of parse_values.hpp.

inline std::string as_given(std::string_view text) { return std::string(text); }

template <NumberRange kRange, typename Number = std::uint64_t>
Number number_in(std::string_view text) {
  static_assert(std::in_range<Number>(kRange.most));
  return static_cast<Number>(parse_number(text, kRange));
}

}  // namespace weightfs::fs
