#include "fs/fuse/operations.hpp"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "fs/fuse/passthrough.hpp"
#include "fs/fuse/reply.hpp"
#include "fs/fuse/staging_operations.hpp"

namespace weightfs::fs {
namespace {

constexpr std::chrono::minutes kSizeLimit{5};
constexpr std::chrono::hours kBuildLimit{1};
constexpr std::chrono::seconds kRoomPatience{5};
constexpr std::chrono::milliseconds kRoomPause{100};
constexpr std::chrono::hours kFillLimit{1};  // it may wait until another version has been made
constexpr unsigned kRequestBytesMax = 1u << 20;
// Reads ahead that the kernel sends before they are answered.  Its own limit is 12: so many readers
// of what is not here yet would hold up all others.
constexpr unsigned kBackgroundMax = 16384;

Parking reading(fuse_req_t req) { return {.pool = server_of(req).pool.get(), .is_reader = true}; }

// What must be found out, or made, of deltas first.
Parking sizing(fuse_req_t req, Missing missing) {
  return {.pool = server_of(req).sizes.get(),
          .limit = kSizeLimit,
          .missing = missing,
          .is_reader = true,
          .may_not_be = true};
}
// What must come from the bucket, for who does not know that it must.
Parking naming(fuse_req_t req) {
  const Server& server = server_of(req);
  return {.pool = server.names.get(),
          .limit = std::chrono::ceil<std::chrono::seconds>(server.options.read_timeout),
          .missing = Missing::name,
          .is_reader = true,
          .late = EIO};
}
Parking filling(fuse_req_t req) {
  return {.pool = server_of(req).fills.get(), .limit = kFillLimit, .is_reader = true, .late = EIO};
}
Parking building(fuse_req_t req) {
  return {.pool = server_of(req).builds.get(),
          .limit = kBuildLimit,
          .is_reader = true,
          .may_not_be = true};
}

// What is made from the bucket while it is read.
Parking reading_rest(fuse_req_t req) {
  const Server& server = server_of(req);
  return {.pool = server.rests.get(),
          .limit = std::chrono::ceil<std::chrono::seconds>(server.options.read_timeout),
          .is_reader = true,
          .late = EIO};
}

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
  conn->max_write = kRequestBytesMax;
  conn->max_background = kBackgroundMax;
  conn->congestion_threshold = kBackgroundMax;
#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 17)
  conn->max_backing_stack_depth = 0;  // libfuse adds one, for this mount
  if (static_cast<const Server*>(userdata)->ask_for_passthrough) {
    fuse_set_feature_flag(conn, FUSE_CAP_PASSTHROUGH);
  }
  fuse_unset_feature_flag(conn, FUSE_CAP_AUTO_INVAL_DATA);
  fuse_unset_feature_flag(conn, FUSE_CAP_ATOMIC_O_TRUNC);
  fuse_unset_feature_flag(conn, FUSE_CAP_HANDLE_KILLPRIV);
#else
  static_cast<void>(userdata);
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

// The version, if its delta's size must be found out before anything can be said of it.
std::optional<std::uint64_t> without_facts(fuse_req_t req, std::optional<std::uint64_t> version) {
  if (!version || server_of(req).options.deltas->find_facts(*version)) return {};
  return version;
}

void lookup_delta(fuse_req_t req, std::string name, std::uint64_t version) {
  park(req, sizing(req, Missing::name),
       [req, name = std::move(name), version,
        &server = server_of(req)](const Context& context) -> std::function<void()> {
         server.options.deltas->facts(version, context);
         const Node node = server.tree.lookup(make_inode(Fixed::deltas), name);
         return [req, entry = entry_of(node)] { fuse_reply_entry(req, &entry); };
       });
}

void getattr_delta(fuse_req_t req, Inode inode, std::uint64_t version) {
  park(req, sizing(req, Missing::inode),
       [=, &server = server_of(req)](const Context& context) -> std::function<void()> {
         server.options.deltas->facts(version, context);
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
  return version && *version <= server.options.sync->status().newest ? version : std::nullopt;
}

void lookup_version(fuse_req_t req, Inode parent, std::string name, std::uint64_t version) {
  park(req, naming(req),
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
    if (const auto version = without_facts(req, tree.find_delta(parent, name))) {
      return lookup_delta(req, name, *version);
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
    if (const auto version = without_facts(req, tree.find_delta(ino))) {
      return getattr_delta(req, ino, *version);
    }
    const Node node = tree.attributes(ino);
    fuse_reply_attr(req, &node.attributes, node.attribute_timeout_s);
  });
}

Requester requester_of(fuse_req_t req) {
  const fuse_ctx* const context = fuse_req_ctx(req);
  return {context->pid, context->uid};
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

// ---- Open and release --------------------------------------------------------------------------

void release(Server& server, Inode inode) {
  release_open(server, inode);
  server.images.release(inode);
}

// `hold`: of its pass.  `partial`: of a target that is partial.
void open_image(fuse_req_t req, Inode inode, const OpenTarget& target, const PassHold& hold,
                fuse_file_info& info, std::shared_ptr<PartialVersion> partial = nullptr) {
  Server& server = server_of(req);
  const auto opened = acquire_open(server, inode, [&] {
    return target.state == ImageState::complete ? register_file(server, target.image) : 0;
  });
  info.noflush = 1;  // close(2) needs no round trip, and works when the daemon is gone
  if (opened.serving == Serving::daemon) {
    try {
      if (!target.is_rest) server.images.hold(inode, target, std::move(partial));
    } catch (const std::exception&) {
      release(server, inode);
      throw;
    }
    info.keep_cache = 1;  // with passthrough it would make the open fail
  }
  LoaderPins* const pins = server.options.pins;
  info.fh = pins == nullptr ? 0 : pins->hold(hold);
  if (reply_open(req, info, opened.backing_id) == 0) return;
  if (pins != nullptr) pins->released(info.fh);
  release(server, inode);
}

// An object that is missing in the bucket is no file that is missing here, and one that cannot be
// read here no call that this file system does not have.
template <typename Body>
auto as_io_error(Body&& body) {
  try {
    return body();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::not_found && error.code() != ErrorCode::unsupported) throw;
    throw Error(ErrorCode::io, error.what());
  }
}

// A file of a version that is partial.  One that is whole is like any other.
void open_partial(fuse_req_t req, Inode inode, OpenTarget target, const PassHold& hold,
                  fuse_file_info& info, std::shared_ptr<PartialVersion> partial) {
  if (partial != nullptr && partial->is_here(target.path)) {
    target.state = ImageState::complete;
    partial = nullptr;
  }
  open_image(req, inode, target, hold, info, std::move(partial));
}

// Room that is missing now may be there in a moment: while a version is made it is reserved beside
// the one that `latest` names, and readers close files.
std::shared_ptr<PartialVersion> fill_patiently(Sync& sync, std::uint64_t version,
                                               const Context& context) {
  const Clock::time_point until = Clock::now() + kRoomPatience;
  for (;;) {
    try {
      return sync.fill_version(version, context);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::no_space || Clock::now() >= until) throw;
    }
    context.pause(kRoomPause, "waiting for room");
  }
}

// A file whose version is partial, or to be, or leaves: then it comes back, or is filled anew.
void open_incomplete(fuse_req_t req, Inode inode, const OpenTarget& target, const PassHold& hold,
                     fuse_file_info info) {
  const std::uint64_t version = parts_of(inode).version;
  Sync* const sync = server_of(req).options.sync;
  if (auto partial = sync->find_partial(version); partial && target.state == ImageState::partial) {
    return open_partial(req, inode, target, hold, info, std::move(partial));
  }
  park(req, filling(req),
       [=, &server = server_of(req)](const Context& context) -> std::function<void()> {
         const auto reserved =
             std::make_shared<Eviction::Reservation>(sync->reserve(version, context));
         const auto partial = as_io_error([&] { return fill_patiently(*sync, version, context); });
         const OpenTarget filled = server.tree.open(inode);
         return [=]() mutable {
           answer(req, "open", Missing::inode,
                  [&] { open_partial(req, inode, filled, hold, info, partial); });
           reserved->give_up();  // it is counted now
         };
       });
}

// Keeps the version of a file from being evicted until the open is counted.  False: it is being
// removed.
bool reserve_version(fuse_req_t req, Inode inode, Eviction::Reservation& reservation) {
  Sync* const sync = server_of(req).options.sync;
  if (sync == nullptr || parts_of(inode).kind != InodeKind::version) return true;
  auto reserved = sync->try_reserve(parts_of(inode).version);
  if (!reserved) return false;
  reservation = std::move(*reserved);
  return true;
}

// The file may have been removed to make room since it was made: then ESTALE makes the kernel begin
// again.
void open_delta(fuse_req_t req, Inode inode, std::uint64_t version, fuse_file_info info) {
  park(req, building(req),
       [req, inode, version, info,
        &server = server_of(req)](const Context& context) -> std::function<void()> {
         OpenTarget target;
         target.image = server.options.deltas->build(version, context);
         target.size_bytes = server.options.deltas->facts(version, context).size_bytes;
         return [req, inode, target, info]() mutable {
           answer(req, "open", Missing::inode, [&] { open_image(req, inode, target, {}, info); });
         };
       });
}

// The text of a generated file.
std::string make_text(const Server& server, Inode inode) {
  if (inode == make_inode(Fixed::status)) return server.options.status();
  if (inode == make_inode(Fixed::advice)) return server.options.advice();
  return staged::last_error(server);
}

void open_text(fuse_req_t req, Inode inode, fuse_file_info info) {
  park(req, reading(req),
       [req, inode, info, &server = server_of(req)](const Context&) -> std::function<void()> {
         auto text = std::make_shared<std::string>(make_text(server, inode));
         return [req, text, info, &server]() mutable {
           info.fh = server.texts.add(std::move(*text));
           info.direct_io = 1;  // its size is 0, as in /proc
           info.noflush = 1;
           if (fuse_reply_open(req, &info) != 0) server.texts.remove(info.fh);
         };
       });
}

Passes::Opened note_open(fuse_req_t req, Inode inode) {
  LoaderPins* const pins = server_of(req).options.pins;
  return pins == nullptr ? Passes::Opened{} : pins->opened(requester_of(req), inode);
}

void op_open(fuse_req_t req, fuse_ino_t ino, fuse_file_info* info) {
  if (const auto id = find_staged(req, ino)) {
    note_open(req, ino);
    return staged::open(req, *id, info);
  }
  if ((info->flags & O_ACCMODE) != O_RDONLY || (info->flags & O_TRUNC) != 0) {
    fuse_reply_err(req, EROFS);
    return;
  }
  answer(req, "open", Missing::inode, [&] {
    const Tree& tree = server_of(req).tree;
    if (const auto version = tree.find_delta(ino)) {
      note_open(req, ino);
      return open_delta(req, ino, *version, *info);
    }
    Eviction::Reservation reservation;
    const bool is_going = !reserve_version(req, ino, reservation);
    const OpenTarget target = tree.open(ino);
    const Passes::Opened noted = note_open(req, ino);
    if (noted.wanted != 0) {
      fuse_reply_err(req, ESTALE);  // the kernel walks again, through `latest`
    } else if (target.is_text) {
      open_text(req, ino, *info);
    } else if (!target.is_rest && (is_going || target.state != ImageState::complete)) {
      open_incomplete(req, ino, target, noted.hold, *info);
    } else {
      open_image(req, ino, target, noted.hold, *info);
    }
  });
}

void op_release(fuse_req_t req, fuse_ino_t ino, fuse_file_info* info) {
  if (const auto id = find_staged(req, ino)) return staged::release(req, *id, info);
  if (is_text(ino)) {
    server_of(req).texts.remove(info->fh);
  } else {
    Server& server = server_of(req);
    if (server.options.pins != nullptr) server.options.pins->released(info->fh);
    release(server, ino);
  }
  fuse_reply_err(req, 0);
}

// ---- Read --------------------------------------------------------------------------------------

struct Range {
  std::uint64_t offset_bytes = 0;
  std::size_t size_bytes = 0;
};

RequestPool::Work read_text_work(fuse_req_t req, Inode inode, std::uint64_t handle, Range range) {
  return [=, &server = server_of(req)](const Context&) -> std::function<void()> {
    auto text = server.texts.find(handle);
    if (text == nullptr) text = std::make_shared<const std::string>(make_text(server, inode));
    return [=] {
      const std::string_view rest =
          std::string_view(*text).substr(std::min<std::uint64_t>(range.offset_bytes, text->size()));
      fuse_reply_buf(req, rest.data(), std::min(rest.size(), range.size_bytes));
    };
  };
}

std::function<void()> read_image(fuse_req_t req, const OpenImage& image, Range range) {
  thread_local std::vector<std::byte> buffer;
  if (buffer.size() < range.size_bytes) buffer.resize(range.size_bytes);
  const std::size_t got = image.read(range.offset_bytes, std::span(buffer).first(range.size_bytes));
  return [req, got, data = buffer.data(), &server = server_of(req)] {
    server.daemon_reads++;
    fuse_reply_buf(req, reinterpret_cast<const char*>(data), got);
  };
}

// Also for files in passthrough mode: readahead(2) of them asks for pages that nobody will read.
RequestPool::Work read_image_work(fuse_req_t req, Inode inode, Range range) {
  return [=, &server = server_of(req)](const Context&) -> std::function<void()> {
    auto image = server.images.find(inode);
    if (image == nullptr) {
      const OpenTarget target = server.tree.open(inode);
      if (target.state != ImageState::complete) {
        throw Error(ErrorCode::io, target.image.string() + " is not here, and was not opened");
      }
      image = std::make_shared<const OpenImage>(target);
    }
    return read_image(req, *image, range);
  };
}

// Nothing if the file is here.  Requires: it has no image open, as who opened it before it was
// here.
std::optional<OpenTarget> find_rest(const Server& server, Inode inode) {
  if (server.options.rest == nullptr || is_text(inode)) return {};
  if (parts_of(inode).kind != InodeKind::version) return {};
  OpenTarget target = server.tree.open(inode);
  if (!target.is_rest) return {};
  return target;
}

RequestPool::Work read_rest_work(fuse_req_t req, OpenTarget target, Range range) {
  return [req, target = std::move(target), range,
          &server = server_of(req)](const Context& context) -> std::function<void()> {
    thread_local std::vector<std::byte> buffer;
    if (buffer.size() < range.size_bytes) buffer.resize(range.size_bytes);
    const std::size_t got =
        server.options.rest->read(target.version, target.path, range.offset_bytes,
                                  std::span(buffer).first(range.size_bytes), context);
    return [req, got, data = buffer.data(), &server] {
      server.daemon_reads++;
      fuse_reply_buf(req, reinterpret_cast<const char*>(data), got);
    };
  };
}

ReadRange read_range(Inode inode, Range range) {
  return {inode, range.offset_bytes, range.offset_bytes + range.size_bytes};
}

// It was given up just now, and nothing has come since.
bool is_late(Server& server, const OpenImage& image, Inode inode, Range range) {
  if (!server.late_reads.covers(read_range(inode, range), Clock::now())) return false;
  return !as_io_error([&] { return image.ask(range.offset_bytes, range.size_bytes, {}); });
}

// Waits, without a worker, until the range is here.  Another part of it may be missing when the
// work begins.  A request that waits does not hold the image, whose last owner may take long to
// end it.
void read_partial(fuse_req_t req, Inode inode, Range range, Clock::time_point deadline) {
  const auto ask = [=, &server = server_of(req)](std::function<void()> wake) {
    const auto image = server.images.find(inode);
    return image == nullptr || as_io_error([&] {
             return image->ask(range.offset_bytes, range.size_bytes, std::move(wake));
           });
  };
  Parking parking = reading(req);
  parking.late = EIO;
  parking.on_late = [&late = server_of(req).late_reads, read = read_range(inode, range)] {
    late.add(read, Clock::now());
  };
  park_until(req, parking, deadline, ask,
             [=, &server = server_of(req)](const Context&) -> std::function<void()> {
               if (!ask({})) {
                 return [=] {
                   answer(req, "read", Missing::inode,
                          [&] { read_partial(req, inode, range, deadline); });
                 };
               }
               const auto image = server.images.find(inode);
               if (image == nullptr) throw PosixError(EBADF, "read a file that is not open");
               return read_image(req, *image, range);
             });
}

void op_read(fuse_req_t req, fuse_ino_t ino, std::size_t size, off_t offset, fuse_file_info* info) {
  const Range range{static_cast<std::uint64_t>(offset), size};
  if (const auto id = find_staged(req, ino)) {
    return staged::read(req, *id, range.offset_bytes, range.size_bytes);
  }
  answer(req, "read", Missing::inode, [&] {
    Server& server = server_of(req);
    const auto image = server.images.find(ino);
    if (auto target = image == nullptr ? find_rest(server, ino) : std::nullopt) {
      return park(req, reading_rest(req), read_rest_work(req, std::move(*target), range));
    }
    if (image != nullptr && image->is_partial()) {
      if (is_late(server, *image, ino, range)) throw PosixError(EIO, "read what does not come");
      return read_partial(req, ino, range, Clock::now() + server.options.read_timeout);
    }
    park(req, reading(req),
         is_text(ino) ? read_text_work(req, ino, info->fh, range)
                      : read_image_work(req, ino, range));
  });
}

// An image has no holes.
void op_lseek(fuse_req_t req, fuse_ino_t ino, off_t offset, int whence, fuse_file_info*) {
  if (const auto id = find_staged(req, ino)) return staged::lseek(req, *id, offset, whence);
  answer(req, "lseek", Missing::inode, [&] {
    const off_t size = server_of(req).tree.attributes(ino).attributes.st_size;
    if (offset >= size) throw PosixError(ENXIO, "seek behind the end of the file");
    fuse_reply_lseek(req, whence == SEEK_DATA ? offset : size);
  });
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
  if constexpr (!kLibfuseHasPassthrough) {
    const auto& server = *static_cast<const Server*>(userdata);
    const std::span<const iovec> reply(parts, static_cast<std::size_t>(count));
    if (!server.init_answered && server.ask_for_passthrough) patch_init_reply(reply);
    if (replied_backing_id() > 0) patch_open_reply(reply, replied_backing_id());
  }
  return writev(fd, parts, count);
}

}  // namespace weightfs::fs
