// Open table: how each open inode is served, and the backing ids of the passthrough.
//
// The kernel's rules (docs/ARCHITECTURE.md, "Passthrough"): all opens of an inode are passthrough
// with the same backing id, or none is.  So the first open decides, and all until the last RELEASE
// do the same.
//
// The table is an array of plain records in memory that the caller gives, so that it can be shared
// between the processes of a takeover; no pointer is ever stored in it.
//
// Threads: all calls may run in parallel.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <span>

#include "fs/inode.hpp"

namespace weightfs::fs {

enum class Serving : std::uint32_t { passthrough = 1, daemon = 2 };

struct OpenRecord {
  Inode inode = 0;  // 0: free
  std::uint32_t opens = 0;
  Serving serving = Serving::daemon;
  std::int32_t backing_id = 0;
  std::uint32_t reserved = 0;
};

class OpenTable {
 public:
  /// `records`: zeroed, or what a predecessor left; outlives the table.
  explicit OpenTable(std::span<OpenRecord> records) noexcept : records_(records) {}

  struct Opened {
    Serving serving = Serving::daemon;
    std::int32_t backing_id = 0;  // of passthrough
  };

  /// Counts one open.  The first open of an inode calls `register_backing`, which gives a backing id,
  /// or 0: this inode is then served by the daemon.  If the table is full the daemon serves, and the
  /// open is not counted.
  Opened acquire(Inode inode, const std::function<std::int32_t()>& register_backing);

  /// Counts one RELEASE; the last one calls `unregister` with the backing id.  Unknown inodes are
  /// ignored (opens of an earlier process, or of a full table).
  void release(Inode inode, const std::function<void(std::int32_t)>& unregister);

  /// True if any file of the version is open.
  [[nodiscard]] bool is_open(std::uint64_t version) const;

  [[nodiscard]] std::uint64_t open_count(Serving serving) const;

 private:
  std::size_t slot_of(Inode inode) const noexcept;  // its record, or the free one where it would go
  void erase(std::size_t slot) noexcept;

  mutable std::mutex mutex_;
  std::span<OpenRecord> records_;
};

}  // namespace weightfs::fs
