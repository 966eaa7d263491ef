#include "fs/fuse/file_operations.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "fs/fuse/reply.hpp"
#include "fs/fuse/staging_operations.hpp"
#include "store/base/log.hpp"
#include "store/base/path_rules.hpp"

namespace weightfs::fs {
namespace {

constexpr std::chrono::seconds kRoomPatience{5};
constexpr std::chrono::milliseconds kRoomPause{100};
constexpr int kFillTries = 3;

constexpr std::size_t kTextBytesMax = 64u << 20;  // of all texts that are open
constexpr std::size_t kTextRecordBytes = 256;     // an open, beside its text

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

// ---- Reading -----------------------------------------------------------------------------------

// Reads with `read(into)`, which returns how many bytes.  Returns: what answers.
template <typename Read>
std::function<void()> read_and_send(fuse_req_t req, Server& server, FileRange range, Read&& read) {
  thread_local std::vector<std::byte> buffer;
  if (buffer.size() < range.size_bytes) buffer.resize(range.size_bytes);
  const std::size_t got = read(std::span(buffer).first(range.size_bytes));
  return [req, got, data = buffer.data(), &server] {
    server.daemon_reads++;
    fuse_reply_buf(req, reinterpret_cast<const char*>(data), got);
  };
}

std::function<void()> read_image(fuse_req_t req, Server& server, const OpenImage& image,
                                 FileRange range) {
  return read_and_send(req, server, range, [&](std::span<std::byte> into) {
    return image.read(range.offset_bytes, into);
  });
}

// Opens the image for this READ, beside what its open has.
void park_single_read(fuse_req_t req, Inode inode, const LocalFile& file, FileRange range) {
  park(req, {RequestKind::read},
       [=, &server = server_of(req)](const Context&) -> std::function<void()> {
         server.page_sources.take(inode, image_number(inode, file));
         return read_image(req, server, OpenImage(file), range);
       });
}

// A READ that waits does not hold the image, whose last owner may take long to end it.
using ImageToRead = std::weak_ptr<const OpenImage>;

std::shared_ptr<const OpenImage> lock_image(const ImageToRead& image) {
  auto locked = image.lock();
  if (locked == nullptr) throw PosixError(EBADF, "read a file that is not open");
  return locked;
}

ReadRange read_range(Inode inode, FileRange range) {
  return {inode, range.offset_bytes, range.offset_bytes + range.size_bytes};
}

// It was given up just now, and nothing has come since.
bool is_late(Server& server, const OpenImage& image, Inode inode, FileRange range) {
  if (!server.late_reads.covers(read_range(inode, range), Clock::now())) return false;
  return !as_io_error([&] { return image.ask(range.offset_bytes, range.size_bytes, {}); });
}

// Waits, without a worker, until the range is here.  Another part of it may be missing when the
// work begins.
void park_streaming_read(fuse_req_t req, Inode inode, const ImageToRead& image, FileRange range,
                         Clock::time_point deadline) {
  const auto ask = [=](std::function<void()> wake) {
    const auto locked = image.lock();
    return locked == nullptr || as_io_error([&] {
             return locked->ask(range.offset_bytes, range.size_bytes, std::move(wake));
           });
  };
  Parking parking{RequestKind::streamed};
  parking.on_late = [&late = server_of(req).late_reads, read = read_range(inode, range)] {
    late.add(read, Clock::now());
  };
  park_until(req, parking, deadline, ask,
             [=, &server = server_of(req)](const Context&) -> std::function<void()> {
               if (!ask({})) {
                 return [=] {
                   answer(req, "read", Missing::inode,
                          [&] { park_streaming_read(req, inode, image, range, deadline); });
                 };
               }
               return read_image(req, server, *lock_image(image), range);
             });
}

// ---- What is open ------------------------------------------------------------------------------

// What the texts that are open may take together: anybody may open one, as often as they like.  The
// last quarter is left to those who look after the mount.
std::size_t text_bytes_max(const Requester& who) {
  const bool looks_after_it = who.uid == 0 || who.uid == ::geteuid();
  return looks_after_it ? kTextBytesMax : kTextBytesMax / 4 * 3;
}

class OpenText final : public OpenFile {
 public:
  /// Throws PosixError: ENFILE if the texts that are open then take more than `bytes_max`.
  OpenText(Server& server, std::string text, std::size_t bytes_max)
      : server_(server), text_(std::move(text)), bytes_(text_.capacity() + kTextRecordBytes) {
    if (server_.text_bytes.fetch_add(bytes_) + bytes_ <= bytes_max) return;
    server_.text_bytes -= bytes_;
    throw PosixError(ENFILE, "open one more text");
  }
  ~OpenText() override { server_.text_bytes -= bytes_; }
  OpenText(const OpenText&) = delete;
  OpenText& operator=(const OpenText&) = delete;

