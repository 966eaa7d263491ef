// Link passes: passes (fs/passes/passes.hpp) in bind mode, where the kernel does not report OPENs.
//
// A READLINK begins a pass, one for each session and symlink, on the newest version.  It ends
//
//     grace    after it began, or after its last use: a weights file of the version was opened, by
//              any process, within a second of a READLINK of the session
//              (fs/passes/image_watch.hpp), or was seen open or mapped in the session
//     most     after the last such OPEN of a file that had not been opened in it before
//     at once  when it is ended by hand
//
// Threads: all calls may run in parallel.  Processes is called without a lock.
// Errors: none.
// Time: passed in with each call.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fs/passes/passes.hpp"
#include "store/base/ranked_mutex.hpp"

namespace weightfs::fs {

class LinkPasses {
 public:
  /// Requires: `processes` outlives this.
  LinkPasses(PassTimes times, const Processes& processes) noexcept
      : times_(times), processes_(processes) {}

  /// A READLINK. `newest`: where the symlink leads.
  /// Returns: the version that it must return.
  std::uint64_t told(const std::string& link, const Reader& reader, std::uint64_t newest,
                     BootTime now);

  /// A process has opened a weights file of the version.  It counts for all sessions that a
  /// READLINK has led to the version within `within`.
  void opened(std::uint64_t version, const std::string& file, BootTime within, BootTime now);

  /// Checks what is open or mapped, and ends passes that are over.
  void sweep(BootTime now);

  /// Ends the passes of a session, of a version, or all.
  /// Returns: how many.
  std::size_t end_session(const std::string& session);
  std::size_t end_version(std::uint64_t version);
  std::size_t end_all();

  [[nodiscard]] bool has(std::uint64_t version) const;
  [[nodiscard]] bool is_empty() const;
  /// Oldest first.
  [[nodiscard]] std::vector<PassState> list(BootTime now) const;
  [[nodiscard]] std::vector<FullTable> full_tables() const;

 private:
  struct Pass {
    std::uint64_t version = 0;
    std::string command;
    uid_t uid = 0;
    BootTime began{}, asked{};    // first and last READLINK
    BootTime used{}, progress{};  // last OPEN or sighting that prolonged it; OPEN of a new file
    BootTime looked{};
    std::set<std::string> files;
  };
  using Key = std::pair<std::string, std::string>;  // session, symlink

  [[nodiscard]] bool is_over(const Pass& pass, BootTime now) const noexcept;
  [[nodiscard]] bool has_room(uid_t uid) const;
  template <typename Condition>
  std::size_t end_if(Condition&& condition);

  const PassTimes times_;
  const Processes& processes_;
  mutable RankedMutex mutex_{LockRank::link_passes, "LinkPasses::mutex_"};  // guards the fields
                                                                            // below
  std::map<Key, Pass> passes_;
  std::map<uid_t, std::uint64_t> refused_;
};

}  // namespace weightfs::fs
