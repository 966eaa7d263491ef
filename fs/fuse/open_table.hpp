// Open table: how each open inode is served, and the backing ids of the passthrough.
//
// The kernel's rules (docs/architecture/reading.md, "Passthrough"): all opens of an inode are
// passthrough with the same backing id, or none is.  So the first open decides, and all until the
// last RELEASE do the same.
//
// The table is an array of plain records in memory that the caller gives, so that it can be shared
// between the processes of a takeover; no pointer is ever stored in it.
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
};

class OpenTable {
 public:
  /// `records`: zeroed, or what a predecessor left; outlives the table.
  explicit OpenTable(std::span<OpenRecord> records) noexcept : records_(records) {}

  struct Opened {
    Serving serving = Serving::daemon;
    std::int32_t backing_id = 0;  // of passthrough
  };

  /// Gives the backing id of a newly registered file, or 0: the daemon is to serve it.
  using Register = std::function<std::int32_t()>;
  /// Takes such an id back; also called with 0.
  using Unregister = std::function<void(std::int32_t)>;

  /// Counts one open.  If the inode is not open yet, `register_backing` decides how it is served;
  /// it may throw, and then nothing was counted.  Of several first opens at once one decides, and
  /// what the others registered is unregistered.  Neither callback runs under the table's lock.
  ///
  /// Returns: nullopt if the table is full; nothing was counted.  (Serving such an open by the
  /// daemon would forbid passthrough to the next one.)
  std::optional<Opened> acquire(Inode inode, const Register& register_backing,
                                const Unregister& unregister);

  /// Counts one RELEASE; the last one calls `unregister` with the backing id.  Unknown inodes are
  /// ignored.
  void release(Inode inode, const Unregister& unregister);

  /// True if any file of the version is open.
  [[nodiscard]] bool is_open(std::uint64_t version) const;

  [[nodiscard]] std::uint64_t open_count(Serving serving) const;

 private:
  std::optional<Opened> join(Inode inode);  // counts one more open of an inode that is open
  std::size_t home_of(Inode inode) const noexcept;
  std::size_t next(std::size_t slot) const noexcept {
    return slot + 1 == records_.size() ? 0 : slot + 1;
  }

  /// The inode's record, or the free one where it would go; records_.size() if there is neither.
  std::size_t slot_of(Inode inode) const noexcept;
  void erase(std::size_t slot) noexcept;

  mutable RankedMutex mutex_{LockRank::open_table, "OpenTable::mutex_"};
  std::span<OpenRecord> records_;
};

}  // namespace weightfs::fs
