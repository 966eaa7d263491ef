// UnixListener: a listening Unix socket in a directory that nobody else can replace, and its name,
// which is removed with it.
//
// Threads: fd() may be used by any.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>

#include "store/os/file.hpp"

namespace weightfs::fs {

class UnixListener {
 public:
  /// Makes the directory and listens.  Replaces a stale socket of a dead process.  Root's socket is
  /// for all users who reach its directory, that of another user for that user alone.
  /// Throws Error: busy (a process listens there), exists (something else is there), permission
  /// (the directory is another user's), io.
  explicit UnixListener(const std::filesystem::path& path);
  ~UnixListener();
  UnixListener(const UnixListener&) = delete;
  UnixListener& operator=(const UnixListener&) = delete;

  /// Non-blocking.
  [[nodiscard]] int fd() const noexcept { return socket_.fd(); }

 private:
  void remove() noexcept;

  File directory_;
  std::string name_;
  File socket_;
  ino_t inode_ = 0;
};

}  // namespace weightfs::fs
