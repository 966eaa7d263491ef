#include "fs/fuse_ops.hpp"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>

#include "fs/errno.hpp"
#include "fs/passthrough.hpp"
#include "store/log.hpp"

namespace weightfs::fs {
namespace {

constexpr std::chrono::seconds kDeadline{30};
constexpr unsigned kWorkers = 4;
constexpr std::size_t kOpenFilesMax = 65536;
constexpr unsigned kRequestBytesMax = 1u << 20;

// Set while this thread sends an OPEN reply that hands out passthrough.
thread_local std::int32_t reply_backing_id = 0;

Server& server_of(fuse_req_t req) { return *static_cast<Server*>(fuse_req_userdata(req)); }

// ---- Answers -----------------------------------------------------------------------------------

// Runs `body`, which answers as the last thing it does, or throws.
template <typename Body>
void answer(fuse_req_t req, std::string_view operation, Body&& body) {
  const int error = guarded(operation, std::forward<Body>(body));
  if (error != 0) fuse_reply_err(req, error);
}

// The same for an operation on an inode that the kernel has looked up: ESTALE makes it look again.
template <typename Body>
void answer_inode(fuse_req_t req, std::string_view operation, Body&& body) {
  const int error = guarded(operation, std::forward<Body>(body));
  if (error != 0) fuse_reply_err(req, error == ENOENT ? ESTALE : error);
}

class FuseReply final : public Reply {
 public:
  explicit FuseReply(fuse_req_t req) : req_(req) {}
  void error(int code) noexcept override { fuse_reply_err(req_, code == ENOENT ? ESTALE : code); }

