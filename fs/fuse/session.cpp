#include "fs/fuse/session.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <new>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "fs/base/errno.hpp"
#include "fs/fuse/operations.hpp"
#include "fs/fuse/passthrough.hpp"
#include "fs/mount/bind_mounts.hpp"
#include "fs/mount/mount_calls.hpp"
#include "fs/mount/mount_info.hpp"
#include "fs/mount/session_mount.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/os/file.hpp"

namespace weightfs::fs {
namespace {

// A trainer's calls change names, which may wait for the database: readers must not wait for the
// ranks of a job that save simultaneously.
constexpr unsigned kReaderThreads = 4;
constexpr unsigned kWriterThreads = 16;
constexpr std::chrono::milliseconds kInitLimit{10000};
constexpr std::chrono::milliseconds kMemoryPause{200};
constexpr std::size_t kInitBytesMax = 1u << 17;  // the kernel rejects buffers below 8 KiB
constexpr std::string_view kReadaheadKiB = "8192";

struct SessionDeleter {
  void operator()(fuse_session* session) const noexcept { fuse_session_destroy(session); }
};
using SessionPtr = std::unique_ptr<fuse_session, SessionDeleter>;

// A buffer allocated by libfuse.
struct RequestBuffer {
  RequestBuffer() = default;
  RequestBuffer(const RequestBuffer&) = delete;
  RequestBuffer& operator=(const RequestBuffer&) = delete;
  ~RequestBuffer() { std::free(buffer.mem); }
  fuse_buf buffer{};
};

// Waits for the connection or for stop().  Both are level-triggered: any number of threads may
// wait, and once stopped none of them waits again.
class Waiter {
 public:
  explicit Waiter(int connection)
      : stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), poll_(epoll_create1(EPOLL_CLOEXEC)) {
    if (!stop_ || !poll_) throw_errno(errno, "make an event loop");
    add(stop_.fd());
    add(connection);
  }

  void wait() const noexcept {
    epoll_event event{};
    epoll_wait(poll_.fd(), &event, 1, -1);
  }

  void stop() noexcept {
    stopped_ = true;
    eventfd_write(stop_.fd(), 1);
  }

  bool is_stopped() const noexcept { return stopped_; }

 private:
  void add(int fd) const {
    epoll_event event{};
    event.events = EPOLLIN;
    if (epoll_ctl(poll_.fd(), EPOLL_CTL_ADD, fd, &event) != 0) throw_errno(errno, "add to epoll");
  }

  File stop_, poll_;
  std::atomic<bool> stopped_ = false;
};

// Replaces read(2) in libfuse.  If this process were killed while the kernel copies a request into
// a page that is not yet present, the caller would get EIO instead of waiting for the next daemon;
// so the pages of a new buffer are touched first.
ssize_t read_request(int fd, void* buffer, std::size_t size, void* server) {
  thread_local void* touched = nullptr;
  if (buffer != std::exchange(touched, buffer)) std::memset(buffer, 0, size);
  const ssize_t got = read(fd, buffer, size);
  if (got < 0 && errno == ECONNABORTED) errno = ENODEV;  // aborted: like unmounted
  if (got > 0) {
    static_cast<Server*>(server)->counts.asked(
        {static_cast<const std::byte*>(buffer), static_cast<std::size_t>(got)});
  }
  return got;
}

std::vector<std::byte> read_init(int connection) {
  std::vector<std::byte> request(kInitBytesMax);
  const auto until = Clock::now() + kInitLimit;
  for (;;) {
    const ssize_t got = read(connection, request.data(), request.size());
    if (got > 0) {
      request.resize(static_cast<std::size_t>(got));
      return request;
    }
    if (got < 0 && errno != EAGAIN && errno != EINTR) throw_errno(errno, "read FUSE's INIT");
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
    if (left <= 0) throw Error(ErrorCode::timed_out, "the kernel sent no FUSE INIT");
    pollfd event{connection, POLLIN, 0};
    poll(&event, 1, static_cast<int>(left));
  }
}

// Every READ is a round trip to the daemon, so it should transfer much.  Only root may raise this.
void raise_readahead(const MountInfo& mount) {
  const std::string path =
      fmt::format("/sys/class/bdi/{}:{}/read_ahead_kb", mount.major, mount.minor);
  std::ofstream file(path);
  file << kReadaheadKiB << std::flush;
  if (!file) log_debug("cannot raise the readahead: " + path + " is not writable");
}

}  // namespace

