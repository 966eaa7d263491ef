// Error: the one exception of weightfs.  A code says what kind of failure it is; the message names
// the object (file, tensor, block, key), what was expected, what was found, and what to do.
//
// Absence that is expected is not an Error: find_x returns optional.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace weightfs {

enum class ErrorCode {
  invalid,      // the user's flag, name, file or directory is wrong
  not_found,    // an object, version or path that must exist does not
  exists,       // something is there already
  conflict,     // another writer published first
  corrupt,      // bytes that do not match their description or hash
  unsupported,  // a newer format, an unknown feature
  permission,   // not allowed
  read_only,    // a change was asked of something that never changes
  busy,         // locked, mounted, or still written by someone else
  no_space,     // disk full, or the floor of free space reached
  no_memory,    // this host, or a limit of this process, has none left
  unavailable,  // the bucket cannot be reached; worth a retry
  timed_out,    // a deadline passed
  cancelled,    // stopped on request
  io,           // the local system failed otherwise
};

/// Short lower-case name, as JSON output shows it: "not_found".
std::string_view to_string(ErrorCode code) noexcept;

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}

  [[nodiscard]] ErrorCode code() const noexcept { return code_; }

  /// The same error with `context: ` in front.
  [[nodiscard]] Error within(std::string_view context) const;

 private:
  ErrorCode code_;
};

/// The code of a failed system call: ENOENT not_found, EACCES/EPERM permission, EROFS read_only,
/// ENOSPC/EDQUOT no_space, ENOMEM no_memory, EBUSY busy, EEXIST exists, else io.
ErrorCode code_of_errno(int error) noexcept;

/// "cannot WHAT: strerror".  `what` names the object: "open /x/y".
std::string describe_errno(int error, const std::string& what);

/// Throws the Error of both.
[[noreturn]] void throw_errno(int error, const std::string& what);

}  // namespace weightfs