  void read(fuse_req_t req, FileRange range) const override {
    const std::string_view rest =
        std::string_view(text_).substr(std::min<std::uint64_t>(range.offset_bytes, text_.size()));
    fuse_reply_buf(req, rest.data(), std::min(rest.size(), range.size_bytes));
  }

 private:
  Server& server_;
  const std::string text_;
  const std::size_t bytes_;
};

// An open that Server::opens has counted, and perhaps a pass.
class CountedFile : public OpenFile {
 public:
  CountedFile(Server& server, Inode inode, std::uint64_t size_bytes)
      : server_(server), inode_(inode), size_bytes_(size_bytes) {}

  /// `handle`: of LoaderPins.  Before anybody else sees this.
  void set_pin(std::uint64_t handle) noexcept { pin_ = handle; }

  [[nodiscard]] std::uint64_t size_bytes() const noexcept final { return size_bytes_; }

  void release() const noexcept override {
    if (server_.options.pins != nullptr) server_.options.pins->released(pin_);
    release_open(server_, inode_, was_heard_);
  }

  /// The caller had gone when its open was answered.
  void set_unheard() noexcept { was_heard_ = false; }

 protected:
  Server& server_;
  const Inode inode_;

 private:
  const std::uint64_t size_bytes_;
  std::uint64_t pin_ = 0;
  bool was_heard_ = true;
};

// A LocalFile or a StreamingFile: whichever came first of those that are open now decides, for all
// opens of the inode share one image.
class OpenLocal final : public CountedFile {
 public:
  /// `image`: of Server::images; nullptr if the kernel reads the file itself.
  OpenLocal(Server& server, Inode inode, LocalFile file, std::shared_ptr<const OpenImage> image)
      : CountedFile(server, inode, file.size_bytes),
        file_(std::move(file)),
        image_(std::move(image)) {}

  void read(fuse_req_t req, FileRange range) const override {
    if (image_ == nullptr) {
      park_single_read(req, inode_, file_, range);  // by readahead(2)
    } else if (!image_->is_streaming()) {
      park(req, {RequestKind::read},
           [req, range, image = ImageToRead(image_),
            &server = server_](const Context&) -> std::function<void()> {
             return read_image(req, server, *lock_image(image), range);
           });
    } else if (is_late(server_, *image_, inode_, range)) {
      throw PosixError(EIO, "read bytes that do not arrive");
    } else {
      park_streaming_read(req, inode_, image_, range, Clock::now() + server_.options.read_timeout);
    }
  }

  void release() const noexcept override {
    // First: who finds nobody in the table must not join the image of who is leaving.
    if (image_ != nullptr) server_.images.release(inode_);
    CountedFile::release();
  }

 private:
  const LocalFile file_;
  const std::shared_ptr<const OpenImage> image_;
};

// Where the file lies, if all of it is here and its version is shown.
std::optional<LocalFile> find_local(const Server& server, Inode inode) {
  try {
    const FileKind now = server.tree.open(inode);
    if (const auto* local = std::get_if<LocalFile>(&now)) return *local;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::not_found) throw;
  }
  return std::nullopt;
}

class OpenRemote final : public CountedFile {
 public:
  OpenRemote(Server& server, Inode inode, RemoteFile file)
      : CountedFile(server, inode, file.size_bytes), file_(std::move(file)) {}

  void read(fuse_req_t req, FileRange range) const override {
    // This host may have begun to keep the file since it was opened.  The catalog may have
    // forgotten its version meanwhile, but not the bucket.
    if (const auto local = find_local(server_, inode_)) {
      park_single_read(req, inode_, *local, range);
    } else if (server_.options.remote_files != nullptr) {
      park_remote_read(req, range);
    } else {
      throw Error(ErrorCode::io, "'" + file_.path + "' is not here");
    }
  }

