// Open table: how each open inode is served, and its passthrough backing id.
//
// The kernel's rules (docs/architecture/reading.md, "Passthrough"): all opens of an inode use
// passthrough with the same backing id, or none does.  So the first open decides for all until the
// last RELEASE.
//
// The table is an array of plain records in memory that the caller provides, and stores no
// pointers, so that the processes of a takeover can share it.
//
// Threads: all calls may run in parallel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "fs/base/inode.hpp"
#include "store/base/ranked_mutex.hpp"

namespace weightfs::fs {

enum class Serving : std::uint32_t { passthrough = 1, daemon = 2 };

struct OpenRecord {
  Inode inode = 0;  // 0: free
  std::uint32_t opens = 0;
  Serving serving = Serving::daemon;
  std::int32_t backing_id = 0;
  std::uint32_t reserved = 0;
  std::uint64_t image = 0;
};

class OpenTable {
 public:
  /// `records`: zeroed, or a predecessor's; outlives the table.
  explicit OpenTable(std::span<OpenRecord> records) noexcept : records_(records) {}

  struct Opened {
    Serving serving = Serving::daemon;
    std::int32_t backing_id = 0;  // with passthrough
    std::uint64_t image = 0;      // of the open that decided
  };

  /// Returns the backing id of a newly registered file, or 0: the daemon serves it.
  using Register = std::function<std::int32_t()>;
  /// Unregisters such an id; also called with 0.
  using Unregister = std::function<void(std::int32_t)>;

  /// Counts one open.  If the inode is not open yet, `register_backing` decides how it is served;
  /// if it throws, nothing is counted.  Of several concurrent first opens one decides, and what the
  /// others registered is unregistered.  Neither callback runs under the table's lock.
  ///
  /// `image`: a number for the file that the bytes come from, so that the caller can tell that
  /// others are served from another one; 0: it does not matter.
  ///
  /// Returns: nullopt if the table is full; nothing is counted. (If the daemon served such an open,
  /// the next open could not use passthrough.)
  std::optional<Opened> acquire(Inode inode, const Register& register_backing,
                                const Unregister& unregister, std::uint64_t image = 0);

  /// Counts one RELEASE; the last one calls `unregister` with the backing id.  Unknown inodes are
  /// ignored.
  /// Returns: how the inode was served, if this was the last one.
  std::optional<Opened> release(Inode inode, const Unregister& unregister);

  /// Whether any file of the version is open.
  [[nodiscard]] bool is_open(std::uint64_t version) const;

  [[nodiscard]] std::uint64_t open_count(Serving serving) const;

 private:
  std::optional<Opened> join(Inode inode);  // counts one more open if the inode is open
  std::size_t home_of(Inode inode) const noexcept;
  std::size_t next(std::size_t slot) const noexcept {
    return slot + 1 == records_.size() ? 0 : slot + 1;
  }

  /// The slot of the inode's record, or a free slot for it; records_.size() if there is neither.
  std::size_t slot_of(Inode inode) const noexcept;
  void erase(std::size_t slot) noexcept;

  mutable RankedMutex mutex_{LockRank::open_table, "OpenTable::mutex_"};
  std::span<OpenRecord> records_;
};

}  // namespace weightfs::fs
