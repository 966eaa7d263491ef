#include "fs/fuse/reply.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "fs/fuse/passthrough.hpp"
#include "store/base/log.hpp"

namespace weightfs::fs {
namespace {

thread_local std::int32_t reply_backing_id = 0;

// True if the thread is being killed.  Also if it cannot be seen, as from another PID namespace.
bool is_being_killed(pid_t thread) {
  constexpr std::uint64_t kKill = 1u << (SIGKILL - 1);  // what any deadly signal becomes
  std::ifstream status(fmt::format("/proc/{}/status", thread));
  for (std::string field; status >> field;) {
    std::uint64_t pending = 0;
    if (field == "SigPnd:" && status >> std::hex >> pending) return (pending & kKill) != 0;
  }
  return true;
}

// A signal that a trainer handles, from a timer or the end of a child, must not make its fsync or
// its rename fail: on no other disk it would.  The kernel tells of the first signal only.
class FuseReply final : public Reply {
 public:
  FuseReply(fuse_req_t req, const Parking& parking)
      : req_(req),
        thread_(fuse_req_ctx(req)->pid),
        policy_(policy_of(parking.kind)),
        missing_(parking.missing),
        on_late_(parking.on_late) {}
  void error(int code) noexcept override {
    if (code == ETIMEDOUT && on_late_) on_late_();
    if (policy_.is_reader && (code == ENOSPC || (code == EOPNOTSUPP && !policy_.may_not_be))) {
      code = EIO;
    }
    fuse_reply_err(req_, code == ETIMEDOUT ? policy_.late : to_reply(code, missing_));
  }
  [[nodiscard]] bool gives_up() const noexcept override {
    try {
      return is_being_killed(thread_);
    } catch (const std::exception&) {
      return true;
    }
  }

 private:
  fuse_req_t req_;
  pid_t thread_;  // req_ may be gone when it is asked for
  const RequestPolicy& policy_;
  Missing missing_;
  std::function<void()> on_late_;
};

// libfuse may call this when the request was answered already, so its data is no pointer.
void on_interrupt(fuse_req_t req, void* ticket) {
  server_of(req).interrupt(reinterpret_cast<RequestPool::Ticket>(ticket));
}

// Sends with `reply`, which is to hand out passthrough.
template <typename Send>
int reply_with_backing(fuse_file_info& info, std::int32_t backing_id, Send&& reply) {
#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 17)
  info.backing_id = backing_id;
  return reply();
#else
  static_cast<void>(info);
  reply_backing_id = backing_id;
  const int result = reply();
  reply_backing_id = 0;
  return result;
#endif
}

void unregister(const Server& server, std::int32_t backing_id) {
  if (backing_id > 0) unregister_backing(server.fuse_fd, backing_id);
}

RequestPool& pool_of(fuse_req_t req, RequestKind kind) {
  return server_of(req).pool(policy_of(kind).waits_for);
}

RequestPool::Ticket announce(fuse_req_t req, RequestKind kind) {
  static_assert(sizeof(void*) == sizeof(RequestPool::Ticket));
  const RequestPool::Ticket ticket = pool_of(req, kind).announce(share_of(kind));
  fuse_req_interrupt_func(req, on_interrupt, reinterpret_cast<void*>(ticket));
  return ticket;
}

Clock::time_point deadline_of(fuse_req_t req, RequestKind kind) {
  const std::chrono::seconds limit = policy_of(kind).limit;
  const auto& read_timeout = server_of(req).options.read_timeout;
  return Clock::now() + (limit.count() > 0 ? limit : read_timeout);
}

}  // namespace

void park(fuse_req_t req, const Parking& parking, RequestPool::Work work) {
  auto reply = std::make_unique<FuseReply>(req, parking);
  RequestPool& pool = pool_of(req, parking.kind);
  const Clock::time_point deadline = deadline_of(req, parking.kind);
  pool.park(announce(req, parking.kind), std::move(reply), deadline, std::move(work),
            policy_of(parking.kind).on_give_up);
}

void park_until(fuse_req_t req, const Parking& parking, Clock::time_point deadline, const Ask& ask,
                RequestPool::Work work) {
  auto reply = std::make_unique<FuseReply>(req, parking);
  RequestPool& pool = pool_of(req, parking.kind);
  const RequestPool::Ticket ticket = announce(req, parking.kind);
  bool begins = true;
  try {
    begins = ask([ticket, waker = server_of(req).waker] { waker->wake(ticket); });
  } catch (const std::exception&) {
    // The work will be told the same.
  }
  if (begins) {
    pool.park(ticket, std::move(reply), deadline, std::move(work));
  } else {
    pool.hold(ticket, std::move(reply), deadline, std::move(work));
  }
}

OpenTable::Opened acquire_open(Server& server, Inode inode, const OpenTable::Register& decide,
                               std::uint64_t image) {
  const auto opened = server.opens.acquire(
      inode, decide, [&](std::int32_t id) { unregister(server, id); }, image);
  if (!opened) throw PosixError(ENFILE, "open one more file");
  return *opened;
}

void release_open(Server& server, Inode inode, bool was_heard) {
  const auto ended = server.opens.release(inode, [&](std::int32_t id) { unregister(server, id); });
  const bool has_pages = was_heard && ended && ended->serving == Serving::daemon;
  if (has_pages) server.page_sources.note(inode, ended->image);
}

std::int32_t register_file(const Server& server, const std::filesystem::path& path) {
  if (!server.passthrough) return 0;
  const std::int32_t id = register_backing(server.fuse_fd, path);
  if (id > 0) return id;
  if (id == -ENOENT) throw_errno(ENOENT, "open " + path.string());
  log_warning("no passthrough for " + path.string() + ": " + std::strerror(-id));
  return 0;
}

int reply_open(fuse_req_t req, fuse_file_info& info, std::int32_t backing_id) {
  return reply_with_backing(info, backing_id, [&] { return fuse_reply_open(req, &info); });
}

int reply_create(fuse_req_t req, const fuse_entry_param& entry, fuse_file_info& info,
                 std::int32_t backing_id) {
  return reply_with_backing(info, backing_id,
                            [&] { return fuse_reply_create(req, &entry, &info); });
}

std::int32_t replied_backing_id() noexcept { return reply_backing_id; }

void reply_directory(fuse_req_t req, std::size_t size,
                     const std::function<void(const EachEntry&)>& list) {
  std::vector<char> buffer(size);
  std::size_t used = 0;
  list([&](const DirectoryEntry& entry) {
    struct stat attributes {};
    attributes.st_ino = entry.inode;
    attributes.st_mode = entry.type;
    const std::size_t left = size - used;
    const std::size_t need = fuse_add_direntry(req, buffer.data() + used, left, entry.name.c_str(),
                                               &attributes, static_cast<off_t>(entry.next));
    if (need > left) return false;
    used += need;
    return true;
  });
  fuse_reply_buf(req, buffer.data(), used);
}

}  // namespace weightfs::fs
