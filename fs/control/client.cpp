// The client waits for its reply in poll(2), on the socket and on an eventfd that a stop signals.

#include "fs/control/client.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <utility>

#include "fs/control/protocol.hpp"
#include "fs/control/requests.hpp"
#include "store/base/error.hpp"

namespace weightfs::fs {
namespace {

constexpr std::chrono::milliseconds kConnectPause{50};
constexpr std::chrono::seconds kStopTimeout{10};  // for the daemon's reply after a stop
constexpr std::size_t kReplyBytesMax = 1u << 20;

class Connection {
 public:
  Connection(std::filesystem::path path, const Context& context, std::string what)
      : path_(std::move(path)), context_(context), what_(std::move(what)) {
    if (!bell_) throw_errno(errno, "make an eventfd");
    connect();
  }

  void send(const std::string& line) {
    for (std::size_t sent = 0; sent < line.size();) {
      const ssize_t n = ::send(socket_.fd(), line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
      if (n >= 0) {
        sent += static_cast<std::size_t>(n);
      } else if (errno == EAGAIN) {
        wait(POLLOUT);
      } else if (errno != EINTR) {
        return;  // the daemon has closed; its reply may say why
      }
    }
  }

  /// The reply, without its newline.
  std::string receive() {
    std::string text;
    std::array<char, 16384> buffer;
    while (text.size() <= kReplyBytesMax) {
      wait(POLLIN);
      const ssize_t got = ::recv(socket_.fd(), buffer.data(), buffer.size(), 0);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (got <= 0) break;
      text.append(buffer.data(), static_cast<std::size_t>(got));
      if (const std::size_t end = text.find('\n'); end != std::string::npos) {
        return text.substr(0, end);
      }
    }
    throw Error(ErrorCode::unavailable, fmt::format("the daemon at {} ended", path_.string()));
  }

  /// From here on a stop is passed on to the daemon, and the wait for its reply continues for up to
  /// kStopTimeout.
  void stop_by_asking() { asks_ = true; }

 private:
  void connect() {
    while (true) {
      try {
        socket_ = connect_socket(path_);
        return;
      } catch (const Error& error) {
        if (error.code() != ErrorCode::busy) throw;
      }
      wait(0, kConnectPause);
    }
  }

  /// Waits for the socket, at most for `at_most`.
  /// Throws Error: cancelled, timed_out.
  void wait(short what, Clock::duration at_most = Clock::duration::max()) {
    while (true) {
      if (context_.stop.stop_requested()) take_stop();
      context_.check(what_);
      std::array<pollfd, 2> events{
          {{.fd = socket_.fd(), .events = what, .revents = 0},
           {.fd = is_stopping_ ? -1 : bell_.fd(), .events = POLLIN, .revents = 0}}};
      const int ready = ::poll(events.data(), events.size(), timeout(at_most));
      if (events[0].revents != 0 && ready > 0) return;
      if (ready == 0 && at_most != Clock::duration::max()) return;
    }
  }

  void take_stop() {
    if (!asks_) context_.check(what_);
    ::shutdown(socket_.fd(), SHUT_WR);
    is_stopping_ = true;
    asks_ = false;
    context_ = Context{}.within(kStopTimeout);
  }

  [[nodiscard]] int timeout(Clock::duration at_most) const {
    using std::chrono::milliseconds;
    if (context_.deadline != Clock::time_point::max()) {
      at_most = std::min(at_most, context_.deadline - Clock::now());
    }
    if (at_most == Clock::duration::max()) return -1;
    const auto left = std::chrono::ceil<milliseconds>(at_most).count();
    return static_cast<int>(std::clamp<std::int64_t>(left, 0, std::numeric_limits<int>::max()));
  }

  const std::filesystem::path path_;
  Context context_;
  const std::string what_;
  bool asks_ = false, is_stopping_ = false;
  const File bell_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  File socket_;
  const std::stop_callback<std::function<void()>> on_stop_{
      context_.stop, [this] {
        const std::uint64_t one = 1;
        [[maybe_unused]] const ssize_t n = ::write(bell_.fd(), &one, sizeof one);
      }};
};

[[noreturn]] void throw_wrong_reply() {
  throw Error(ErrorCode::corrupt, "the daemon's reply belongs to another request");
}

}  // namespace

WaitEnd control_wait(const std::filesystem::path& socket, const WaitFor& what,
                     const Context& context) {
  Connection connection(socket, context, "waiting for a version");
  connection.send(to_line(what));
  const ControlReply reply = parse_reply(connection.receive());
  if (const auto* end = std::get_if<WaitEnd>(&reply)) return *end;
  throw_wrong_reply();
}

PublishQueue::Rebased control_rebase(const std::filesystem::path& socket,
                                     const RebaseRequest& request, const Context& context) {
  Connection connection(socket, context, "rebasing");
  connection.send(to_line(request));
  const ControlReply reply = parse_reply(connection.receive());
  if (const auto* rebased = std::get_if<PublishQueue::Rebased>(&reply)) return *rebased;
  throw_wrong_reply();
}

std::uint64_t control_pin(const std::filesystem::path& socket, const PinRequest& request,
                          const Context& context) {
  Connection connection(socket, context, "pinning");
  connection.send(to_line(request));
  const ControlReply reply = parse_reply(connection.receive());
  if (const auto* pinned = std::get_if<PinnedReply>(&reply)) return pinned->version;
  throw_wrong_reply();
}

std::uint64_t control_unpin(const std::filesystem::path& socket, const UnpinRequest& request,
                            const Context& context) {
  Connection connection(socket, context, "unpinning");
  connection.send(to_line(request));
  const ControlReply reply = parse_reply(connection.receive());
  if (const auto* unpinned = std::get_if<UnpinnedReply>(&reply)) return unpinned->count;
  throw_wrong_reply();
}

PatchDiffPage control_diff(const std::filesystem::path& socket, const DiffRequest& request,
                           const Context& context) {
  Connection connection(socket, context, "comparing versions");
  connection.send(to_line(request));
  ControlReply reply = parse_reply(connection.receive());
  if (auto* page = std::get_if<PatchDiffPage>(&reply)) return std::move(*page);
  throw_wrong_reply();
}

std::uint64_t control_hand_over(const std::filesystem::path& socket, const HandOverRequest& request,
                                const Context& context) {
  Connection connection(socket, context, "handing over");
  connection.stop_by_asking();
  connection.send(to_line(request));
  const ControlReply reply = parse_reply(connection.receive());
  if (const auto* order = std::get_if<std::uint64_t>(&reply)) return *order;
  throw_wrong_reply();
}

}  // namespace weightfs::fs
