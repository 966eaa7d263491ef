#include "fs/fuse/operations.hpp"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "fs/fuse/file_operations.hpp"
#include "fs/fuse/passthrough.hpp"
#include "fs/fuse/reply.hpp"
#include "fs/fuse/staging_operations.hpp"

namespace weightfs::fs {
namespace {

constexpr unsigned kRequestBytesMax = 1u << 20;
// Reads ahead that the kernel sends before they are answered.  Its own limit is 12: so many readers
// of what is not here yet would hold up all others.
constexpr unsigned kBackgroundMax = 16384;
// The same of a writer's mount, where it limits what O_DIRECT and mappings write, too: each of
// these is copied until the disk takes it.
constexpr unsigned kWriterBackgroundMax = 1024;

// What trainers write: the id of `ino`, if this is a writer's mount and the inode is such a one.
std::optional<StagingId> find_staged(fuse_req_t req, fuse_ino_t ino) {
  return server_of(req).is_writer() ? find_staging_id(ino) : std::nullopt;
}

// A change: of what trainers write it goes to `operation`, of anything else it is refused.  A
// reader's mount is read-only, but root can remount it.
template <auto operation, typename... Arguments>
void change(fuse_req_t req, fuse_ino_t ino, Arguments... arguments) {
  if (const auto id = find_staged(req, ino)) {
    operation(req, *id, arguments...);
  } else {
    fuse_reply_err(req, EROFS);
  }
}

// The same for fsync, which has nothing to do for what never changes.
template <auto operation, typename... Arguments>
void sync(fuse_req_t req, fuse_ino_t ino, Arguments... arguments) {
  if (const auto id = find_staged(req, ino)) {
    operation(req, *id, arguments...);
  } else {
    fuse_reply_err(req, 0);
  }
}

// ---- Connection --------------------------------------------------------------------------------

// Never writeback cache (it switches passthrough off), never cached symlinks (`latest` moves).
// O_TRUNC comes as SETATTR, and so does what a write takes off a file's mode.
void op_init(void* userdata, fuse_conn_info* conn) {
  const Server& server = *static_cast<const Server*>(userdata);
  conn->max_write = kRequestBytesMax;
  conn->max_background = server.is_writer() ? kWriterBackgroundMax : kBackgroundMax;
  conn->congestion_threshold = conn->max_background;
#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 17)
  conn->max_backing_stack_depth = 0;  // libfuse adds one, for this mount
  if (server.ask_for_passthrough) fuse_set_feature_flag(conn, FUSE_CAP_PASSTHROUGH);
  fuse_unset_feature_flag(conn, FUSE_CAP_AUTO_INVAL_DATA);
  fuse_unset_feature_flag(conn, FUSE_CAP_ATOMIC_O_TRUNC);
  fuse_unset_feature_flag(conn, FUSE_CAP_HANDLE_KILLPRIV);
#else
  conn->want &= ~static_cast<unsigned>(FUSE_CAP_AUTO_INVAL_DATA | FUSE_CAP_ATOMIC_O_TRUNC |
                                       FUSE_CAP_HANDLE_KILLPRIV);
#endif
}

// ---- Names and attributes ----------------------------------------------------------------------

fuse_entry_param entry_of(const Node& node) {
  fuse_entry_param entry{};
  entry.ino = node.attributes.st_ino;
  entry.attr = node.attributes;
  entry.attr_timeout = node.attribute_timeout_s;
  entry.entry_timeout = node.entry_timeout_s;
  return entry;
}

// The delta, if its size must be found out before anything can be said of it.
std::optional<DeltaId> without_facts(fuse_req_t req, std::optional<DeltaId> id) {
  if (!id || server_of(req).options.deltas->find_facts(*id)) return {};
  return id;
}

void lookup_delta(fuse_req_t req, std::string name, DeltaId id) {
  park(req, {RequestKind::size, Missing::name},
       [req, name = std::move(name), id,
        &server = server_of(req)](const Context& context) -> std::function<void()> {
         server.options.deltas->facts(id, context);
         const Node node = server.tree.lookup(make_inode(Fixed::deltas), name);
         return [req, entry = entry_of(node)] { fuse_reply_entry(req, &entry); };
       });
}

void getattr_delta(fuse_req_t req, Inode inode, DeltaId id) {
  park(req, {RequestKind::size},
       [=, &server = server_of(req)](const Context& context) -> std::function<void()> {
         server.options.deltas->facts(id, context);
         const Node node = server.tree.attributes(inode);
         return [=] { fuse_reply_attr(req, &node.attributes, node.attribute_timeout_s); };
       });
}

// The version, if the bucket must be asked before it can be said whether it opens.  What is newer
// than anything that was heard of does not exist.
std::optional<std::uint64_t> without_name(fuse_req_t req, Inode parent, std::string_view name) {
  const Server& server = server_of(req);
  if (server.options.sync == nullptr) return {};
  const auto version = server.tree.find_unnamed(parent, name);
  return version && *version <= server.options.sync->newest() ? version : std::nullopt;
}

void lookup_version(fuse_req_t req, Inode parent, std::string name, std::uint64_t version) {
  park(req, {RequestKind::name, Missing::name},
       [req, parent, name = std::move(name), version,
        &server = server_of(req)](const Context& context) -> std::function<void()> {
         server.options.sync->name_version(version, context);
         const Node node = server.tree.lookup(parent, name);
         return [req, entry = entry_of(node)] { fuse_reply_entry(req, &entry); };
       });
}

void op_lookup(fuse_req_t req, fuse_ino_t parent, const char* name) {
  if (const auto staged = find_staged(req, parent)) return staged::lookup(req, *staged, name);
  answer(req, "lookup", Missing::name, [&] {
    const Tree& tree = server_of(req).tree;
    if (const auto delta = without_facts(req, tree.find_delta(parent, name))) {
      return lookup_delta(req, name, *delta);
    }
    if (const auto version = without_name(req, parent, name)) {
      return lookup_version(req, parent, name, *version);
    }
    fuse_entry_param entry = entry_of(tree.lookup(parent, name));
    if (const auto root = find_staged(req, entry.ino)) {
      entry.attr = staged::attributes(server_of(req), *root);
    }
    fuse_reply_entry(req, &entry);
  });
}

// The tree keeps no table of inodes, so there is nothing to forget.
void op_forget(fuse_req_t req, fuse_ino_t, std::uint64_t) { fuse_reply_none(req); }
void op_forget_multi(fuse_req_t req, std::size_t, fuse_forget_data*) { fuse_reply_none(req); }

void op_getattr(fuse_req_t req, fuse_ino_t ino, fuse_file_info*) {
  if (const auto id = find_staged(req, ino)) return staged::getattr(req, *id);
  answer(req, "getattr", Missing::inode, [&] {
    const Tree& tree = server_of(req).tree;
    if (const auto delta = without_facts(req, tree.find_delta(ino))) {
      return getattr_delta(req, ino, *delta);
    }
    const Node node = tree.attributes(ino);
    fuse_reply_attr(req, &node.attributes, node.attribute_timeout_s);
  });
}

// What `latest` or a tag is depends on who asks.
std::string link_target(fuse_req_t req, Inode inode) {
  const Server& server = server_of(req);
  if (server.options.pins != nullptr) {
    const auto version = server.options.pins->link(requester_of(req), inode);
    if (version && inode == make_inode(Fixed::latest)) return version_target(*version);
    if (version) return tag_target(*version);
  }
  return server.tree.read_link(inode);
}

void op_readlink(fuse_req_t req, fuse_ino_t ino) {
  if (const auto id = find_staged(req, ino)) return staged::readlink(req, *id);
  answer(req, "readlink", Missing::inode,
         [&] { fuse_reply_readlink(req, link_target(req, ino).c_str()); });
}

void op_readdir(fuse_req_t req, fuse_ino_t ino, std::size_t size, off_t offset, fuse_file_info*) {
  const auto from = static_cast<std::uint64_t>(offset);
  if (const auto id = find_staged(req, ino)) return staged::readdir(req, *id, size, from);
  answer(req, "readdir", Missing::inode, [&] {
    reply_directory(req, size, [&](const EachEntry& each) {
      server_of(req).tree.read_directory(ino, from, each);
    });
  });
}

void op_statfs(fuse_req_t req, fuse_ino_t) {
  answer(req, "statfs", Missing::name, [&] {
    const auto& store = server_of(req).options.store;
    struct statvfs space {};
    if (statvfs(store.c_str(), &space) != 0) throw_errno(errno, "statvfs " + store.string());
    fuse_reply_statfs(req, &space);
  });
}

// ---- Files -------------------------------------------------------------------------------------

void op_open(fuse_req_t req, fuse_ino_t ino, fuse_file_info* info) {
  if (const auto id = find_staged(req, ino)) {
    note_open(req, ino);
    return staged::open(req, *id, info);
  }
  if ((info->flags & O_ACCMODE) != O_RDONLY || (info->flags & O_TRUNC) != 0) {
    fuse_reply_err(req, EROFS);
    return;
  }
  open_file(req, ino, *info);
}

void op_release(fuse_req_t req, fuse_ino_t ino, fuse_file_info* info) {
  if (const auto id = find_staged(req, ino)) return staged::release(req, *id, info);
  release_file(req, info->fh);
}

void op_read(fuse_req_t req, fuse_ino_t ino, std::size_t size, off_t offset, fuse_file_info* info) {
  const FileRange range{static_cast<std::uint64_t>(offset), size};
  if (const auto id = find_staged(req, ino)) {
    return staged::read(req, *id, range.offset_bytes, range.size_bytes);
  }
  read_file(req, info->fh, range);
}

void op_lseek(fuse_req_t req, fuse_ino_t ino, off_t offset, int whence, fuse_file_info* info) {
  if (const auto id = find_staged(req, ino)) return staged::lseek(req, *id, offset, whence);
  lseek_file(req, info->fh, offset, whence);
}

// ---- Changes -----------------------------------------------------------------------------------

// Those whose directory is not the first inode that they name.

void op_symlink(fuse_req_t req, const char* target, fuse_ino_t parent, const char* name) {
  change<staged::symlink>(req, parent, name, target);
}

void op_rename(fuse_req_t req, fuse_ino_t parent, const char* name, fuse_ino_t new_parent,
               const char* new_name, unsigned flags) {
  const auto to = find_staged(req, new_parent);
  if (!to) {
    fuse_reply_err(req, EROFS);
    return;
  }
  change<staged::rename>(req, parent, name, *to, new_name, flags);
}

void op_link(fuse_req_t req, fuse_ino_t, fuse_ino_t new_parent, const char*) {
  change<staged::refuse_link>(req, new_parent);
}

// Without any operation for reading them, the kernel takes it that no inode has any.
void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char*, const char*, std::size_t, int) {
  change<staged::refuse_xattr>(req, ino);
}
void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char*) {
  change<staged::refuse_xattr>(req, ino);
}

}  // namespace

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
  ops.lseek = op_lseek;
  ops.fsync = sync<staged::fsync>;
  ops.fsyncdir = sync<staged::fsyncdir>;

  // copy_file_range is not among them: the kernel then copies by itself.
  ops.setattr = change<staged::setattr>;
  ops.mknod = change<staged::mknod>;
  ops.mkdir = change<staged::mkdir>;
  ops.unlink = change<staged::unlink>;
  ops.rmdir = change<staged::rmdir>;
  ops.symlink = op_symlink;
  ops.rename = op_rename;
  ops.link = op_link;
  ops.create = change<staged::create>;
  ops.write = change<staged::write>;
  ops.setxattr = op_setxattr;
  ops.removexattr = op_removexattr;
  ops.fallocate = change<staged::fallocate>;
  return ops;
}

ssize_t write_reply(int fd, iovec* parts, int count, void* userdata) {
  auto& server = *static_cast<Server*>(userdata);
  const std::span<const iovec> reply(parts, static_cast<std::size_t>(count));
  server.counts.answered(reply);
  if constexpr (!kLibfuseHasPassthrough) {
    if (!server.init_answered && server.ask_for_passthrough) patch_init_reply(reply);
    if (replied_backing_id() > 0) patch_open_reply(reply, replied_backing_id());
  }
  return writev(fd, parts, count);
}

}  // namespace weightfs::fs
