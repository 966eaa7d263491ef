#include "fs/fuse/server.hpp"

#include <utility>

namespace weightfs::fs {
namespace {

constexpr std::size_t kOpenFilesMax = 65536;

bool is_writers(WaitClass waits_for) {
  return waits_for == WaitClass::disk || waits_for == WaitClass::exclusive;
}

}  // namespace

void ReadWaker::wake(RequestPool::Ticket ticket) noexcept {
  const std::lock_guard lock(mutex_);
  if (pool_ != nullptr) pool_->wake(ticket);
}

void ReadWaker::end() noexcept {
  const std::lock_guard lock(mutex_);
  pool_ = nullptr;
}

Server::Server(const Tree& tree_served, FuseSessionOptions session_options)
    : tree(tree_served),
      options(std::move(session_options)),
      open_records(kOpenFilesMax),
      opens(open_records) {
  for (std::size_t i = 0; i < kWaitClassCount; i++) {
    const auto waits_for = static_cast<WaitClass>(i);
    if (is_writers(waits_for) && !is_writer()) continue;
    pools[i] = std::make_unique<RequestPool>(shares_of(waits_for));
  }
  waker = std::make_shared<ReadWaker>(pool(WaitClass::local));
}

void Server::interrupt(RequestPool::Ticket ticket) const noexcept {
  for (const auto& each : pools) {
    if (each != nullptr) each->interrupt(ticket);
  }
}

// The local one last.
void Server::end_pools() noexcept {
  waker->end();
  if (options.remote_files != nullptr) options.remote_files->stop();
  for (auto each = pools.rbegin(); each != pools.rend(); ++each) {
    if (*each != nullptr) (*each)->end();
  }
}

}  // namespace weightfs::fs
