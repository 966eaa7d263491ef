// contains: whether a text has a part, for what commands, messages and requests say.
#pragma once

#include <string>

namespace weightfs::test {

/// Strings, so that JSON and paths convert.
inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace weightfs::test
