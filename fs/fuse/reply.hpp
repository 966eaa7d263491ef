// FUSE reply: how the operations answer: at once, from a worker, or with an open file.
//
// Threads: as operations.hpp.
#pragma once

#include <cerrno>
#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>

#include "fs/base/errno.hpp"
#include "fs/fuse/request_kinds.hpp"
#include "fs/fuse/server.hpp"

namespace weightfs::fs {

/// What ENOENT means to the kernel: that the name is not there, or that an inode which it has
/// looked up is gone: ESTALE makes it look again.
enum class Missing { name, inode };

inline int to_reply(int error, Missing missing) noexcept {
  return error == ENOENT && missing == Missing::inode ? ESTALE : error;
}

inline Server& server_of(fuse_req_t req) { return *static_cast<Server*>(fuse_req_userdata(req)); }

inline Requester requester_of(fuse_req_t req) {
  const fuse_ctx* const context = fuse_req_ctx(req);
  return {context->pid, context->uid};
}

/// Runs `body`, which answers as the last thing it does, or throws.
template <typename Body>
void answer(fuse_req_t req, std::string_view operation, Missing missing, Body&& body) {
  const int error = guarded(operation, std::forward<Body>(body));
  if (error != 0) fuse_reply_err(req, to_reply(error, missing));
}

/// How a request waits.  Its kind says the rest: see request_kinds.hpp.
struct Parking {
  RequestKind kind;
  Missing missing = Missing::inode;
  std::function<void()> on_late = {};  // called before a late answer; must be quick, and not throw
};

/// The work must not touch `req`, except in the function that sends the answer: until then another
/// thread may answer, which frees it.
void park(fuse_req_t req, const Parking& parking, RequestPool::Work work);

/// The same for work that can begin when something is there.  `ask(wake)` answers whether it is, or
/// sees to it that `wake` is called when it is worth while to begin, from any thread, also after
/// the session's end.  If it throws, the work begins, which is to ask again.
/// `deadline`: takes the place of the kind's limit.  Requires: the kind's class is `local`.
using Ask = std::function<bool(std::function<void()> wake)>;
void park_until(fuse_req_t req, const Parking& parking, Clock::time_point deadline, const Ask& ask,
                RequestPool::Work work);

/// How an open inode is served.  Counted in Server::opens; taken back with release_open().
/// `image`: see OpenTable::acquire().  Throws Error: io (ENFILE) if too many are open.
OpenTable::Opened acquire_open(Server& server, Inode inode, const OpenTable::Register& decide,
                               std::uint64_t image = 0);
/// `was_heard`: the open was answered with success.
void release_open(Server& server, Inode inode, bool was_heard = true);

/// For acquire_open(): a backing id, or 0 if the daemon is to serve the file.
/// Throws Error: not_found.
std::int32_t register_file(const Server& server, const std::filesystem::path& path);

/// Answer OPEN and CREATE, with passthrough if `backing_id` > 0.
/// Returns: 0, or what is wrong: then the caller was interrupted, and no RELEASE will come.
int reply_open(fuse_req_t req, fuse_file_info& info, std::int32_t backing_id);
int reply_create(fuse_req_t req, const fuse_entry_param& entry, fuse_file_info& info,
                 std::int32_t backing_id);

/// The passthrough that the answer which this thread is sending hands out; 0: none.
std::int32_t replied_backing_id() noexcept;

/// Answers READDIR: `list(offset, each)` names what comes from `offset` on, until each() answers
/// false.
using EachEntry = std::function<bool(const DirectoryEntry&)>;
void reply_directory(fuse_req_t req, std::size_t size,
                     const std::function<void(const EachEntry&)>& list);

}  // namespace weightfs::fs
