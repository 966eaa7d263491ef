// FUSE server: what the operations of a session work on: the tree, what is open, and the pools.
//
// Threads: the operations run on the session's threads and on the pools'; a Server is shared by
// all.
#pragma once

#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fs/fuse/open_files.hpp"
#include "fs/fuse/open_images.hpp"
#include "fs/fuse/open_table.hpp"
#include "fs/fuse/page_sources.hpp"
#include "fs/fuse/request_counts.hpp"
#include "fs/fuse/request_kinds.hpp"
#include "fs/fuse/requests.hpp"
#include "fs/fuse/session_options.hpp"
#include "fs/fuse/staged_files.hpp"
#include "fs/fuse/timed_out_reads.hpp"
#include "fs/fuse/tree.hpp"
#include "store/base/ranked_mutex.hpp"

namespace weightfs::fs {

/// True if libfuse itself can ask for passthrough; else replies are patched.
inline constexpr bool kLibfuseHasPassthrough = FUSE_VERSION >= FUSE_MAKE_VERSION(3, 17);

/// The pool that holds reads, for those who wake them: they may come when it has ended.
class ReadWaker {
 public:
  explicit ReadWaker(RequestPool& pool) noexcept : pool_(&pool) {}
  void wake(RequestPool::Ticket ticket) noexcept;
  void end() noexcept;

 private:
  RankedMutex mutex_{LockRank::read_waker, "ReadWaker::mutex_"};
  RequestPool* pool_;
};

/// What the operations work on: the user data of the libfuse session.
struct Server {
  Server(const Tree& tree_served, FuseSessionOptions session_options);

  [[nodiscard]] bool is_writer() const noexcept { return options.writing.staging != nullptr; }

  /// Requires: a writer's mount, if the class is a writer's.
  [[nodiscard]] RequestPool& pool(WaitClass waits_for) const noexcept {
    return *pools[static_cast<std::size_t>(waits_for)];
  }
  /// See RequestPool::interrupt.
  void interrupt(RequestPool::Ticket ticket) const noexcept;
  /// The pools stay: work of one that goes on meanwhile may park in another, or anew.
  void end_pools() noexcept;

  const Tree& tree;
  const FuseSessionOptions options;

  // Set while the session is set up, by one thread; constant from then on.
  int fuse_fd = -1;
  bool ask_for_passthrough = false;  // in the reply to INIT
  bool init_answered = false;
  bool passthrough = false;  // files may be served that way

  std::atomic<std::uint64_t> daemon_reads = 0;
  std::atomic<std::size_t> text_bytes = 0;  // of the generated texts that are open
  RequestCounts counts;
  std::vector<OpenRecord> open_records;
  OpenTable opens;
  DescriptorShare share{descriptors_for_files(descriptor_limit())};
  OpenImages images{share};
  PageSources page_sources;
  TimedOutReads late_reads;
  StagedFiles staged{share};
  OpenFiles files;

  std::array<std::unique_ptr<RequestPool>, kWaitClassCount> pools;  // by WaitClass
  std::shared_ptr<ReadWaker> waker;                                 // of the local one
};

}  // namespace weightfs::fs
