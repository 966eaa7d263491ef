// A request is announced, parked, and answered.  Who answers it is settled by its `answered` flag,
// which the worker takes after its work, or before it if the work is to finish; until the end of
// the work it stays in the table, so the watcher can find it however stuck its worker is.
//
//     announce -> park -> queue -> worker -> answer
//                    \-> deadline or interrupt -> watcher -> answer
//     announce -> hold -> wake -> queue, as above
//
// No worker ever sees what was held and given up before it was woken: the watcher forgets that.
// Requests are answered without the lock, because an answer is a system call.
//
// A queued request may begin if its share has a worker left.  There are never more of these than
// idle workers, unless the system refuses to start a thread: then the watcher tries again.
//
// A request brings what links it into the pool's lists, so nothing but announce() can run out of
// memory.
#include "fs/fuse/requests.hpp"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <list>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "fs/base/errno.hpp"
#include "store/base/ranked_mutex.hpp"

namespace weightfs::fs {
namespace {

constexpr std::chrono::milliseconds kLookAgain{200};

using Tickets = std::list<RequestPool::Ticket>;
using Deadlines = std::set<std::pair<Clock::time_point, RequestPool::Ticket>>;

struct Request {
  Request(std::size_t its_share, RequestPool::Ticket its_ticket)
      : share(its_share), ticket(its_ticket) {}

  const std::size_t share;
  const RequestPool::Ticket ticket;

  // Guarded by the pool's lock.
  bool parked = false;
  bool interrupted = false;
  bool woken = false;
  bool held = false;  // in no queue: it waits for wake()

  // Its links: each has one element while that is in none of the pool's.
  Tickets for_queue{ticket}, for_interrupts{ticket};
  Deadlines for_deadlines{{Clock::time_point(), ticket}};

  // Set by park(), constant from then on.
  std::unique_ptr<Reply> reply;
  Clock::time_point deadline;
  RequestPool::Work work;
  OnGiveUp on_give_up = OnGiveUp::abandon;

  std::atomic<bool> answered = false;  // or, if it is to finish, its worker will answer
  std::stop_source stop;

  /// True for exactly one caller: the one who then answers.
  bool claim() noexcept { return !answered.exchange(true); }
};

using RequestPtr = std::shared_ptr<Request>;

// The requests of one kind.
struct Share {
  unsigned workers = 0;  // that it may occupy
  unsigned busy = 0;     // of these
  Tickets queue = {};

  // How many of those queued may begin.
  [[nodiscard]] std::size_t ready() const noexcept {
    return std::min<std::size_t>(queue.size(), workers - busy);
  }
};

void give_up(Request& request, int code) noexcept {
  const bool answers = request.claim();
  request.stop.request_stop();
  if (answers) request.reply->error(code);
}

void do_work(Request& request) noexcept {
  const bool finishes = request.on_give_up == OnGiveUp::finish;
  if (finishes ? !request.claim() : request.answered.load()) return;
  std::function<void()> send;
  const int error = guarded("request", [&] {
    send = request.work(Context{request.stop.get_token(), request.deadline});
  });
  if (!finishes && !request.claim()) return;
  const int failed = error != 0 ? error : guarded("answer", send);
  if (failed != 0) request.reply->error(failed);
}

// Of all pools of the process: an interrupt need not know which one a ticket is of.
std::atomic<RequestPool::Ticket> last_ticket = 0;

}  // namespace

struct RequestPool::State {
  explicit State(const std::vector<unsigned>& shares) {
    for (const unsigned workers : shares) shares_.push_back({.workers = workers});
    workers_.reserve(std::accumulate(shares.begin(), shares.end(), std::size_t{0}));
    watcher_ = std::jthread([this] { run_watcher(); });
  }

  ~State() { end(); }

  void end() noexcept {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    for (RequestPtr left = next_parked(0); left != nullptr; left = next_parked(left->ticket)) {
      give_up(*left, ENOTCONN);
    }
    for_workers_.notify_all();
    for_watcher_.notify_all();
    if (watcher_.joinable()) watcher_.join();
    for (std::jthread& worker : workers_) {  // no more are started
      if (worker.joinable()) worker.join();
    }
  }

  Ticket announce(std::size_t share) {
    assert(share < shares_.size());
    const Ticket ticket = ++last_ticket;
    auto request = std::make_shared<Request>(share, ticket);
    const std::lock_guard lock(mutex_);
    requests_.emplace(ticket, std::move(request));
    return ticket;
  }

