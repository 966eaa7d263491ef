// BaseWriter: renews the base of a store whose images are in memory (ImageTable::use_memory), in a
// thread of the lowest priority: copies the newest version to the disk when store/sync/base_renewal
// says so, and removes older versions from there that nobody uses.
//
// wake() is called after `latest` has moved.  The version that is copied is reserved meanwhile, so
// the memory may hold it besides the two newest ones.
//
// Threads: all calls may run in parallel, write_if_due() one at a time.
#pragma once

#include <cstdint>
#include <filesystem>

#include "store/base/context.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/local/store.hpp"
#include "store/materialize/history.hpp"
#include "store/threads/woken_thread.hpp"

namespace weightfs {

/// By this process.
struct BaseRenewals {
  std::uint64_t count = 0;
  std::uint64_t last = 0;  // the version that became the base; 0: none did
};

class BaseWriter {
 public:
  /// Keeps the references.  Requires: the store keeps images in memory.
  BaseWriter(Store& store, History& history);

  void start() { thread_.start(); }
  /// Waits for a slice of a file at most; a copy that is not whole is removed.
  void stop() { thread_.stop(); }

  /// There may be a newer version.  Quick.
  void wake() { thread_.wake(); }

  /// What the thread does when it is woken.  Requires: the thread does not run.
  /// Returns: whether a base was written.
  /// Throws Error: no_space, io (the old base stays); cancelled, timed_out.
  bool write_if_due(const Context& context);

  [[nodiscard]] BaseRenewals renewals() const;

 private:
  [[nodiscard]] bool is_due(std::uint64_t newest, const Context& context) const;
  [[nodiscard]] bool has_table_of(std::uint64_t base, std::uint64_t newest,
                                  const Context& context) const;
  bool write(std::uint64_t version, const Context& context);
  void note_renewed(std::uint64_t version);
  void remove_before(std::uint64_t base);

  Store& store_;
  History& history_;
  mutable RankedMutex mutex_{LockRank::leaf, "BaseWriter::mutex_"};  // guards the next one
  BaseRenewals renewals_;
  WokenThread thread_;
};

}  // namespace weightfs
