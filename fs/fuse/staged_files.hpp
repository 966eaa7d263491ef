// Staged files: descriptors of the backing files that the daemon reads and writes itself, for each
// open inode of staging.
//
// The read descriptor lives from the first open to the last RELEASE; the write descriptor only
// while a writable open exists: the daemon must have none when a hand-over calls nobody_writes()
// (store/staging/staging.hpp).
//
// Threads: all calls may run in parallel.
#pragma once

#include <filesystem>
#include <map>
#include <memory>

#include "fs/base/descriptors.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/os/file.hpp"
#include "store/os/lease.hpp"
#include "store/staging/staging.hpp"

namespace weightfs::fs {

class StagedFiles {
 public:
  /// `share`: the descriptors are taken from it; outlives this.
  explicit StagedFiles(DescriptorShare& share) noexcept : share_(share) {}

  /// Counts one open.
  /// Throws Error: io (ENFILE) if too many are open; see throw_errno.  Nothing is counted then.
  void hold(StagingId id, const std::filesystem::path& path, bool writes);

  /// Counts one RELEASE.  Unknown ids are ignored.
  void release(StagingId id, bool writes) noexcept;

  /// Returns: nullptr if the file is not held for reading, or writing.
  [[nodiscard]] std::shared_ptr<const File> find_reader(StagingId id) const;
  [[nodiscard]] std::shared_ptr<const File> find_writer(StagingId id) const;

 private:
  struct Held {
    std::shared_ptr<const File> reader, writer;
    std::uint64_t opens = 0, writers = 0;
    DescriptorClaim reader_claim, writer_claim;
  };
  bool join(StagingId id, bool writes);  // counts an open if its descriptors exist

  DescriptorShare& share_;
  mutable RankedMutex mutex_{LockRank::leaf, "StagedFiles::mutex_"};
  std::map<StagingId, Held> held_;
};

}  // namespace weightfs::fs