  /// `held`: until somebody wakes it.
  void park(Ticket ticket, std::unique_ptr<Reply> reply, Clock::time_point deadline, Work work,
            OnGiveUp on_give_up, bool held) {
    std::unique_lock lock(mutex_);
    const RequestPtr request = requests_.at(ticket);
    request->reply = std::move(reply);
    request->deadline = deadline;
    request->work = std::move(work);
    request->on_give_up = on_give_up;
    request->parked = true;
    const bool is_next = deadlines_.empty() || deadline < deadlines_.begin()->first;
    add_deadline(*request);
    if (request->interrupted) interrupts_.splice(interrupts_.end(), request->for_interrupts);
    if (is_next || request->interrupted) for_watcher_.notify_one();
    request->held = held && !request->woken;
    if (!request->held) queue(*request);
    if (!ending_) return;
    lock.unlock();  // by work that goes on while the pool ends
    give_up(*request, ENOTCONN);
  }

  void wake(Ticket ticket) {
    const std::lock_guard lock(mutex_);
    const auto found = requests_.find(ticket);
    if (found == requests_.end()) return;
    found->second->woken = true;
    if (std::exchange(found->second->held, false)) queue(*found->second);
  }

  void interrupt(Ticket ticket) {
    const std::lock_guard lock(mutex_);
    const auto found = requests_.find(ticket);
    if (found == requests_.end()) return;
    Request& request = *found->second;
    request.interrupted = true;
    if (!request.parked) return;
    interrupts_.splice(interrupts_.end(), request.for_interrupts);
    for_watcher_.notify_one();
  }

  /// Of those that are not answered yet.
  template <typename Predicate>
  std::size_t count(Predicate&& counts) const {
    const std::lock_guard lock(mutex_);
    return static_cast<std::size_t>(std::count_if(
        requests_.begin(), requests_.end(),
        [&](const auto& item) { return !item.second->answered && counts(*item.second); }));
  }

  std::size_t worker_count() const {
    const std::lock_guard lock(mutex_);
    return workers_.size();
  }

 private:
  // The first after `ticket`; nullptr if there is none.
  RequestPtr next_parked(Ticket ticket) const {
    const std::lock_guard lock(mutex_);
    auto next = requests_.upper_bound(ticket);
    while (next != requests_.end() && !next->second->parked) ++next;
    return next == requests_.end() ? nullptr : next->second;
  }

  // ---- with mutex_ held ----

  void add_deadline(Request& request) {
    auto link = request.for_deadlines.extract(request.for_deadlines.begin());
    link.value().first = request.deadline;
    deadlines_.insert(std::move(link));
  }

  void queue(Request& request) {
    Tickets& queue = shares_[request.share].queue;
    queue.splice(queue.end(), request.for_queue);
    start_workers();
    for_workers_.notify_one();
  }

  [[nodiscard]] bool lacks_workers() const {
    std::size_t ready = 0;
    for (const Share& share : shares_) ready += share.ready();
    return ready > idle_ && !ending_;
  }

  // One for each request that may begin and has none.
  void start_workers() {
    try {
      while (lacks_workers()) {
        workers_.emplace_back([this] { run_worker(); });
        idle_++;
      }
      was_refused_ = false;
    } catch (const std::exception& error) {  // by the system: it has no thread or no memory left
      for_watcher_.notify_one();
      if (!std::exchange(was_refused_, true)) log_failure("starting a thread for requests", error);
    }
  }

  // The oldest that may begin; nullptr if there is none.
  RequestPtr take_ready() {
    Share* first = nullptr;
    for (Share& share : shares_) {
      if (share.ready() == 0) continue;
      if (first == nullptr || share.queue.front() < first->queue.front()) first = &share;
    }
    if (first == nullptr) return nullptr;
    RequestPtr request = requests_.at(first->queue.front());
    first->queue.pop_front();
    first->busy++;
    idle_--;
    return request;
  }

  void forget(const Request& request) {
    deadlines_.erase({request.deadline, request.ticket});
    requests_.erase(request.ticket);
  }

  void look_again_later(Request& request) {
    if (patient_.empty()) look_again_ = Clock::now() + kLookAgain;
    patient_.splice(patient_.end(), request.for_interrupts);
  }

