#include "store/base/error.hpp"

#include <cerrno>
#include <cstring>

namespace weightfs {

ErrorCode code_of_errno(int error) noexcept {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return ErrorCode::not_found;
    case EACCES:
    case EPERM:
      return ErrorCode::permission;
    case EROFS:
      return ErrorCode::read_only;
    case ENOSPC:
    case EDQUOT:
      return ErrorCode::no_space;
    case ENOMEM:
      return ErrorCode::no_memory;
    case EBUSY:
    case ETXTBSY:
      return ErrorCode::busy;
    case EEXIST:
    case ENOTEMPTY:
      return ErrorCode::exists;
    default:
      return ErrorCode::io;
  }
}

std::string_view to_string(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::invalid:
      return "invalid";
    case ErrorCode::not_found:
      return "not_found";
    case ErrorCode::exists:
      return "exists";
    case ErrorCode::conflict:
      return "conflict";
    case ErrorCode::corrupt:
      return "corrupt";
    case ErrorCode::unsupported:
      return "unsupported";
    case ErrorCode::permission:
      return "permission";
    case ErrorCode::read_only:
      return "read_only";
    case ErrorCode::busy:
      return "busy";
    case ErrorCode::no_space:
      return "no_space";
    case ErrorCode::no_memory:
      return "no_memory";
    case ErrorCode::unavailable:
      return "unavailable";
    case ErrorCode::timed_out:
      return "timed_out";
    case ErrorCode::cancelled:
      return "cancelled";
    case ErrorCode::io:
      return "io";
  }
  return "io";
}

Error Error::within(std::string_view context) const {
  return Error(code_, std::string(context) + ": " + what());
}

std::string describe_errno(int error, const std::string& what) {
  char buffer[128];
  const char* text = strerror_r(error, buffer, sizeof buffer);  // the GNU version of strerror_r
  return "cannot " + what + ": " + text;
}

void throw_errno(int error, const std::string& what) {
  throw Error(code_of_errno(error), describe_errno(error, what));
}

}  // namespace weightfs
