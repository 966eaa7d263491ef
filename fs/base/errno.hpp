// Errno: what a caller of the mount gets for each ErrorCode, and the guard at the FUSE boundary.
#pragma once

#include <exception>
#include <string_view>
#include <utility>

#include "store/base/error.hpp"
#include "store/staging/staging.hpp"

namespace weightfs::fs {

/// A switch without default: the compiler reports a missing code.
int to_errno(ErrorCode code) noexcept;

/// The errno of a refused hand-over, which mv prints.  Never EINVAL, ESTALE, EXDEV, EEXIST or
/// ENOENT, which the kernel or mv misinterprets.
int to_hand_over_errno(ErrorCode code) noexcept;

/// The command line's exit code: 1 failed, 2 usage, 3 conflict, 4 corrupt, 5 timed out.
int to_exit_code(ErrorCode code) noexcept;

/// Logs an error that is about to become an errno, unless it is expected (not_found).
void log_failure(std::string_view operation, const std::exception& error) noexcept;

/// Runs `body`; returns 0, or the errno of what it threw.
template <typename Body>
int guarded(std::string_view operation, Body&& body) noexcept {
  try {
    std::forward<Body>(body)();
    return 0;
  } catch (const PosixError& error) {
    return error.number();  // the caller's mistake: not logged
  } catch (const Error& error) {
    log_failure(operation, error);
    return to_errno(error.code());
  } catch (const std::exception& error) {  // std::bad_alloc too: as ErrorCode::no_memory
    log_failure(operation, error);
    return 5;  // EIO
  }
}

}  // namespace weightfs::fs
