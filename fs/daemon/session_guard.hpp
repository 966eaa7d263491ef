// Session guard: what goes with a session, whatever ends it: the versions that it has open are kept
// from eviction, it is served by a thread, and versions are bound.
//
// Threads: a SessionGuard may be called from any thread; the others belong to who made them.
#pragma once

#include <cstdint>
#include <functional>
#include <thread>

#include "fs/daemon/bound_versions.hpp"
#include "fs/fuse/session.hpp"
#include "fs/mount/mount_info.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/local/eviction.hpp"
#include "store/sync/sync.hpp"

namespace weightfs::fs {

/// Keeps what the session has open from eviction.  The eviction exists before the session and after
/// it.  An open version is kept, not just refused once it is hidden: it must not vanish even for
/// the moment that checking for readers takes.
class SessionGuard final : public VersionGuard {
 public:
  /// From here to end() the reference is used.
  void begin(const FuseSession& session);
  /// Nothing is evicted any more.
  void end();

  [[nodiscard]] bool keeps(std::uint64_t version) override { return !is_unused(version); }
  [[nodiscard]] bool release(std::uint64_t version) override { return is_unused(version); }

  /// That of the session; the default one without a session.
  [[nodiscard]] ServingState serving() const;

 private:
  [[nodiscard]] bool is_unused(std::uint64_t version) const;

  mutable RankedMutex mutex_{LockRank::session_guard, "SessionGuard::mutex_"};
  const FuseSession* session_ = nullptr;
  bool ended_ = false;
};

/// Gives the guard a session for as long as this lives.
class GuardedSession {
 public:
  GuardedSession(SessionGuard& guard, const FuseSession& session);
  ~GuardedSession();
  GuardedSession(const GuardedSession&) = delete;
  GuardedSession& operator=(const GuardedSession&) = delete;

 private:
  SessionGuard& guard_;
};

/// Serves a session in a thread of its own.
class SessionThread {
 public:
  SessionThread(FuseSession& session, std::function<void()> body);
  ~SessionThread();  // stops the session, and joins the thread
  SessionThread(const SessionThread&) = delete;
  SessionThread& operator=(const SessionThread&) = delete;

 private:
  FuseSession& session_;
  std::jthread thread_;
};

/// Keeps versions bound as long as this lives.
class BoundRun {
 public:
  BoundRun(BoundVersions& bound, const MountInfo& mount, const Sync& sync);
  ~BoundRun();
  BoundRun(const BoundRun&) = delete;
  BoundRun& operator=(const BoundRun&) = delete;

 private:
  BoundVersions& bound_;
};

}  // namespace weightfs::fs
