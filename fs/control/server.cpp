#include "fs/control/server.hpp"

// A single loop: poll(2) on a wake-up, the listening socket and all clients.
//
//     asking        a line is being received, within kAskTimeout
//     waiting       the condition is checked after each notify(), and twice a second
//     handing over  a job of the second thread, which runs one at a time
//     comparing     likewise, of the third
//
// Each client gets one reply and is then closed.  A reply fits into an empty socket buffer, so
// nothing ever waits for a client that does not read.

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "fs/base/descriptors.hpp"
#include "fs/base/wake.hpp"
#include "fs/control/protocol.hpp"
#include "fs/control/unix_listener.hpp"
#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/os/file.hpp"

namespace weightfs::fs {
namespace {

constexpr std::chrono::milliseconds kLookInterval{500};
constexpr std::chrono::milliseconds kAcceptPause{200};  // after descriptors ran out
// At a time: who connects and goes away without end must keep nobody from being served.
constexpr int kAcceptsMax = 64;

// ---- slow requests ----

/// One hand-over, rebase or comparison; the reply is set before `is_done`.
struct Job {
  std::function<std::string(const Context&)> work;  // returns the reply
  std::stop_source stop;
  std::string reply;
  std::atomic<bool> is_done = false;
};

/// Runs jobs one after another in a thread of its own, and rings when one is done.
class Jobs {
 public:
  explicit Jobs(const Wake& wake) : wake_(wake) {}
  ~Jobs() {
    thread_.request_stop();
    const std::lock_guard lock(mutex_);
    if (now_) now_->stop.request_stop();
  }

  void add(std::shared_ptr<Job> job) {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
    changed_.notify_one();
  }

 private:
  std::shared_ptr<Job> take(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    now_.reset();
    if (!changed_.wait(lock, stop, [this] { return !jobs_.empty(); }) || stop.stop_requested()) {
      return nullptr;
    }
    now_ = std::move(jobs_.front());
    jobs_.pop_front();
    return now_;
  }

  void run(const std::stop_token& stop) {
    while (const auto job = take(stop)) {
      job->reply = reply_to(*job);
      job->is_done = true;
      wake_.ring();
    }
  }

  [[nodiscard]] static std::string reply_to(const Job& job) {
    try {
      const Context context{.stop = job.stop.get_token()};
      context.check("waiting for other requests");
      return job.work(context);
    } catch (const Error& error) {
      return to_line(error.code(), error.what());
    } catch (const std::exception& error) {
      return to_line(ErrorCode::io, error.what());
    }
  }

  const Wake& wake_;
  RankedMutex mutex_{LockRank::control_server, "Jobs::mutex_"};  // guards the next two fields
  std::deque<std::shared_ptr<Job>> jobs_;
  std::shared_ptr<Job> now_;
  std::condition_variable_any changed_;
  std::jthread thread_{[this](const std::stop_token& stop) { run(stop); }};
};

// ---- clients ----

struct Client {
  enum class State { asking, waiting, working, done };
  File socket;
  Caller peer = {};
  Clock::time_point since = Clock::now();
  State state = State::asking;
  std::string line = {};
  WaitFor wait = {};
  ControlHandlers::WaitState wait_state = {};
  std::shared_ptr<Job> job = nullptr;
  bool is_deaf = false;  // it will send nothing more
};

void finish(Client& client, const std::string& reply) noexcept {
  [[maybe_unused]] const ssize_t ignored =
      ::send(client.socket.fd(), reply.data(), reply.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  client.state = Client::State::done;
}

}  // namespace

struct ControlServer::State {
  State(const std::filesystem::path& path, ControlHandlers the_handlers)
      : handlers(std::move(the_handlers)), listener(path), jobs(wake), comparisons(wake) {}

  void run(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      try {
        step();
      } catch (const std::exception& error) {  // out of memory
        log_error(fmt::format("control socket: {}", error.what()));
        clients.clear();
      }
    }
  }

  void step() {
    wait_events();
    if (wake.take()) look_at = Clock::time_point::min();
    if (events[1].revents != 0) accept_clients();
    for (std::size_t i = 2; i < events.size(); i++) {
      if (events[i].revents != 0) receive(*clients[i - 2]);
    }
    look_at_clients();
    std::erase_if(clients, [](const auto& client) { return client->state == Client::State::done; });
  }