 private:
  void park_remote_read(fuse_req_t req, FileRange range) const {
    park(req, {RequestKind::remote},
         [=, file = file_, &server = server_](const Context& context) -> std::function<void()> {
           return read_and_send(req, server, range, [&](std::span<std::byte> into) {
             return server.options.remote_files->read(file.version, file.path, range.offset_bytes,
                                                      into, context);
           });
         });
  }

  const RemoteFile file_;
};

// ---- Opening -----------------------------------------------------------------------------------

// An OPEN that is not answered yet.
struct Opening {
  fuse_req_t req = nullptr;
  Inode inode = 0;
  fuse_file_info info{};
  PassHold hold = {};  // of its pass
};

// Makes the record of a counted open, which is taken back if that fails.
void add_counted(Opening& opening, const OpenTable::Opened& opened,
                 const std::shared_ptr<CountedFile>& file) {
  Server& server = server_of(opening.req);
  LoaderPins* const pins = server.options.pins;
  try {
    file->set_pin(pins == nullptr ? 0 : pins->hold(opening.hold));
    if (opened.serving == Serving::daemon) {  // with passthrough it would make the open fail
      opening.info.keep_cache = server.page_sources.take(opening.inode, opened.image) ? 1 : 0;
    }
    opening.info.fh = server.files.add(file);
  } catch (const std::exception&) {
    file->set_unheard();
    file->release();
    throw;
  }
}

// `opened`: counted, and taken back if the caller has gone.
void reply_counted(Opening& opening, const OpenTable::Opened& opened,
                   const std::shared_ptr<CountedFile>& file) {
  Server& server = server_of(opening.req);
  add_counted(opening, opened, file);
  opening.info.noflush = 1;  // close(2) needs no round trip, and works when the daemon is gone
  const std::uint64_t handle = opening.info.fh;
  if (reply_open(opening.req, opening.info, opened.backing_id) == 0) return;
  file->set_unheard();
  server.files.remove(handle);
}

// A version that the disk has lost, or that is damaged, is made again though it is read.  The
// kernel takes all opens of an inode from the same file.
[[noreturn]] void throw_read_from_lost(const LocalFile& file) {
  log_warning(
      fmt::format("{} was damaged or lost and is made again; it cannot be opened until all "
                  "who have the old file open have closed it",
                  escape_name(file.image.string())));
  throw PosixError(EIO, "open an image whose damaged predecessor is open");
}

// The path is opened after its number was taken.  If that is still the same, it was of this file.
void check_still(Inode inode, const LocalFile& file, std::uint64_t number) {
  std::uint64_t now = 0;
  try {
    now = image_number(inode, file);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::not_found) throw;
    now = number + 1;  // another one is not there yet
  }
  if (now == number) return;
  throw PosixError(ESTALE, "open an image that was made again just now");  // the kernel retries
}

// `decide`: see acquire_open().  `partial`: of a file that streams in; else nullptr.
void open_image(Opening& opening, const LocalFile& file, const OpenTable::Register& decide,
                std::shared_ptr<PartialVersion> partial) {
  Server& server = server_of(opening.req);
  const std::uint64_t number = image_number(opening.inode, file);
  auto opened = acquire_open(server, opening.inode, decide, number);
  std::shared_ptr<const OpenImage> image;
  std::shared_ptr<OpenLocal> local;
  try {
    if (opened.image != 0 && opened.image != number) throw_read_from_lost(file);
    if (opened.serving == Serving::daemon) {
      image = server.images.hold(opening.inode, file, std::move(partial));
    }
    check_still(opening.inode, file, number);
    local = std::make_shared<OpenLocal>(server, opening.inode, file, image);
  } catch (const std::exception&) {
    if (image != nullptr) server.images.release(opening.inode);
    release_open(server, opening.inode, false);
    throw;
  }
  opened.image = number;  // it may have joined somebody who reads from the bucket
  reply_counted(opening, opened, local);
}

// A version is hidden before its images are removed.  So an image that is missing while its file is
// still shown is lost, and to look again, as ESTALE asks for, would not find it.
bool is_still_shown(const Server& server, Inode inode, const LocalFile& file) {
  const auto local = find_local(server, inode);
  return local && local->image == file.image;
}