  // A request whose caller must perhaps be freed now, and why; nullptr if there is none.
  std::pair<RequestPtr, int> next_overdue() {
    if (look_again_ <= Clock::now()) interrupts_.splice(interrupts_.end(), patient_);
    while (!interrupts_.empty()) {
      const auto found = requests_.find(interrupts_.front());
      if (found == requests_.end()) {
        interrupts_.pop_front();
      } else {
        Tickets& link = found->second->for_interrupts;
        link.splice(link.end(), interrupts_, interrupts_.begin());
        return {found->second, EINTR};
      }
    }
    if (deadlines_.empty() || deadlines_.begin()->first > Clock::now()) return {nullptr, 0};
    const RequestPtr request = requests_.at(deadlines_.begin()->second);
    deadlines_.erase(deadlines_.begin());
    return {request, ETIMEDOUT};
  }

  void wait_for_next(std::unique_lock<RankedMutex>& lock) {
    Clock::time_point until = Clock::time_point::max();
    if (!deadlines_.empty()) until = deadlines_.begin()->first;
    if (!patient_.empty()) until = std::min(until, look_again_);
    if (lacks_workers()) until = std::min(until, Clock::now() + kLookAgain);
    if (until == Clock::time_point::max()) {
      for_watcher_.wait(lock);
    } else {
      for_watcher_.wait_until(lock, until);
    }
  }

  // ---- threads ----

  void run_worker() {
    while (const RequestPtr request = next_work()) {
      do_work(*request);
      const std::lock_guard lock(mutex_);
      forget(*request);
      shares_[request->share].busy--;
      idle_++;
    }
  }

  RequestPtr next_work() {
    std::unique_lock lock(mutex_);
    RequestPtr request;
    for_workers_.wait(lock, [&] { return ending_ || (request = take_ready()) != nullptr; });
    return request;
  }

  void run_watcher() {
    std::unique_lock lock(mutex_);
    while (!ending_) {
      start_workers();
      const auto [request, code] = next_overdue();
      if (request == nullptr) {
        wait_for_next(lock);
        continue;
      }
      lock.unlock();
      const bool waits_on = code == EINTR && !request->reply->gives_up();
      if (!waits_on) give_up(*request, code);
      lock.lock();
      if (waits_on) {
        look_again_later(*request);
      } else if (request->held) {
        forget(*request);
      }
    }
  }

  // Guards everything below but the watcher.
  mutable RankedMutex mutex_{LockRank::requests, "RequestPool::State::mutex_"};
  std::condition_variable_any for_workers_, for_watcher_;
  bool ending_ = false;
  std::map<Ticket, RequestPtr> requests_;  // until their worker is done with them
  Deadlines deadlines_;
  Tickets interrupts_;            // to look at now
  Tickets patient_;               // interrupted, but their callers wait on
  Clock::time_point look_again_;  // at those
  std::vector<Share> shares_;
  std::size_t idle_ = 0;      // workers that do nothing, also those that have just been started
  bool was_refused_ = false;  // the last thread that was to start

  // Last: they end before the rest goes.  No worker is started after `ending_`.
  std::vector<std::jthread> workers_;
  std::jthread watcher_;
};

RequestPool::RequestPool(const std::vector<unsigned>& shares)
    : state_(std::make_unique<State>(shares)) {}
RequestPool::~RequestPool() = default;

void RequestPool::end() noexcept { state_->end(); }

RequestPool::Ticket RequestPool::announce(std::size_t share) { return state_->announce(share); }

void RequestPool::park(Ticket ticket, std::unique_ptr<Reply> reply, Clock::time_point deadline,
                       Work work, OnGiveUp on_give_up) noexcept {
  state_->park(ticket, std::move(reply), deadline, std::move(work), on_give_up, false);
}

void RequestPool::hold(Ticket ticket, std::unique_ptr<Reply> reply, Clock::time_point deadline,
                       Work work) noexcept {
  state_->park(ticket, std::move(reply), deadline, std::move(work), OnGiveUp::abandon, true);
}

void RequestPool::wake(Ticket ticket) noexcept { state_->wake(ticket); }

void RequestPool::interrupt(Ticket ticket) noexcept { state_->interrupt(ticket); }

std::size_t RequestPool::parked_count() const {
  return state_->count([](const Request& request) { return request.parked; });
}

std::size_t RequestPool::held_count() const {
  return state_->count([](const Request& request) { return request.held; });
}

std::size_t RequestPool::worker_count() const { return state_->worker_count(); }

}  // namespace weightfs::fs
