// BaseWriter: renews the base of a store whose images are in memory (ImageTable::use_memory), in a
// thread of the lowest priority: copies the newest version to the disk when store/sync/base_renewal
// says so, and removes older versions from there that nobody uses.
//
// wake() is called after `latest` has moved.  The version that is copied is reserved meanwhile, so
// the memory may hold it besides the two newest ones.
//
// Threads: all calls may run in parallel, write_if_due() one at a time.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <stop_token>
#include <string>
#include <thread>

#include "store/base/context.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/local/store.hpp"
#include "store/materialize/history.hpp"

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
  ~BaseWriter();  // stops

  void start();
  /// Waits for a slice of a file at most; a copy that is not whole is removed.
  void stop();

  /// There may be a newer version.  Quick.
  void wake();

  /// What the thread does when it is woken.  Requires: the thread does not run.
  /// Returns: whether a base was written.
  /// Throws Error: no_space, io (the old base stays); cancelled, timed_out.
  bool write_if_due(const Context& context);

  [[nodiscard]] BaseRenewals renewals() const;

 private:
  void run(const std::stop_token& stop);
  [[nodiscard]] bool is_due(std::uint64_t newest, const Context& context) const;
  [[nodiscard]] bool has_table_of(std::uint64_t base, std::uint64_t newest,
                                  const Context& context) const;
  bool write(std::uint64_t version, const Context& context);
  void note_renewed(std::uint64_t version);
  void remove_before(std::uint64_t base);

  Store& store_;
  History& history_;
  mutable RankedMutex mutex_{LockRank::leaf, "BaseWriter::mutex_"};  // guards the next three
  std::condition_variable_any changed_;
  bool is_woken_ = false;
  BaseRenewals renewals_;
  std::string logged_;  // the last error; used by the thread only
  std::jthread thread_;
};

}  // namespace weightfs