[[noreturn]] void throw_lost(const Server& server, const LocalFile& file) {
  const std::string mount_point = server.options.mount_point.string();
  log_error(
      fmt::format("image {} is missing, and was not removed by weightfs: weightfs verify {} "
                  "tells what else is; umount {}, and mount again, to have it repaired",
                  escape_name(file.image.string()), mount_point, mount_point));
  throw PosixError(EIO, "open an image that is lost");
}

void open_local(Opening& opening, const LocalFile& file) {
  const Server& server = server_of(opening.req);
  try {
    open_image(
        opening, file, [&] { return register_file(server, file.image); }, nullptr);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::not_found || !is_still_shown(server, opening.inode, file)) throw;
    throw_lost(server, file);
  }
}

// `partial`: found after `file`.  nullptr: the version has just become complete, or was lost since.
// What lies there does not tell which, so the kernel is to begin again.
void open_streaming(Opening& opening, const StreamingFile& file,
                    std::shared_ptr<PartialVersion> partial) {
  if (partial == nullptr) throw PosixError(ESTALE, "open a file that nobody fills any more");
  if (partial->is_here(file.local.path)) return open_local(opening, file.local);
  open_image(
      opening, file.local, [] { return 0; }, std::move(partial));
}

void open_remote(Opening& opening, const RemoteFile& file) {
  Server& server = server_of(opening.req);
  const auto remote = std::make_shared<OpenRemote>(server, opening.inode, file);
  const auto opened = acquire_open(server, opening.inode, [] { return 0; });
  reply_counted(opening, opened, remote);
}

// Room that is missing now may be there in a moment: while a version is made it is reserved beside
// the one that `latest` names, and readers close files.
void fill_patiently(Sync& sync, std::uint64_t version, const Context& context) {
  const Clock::time_point until = Clock::now() + kRoomPatience;
  for (;;) {
    try {
      sync.fill_version(version, context);
      return;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::no_space || Clock::now() >= until) throw;
    }
    context.pause(kRoomPause, "waiting for room");
  }
}

// A file whose version is being filled now: what it is may have changed meanwhile.
void open_filled(Opening& opening, const FileKind& file) {
  if (const auto* local = std::get_if<LocalFile>(&file)) {
    open_local(opening, *local);
  } else if (const auto* streaming = std::get_if<StreamingFile>(&file)) {
    const Sync& sync = *server_of(opening.req).options.sync;
    open_streaming(opening, *streaming, sync.find_partial(streaming->version));
  } else {
    open_remote(opening, std::get<RemoteFile>(file));
  }
}

// What a file is once its version is filled, or complete, or being filled.  Between two looks it
// may have become another; the kernel begins an open(2) anew only once, which who follows may need.
FileKind fill_and_look(Server& server, Inode inode, const Context& context) {
  Sync& sync = *server.options.sync;
  const std::uint64_t version = parts_of(inode).version;
  for (int tries = 0;; tries++) {
    as_io_error([&] { fill_patiently(sync, version, context); });
    FileKind file = server.tree.open(inode);
    const bool is_certain =
        !std::holds_alternative<StreamingFile>(file) || sync.find_partial(version) != nullptr;
    if (is_certain || tries == kFillTries) return file;
  }
}

// Fills the version of a file first: it is not here, or leaves, and then it comes back or is filled
// anew.
void fill_and_open(const Opening& opening) {
  const std::uint64_t version = parts_of(opening.inode).version;
  park(opening.req, {RequestKind::fill},
       [=, &server = server_of(opening.req)](const Context& context) -> std::function<void()> {
         const auto reserved = std::make_shared<Eviction::Reservation>(
             server.options.sync->reserve(version, context));
         const FileKind filled = fill_and_look(server, opening.inode, context);
         return [=, opening = opening]() mutable {
           answer(opening.req, "open", Missing::inode, [&] { open_filled(opening, filled); });
           reserved->give_up();  // it is counted now
         };
       });
}

// The text of a generated file.
std::string make_text(const Server& server, Inode inode) {
  if (inode == make_inode(Fixed::status)) return server.options.status();
  if (inode == make_inode(Fixed::advice)) return server.options.advice();
  if (inode == make_inode(Fixed::health)) return server.options.health();
  return staged::last_error(server);
}

