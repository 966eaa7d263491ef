#include "fs/daemon/session_guard.hpp"

#include <mutex>
#include <utility>

namespace weightfs::fs {

void SessionGuard::begin(const FuseSession& session) {
  const std::lock_guard lock(mutex_);
  session_ = &session;
}

void SessionGuard::end() {
  const std::lock_guard lock(mutex_);
  session_ = nullptr;
  ended_ = true;
}

ServingState SessionGuard::serving() const {
  const std::lock_guard lock(mutex_);
  return session_ != nullptr ? session_->serving() : ServingState{};
}

bool SessionGuard::is_unused(std::uint64_t version) const {
  const std::lock_guard lock(mutex_);
  return session_ != nullptr ? session_->is_unused(version) : !ended_;
}

GuardedSession::GuardedSession(SessionGuard& guard, const FuseSession& session) : guard_(guard) {
  guard_.begin(session);
}

GuardedSession::~GuardedSession() { guard_.end(); }

SessionThread::SessionThread(FuseSession& session, std::function<void()> body)
    : session_(session), thread_(std::move(body)) {}

SessionThread::~SessionThread() { session_.stop(); }

BoundRun::BoundRun(BoundVersions& bound, const MountInfo& mount, const Sync& sync) : bound_(bound) {
  bound_.start(mount, [&sync] { return sync.catalog(); });
}

BoundRun::~BoundRun() { bound_.stop(); }

}  // namespace weightfs::fs
