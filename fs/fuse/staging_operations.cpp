// An open of a staged file is counted in three places, and taken back from them in the reverse
// order, before RELEASE is answered:
//
//     Staging        who reads and who writes: for the seal, and for unlinked files
//     Server::opens  passthrough or not: all opens of an inode alike
//     Server::staged the daemon's descriptors, where there is no passthrough
//
// Work that changes something is parked as OnGiveUp::finish: a write or a truncation that went on
// behind an answer of EINTR could undo what its caller did next.
#include "fs/fuse/staging_operations.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "fs/fuse/reply.hpp"
#include "store/base/log.hpp"
#include "store/base/path_rules.hpp"

namespace weightfs::fs::staged {
namespace {

constexpr double kAttributeSeconds = 1;
constexpr double kNameSeconds = 1;
constexpr mode_t kPermissions = 07777;

Staging& staging_of(fuse_req_t req) { return *server_of(req).options.writing.staging; }
Inode inode_of(StagingId id) { return make_staging_inode(id); }

Caller caller_of(fuse_req_t req) {
  const fuse_ctx* context = fuse_req_ctx(req);
  return {context->uid, context->gid};
}

using Send = std::function<void()>;
Send send_success(fuse_req_t req) {
  return [req] { fuse_reply_err(req, 0); };
}

bool is_root(StagingId id) { return id == kStagingRoot || id == kPublishRoot; }

// Stores through a mapping of a file that the kernel serves past the daemon change its times, and
// the kernel does not notice: it has to ask each time.
double attribute_seconds(const Server& server, StagingId id, const struct stat& found) {
  const bool is_served_by_daemon = server.staged.find_reader(id) != nullptr;
  return S_ISREG(found.st_mode) && !is_served_by_daemon ? 0 : kAttributeSeconds;
}

fuse_entry_param entry_of(const Server& server, StagingId parent, StagingId id) {
  fuse_entry_param entry{};
  entry.ino = inode_of(id);
  entry.attr = attributes(server, id);
  entry.attr_timeout = attribute_seconds(server, id, entry.attr);
  entry.entry_timeout = is_root(parent) ? 0 : kNameSeconds;
  return entry;
}

// The root that an inode lies below, or is; 0 if it has no name any more.
StagingId root_of(const Staging& staging, StagingId id) {
  if (is_root(id)) return id;
  const auto top = staging.top_of(id);
  return top ? top->root : 0;
}

// ---- opening -----------------------------------------------------------------------------------

/// It is written from now on, or may be complete.
void look_at(const Writing& writing, StagingId id) noexcept {
  if (writing.queue != nullptr) writing.queue->look_at(id);
}

void note_release(const Server& server, StagingId id, bool writes) noexcept {
  const Writing& writing = server.options.writing;
  if (writing.staging->release(id, writes)) look_at(writing, id);
}

void end_open(Server& server, StagingId id, bool writes) noexcept {
  server.staged.release(id, writes);
  release_open(server, inode_of(id));
  note_release(server, id, writes);
}

bool may_write(const fuse_file_info& info) { return (info.flags & O_ACCMODE) != O_RDONLY; }

// Counts an open.  Returns: what the answer hands out; see acquire_open().
OpenTable::Opened begin_open(Server& server, StagingId id, bool writes) {
  Staging& staging = *server.options.writing.staging;
  staging.open(id, writes);
  std::optional<OpenTable::Opened> opened;
  try {
    opened = acquire_open(server, inode_of(id),
                          [&] { return register_file(server, staging.backing_path(id)); });
    if (opened->serving == Serving::daemon) {
      server.staged.hold(id, staging.backing_path(id), writes);
    }
    if (writes) look_at(server.options.writing, id);
    return *opened;
  } catch (const std::exception&) {
    if (opened) release_open(server, inode_of(id));
    note_release(server, id, writes);
    throw;
  }
}

// Opens for an answer.  `reply(backing_id)` sends it; see reply_open().
template <typename Reply>
void open_and_reply(Server& server, StagingId id, fuse_file_info& info, Reply&& reply) {
  const bool writes = may_write(info);
  const OpenTable::Opened opened = begin_open(server, id, writes);
  info.fh = 0;
  // close(2) needs no round trip: every write was answered before, and what a mapping stored may be
  // written after any close; see write_or_note().
  info.noflush = 1;
  if (reply(opened.backing_id) != 0) end_open(server, id, writes);
}

// A file to be made.
struct NewFile {
  StagingId parent = 0;
  std::string name;
  mode_t mode = 0;
  Caller caller;
};

StagingId make_file(Staging& staging, const NewFile& file) {
  return staging.make_file(file.parent, file.name, file.mode & kPermissions, file.caller);
}

// The kernel did not know the name, but another caller may have made it meanwhile.
StagingId find_or_make(Staging& staging, const NewFile& file, int flags) {
  try {
    return make_file(staging, file);
  } catch (const PosixError& error) {
    if (error.number() != EEXIST || (flags & O_EXCL) != 0) throw;
  }
  const StagingId id = staging.lookup(file.parent, file.name);
  if (!S_ISREG(staging.attributes(id).st_mode)) {
    throw PosixError(ESTALE, "create " + file.name);  // the kernel looks again
  }
  if ((flags & O_TRUNC) != 0) {
    AttributeChange empty;
    empty.size_bytes = 0;
    staging.change(id, empty);
  }
  return id;
}

// ---- reading and writing without passthrough ----------------------------------------------------

std::size_t read_fully(int fd, std::uint64_t offset_bytes, std::span<std::byte> into) {
  std::size_t done = 0;
  while (done < into.size()) {
    const ssize_t got = ::pread(fd, into.data() + done, into.size() - done,
                                static_cast<off_t>(offset_bytes + done));
    if (got == 0) break;
    if (got < 0 && errno != EINTR) throw PosixError(errno, "read a staged file");
    if (got > 0) done += static_cast<std::size_t>(got);
  }
  return done;
}

void write_fully(int fd, std::uint64_t offset_bytes, std::span<const std::byte> from) {
  std::size_t done = 0;
  while (done < from.size()) {
    const ssize_t put = ::pwrite(fd, from.data() + done, from.size() - done,
                                 static_cast<off_t>(offset_bytes + done));
    if (put < 0 && errno != EINTR) throw PosixError(errno, "write a staged file");
    if (put > 0) done += static_cast<std::size_t>(put);
  }
}

void write_staged(const Server& server, StagingId id, std::uint64_t offset_bytes,
                  std::span<const std::byte> from) {
  const auto file = server.staged.find_writer(id);
  if (file == nullptr) throw PosixError(EBADF, "write a file that is not open for it");
  server.options.writing.staging->prepare_write(id, offset_bytes, from.size());
  write_fully(file->fd(), offset_bytes, from);
}

void note_lost_store(const Server& server, StagingId id, const std::exception& why) noexcept {
  try {
    Staging& staging = *server.options.writing.staging;
    if (staging.is_lost(id)) return;  // told before
    staging.note_lost_file(id);
    const std::string path = staging.path_of(id);
    if (path.empty()) return;  // unlinked: nobody can hand it over
    log_error(
        fmt::format("{}: some of what was stored through a mapping was not written ({}); it cannot "
                    "be handed over until it is removed and saved again",
                    escape_name(path), why.what()));
  } catch (const std::exception& error) {
    log_caught("noting that bytes of a staged file are lost", error);
  }
}

/// Runs `body`, which writes.  `from_cache`: what was stored through a mapping; no call waits for
/// that, so who hands over is told if it fails.
template <typename Body>
void write_or_note(const Server& server, StagingId id, bool from_cache, Body&& body) {
  try {
    std::forward<Body>(body)();
  } catch (const std::exception& error) {
    if (from_cache) note_lost_store(server, id, error);
    throw;
  }
}

// A descriptor for reading: the one that is held, or, where there is passthrough, one for once.
std::shared_ptr<const File> reader_of(const Server& server, StagingId id) {
  auto file = server.staged.find_reader(id);
  if (file != nullptr) return file;
  const auto path = server.options.writing.staging->backing_path(id);
  return std::make_shared<const File>(File::open(path, O_RDONLY));
}

// ---- changes ------------------------------------------------------------------------------------

timespec time_of(timespec given, bool is_now) {
  if (is_now) clock_gettime(CLOCK_REALTIME, &given);
  return given;
}

AttributeChange change_of(const struct stat& to, int which) {
  AttributeChange change;
  if ((which & FUSE_SET_ATTR_MODE) != 0) change.mode = to.st_mode & kPermissions;
  if ((which & FUSE_SET_ATTR_UID) != 0) change.uid = to.st_uid;
  if ((which & FUSE_SET_ATTR_GID) != 0) change.gid = to.st_gid;
  if ((which & FUSE_SET_ATTR_SIZE) != 0) {
    change.size_bytes = static_cast<std::uint64_t>(to.st_size);
  }
  if ((which & FUSE_SET_ATTR_ATIME) != 0) {
    change.atime = time_of(to.st_atim, (which & FUSE_SET_ATTR_ATIME_NOW) != 0);
  }
  if ((which & FUSE_SET_ATTR_MTIME) != 0) {
    change.mtime = time_of(to.st_mtim, (which & FUSE_SET_ATTR_MTIME_NOW) != 0);
  }
  return change;
}

Send change_and_send(fuse_req_t req, const Server& server, StagingId id,
                     const AttributeChange& change) {
  server.options.writing.staging->change(id, change);
  const struct stat after = attributes(server, id);
  // Who copies sets the times when the bytes are there.
  const bool may_be_last = change.size_bytes || change.mtime;
  if (may_be_last && S_ISREG(after.st_mode)) look_at(server.options.writing, id);
  return [req, after, seconds = attribute_seconds(server, id, after)] {
    fuse_reply_attr(req, &after, seconds);
  };
}

/// What has that name now may be complete.
void look_at_name(const Writing& writing, StagingId parent, const char* name) noexcept {
  try {
    look_at(writing, writing.staging->lookup(parent, name));
  } catch (const std::exception&) {
    return;  // it was renamed again
  }
}

// ---- through the publish queue ------------------------------------------------------------------

// Runs a call of the queue; an Error becomes an errno that mv can show.
template <typename Call>
void ask_queue(Call&& call) {
  try {
    std::forward<Call>(call)();
  } catch (const Error& error) {
    throw PosixError(to_hand_over_errno(error.code()), error.what());
  }
}

void hand_over(fuse_req_t req, StagingId parent, std::string name, std::string new_name) {
  HandOverOptions options;
  options.caller = caller_of(req);
  options.wishes.tag = new_name;
  park(req, {RequestKind::move, Missing::name},
       [=, writing = server_of(req).options.writing](const Context& context) {
         ask_queue([&] {
           const StagingId directory = writing.staging->lookup(parent, name);
           writing.queue->hand_over(directory, new_name, options, context);
         });
         return send_success(req);
       });
}

void take_back(fuse_req_t req, std::string name, StagingId new_parent, std::string new_name) {
  park(req, {RequestKind::move, Missing::name},
       [=, writing = server_of(req).options.writing](const Context&) {
         const StagingId directory = writing.staging->lookup(kPublishRoot, name);
         writing.queue->take_back(directory, new_parent, new_name);
         return send_success(req);
       });
}

bool is_empty(const Staging& staging, StagingId directory) {
  bool empty = true;
  staging.read_directory(directory, 0, [&](const StagingName&) { return empty = false; });
  return empty;
}

void remove_now(Staging& staging, StagingId parent, const std::string& name, bool is_directory) {
  if (is_directory) {
    staging.remove_directory(parent, name);
  } else {
    staging.unlink(parent, name);
  }
}

// Below publish/X: X must not become a version any more.
void remove_handed_over(fuse_req_t req, StagingId parent, std::string name, bool is_directory) {
  park(req, {RequestKind::move, Missing::name},
       [=, writing = server_of(req).options.writing](const Context&) {
         Staging& staging = *writing.staging;
         const StagingId id = staging.lookup(parent, name);
         if (is_directory && !is_empty(staging, id)) throw PosixError(ENOTEMPTY, "remove " + name);
         if (const auto top = staging.top_of(id)) writing.queue->cancel(top->id);
         remove_now(staging, parent, name, is_directory);
         return send_success(req);
       });
}

/// The name in publish/ that `name` in the directory `parent` is, or lies below.
std::string name_in_publish(const Staging& staging, StagingId parent, const std::string& name) {
  const auto top = staging.top_of(parent);
  return top ? top->name : name;
}

/// mv, asked to move X onto a name in publish/ that is taken, moves X into that directory.
void refuse_move_into(fuse_req_t req, StagingId parent, std::string name) {
  park(req, {RequestKind::move, Missing::name},
       [=, writing = server_of(req).options.writing](const Context&) -> Send {
         ask_queue(
             [&] { writing.queue->check_free(name_in_publish(*writing.staging, parent, name)); });
         throw PosixError(EROFS, "rename " + name);  // it has just left publish/
       });
}

/// Runs `make`, which makes a name.  In publish/ nothing is made: whoever tries, by cp for
/// instance, is told so where the reasons of refusals are.
template <typename Make>
StagingId make_name(const Server& server, StagingId parent, const std::string& name, Make&& make) {
  try {
    return make();
  } catch (const PosixError& error) {
    const Staging& staging = *server.options.writing.staging;
    PublishQueue* const queue = server.options.writing.queue;
    if (error.number() != EROFS || queue == nullptr || root_of(staging, parent) != kPublishRoot) {
      throw;
    }
    queue->note_copy(name_in_publish(staging, parent, name));
    throw;
  }
}

// Runs `make`, which returns what answers, when there is room for a file.  No thread of the session
// makes room: in bind mode that unmounts a version, and the kernel then asks the session.
void make_with_room(fuse_req_t req, std::function<Send()> make) {
  Staging& staging = staging_of(req);
  if (staging.has_room_for_file()) return make()();
  park(req, {RequestKind::make, Missing::name}, [=, &staging](const Context&) {
    staging.prepare_file();
    return make();
  });
}

void remove(fuse_req_t req, StagingId parent, const char* name, bool is_directory) {
  answer(req, is_directory ? "rmdir" : "unlink", Missing::name, [&] {
    Staging& staging = staging_of(req);
    const bool has_queue = server_of(req).options.writing.queue != nullptr;
    if (root_of(staging, parent) == kPublishRoot && has_queue) {
      remove_handed_over(req, parent, name, is_directory);
    } else {
      remove_now(staging, parent, name, is_directory);
      fuse_reply_err(req, 0);
    }
  });
}

}  // namespace

// ---- names --------------------------------------------------------------------------------------

struct stat attributes(const Server& server, StagingId id) {
  struct stat found = server.options.writing.staging->attributes(id);
  found.st_ino = inode_of(id);
  return found;
}

std::string last_error(const Server& server) {
  const PublishQueue* queue = server.options.writing.queue;
  const std::string reason = queue == nullptr ? std::string() : queue->last_error();
  return reason.empty() ? reason : reason + "\n";
}

void lookup(fuse_req_t req, StagingId parent, const char* name) {
  answer(req, "lookup", Missing::name, [&] {
    const StagingId id = staging_of(req).lookup(parent, name);
    const fuse_entry_param entry = entry_of(server_of(req), parent, id);
    fuse_reply_entry(req, &entry);
  });
}

void getattr(fuse_req_t req, StagingId id) {
  answer(req, "getattr", Missing::inode, [&] {
    const struct stat found = attributes(server_of(req), id);
    fuse_reply_attr(req, &found, attribute_seconds(server_of(req), id, found));
  });
}

void readlink(fuse_req_t req, StagingId id) {
  answer(req, "readlink", Missing::inode, [&] {
    const std::string target = staging_of(req).read_link(id);
    fuse_reply_readlink(req, target.c_str());
  });
}

void readdir(fuse_req_t req, StagingId id, std::size_t size, std::uint64_t offset) {
  constexpr std::uint64_t kDots = 2;  // "." and ".." come before Staging's offsets
  answer(req, "readdir", Missing::inode, [&] {
    const Staging& staging = staging_of(req);
    const Inode parent = is_root(id) ? make_inode(Fixed::root) : inode_of(staging.parent_of(id));
    reply_directory(req, size, [&](const EachEntry& each) {
      if (offset < 1 && !each({".", inode_of(id), S_IFDIR, 1})) return;
      if (offset < kDots && !each({"..", parent, S_IFDIR, kDots})) return;
      const std::uint64_t behind = offset < kDots ? 0 : offset - kDots;
      staging.read_directory(id, behind, [&](const StagingName& name) {
        return each({name.name, inode_of(name.id), name.type, name.next + kDots});
      });
    });
  });
}

void mknod(fuse_req_t req, StagingId parent, const char* name, mode_t mode, dev_t) {
  answer(req, "mknod", Missing::name, [&] {
    if (!S_ISREG(mode)) throw PosixError(EPERM, "make a special file");
    const NewFile file{parent, name, mode, caller_of(req)};
    make_with_room(req, [=, &server = server_of(req)]() -> Send {
      const StagingId id = make_name(server, parent, file.name, [&] {
        return make_file(*server.options.writing.staging, file);
      });
      return [req, entry = entry_of(server, parent, id)] { fuse_reply_entry(req, &entry); };
    });
  });
}

void mkdir(fuse_req_t req, StagingId parent, const char* name, mode_t mode) {
  answer(req, "mkdir", Missing::name, [&] {
    const StagingId id = make_name(server_of(req), parent, name, [&] {
      return staging_of(req).make_directory(parent, name, mode & kPermissions, caller_of(req));
    });
    const fuse_entry_param entry = entry_of(server_of(req), parent, id);
    fuse_reply_entry(req, &entry);
  });
}

void symlink(fuse_req_t req, StagingId parent, const char* name, const char* target) {
  answer(req, "symlink", Missing::name, [&] {
    const StagingId id = make_name(server_of(req), parent, name, [&] {
      return staging_of(req).make_symlink(parent, name, target, caller_of(req));
    });
    const fuse_entry_param entry = entry_of(server_of(req), parent, id);
    fuse_reply_entry(req, &entry);
  });
}

void unlink(fuse_req_t req, StagingId parent, const char* name) {
  remove(req, parent, name, false);
}
void rmdir(fuse_req_t req, StagingId parent, const char* name) { remove(req, parent, name, true); }

void rename(fuse_req_t req, StagingId parent, const char* name, StagingId new_parent,
            const char* new_name, unsigned flags) {
  answer(req, "rename", Missing::name, [&] {
    Staging& staging = staging_of(req);
    const StagingId from = root_of(staging, parent), to = root_of(staging, new_parent);
    PublishQueue* const queue = server_of(req).options.writing.queue;
    const bool may_hand_over = queue != nullptr && (flags & RENAME_EXCHANGE) == 0;
    if (from == kStagingRoot && to == kStagingRoot) {
      staging.rename(parent, name, new_parent, new_name, flags);
      look_at_name(server_of(req).options.writing, new_parent, new_name);
      if ((flags & RENAME_EXCHANGE) != 0) {
        look_at_name(server_of(req).options.writing, parent, name);
      }
      fuse_reply_err(req, 0);
    } else if (from == kStagingRoot && new_parent == kPublishRoot && may_hand_over) {
      hand_over(req, parent, name, new_name);
    } else if (parent == kPublishRoot && to == kStagingRoot && may_hand_over) {
      take_back(req, name, new_parent, new_name);
    } else if (from == kStagingRoot && to == kPublishRoot && may_hand_over) {
      refuse_move_into(req, new_parent, new_name);
    } else {
      if (queue != nullptr && from == kPublishRoot) {
        queue->note_rename(name_in_publish(staging, parent, name));
      } else if (queue != nullptr && to == kPublishRoot) {
        queue->note_rename(name_in_publish(staging, new_parent, new_name));
      }
      throw PosixError(from == 0 || to == 0 ? ENOENT : EROFS, "rename " + std::string(name));
    }
  });
}

void refuse_link(fuse_req_t req, StagingId) { fuse_reply_err(req, EPERM); }
void refuse_xattr(fuse_req_t req, StagingId) { fuse_reply_err(req, EOPNOTSUPP); }

// ---- files --------------------------------------------------------------------------------------

void create(fuse_req_t req, StagingId parent, const char* name, mode_t mode, fuse_file_info* info) {
  answer(req, "create", Missing::name, [&] {
    const NewFile file{parent, name, mode, caller_of(req)};
    make_with_room(req, [=, opened = *info, &server = server_of(req)]() -> Send {
      const StagingId id = make_name(server, parent, file.name, [&] {
        return find_or_make(*server.options.writing.staging, file, opened.flags);
      });
      return [=, answered = opened, &server]() mutable {
        answer(req, "create", Missing::name, [&] {
          const fuse_entry_param entry = entry_of(server, parent, id);
          open_and_reply(server, id, answered, [&](std::int32_t backing_id) {
            return reply_create(req, entry, answered, backing_id);
          });
        });
      };
    });
  });
}

void open(fuse_req_t req, StagingId id, fuse_file_info* info) {
  answer(req, "open", Missing::inode, [&] {
    open_and_reply(server_of(req), id, *info,
                   [&](std::int32_t backing_id) { return reply_open(req, *info, backing_id); });
  });
}

void release(fuse_req_t req, StagingId id, fuse_file_info* info) {
  end_open(server_of(req), id, may_write(*info));
  fuse_reply_err(req, 0);
}

void setattr(fuse_req_t req, StagingId id, struct stat* to, int which, fuse_file_info*) {
  answer(req, "setattr", Missing::inode, [&] {
    const Server& server = server_of(req);
    const AttributeChange change = change_of(*to, which);
    if (!change.size_bytes) return change_and_send(req, server, id, change)();
    park(req, {RequestKind::change},
         [=, &server](const Context&) { return change_and_send(req, server, id, change); });
  });
}

void read(fuse_req_t req, StagingId id, std::uint64_t offset_bytes, std::size_t size_bytes) {
  answer(req, "read", Missing::inode, [&] {
    park(req, {RequestKind::staged_read}, [=, &server = server_of(req)](const Context&) -> Send {
      thread_local std::vector<std::byte> buffer;
      if (buffer.size() < size_bytes) buffer.resize(size_bytes);
      const auto file = reader_of(server, id);
      const std::size_t got =
          read_fully(file->fd(), offset_bytes, std::span(buffer).first(size_bytes));
      return [req, got, data = buffer.data(), &server] {
        server.daemon_reads++;
        fuse_reply_buf(req, reinterpret_cast<const char*>(data), got);
      };
    });
  });
}

void write(fuse_req_t req, StagingId id, const char* data, std::size_t size_bytes, off_t offset,
           fuse_file_info* info) {
  const Server& server = server_of(req);
  const bool from_cache = info->writepage != 0;
  const auto begin = [&] {
    const auto bytes = std::as_bytes(std::span(data, size_bytes));
    const auto copy = std::make_shared<const std::vector<std::byte>>(bytes.begin(), bytes.end());
    const auto at = static_cast<std::uint64_t>(offset);
    park(req, {RequestKind::change}, [=, &server](const Context&) -> Send {
      write_or_note(server, id, from_cache, [&] { write_staged(server, id, at, *copy); });
      return [=] { fuse_reply_write(req, copy->size()); };
    });
  };
  answer(req, "write", Missing::inode, [&] { write_or_note(server, id, from_cache, begin); });
}

// Where the daemon serves, all is data: the kernel asks before it writes back what was stored
// through a mapping, and who copies only the data must not miss that.
void lseek(fuse_req_t req, StagingId id, off_t offset, int whence) {
  answer(req, "lseek", Missing::inode, [&] {
    park(req, {RequestKind::staged_read}, [=, &server = server_of(req)](const Context&) -> Send {
      if (server.staged.find_reader(id) != nullptr) {
        const off_t size = attributes(server, id).st_size;
        if (offset >= size) throw PosixError(ENXIO, "seek behind the end of a staged file");
        return [=] { fuse_reply_lseek(req, whence == SEEK_DATA ? offset : size); };
      }
      const auto file = reader_of(server, id);
      const off_t found = ::lseek(file->fd(), offset, whence);
      if (found < 0) throw PosixError(errno, "seek in a staged file");
      return [=] { fuse_reply_lseek(req, found); };
    });
  });
}

void fallocate(fuse_req_t req, StagingId id, int mode, off_t offset, off_t size, fuse_file_info*) {
  answer(req, "fallocate", Missing::inode, [&] {
    park(req, {RequestKind::change}, [=, &staging = staging_of(req)](const Context&) {
      staging.allocate(id, mode, static_cast<std::uint64_t>(offset),
                       static_cast<std::uint64_t>(size));
      return send_success(req);
    });
  });
}

void fsync(fuse_req_t req, StagingId id, int data_only, fuse_file_info*) {
  answer(req, "fsync", Missing::inode, [&] {
    park(req, {RequestKind::sync}, [=, &staging = staging_of(req)](const Context&) {
      staging.sync_file(id, data_only != 0);
      return send_success(req);
    });
  });
}

void fsyncdir(fuse_req_t req, StagingId id, int, fuse_file_info*) {
  answer(req, "fsyncdir", Missing::inode, [&] {
    park(req, {RequestKind::sync}, [=, &staging = staging_of(req)](const Context&) {
      staging.sync_directory(id);
      return send_success(req);
    });
  });
}

}  // namespace weightfs::fs::staged