 private:
  fuse_req_t req_;
};

// libfuse may call this when the request was answered already, so its data is no pointer.
void on_interrupt(fuse_req_t req, void* ticket) {
  server_of(req).pool->interrupt(reinterpret_cast<RequestPool::Ticket>(ticket));
}

// The work must not touch `req`, except in the function that sends the answer: until then another
// thread may answer, which frees it.
void park(fuse_req_t req, RequestPool::Work work) {
  static_assert(sizeof(void*) == sizeof(RequestPool::Ticket));
  RequestPool& pool = *server_of(req).pool;
  auto reply = std::make_unique<FuseReply>(req);
  const RequestPool::Ticket ticket = pool.announce();
  fuse_req_interrupt_func(req, on_interrupt, reinterpret_cast<void*>(ticket));
  pool.park(ticket, std::move(reply), Clock::now() + kDeadline, std::move(work));
}

// Every change: the mount is read-only, but root can remount it.
template <typename... Arguments>
void refuse(fuse_req_t req, Arguments...) {
  fuse_reply_err(req, EROFS);
}

// fsync of what never changes.
template <typename... Arguments>
void accept(fuse_req_t req, Arguments...) {
  fuse_reply_err(req, 0);
}

// ---- Connection --------------------------------------------------------------------------------

// Never writeback cache (it switches passthrough off), never cached symlinks (`latest` moves).
void op_init(void* userdata, fuse_conn_info* conn) {
  conn->max_write = kRequestBytesMax;
#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 17)
  conn->max_backing_stack_depth = 0;  // libfuse adds one, for this mount
  if (static_cast<const Server*>(userdata)->ask_for_passthrough) {
    fuse_set_feature_flag(conn, FUSE_CAP_PASSTHROUGH);
  }
  fuse_unset_feature_flag(conn, FUSE_CAP_AUTO_INVAL_DATA);
#else
  static_cast<void>(userdata);
  conn->want &= ~static_cast<unsigned>(FUSE_CAP_AUTO_INVAL_DATA);
#endif
}

// ---- Names and attributes ----------------------------------------------------------------------

void op_lookup(fuse_req_t req, fuse_ino_t parent, const char* name) {
  answer(req, "lookup", [&] {
    const Node node = server_of(req).tree.lookup(parent, name);
    fuse_entry_param entry{};
    entry.ino = node.attributes.st_ino;
    entry.attr = node.attributes;
    entry.attr_timeout = node.attribute_timeout_s;
    entry.entry_timeout = node.entry_timeout_s;
    fuse_reply_entry(req, &entry);
  });
}

// The tree keeps no table of inodes, so there is nothing to forget.
void op_forget(fuse_req_t req, fuse_ino_t, std::uint64_t) { fuse_reply_none(req); }
void op_forget_multi(fuse_req_t req, std::size_t, fuse_forget_data*) { fuse_reply_none(req); }

void op_getattr(fuse_req_t req, fuse_ino_t ino, fuse_file_info*) {
  answer_inode(req, "getattr", [&] {
    const Node node = server_of(req).tree.attributes(ino);
    fuse_reply_attr(req, &node.attributes, node.attribute_timeout_s);
  });
}

void op_readlink(fuse_req_t req, fuse_ino_t ino) {
  answer_inode(req, "readlink", [&] {
    const std::string target = server_of(req).tree.read_link(ino);
    fuse_reply_readlink(req, target.c_str());
  });
}

void op_readdir(fuse_req_t req, fuse_ino_t ino, std::size_t size, off_t offset, fuse_file_info*) {
  answer_inode(req, "readdir", [&] {
    std::vector<char> buffer(size);
    std::size_t used = 0;
    const auto add = [&](const DirectoryEntry& entry) {
      struct stat attributes {};
      attributes.st_ino = entry.inode;
      attributes.st_mode = entry.type;
      const std::size_t left = size - used;
      const std::size_t need =
          fuse_add_direntry(req, buffer.data() + used, left, entry.name.c_str(), &attributes,
                            static_cast<off_t>(entry.next));
      if (need > left) return false;
      used += need;
      return true;
    };
    server_of(req).tree.read_directory(ino, static_cast<std::uint64_t>(offset), add);
    fuse_reply_buf(req, buffer.data(), used);
  });
}

void op_statfs(fuse_req_t req, fuse_ino_t) {
  answer(req, "statfs", [&] {
    const auto& store = server_of(req).options.store;
    struct statvfs space {};
    if (statvfs(store.c_str(), &space) != 0) throw_errno(errno, "statvfs " + store.string());
    fuse_reply_statfs(req, &space);
  });
}

// ---- Open and release --------------------------------------------------------------------------

// Returns: 0, or what is wrong: then the caller was interrupted, and no RELEASE will come.
int reply_open(fuse_req_t req, fuse_file_info& info, std::int32_t backing_id) {
#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 17)
  info.backing_id = backing_id;
  return fuse_reply_open(req, &info);
#else
  reply_backing_id = backing_id;
  const int result = fuse_reply_open(req, &info);
  reply_backing_id = 0;
  return result;
#endif
}

void unregister(const Server& server, std::int32_t backing_id) {
  if (backing_id > 0) unregister_backing(server.fuse_fd, backing_id);
}

void release(Server& server, Inode inode) {
  server.opens.release(inode, [&](std::int32_t id) { unregister(server, id); });
  server.images.release(inode);
}

// Decides how an inode is served: a backing id, or 0 for the daemon.
std::int32_t register_image(const Server& server, const OpenTarget& target) {
  if (!server.passthrough || target.state != ImageState::complete) return 0;
  const std::int32_t id = register_backing(server.fuse_fd, target.image);
  if (id > 0) return id;
  if (id == -ENOENT) throw_errno(ENOENT, "open " + target.image.string());
  log_warning("no passthrough for " + target.image.string() + ": " + std::strerror(-id));
  return 0;
}

void open_image(fuse_req_t req, Inode inode, const OpenTarget& target, fuse_file_info& info) {
  Server& server = server_of(req);
  const auto opened = server.opens.acquire(
      inode, [&] { return register_image(server, target); },
      [&](std::int32_t id) { unregister(server, id); });
  if (!opened) {
    fuse_reply_err(req, ENFILE);
    return;
  }
  info.fh = 0;
  info.noflush = 1;  // close(2) needs no round trip, and works when the daemon is gone
  if (opened->serving == Serving::daemon) {
    try {
      server.images.hold(inode, target);
    } catch (const std::exception&) {
      release(server, inode);
      throw;
    }
    info.keep_cache = 1;  // with passthrough it would make the open fail
  }
  if (reply_open(req, info, opened->backing_id) != 0) release(server, inode);
}

void open_status(fuse_req_t req, fuse_file_info info) {
  park(req, [req, info, &server = server_of(req)](const Context&) -> std::function<void()> {
    auto text = std::make_shared<std::string>(server.options.status());
    return [req, text, info, &server]() mutable {
      info.fh = server.texts.add(std::move(*text));
      info.direct_io = 1;  // its size is 0, as in /proc
      info.noflush = 1;
      if (fuse_reply_open(req, &info) != 0) server.texts.remove(info.fh);
    };
  });
}

void op_open(fuse_req_t req, fuse_ino_t ino, fuse_file_info* info) {
  if ((info->flags & O_ACCMODE) != O_RDONLY || (info->flags & O_TRUNC) != 0) return refuse(req);
  answer_inode(req, "open", [&] {
    const OpenTarget target = server_of(req).tree.open(ino);
    if (target.is_status) {
      open_status(req, *info);
    } else {
      open_image(req, ino, target, *info);
    }
  });
}

void op_release(fuse_req_t req, fuse_ino_t ino, fuse_file_info* info) {
  if (ino == make_inode(Fixed::status)) {
    server_of(req).texts.remove(info->fh);
  } else {
    release(server_of(req), ino);
  }
  fuse_reply_err(req, 0);
}

// ---- Read --------------------------------------------------------------------------------------

struct Range {
  std::uint64_t offset_bytes = 0;
  std::size_t size_bytes = 0;
};

RequestPool::Work read_status_work(fuse_req_t req, std::uint64_t handle, Range range) {
  return [=, &server = server_of(req)](const Context&) -> std::function<void()> {
    auto text = server.texts.find(handle);
    if (text == nullptr) text = std::make_shared<const std::string>(server.options.status());
    return [=] {
      const std::string_view rest =
          std::string_view(*text).substr(std::min<std::uint64_t>(range.offset_bytes, text->size()));
      fuse_reply_buf(req, rest.data(), std::min(rest.size(), range.size_bytes));
    };
  };
}

// Also for files in passthrough mode: readahead(2) of them asks for pages that nobody will read.
RequestPool::Work read_image_work(fuse_req_t req, Inode inode, Range range) {
  return [=, &server = server_of(req)](const Context&) -> std::function<void()> {
    thread_local std::vector<std::byte> buffer;
    if (buffer.size() < range.size_bytes) buffer.resize(range.size_bytes);
    auto image = server.images.find(inode);
    if (image == nullptr) image = std::make_shared<const OpenImage>(server.tree.open(inode));
    const std::size_t got =
        image->read(range.offset_bytes, std::span(buffer).first(range.size_bytes));
    return [req, got, data = buffer.data(), &server] {
      server.daemon_reads++;
      fuse_reply_buf(req, reinterpret_cast<const char*>(data), got);
    };
  };
}

void op_read(fuse_req_t req, fuse_ino_t ino, std::size_t size, off_t offset, fuse_file_info* info) {
  answer_inode(req, "read", [&] {
    const Range range{static_cast<std::uint64_t>(offset), size};
    const bool is_status = ino == make_inode(Fixed::status);
    park(req,
         is_status ? read_status_work(req, info->fh, range) : read_image_work(req, ino, range));
  });
}

}  // namespace

// ---- Server ------------------------------------------------------------------------------------

std::uint64_t StatusTexts::add(std::string text) {
  auto shared = std::make_shared<const std::string>(std::move(text));
  const std::lock_guard lock(mutex_);
  texts_.emplace(++last_, std::move(shared));
  return last_;
}

void StatusTexts::remove(std::uint64_t handle) noexcept {
  const std::lock_guard lock(mutex_);
  texts_.erase(handle);
}

std::shared_ptr<const std::string> StatusTexts::find(std::uint64_t handle) const {
  const std::lock_guard lock(mutex_);
  const auto found = texts_.find(handle);
  return found == texts_.end() ? nullptr : found->second;
}

Server::Server(const Tree& tree_served, FuseSessionOptions session_options)
    : tree(tree_served),
      options(std::move(session_options)),
      open_records(kOpenFilesMax),
      opens(open_records),
      pool(std::make_unique<RequestPool>(kWorkers)) {}

fuse_lowlevel_ops make_operations() {
  fuse_lowlevel_ops ops{};
  ops.init = op_init;
  ops.lookup = op_lookup;
  ops.forget = op_forget;
  ops.forget_multi = op_forget_multi;
  ops.getattr = op_getattr;
  ops.readlink = op_readlink;
  ops.readdir = op_readdir;
  ops.statfs = op_statfs;
  ops.open = op_open;
  ops.release = op_release;
  ops.read = op_read;
  ops.fsync = accept;
  ops.fsyncdir = accept;

  ops.setattr = refuse;
  ops.mknod = refuse;
  ops.mkdir = refuse;
  ops.unlink = refuse;
  ops.rmdir = refuse;
  ops.symlink = refuse;
  ops.rename = refuse;
  ops.link = refuse;
  ops.create = refuse;
  ops.write = refuse;
  ops.setxattr = refuse;
  ops.removexattr = refuse;
  ops.fallocate = refuse;
  ops.copy_file_range = refuse;
  return ops;
}

ssize_t write_reply(int fd, iovec* parts, int count, void* userdata) {
  if constexpr (!kLibfuseHasPassthrough) {
    const auto& server = *static_cast<const Server*>(userdata);
    const std::span<const iovec> reply(parts, static_cast<std::size_t>(count));
    if (!server.init_answered && server.ask_for_passthrough) patch_init_reply(reply);
    if (reply_backing_id > 0) patch_open_reply(reply, reply_backing_id);
  }
  return writev(fd, parts, count);
}

}  // namespace weightfs::fs