void reply_text(Opening& opening, const std::shared_ptr<const OpenText>& text) {
  Server& server = server_of(opening.req);
  const std::uint64_t handle = opening.info.fh = server.files.add(text);
  opening.info.direct_io = 1;  // its size is 0, as in /proc
  opening.info.noflush = 1;
  if (fuse_reply_open(opening.req, &opening.info) != 0) server.files.remove(handle);
}

// Answers an OPEN, as the kind of the file asks for.
struct Opener {
  Opening opening;
  bool is_leaving = false;  // its version is being removed

  void operator()(const TextFile& file) const {
    park(opening.req, {RequestKind::text},
         [file, opening = opening, bytes_max = text_bytes_max(requester_of(opening.req)),
          &server = server_of(opening.req)](const Context&) -> std::function<void()> {
           auto text =
               std::make_shared<const OpenText>(server, make_text(server, file.inode), bytes_max);
           return [=, opening = opening]() mutable { reply_text(opening, text); };
         });
  }

  // The file may have been removed to make room since it was made: then ESTALE makes the kernel
  // begin again.
  void operator()(const DeltaFile& file) const {
    park(opening.req, {RequestKind::build},
         [id = file.id, opening = opening,
          &server = server_of(opening.req)](const Context& context) -> std::function<void()> {
           DeltaFiles& deltas = *server.options.deltas;
           LocalFile built{.image = deltas.build(id, context), .path = "", .size_bytes = 0};
           built.size_bytes = deltas.facts(id, context).size_bytes;
           return [=, opening = opening]() mutable {
             answer(opening.req, "open", Missing::inode, [&] { open_local(opening, built); });
           };
         });
  }

  void operator()(const LocalFile& file) {
    if (is_leaving) return fill_and_open(opening);
    open_local(opening, file);
  }

  void operator()(const StreamingFile& file) {
    Sync& sync = *server_of(opening.req).options.sync;
    auto partial = sync.find_partial(file.version);
    if (partial == nullptr || !file.has_begun) return fill_and_open(opening);
    open_streaming(opening, file, std::move(partial));
  }

  void operator()(const RemoteFile& file) { open_remote(opening, file); }
};

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

std::shared_ptr<const OpenFile> get_file(fuse_req_t req, std::uint64_t handle) {
  auto file = server_of(req).files.find(handle);
  if (file == nullptr) throw PosixError(EBADF, "use a file that is not open");
  return file;
}

}  // namespace

Passes::Opened note_open(fuse_req_t req, Inode inode) {
  LoaderPins* const pins = server_of(req).options.pins;
  return pins == nullptr ? Passes::Opened{} : pins->opened(requester_of(req), inode);
}

void open_file(fuse_req_t req, Inode inode, const fuse_file_info& info) {
  answer(req, "open", Missing::inode, [&] {
    Eviction::Reservation reservation;
    const bool is_leaving = !reserve_version(req, inode, reservation);
    const FileKind file = server_of(req).tree.open(inode);
    const Passes::Opened noted = note_open(req, inode);
    if (noted.wanted != 0) {
      fuse_reply_err(req, ESTALE);  // the kernel walks again, through `latest`
    } else {
      std::visit(Opener{{req, inode, info, noted.hold}, is_leaving}, file);
    }
  });
}

void read_file(fuse_req_t req, std::uint64_t handle, FileRange range) {
  answer(req, "read", Missing::inode, [&] { get_file(req, handle)->read(req, range); });
}

// None of these files has holes.
void lseek_file(fuse_req_t req, std::uint64_t handle, off_t offset, int whence) {
  answer(req, "lseek", Missing::inode, [&] {
    const auto size = static_cast<off_t>(get_file(req, handle)->size_bytes());
    if (offset >= size) throw PosixError(ENXIO, "seek beyond the end of the file");
    fuse_reply_lseek(req, whence == SEEK_DATA ? offset : size);
  });
}

void release_file(fuse_req_t req, std::uint64_t handle) {
  server_of(req).files.remove(handle);
  fuse_reply_err(req, 0);
}

}  // namespace weightfs::fs
