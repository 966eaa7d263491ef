// code_of: the code of the Error that a call must throw.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "store/base/error.hpp"

namespace weightfs::test {

/// Runs `body`; the test fails if nothing is thrown.  `message` is set to the Error's text.
inline ErrorCode code_of(const std::function<void()>& body, std::string* message = nullptr) {
  try {
    body();
  } catch (const Error& error) {
    if (message != nullptr) *message = error.what();
    return error.code();
  }
  ADD_FAILURE() << "nothing was thrown";
  return ErrorCode::io;
}

}  // namespace weightfs::test