  void wait_events() {
    const bool accepts = Clock::now() >= accept_at;
    events.assign(1, {.fd = wake.fd(), .events = POLLIN, .revents = 0});
    events.push_back({.fd = accepts ? listener.fd() : -1, .events = POLLIN, .revents = 0});
    for (const auto& client : clients) {
      const int fd = client->is_deaf ? -1 : client->socket.fd();
      events.push_back({.fd = fd, .events = POLLIN, .revents = 0});
    }
    const int timeout = clients.empty() && accepts ? -1 : static_cast<int>(kLookInterval.count());
    const int pause = static_cast<int>(kAcceptPause.count());
    if (::poll(events.data(), events.size(), accepts ? timeout : pause) < 0) {
      for (pollfd& event : events) event.revents = 0;
    }
  }

  void accept_clients() {
    for (int i = 0; i < kAcceptsMax; i++) {
      File socket(::accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!socket) {
        if (is_want_of_resources(errno)) accept_at = Clock::now() + kAcceptPause;
        if (errno != ECONNABORTED && errno != EINTR) return;
        continue;
      }
      ucred peer{};
      socklen_t size = sizeof peer;
      if (::getsockopt(socket.fd(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) continue;
      auto client = std::make_unique<Client>(
          Client{.socket = std::move(socket), .peer = {peer.uid, peer.gid}});
      if (has_room(peer.uid)) {
        clients.push_back(std::move(client));
      } else {
        finish(*client, to_line(ErrorCode::busy, "too many clients wait here; try again later"));
      }
    }
  }

  /// Root and the daemon's user may have all places.  Any other user gets half of what the others
  /// leave: there is always room for one more.
  [[nodiscard]] bool has_room(uid_t user) const {
    const std::size_t count_max = std::min(kControlClientsMax, descriptor_limit() / 8);
    if (is_owner(user)) return clients.size() < count_max;
    const std::size_t places = count_max - std::min(kOwnerClients, count_max / 8);
    const auto own = static_cast<std::size_t>(std::ranges::count_if(
        clients, [user](const auto& client) { return client->peer.uid == user; }));
    const std::size_t others = clients.size() - own;
    return others < places && own < (places - others + 1) / 2;
  }

  void receive(Client& client) {
    std::array<char, 16384> buffer;
    const ssize_t got = ::recv(client.socket.fd(), buffer.data(), buffer.size(), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
      leave(client);
    } else if (client.state == Client::State::asking) {
      collect(client, std::string_view(buffer.data(), static_cast<std::size_t>(got)));
    } else {
      if (client.job) client.job->stop.request_stop();
      finish(client, to_line(ErrorCode::invalid, "only one request per connection"));
    }
  }

  /// The client sends nothing more.  If it was waiting, it is closed.  A hand-over is stopped, and
  /// the client still gets its outcome.
  static void leave(Client& client) {
    client.is_deaf = true;
    if (client.state == Client::State::working) {
      client.job->stop.request_stop();
    } else {
      client.state = Client::State::done;
    }
  }

  void collect(Client& client, std::string_view piece) {
    const std::size_t end = piece.find('\n');
    client.line += piece.substr(0, end);
    if (client.line.size() > kControlLineBytesMax) {
      finish(client, to_line(ErrorCode::invalid, fmt::format("the request has more than {} bytes",
                                                             kControlLineBytesMax)));
    } else if (end != std::string_view::npos) {
      begin(client);
    }
  }

  void begin(Client& client) {
    try {
      ControlRequest request = parse_request(client.line);
      std::visit([&](auto& asked) { begin(client, asked); }, request);
    } catch (const Error& error) {
      finish(client, to_line(error.code(), error.what()));
    }
    client.line = {};
  }

  void begin(Client& client, const WaitFor& wait) {
    client.wait = wait;
    client.state = Client::State::waiting;
    look(client);
  }

  void begin(Client& client, const HandOverRequest& request) {
    check_is_writer(handlers.hand_over != nullptr);
    begin_job(client, [this, request, peer = client.peer](const Context& context) {
      return to_line(handlers.hand_over(request, peer, context));
    });
  }

  void begin(Client& client, const RebaseRequest&) {
    check_is_writer(handlers.rebase != nullptr);
    begin_job(client, [this, peer = client.peer](const Context& context) {
      return to_line(handlers.rebase(peer, context));
    });
  }

  void begin(Client& client, const PinRequest& request) {
    check_may_pin(client, handlers.pin != nullptr);
    finish(client, to_line(PinnedReply{handlers.pin(request)}));
  }

  void begin(Client& client, const UnpinRequest& request) {
    check_may_pin(client, handlers.unpin != nullptr);
    finish(client, to_line(UnpinnedReply{handlers.unpin(request)}));
  }

  /// A pin costs disk space, and ending one may cost a loader its version.
  static void check_may_pin(const Client& client, bool has_pins) {
    if (!is_owner(client.peer.uid)) {
      throw Error(ErrorCode::permission,
                  fmt::format("uid {} may not pin or unpin; {} may", client.peer.uid,
                              ::geteuid() == 0 ? std::string("only root")
                                               : fmt::format("root and uid {}", ::geteuid())));
    }
    if (!has_pins) throw Error(ErrorCode::unsupported, "this mount has no pins");
  }

  static bool is_owner(uid_t user) { return user == 0 || user == ::geteuid(); }

  static void check_is_writer(bool is_writer) {
    if (is_writer) return;
    throw Error(ErrorCode::read_only,
                "this is a reader's mount and takes no hand-overs; mount with --writer");
  }

  void begin(Client& client, const DiffRequest& request) {
    if (!handlers.diff)
      throw Error(ErrorCode::unsupported, "this daemon does not compare versions");
    begin_job(
        client,
        [this, request](const Context& context) {
          if (const auto page = handlers.diff(request, context)) return to_line(*page);
          throw Error(ErrorCode::unsupported,
                      fmt::format("no patches lead from version {} to {} on this host",
                                  request.versions.from, request.versions.to));
        },
        comparisons);
  }

  void begin_job(Client& client, std::function<std::string(const Context&)> work) {
    begin_job(client, std::move(work), jobs);
  }

  static void begin_job(Client& client, std::function<std::string(const Context&)> work,
                        Jobs& thread) {
    client.job = std::make_shared<Job>();
    client.job->work = std::move(work);
    client.state = Client::State::working;
    thread.add(client.job);
  }

  void look_at_clients() {
    const bool is_time = Clock::now() >= look_at;
    if (is_time) look_at = Clock::now() + kLookInterval;
    for (const auto& client : clients) {
      if (client->state == Client::State::waiting && is_time) look(*client);
      if (client->job && client->job->is_done && client->state == Client::State::working) {
        finish(*client, client->job->reply);
      }
      if (client->state == Client::State::asking && Clock::now() - client->since > kAskTimeout) {
        finish(*client, to_line(ErrorCode::timed_out,
                                fmt::format("no request came within {} s", kAskTimeout.count())));
      }
    }
  }

  void look(Client& client) {
    try {
      if (const auto end = handlers.wait(client.wait, client.wait_state)) {
        finish(client, to_line(*end));
      }
    } catch (const Error& error) {
      finish(client, to_line(error.code(), error.what()));
    }
  }

  const ControlHandlers handlers;
  const Wake wake;
  UnixListener listener;
  Jobs jobs, comparisons;
  // Used by the thread below only.
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<pollfd> events;  // wake, listener, clients
  Clock::time_point look_at = Clock::time_point::min();
  Clock::time_point accept_at = Clock::time_point::min();
  std::jthread thread{[this](const std::stop_token& stop) { run(stop); }};
};

ControlServer::ControlServer(const std::filesystem::path& path, ControlHandlers handlers)
    : state_(std::make_unique<State>(path, std::move(handlers))) {}

ControlServer::~ControlServer() {
  state_->thread.request_stop();
  state_->wake.ring();
  state_->thread.join();
}

void ControlServer::notify() noexcept { state_->wake.ring(); }

}  // namespace weightfs::fs
