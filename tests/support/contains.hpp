// contains: whether a text contains a part, for checks of commands, messages and requests.
#pragma once

#include <string>

namespace weightfs::test {

/// Takes strings, so that JSON and paths convert.
inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace weightfs::test
