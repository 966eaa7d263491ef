#include "fs/base/errno.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <new>
#include <stdexcept>

namespace weightfs::fs {
namespace {

constexpr ErrorCode kAll[] = {ErrorCode::invalid,    ErrorCode::not_found, ErrorCode::exists,
                              ErrorCode::conflict,   ErrorCode::corrupt,   ErrorCode::unsupported,
                              ErrorCode::permission, ErrorCode::read_only, ErrorCode::busy,
                              ErrorCode::no_space,   ErrorCode::no_memory, ErrorCode::unavailable,
                              ErrorCode::timed_out,  ErrorCode::cancelled, ErrorCode::io};

TEST(Errno, EveryCodeHasOneThatReadersUnderstand) {
  for (const ErrorCode code : kAll) {
    EXPECT_GT(to_errno(code), 0) << to_string(code);
    EXPECT_NE(to_errno(code), EAGAIN) << to_string(code) << " would read as 'no data yet'";
  }
  EXPECT_EQ(to_errno(ErrorCode::not_found), ENOENT);
  EXPECT_EQ(to_errno(ErrorCode::read_only), EROFS);
  EXPECT_EQ(to_errno(ErrorCode::corrupt), EIO);
  EXPECT_EQ(to_errno(ErrorCode::no_space), ENOSPC);
  EXPECT_EQ(to_errno(ErrorCode::timed_out), ETIMEDOUT);
}

TEST(Errno, ARefusedHandOverIsNothingThatMvMisreads) {
  for (const ErrorCode code : kAll) {
    const int number = to_hand_over_errno(code);
    for (const int misread : {0, EINVAL, ESTALE, EXDEV, EEXIST, ENOENT, EAGAIN}) {
      EXPECT_NE(number, misread) << to_string(code);
    }
  }
  EXPECT_EQ(to_hand_over_errno(ErrorCode::invalid), EBADMSG);
  EXPECT_EQ(to_hand_over_errno(ErrorCode::corrupt), EBADMSG);
  EXPECT_EQ(to_hand_over_errno(ErrorCode::not_found), ENODATA);
  EXPECT_EQ(to_hand_over_errno(ErrorCode::busy), EBUSY);
  EXPECT_EQ(to_hand_over_errno(ErrorCode::permission), EACCES);
  EXPECT_EQ(to_hand_over_errno(ErrorCode::no_space), ENOSPC);
  EXPECT_EQ(to_hand_over_errno(ErrorCode::cancelled), EINTR);
  EXPECT_EQ(to_hand_over_errno(ErrorCode::io), EIO);
}

TEST(Errno, ExitCodesAreThoseOfTheManual) {
  for (const ErrorCode code : kAll) {
    const int expected = code == ErrorCode::invalid     ? 2
                         : code == ErrorCode::conflict  ? 3
                         : code == ErrorCode::corrupt   ? 4
                         : code == ErrorCode::timed_out ? 5
                                                        : 1;
    EXPECT_EQ(to_exit_code(code), expected) << to_string(code);
  }
}

TEST(Errno, TheGuardLetsNothingThrough) {
  EXPECT_EQ(guarded("test", [] {}), 0);
  EXPECT_EQ(guarded("test", [] { throw Error(ErrorCode::busy, "held"); }), EBUSY);
  EXPECT_EQ(guarded("test", [] { throw std::runtime_error("other"); }), EIO);
}

// A reader gets right bytes or EIO.
TEST(Errno, AHostWithoutMemoryIsAnIoErrorHoweverItIsNoticed) {
  EXPECT_EQ(guarded("test", [] { throw std::bad_alloc(); }), EIO);
  EXPECT_EQ(guarded("test", [] { throw Error(ErrorCode::no_memory, "a layout"); }), EIO);
  EXPECT_EQ(to_errno(ErrorCode::no_memory), EIO);
}

}  // namespace
}  // namespace weightfs::fs