// The order of members matters: later ones are destroyed first.
struct FuseSession::State {
  State(const Tree& tree, const FuseSessionOptions& options)
      : server(tree, options),
        mount(options.mount_point, options.source,
              server.is_writer() ? Access::writable : Access::read_only),
        waiter(mount.fd()),
        operations(make_operations()) {
    server.fuse_fd = mount.fd();
    const int flags = fcntl(mount.fd(), F_GETFL);
    fcntl(mount.fd(), F_SETFL, flags | O_NONBLOCK);
    init = read_init(mount.fd());
    make_session();
    answer_init();
    choose_serving();
    mount.attach();
    take_place();
  }

  ~State() {
    waiter.stop();
    {
      std::unique_lock lock(run_mutex);
      run_ended.wait(lock, [this] { return !running; });
    }
    server.end_pools();  // releases waiting callers, so that the mount is not busy
  }

  void make_session() {
    char name[] = "weightfs";
    char* argv[] = {name, nullptr};
    fuse_args arguments = FUSE_ARGS_INIT(1, argv);
    session.reset(fuse_session_new(&arguments, &operations, sizeof operations, &server));
    fuse_opt_free_args(&arguments);
    if (session == nullptr) throw Error(ErrorCode::io, "libfuse cannot make a session");

    // libfuse closes the descriptor it is given, and never learns where it is mounted.
    const int connection = fcntl(mount.fd(), F_DUPFD_CLOEXEC, 3);
    if (connection < 0) throw_errno(errno, "duplicate the FUSE connection");
    fuse_custom_io io{};
    io.writev = write_reply;
    io.read = read_request;
    if (fuse_session_custom_io(session.get(), &io, connection) != 0) {
      ::close(connection);
      throw Error(ErrorCode::io, "libfuse does not accept the connection");
    }
  }

  // INIT is answered before there are threads: libfuse answers EIO to any request before it.
  void answer_init() {
    const Serve serve = server.options.serve;
    const bool may_pass = serve == Serve::automatic || serve == Serve::passthrough;
    server.ask_for_passthrough = may_pass && offers_passthrough(init);
    fuse_buf buffer{};
    buffer.mem = init.data();
    buffer.size = init.size();
    fuse_session_process_buf(session.get(), &buffer);
    server.init_answered = true;
    if (fuse_session_exited(session.get()) != 0) {
      throw Error(ErrorCode::unsupported, "libfuse and this kernel are incompatible");
    }
  }

  void choose_serving() {
    switch (server.options.serve) {
      case Serve::automatic:
        if (!choose_passthrough() && !choose_binds()) why += "; " + why_no_binds;
        break;
      case Serve::passthrough:
        if (choose_passthrough()) break;
        throw Error(ErrorCode::unsupported, "--serve passthrough is not available here: " + why);
      case Serve::bind:
        why = "--serve bind";
        if (choose_binds()) break;
        refuse_binds();
      case Serve::daemon:
        why = "--serve daemon";
        break;
    }
  }

  // Settles what is known only once the mount is attached.
  void take_place() {
    if (binds && !mount.info()) {
      binds = false;
      why_no_binds = "this mount is not in /proc/self/mountinfo";
      if (server.options.serve == Serve::bind) refuse_binds();
      why += "; " + why_no_binds;
    }
    if (!server.passthrough && mount.info()) raise_readahead(*mount.info());
  }

  [[noreturn]] void refuse_binds() const {
    throw Error(
        ErrorCode::unsupported,
        fmt::format(
            "--serve bind is not available here: {}; leave out --serve to use the best that is "
            "available",
            why_no_binds));
  }

