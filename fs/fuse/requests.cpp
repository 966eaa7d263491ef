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
#include "fs/fuse/requests.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
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

struct Request {
  // Guarded by the pool's lock.
  bool parked = false;
  bool interrupted = false;
  bool woken = false;
  bool held = false;  // in no queue: it waits for wake()

  // Set by park(), constant from then on.
  RequestPool::Ticket ticket = 0;
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
  if (error != 0) {
    request.reply->error(error);
  } else {
    send();
  }
}

// Of all pools of the process: an interrupt need not know which one a ticket is of.
std::atomic<RequestPool::Ticket> last_ticket = 0;

}  // namespace

struct RequestPool::State {
  explicit State(unsigned threads) {
    for (unsigned i = 0; i < threads; i++) {
      threads_.emplace_back([this] { run_worker(); });
    }
    threads_.emplace_back([this] { run_watcher(); });
  }

  ~State() {
    std::vector<RequestPtr> left;
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
      for (const auto& [ticket, request] : requests_) {
        if (request->parked) left.push_back(request);
      }
    }
    for (const RequestPtr& request : left) give_up(*request, ENOTCONN);
    for_workers_.notify_all();
    for_watcher_.notify_all();
  }

  Ticket announce() {
    const std::lock_guard lock(mutex_);
    const Ticket ticket = ++last_ticket;
    requests_.emplace(ticket, std::make_shared<Request>());
    return ticket;
  }

  /// `held`: until somebody wakes it.
  void park(Ticket ticket, std::unique_ptr<Reply> reply, Clock::time_point deadline, Work work,
            OnGiveUp on_give_up, bool held) {
    std::unique_lock lock(mutex_);
    const RequestPtr request = requests_.at(ticket);
    request->ticket = ticket;
    request->reply = std::move(reply);
    request->deadline = deadline;
    request->work = std::move(work);
    request->on_give_up = on_give_up;
    request->parked = true;
    const bool is_next = deadlines_.empty() || deadline < deadlines_.begin()->first;
    deadlines_.emplace(deadline, ticket);
    if (request->interrupted) interrupts_.push_back(ticket);
    if (is_next || request->interrupted) for_watcher_.notify_one();
    request->held = held && !request->woken;
    if (!request->held) queue(request);
    if (!ending_) return;
    lock.unlock();  // by work that goes on while the pool ends
    give_up(*request, ENOTCONN);
  }

  void wake(Ticket ticket) {
    const std::lock_guard lock(mutex_);
    const auto found = requests_.find(ticket);
    if (found == requests_.end()) return;
    found->second->woken = true;
    if (std::exchange(found->second->held, false)) queue(found->second);
  }

  void interrupt(Ticket ticket) {
    const std::lock_guard lock(mutex_);
    const auto found = requests_.find(ticket);
    if (found == requests_.end()) return;
    found->second->interrupted = true;
    if (!found->second->parked) return;
    interrupts_.push_back(ticket);
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

 private:
  // Requires: mutex_ is held.
  void queue(const RequestPtr& request) {
    queue_.push_back(request);
    for_workers_.notify_one();
  }

  void run_worker() {
    while (const RequestPtr request = next_work()) {
      do_work(*request);
      forget(*request);
    }
  }

  RequestPtr next_work() {
    std::unique_lock lock(mutex_);
    for_workers_.wait(lock, [this] { return ending_ || !queue_.empty(); });
    if (ending_) return nullptr;
    const RequestPtr request = std::move(queue_.front());
    queue_.pop_front();
    return request;
  }

  void forget(const Request& request) {
    const std::lock_guard lock(mutex_);
    forget_locked(request);
  }
  void forget_locked(const Request& request) {
    deadlines_.erase({request.deadline, request.ticket});
    requests_.erase(request.ticket);
  }

  void run_watcher() {
    std::unique_lock lock(mutex_);
    while (!ending_) {
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
        look_again_later(request->ticket);
      } else if (request->held) {
        forget_locked(*request);
      }
    }
  }

  void look_again_later(Ticket ticket) {
    if (patient_.empty()) look_again_ = Clock::now() + kLookAgain;
    patient_.push_back(ticket);
  }

  // A request whose caller must perhaps be freed now, and why; nullptr if there is none.
  std::pair<RequestPtr, int> next_overdue() {
    if (!patient_.empty() && look_again_ <= Clock::now()) {
      interrupts_.insert(interrupts_.end(), patient_.begin(), patient_.end());
      patient_.clear();
    }
    while (!interrupts_.empty()) {
      const Ticket ticket = interrupts_.back();
      interrupts_.pop_back();
      const auto found = requests_.find(ticket);
      if (found != requests_.end()) return {found->second, EINTR};
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
    if (until == Clock::time_point::max()) {
      for_watcher_.wait(lock);
    } else {
      for_watcher_.wait_until(lock, until);
    }
  }

  // Guards everything below but the threads.
  mutable RankedMutex mutex_{LockRank::requests, "RequestPool::State::mutex_"};
  std::condition_variable_any for_workers_, for_watcher_;
  bool ending_ = false;
  std::map<Ticket, RequestPtr> requests_;  // until their worker is done with them
  std::set<std::pair<Clock::time_point, Ticket>> deadlines_;
  std::vector<Ticket> interrupts_;  // to look at now
  std::vector<Ticket> patient_;     // interrupted, but their callers wait on
  Clock::time_point look_again_;    // at those
  std::deque<RequestPtr> queue_;

  std::vector<std::jthread> threads_;  // last: they end before the rest goes
};

RequestPool::RequestPool(unsigned threads) : state_(std::make_unique<State>(threads)) {}
RequestPool::~RequestPool() = default;

RequestPool::Ticket RequestPool::announce() { return state_->announce(); }

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

}  // namespace weightfs::fs
