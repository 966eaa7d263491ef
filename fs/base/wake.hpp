// Wake: ends a poll(2) from another thread.
//
// Threads: all calls may run in parallel.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "store/base/error.hpp"
#include "store/os/file.hpp"

namespace weightfs::fs {

class Wake {
 public:
  /// Throws Error: io (no descriptor is left).
  Wake() : file_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!file_) throw_errno(errno, "make an eventfd");
  }
  [[nodiscard]] int fd() const noexcept { return file_.fd(); }
  void ring() const noexcept {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t ignored = ::write(file_.fd(), &one, sizeof one);
  }
  /// Returns: true if it was rung since the last call.
  [[nodiscard]] bool take() const noexcept {
    std::uint64_t count = 0;
    return ::read(file_.fd(), &count, sizeof count) > 0;
  }

 private:
  File file_;
};

}  // namespace weightfs::fs