  bool choose_passthrough() {
    const PassthroughState state = try_passthrough(mount.fd(), init, server.options.store);
    server.passthrough = state.available;
    why = state.why_not;
    return server.passthrough;
  }

  bool choose_binds() {
    if (!server.options.may_bind) {
      why_no_binds = "images in memory are not bound (--images memory)";
      return false;
    }
    const BindState state = try_bind(server.options.store);
    binds = state.available;
    why_no_binds = state.why_not;
    return binds;
  }

  // The loop of one thread.
  void serve() {
    RequestBuffer request;
    bool was_told = false;
    while (!waiter.is_stopped() && fuse_session_exited(session.get()) == 0) {
      const int got = fuse_session_receive_buf(session.get(), &request.buffer);
      if (got == -EAGAIN) {
        waiter.wait();
      } else if (got > 0) {
        fuse_session_process_buf(session.get(), &request.buffer);
      } else if (got == -ENOMEM) {
        // This thread has no buffer yet.
        if (!std::exchange(was_told, true)) log_failure("reading requests", std::bad_alloc());
        std::this_thread::sleep_for(kMemoryPause);
      } else if (got != -EINTR) {
        if (got < 0) log_error(fmt::format("reading requests failed: {}", std::strerror(-got)));
        waiter.stop();  // unmounted, or an error: ends the other threads too
      }
    }
  }

  void run() {
    {
      const std::lock_guard lock(run_mutex);
      running = true;
    }
    {
      std::vector<std::jthread> helpers;
      const unsigned threads = server.is_writer() ? kWriterThreads : kReaderThreads;
      try {
        while (helpers.size() + 1 < threads) helpers.emplace_back([this] { serve(); });
      } catch (const std::system_error& error) {  // the mount is announced as ready by now
        log_warning(fmt::format("{} of {} threads serve this mount: {}", helpers.size() + 1,
                                threads, error.what()));
      }
      serve();
    }
    const std::lock_guard lock(run_mutex);
    running = false;
    run_ended.notify_all();
  }

  Server server;
  SessionMount mount;
  Waiter waiter;
  fuse_lowlevel_ops operations;
  std::vector<std::byte> init;  // a successor needs it to understand the connection
  SessionPtr session;
  std::string why, why_no_binds;
  bool binds = false;

  // Notified under the lock: the waiting destructor must not continue before run() is done with
  // them.
  RankedMutex run_mutex{LockRank::leaf, "FuseSession::State::run_mutex"};
  std::condition_variable_any run_ended;
  bool running = false;
};

std::string libfuse_version() { return fuse_pkgversion(); }

FuseSession::FuseSession(const Tree& tree, FuseSessionOptions options) {
  state_ = std::make_unique<State>(tree, options);
}

FuseSession::~FuseSession() = default;

void FuseSession::run() { state_->run(); }

void FuseSession::stop() noexcept { state_->waiter.stop(); }

ServingState FuseSession::serving() const {
  const Server& server = state_->server;
  ServingState serving;
  serving.mode = server.passthrough ? "passthrough" : state_->binds ? "bind" : "daemon";
  serving.why = state_->why;
  serving.open_passthrough = server.opens.open_count(Serving::passthrough);
  serving.open_daemon = server.opens.open_count(Serving::daemon);
  serving.daemon_reads = server.daemon_reads;
  serving.served_bytes = server.counts.served_bytes();
  serving.requests = server.counts.list();
  serving.waiting_reads = server.pool(WaitClass::local).held_count();
  return serving;
}

bool FuseSession::wants_binds() const noexcept { return state_->binds; }

const std::optional<MountInfo>& FuseSession::mount() const noexcept { return state_->mount.info(); }

dev_t FuseSession::device() const {
  const auto& info = state_->mount.info();
  return info ? makedev(info->major, info->minor) : 0;
}

bool FuseSession::is_unused(std::uint64_t version) const {
  return !state_->server.opens.is_open(version);
}

}  // namespace weightfs::fs
