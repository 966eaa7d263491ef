#include "fs/fuse/server.hpp"

#include <utility>

namespace weightfs::fs {
namespace {

constexpr unsigned kWorkers = 4;
constexpr unsigned kChangers = 8;  // each may wait for the disk
constexpr unsigned kSyncers = 16;
constexpr unsigned kMovers = 2;
constexpr unsigned kSizers = 2;
constexpr unsigned kBuilders = 2;
constexpr unsigned kRestReaders = 8;  // each may wait for the bucket
constexpr unsigned kNamers = 4;
constexpr unsigned kFillers = 4;
constexpr std::size_t kOpenFilesMax = 65536;

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
      opens(open_records),
      pool(std::make_unique<RequestPool>(kWorkers)),
      waker(std::make_shared<ReadWaker>(*pool)) {
  if (options.sync != nullptr) {
    names = std::make_unique<RequestPool>(kNamers);
    fills = std::make_unique<RequestPool>(kFillers);
  }
  if (options.deltas != nullptr) {
    sizes = std::make_unique<RequestPool>(kSizers);
    builds = std::make_unique<RequestPool>(kBuilders);
  }
  if (options.rest != nullptr) rests = std::make_unique<RequestPool>(kRestReaders);
  if (!is_writer()) return;
  changes = std::make_unique<RequestPool>(kChangers);
  syncs = std::make_unique<RequestPool>(kSyncers);
  moves = std::make_unique<RequestPool>(kMovers);
}

void Server::interrupt(RequestPool::Ticket ticket) const noexcept {
  for (const auto* each :
       {&pool, &names, &fills, &sizes, &builds, &rests, &changes, &syncs, &moves}) {
    if (*each != nullptr) (*each)->interrupt(ticket);
  }
}

void Server::end_pools() noexcept {
  waker->end();
  if (options.rest != nullptr) options.rest->stop();
  for (auto* each : {&moves, &changes, &syncs, &rests, &builds, &sizes, &fills, &names, &pool}) {
    each->reset();
  }
}

}  // namespace weightfs::fs
