#include "fs/base/errno.hpp"

#include <cerrno>
#include <string>

#include "store/base/log.hpp"

namespace weightfs::fs {

int to_errno(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::invalid:
      return EINVAL;
    case ErrorCode::not_found:
      return ENOENT;
    case ErrorCode::exists:
      return EEXIST;
    case ErrorCode::conflict:
      return EBUSY;
    case ErrorCode::corrupt:
      return EIO;
    case ErrorCode::unsupported:
      return EOPNOTSUPP;
    case ErrorCode::permission:
      return EACCES;
    case ErrorCode::read_only:
      return EROFS;
    case ErrorCode::busy:
      return EBUSY;
    case ErrorCode::no_space:
      return ENOSPC;
    case ErrorCode::no_memory:
    case ErrorCode::unavailable:
      return EIO;  // not EAGAIN: readers take it for "no data yet" and carry on without
    case ErrorCode::timed_out:
      return ETIMEDOUT;
    case ErrorCode::cancelled:
      return EINTR;
    case ErrorCode::io:
      return EIO;
  }
  return EIO;
}

int to_hand_over_errno(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::invalid:
    case ErrorCode::corrupt:
    case ErrorCode::unsupported:
      return EBADMSG;
    case ErrorCode::not_found:
      return ENODATA;
    case ErrorCode::exists:
    case ErrorCode::busy:
    case ErrorCode::conflict:
      return EBUSY;
    case ErrorCode::permission:
      return EACCES;
    case ErrorCode::read_only:
      return EROFS;
    case ErrorCode::no_space:
      return ENOSPC;
    case ErrorCode::timed_out:
      return ETIMEDOUT;
    case ErrorCode::cancelled:
      return EINTR;
    case ErrorCode::no_memory:
    case ErrorCode::unavailable:
    case ErrorCode::io:
      return EIO;
  }
  return EIO;
}

int to_exit_code(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::invalid:
      return 2;
    case ErrorCode::conflict:
      return 3;
    case ErrorCode::corrupt:
      return 4;
    case ErrorCode::timed_out:
      return 5;
    case ErrorCode::not_found:
    case ErrorCode::exists:
    case ErrorCode::unsupported:
    case ErrorCode::permission:
    case ErrorCode::read_only:
    case ErrorCode::busy:
    case ErrorCode::no_space:
    case ErrorCode::no_memory:
    case ErrorCode::unavailable:
    case ErrorCode::cancelled:
    case ErrorCode::io:
      return 1;
  }
  return 1;
}

void log_failure(std::string_view operation, const std::exception& error) noexcept {
  const auto* known = dynamic_cast<const Error*>(&error);
  if (known != nullptr && known->code() == ErrorCode::not_found) return;
  log_caught(operation, error);
}

}  // namespace weightfs::fs
