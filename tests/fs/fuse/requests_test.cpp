#include "fs/fuse/requests.hpp"

#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <stop_token>
#include <thread>
#include <vector>

#include "fs/fuse/request_kinds.hpp"
#include "store/base/error.hpp"
#include "store/staging/staging.hpp"
#include "tests/support/no_memory.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/support.hpp"

namespace weightfs::fs {
namespace {

constexpr std::chrono::seconds kRequestLimit{30};  // how long a test waits before it fails
constexpr int kAnswered = 0;                       // code of an answer that the work sent

Clock::time_point far_away() { return Clock::now() + std::chrono::hours(1); }
Clock::time_point passed() { return Clock::now() - std::chrono::seconds(1); }

// What a caller got.
class Caller {
 public:
  void take(int code) {
    const std::lock_guard lock(mutex_);
    answers_++;
    code_ = code;
    changed_.notify_all();
  }

  // Waits for the answer: an errno or kAnswered; nullopt if there is none within the limit.
  std::optional<int> wait() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kRequestLimit, [&] { return answers_ > 0; })) return {};
    return code_;
  }

  int answers() {
    const std::lock_guard lock(mutex_);
    return answers_;
  }

  std::atomic<bool> is_patient = false;  // waits on when it is interrupted
  std::atomic<int> asked = 0;            // how often it was asked that

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int answers_ = 0, code_ = -1;
};

class FakeReply final : public Reply {
 public:
  explicit FakeReply(Caller& caller) : caller_(caller) {}
  void error(int code) noexcept override { caller_.take(code); }
  [[nodiscard]] bool gives_up() const noexcept override {
    caller_.asked++;
    return !caller_.is_patient;
  }

 private:
  Caller& caller_;
};

RequestPool::Ticket park(RequestPool& pool, Caller& caller, Clock::time_point deadline,
                         RequestPool::Work work, OnGiveUp on_give_up = OnGiveUp::abandon) {
  const RequestPool::Ticket ticket = pool.announce(0);
  pool.park(ticket, std::make_unique<FakeReply>(caller), deadline, std::move(work), on_give_up);
  return ticket;
}

void park_in(RequestPool& pool, std::size_t share, Caller& caller, RequestPool::Work work) {
  pool.park(pool.announce(share), std::make_unique<FakeReply>(caller), far_away(), std::move(work));
}

RequestPool::Ticket hold(RequestPool& pool, Caller& caller, Clock::time_point deadline,
                         RequestPool::Work work) {
  const RequestPool::Ticket ticket = pool.announce(0);
  pool.hold(ticket, std::make_unique<FakeReply>(caller), deadline, std::move(work));
  return ticket;
}

RequestPool::Work succeed(Caller& caller) {
  return [&caller](const Context&) { return [&caller] { caller.take(kAnswered); }; };
}

// Work that is stuck until it is let go, as on a disk that hangs.
class Stuck {
 public:
  explicit Stuck(std::ptrdiff_t count = 1) : started_(count) {}
  RequestPool::Work work(Caller& caller) {
    return [this, &caller](const Context&) {
      started_.count_down();
      let_go_.wait(false);
      return [&caller] { caller.take(kAnswered); };
    };
  }
  void wait_until_started() { started_.wait(); }
  void let_go() {
    let_go_ = true;
    let_go_.notify_all();
  }

 private:
  std::latch started_;
  std::atomic<bool> let_go_ = false;
};

void wait_until_empty(const RequestPool& pool) {
  const auto until = Clock::now() + kRequestLimit;
  while (pool.parked_count() > 0 && Clock::now() < until) std::this_thread::yield();
  EXPECT_EQ(pool.parked_count(), 0u);
}

TEST(RequestPool, AWorkerAnswers) {
  Caller caller;
  RequestPool pool({1});
  park(pool, caller, far_away(), succeed(caller));
  EXPECT_EQ(caller.wait(), kAnswered);
  wait_until_empty(pool);
}

TEST(RequestPool, WhatTheWorkThrowsBecomesAnErrno) {
  RequestPool pool({1});
  const auto code_of = [&](const std::function<void()>& body) {
    Caller caller;
    park(pool, caller, far_away(), [&](const Context&) -> std::function<void()> {
      body();
      return {};
    });
    return caller.wait();
  };
  EXPECT_EQ(code_of([] { throw Error(ErrorCode::not_found, "no image"); }), ENOENT);
  EXPECT_EQ(code_of([] { throw Error(ErrorCode::corrupt, "short image"); }), EIO);
  EXPECT_EQ(code_of([] { throw std::bad_alloc(); }), EIO);
  EXPECT_EQ(code_of([] { throw std::runtime_error("anything"); }), EIO);
}

TEST(RequestPool, TheDeadlineFreesTheCallerOfAStuckWorker) {
  Caller caller;
  Stuck stuck;
  RequestPool pool({1});
  park(pool, caller, Clock::now() + std::chrono::milliseconds(20), stuck.work(caller));
  EXPECT_EQ(caller.wait(), ETIMEDOUT);
  EXPECT_EQ(pool.parked_count(), 0u);
  stuck.let_go();
}

// Work that goes on until it is told to stop, and then answers all the same.
RequestPool::Work answer_when_stopped(Caller& caller, std::atomic<bool>& started) {
  return [&](const Context& context) {
    started = true;
    started.notify_all();
    std::atomic<bool> stopped = false;
    const std::stop_callback on_stop(context.stop, [&] {
      stopped = true;
      stopped.notify_all();
    });
    stopped.wait(false);
    return [&caller] { caller.take(kAnswered); };
  };
}

TEST(RequestPool, WorkThatIsToFinishIsToldOfAnInterruptAndAnswersItself) {
  Caller caller;
  std::atomic<bool> started = false;
  RequestPool pool({1});
  const auto ticket =
      park(pool, caller, far_away(), answer_when_stopped(caller, started), OnGiveUp::finish);
  started.wait(false);
  pool.interrupt(ticket);
  EXPECT_EQ(caller.wait(), kAnswered);
}

TEST(RequestPool, WorkThatIsToFinishIsToldOfItsDeadlineAndAnswersItself) {
  Caller caller;
  std::atomic<bool> started = false;
  RequestPool pool({1});
  park(pool, caller, Clock::now() + std::chrono::milliseconds(50),
       answer_when_stopped(caller, started), OnGiveUp::finish);
  const auto code = caller.wait();
  EXPECT_EQ(code, started ? kAnswered : ETIMEDOUT);  // on a slow machine it may not have begun
}

TEST(RequestPool, WorkThatIsToFinishIsToldTheEndOfThePool) {
  Caller caller;
  std::atomic<bool> started = false;
  {
    RequestPool pool({1});
    park(pool, caller, far_away(), answer_when_stopped(caller, started), OnGiveUp::finish);
    started.wait(false);
  }
  EXPECT_EQ(caller.wait(), kAnswered);
  EXPECT_EQ(caller.answers(), 1);
}

TEST(RequestPool, WorkThatIsToFinishAndFailsAnswersOnce) {
  Caller caller;
  RequestPool pool({1});
  park(
      pool, caller, far_away(),
      [](const Context&) -> std::function<void()> { throw PosixError(EDQUOT, "write"); },
      OnGiveUp::finish);
  EXPECT_EQ(caller.wait(), EDQUOT);
  EXPECT_EQ(caller.answers(), 1);
}

TEST(RequestPool, WorkThatIsToFinishButHasNotBegunIsGivenUp) {
  Caller first, second;
  Stuck stuck;
  std::atomic<bool> ran = false;
  {
    RequestPool pool({1});
    park(pool, first, far_away(), stuck.work(first));
    stuck.wait_until_started();
    const auto ticket = park(
        pool, second, far_away(),
        [&](const Context&) -> std::function<void()> {
          ran = true;
          return [&] { second.take(kAnswered); };
        },
        OnGiveUp::finish);
    pool.interrupt(ticket);
    EXPECT_EQ(second.wait(), EINTR);
    stuck.let_go();
    wait_until_empty(pool);
  }
  EXPECT_FALSE(ran);
}

TEST(RequestPool, AnInterruptedCallerMayWaitOnAndGiveUpLater) {
  Caller caller, other;
  caller.is_patient = other.is_patient = true;
  Stuck stuck(2);
  RequestPool pool({2});
  const auto ticket = park(pool, caller, far_away(), stuck.work(caller));
  const auto others = park(pool, other, far_away(), stuck.work(other));
  stuck.wait_until_started();
  pool.interrupt(ticket);
  pool.interrupt(others);
  const auto until = Clock::now() + kRequestLimit;
  while ((caller.asked < 2 || other.asked < 2) && Clock::now() < until) std::this_thread::yield();
  EXPECT_EQ(caller.answers(), 0);
  caller.is_patient = false;
  EXPECT_EQ(caller.wait(), EINTR);
  EXPECT_EQ(other.answers(), 0);
  stuck.let_go();
  EXPECT_EQ(other.wait(), kAnswered);
}

TEST(RequestPool, AnInterruptFreesTheCallerOfAStuckWorker) {
  Caller caller;
  Stuck stuck;
  RequestPool pool({1});
  const auto ticket = park(pool, caller, far_away(), stuck.work(caller));
  stuck.wait_until_started();
  pool.interrupt(ticket);
  EXPECT_EQ(caller.wait(), EINTR);
  stuck.let_go();
}

TEST(RequestPool, AnInterruptBeforeParkingTakesEffectInPark) {
  Caller blocker, caller;
  Stuck stuck;
  RequestPool pool({1});
  park(pool, blocker, far_away(), stuck.work(blocker));
  stuck.wait_until_started();
  const RequestPool::Ticket ticket = pool.announce(0);
  pool.interrupt(ticket);
  EXPECT_EQ(caller.answers(), 0);
  pool.park(ticket, std::make_unique<FakeReply>(caller), far_away(), succeed(caller));
  EXPECT_EQ(caller.wait(), EINTR);
  stuck.let_go();
}

TEST(RequestPool, UnknownTicketsAreIgnored) {
  Caller caller;
  RequestPool pool({1});
  pool.interrupt(12345);
  const auto ticket = park(pool, caller, far_away(), succeed(caller));
  EXPECT_EQ(caller.wait(), kAnswered);
  wait_until_empty(pool);
  pool.interrupt(ticket);
  Caller next;
  park(pool, next, far_away(), succeed(next));
  EXPECT_EQ(next.wait(), kAnswered);
  EXPECT_EQ(caller.answers(), 1);
}

TEST(RequestPool, ALateAnswerIsThrownAway) {
  Caller late, next;
  Stuck stuck;
  {
    RequestPool pool({1});
    park(pool, late, Clock::now(), stuck.work(late));
    EXPECT_EQ(late.wait(), ETIMEDOUT);
    stuck.let_go();
    park(pool, next, far_away(), succeed(next));
    EXPECT_EQ(next.wait(), kAnswered) << "the worker goes on";
  }
  EXPECT_EQ(late.answers(), 1);
}

TEST(RequestPool, WorkThatTimedOutInTheQueueIsNotDone) {
  Caller blocker, queued, next;
  Stuck stuck;
  std::atomic<bool> was_done = false;
  RequestPool pool({1});
  park(pool, blocker, far_away(), stuck.work(blocker));
  stuck.wait_until_started();
  park(pool, queued, passed(), [&](const Context&) {
    was_done = true;
    return [&] { queued.take(kAnswered); };
  });
  EXPECT_EQ(queued.wait(), ETIMEDOUT);
  stuck.let_go();
  park(pool, next, far_away(), succeed(next));
  EXPECT_EQ(next.wait(), kAnswered);
  EXPECT_FALSE(was_done);
}

TEST(RequestPool, StuckWorkersDoNotHoldUpTheDeadlinesOfOthers) {
  constexpr std::ptrdiff_t kThreads = 3;
  Caller blockers[kThreads], callers[8];
  Stuck stuck(kThreads);
  RequestPool pool({kThreads});
  for (Caller& blocker : blockers) park(pool, blocker, far_away(), stuck.work(blocker));
  stuck.wait_until_started();
  for (int i = 0; i < 8; i++) {
    // Later ones have earlier deadlines: the watcher must not sleep through them.
    park(pool, callers[i], Clock::now() + std::chrono::milliseconds(40 - 5 * i),
         succeed(callers[i]));
  }
  for (Caller& caller : callers) EXPECT_EQ(caller.wait(), ETIMEDOUT);
  EXPECT_EQ(pool.parked_count(), static_cast<std::size_t>(kThreads));
  stuck.let_go();
  for (Caller& blocker : blockers) EXPECT_EQ(blocker.wait(), kAnswered);
}

TEST(RequestPool, TheWorkLearnsItsDeadlineAndThatNobodyWaitsAnyLonger) {
  Caller caller;
  std::atomic<bool> stopped = false;
  std::latch started(1);
  const auto deadline = far_away();
  {
    RequestPool pool({1});
    const auto ticket = park(pool, caller, deadline, [&](const Context& context) {
      EXPECT_EQ(context.deadline, deadline);
      EXPECT_FALSE(context.stop.stop_requested());
      started.count_down();
      const auto until = Clock::now() + kRequestLimit;
      while (!context.stop.stop_requested() && Clock::now() < until) std::this_thread::yield();
      stopped = context.stop.stop_requested();
      return [&] { caller.take(kAnswered); };
    });
    started.wait();
    pool.interrupt(ticket);
    EXPECT_EQ(caller.wait(), EINTR);
  }
  EXPECT_TRUE(stopped);
}

TEST(RequestPool, TheEndAnswersWhatIsParked) {
  Caller working, queued;
  Stuck stuck;
  std::jthread helper;
  {
    RequestPool pool({1});
    park(pool, working, far_away(), stuck.work(working));
    stuck.wait_until_started();
    park(pool, queued, far_away(), succeed(queued));
    // The end joins the stuck worker, so its callers must be free before.
    helper = std::jthread([&] {
      EXPECT_EQ(working.wait(), ENOTCONN);
      EXPECT_EQ(queued.wait(), ENOTCONN);
      stuck.let_go();
    });
  }
  EXPECT_EQ(working.answers(), 1);
  EXPECT_EQ(queued.answers(), 1);
}

TEST(RequestPool, AnswersRunOnTheThreadOfTheirWork) {
  Caller caller;
  std::thread::id worked, answered;
  {
    RequestPool pool({4});
    park(pool, caller, far_away(), [&](const Context&) {
      worked = std::this_thread::get_id();
      return [&] {
        answered = std::this_thread::get_id();
        caller.take(kAnswered);
      };
    });
    EXPECT_EQ(caller.wait(), kAnswered);
  }
  EXPECT_EQ(worked, answered);
}

// ---- held requests ----

// An idle worker takes what it may at once, so what runs later was held.
void expect_idle_worker_leaves(RequestPool& pool, Caller& held) {
  Caller other;
  park(pool, other, far_away(), succeed(other));
  EXPECT_EQ(other.wait(), kAnswered);
  EXPECT_EQ(held.answers(), 0);
}

TEST(RequestPool, WhatIsHeldIsDoneWhenItIsWoken) {
  Caller caller;
  RequestPool pool({1});
  const auto ticket = hold(pool, caller, far_away(), succeed(caller));
  expect_idle_worker_leaves(pool, caller);
  EXPECT_EQ(pool.parked_count(), 1U);
  EXPECT_EQ(pool.held_count(), 1U);
  pool.wake(ticket);
  EXPECT_EQ(caller.wait(), kAnswered);
  wait_until_empty(pool);
}

TEST(RequestPool, WhatWasWokenBeforeItIsHeldIsDoneAtOnce) {
  Caller caller;
  RequestPool pool({1});
  const RequestPool::Ticket ticket = pool.announce(0);
  pool.wake(ticket);
  pool.hold(ticket, std::make_unique<FakeReply>(caller), far_away(), succeed(caller));
  EXPECT_EQ(caller.wait(), kAnswered);
}

TEST(RequestPool, WhatIsWokenTwiceIsDoneOnce) {
  Caller caller, blocker;
  Stuck stuck;
  std::atomic<int> runs = 0;
  {
    RequestPool pool({1});
    park(pool, blocker, far_away(), stuck.work(blocker));
    stuck.wait_until_started();
    const auto ticket = hold(pool, caller, far_away(), [&](const Context&) {
      runs++;
      return [&] { caller.take(kAnswered); };
    });
    pool.wake(ticket);
    pool.wake(ticket);
    stuck.let_go();
    EXPECT_EQ(caller.wait(), kAnswered);
    wait_until_empty(pool);
    pool.wake(ticket);
    Caller nobody;
    expect_idle_worker_leaves(pool, nobody);
  }
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(caller.answers(), 1);
}

TEST(RequestPool, WakingWhatIsParkedOrUnknownChangesNothing) {
  Caller caller;
  RequestPool pool({1});
  pool.wake(12345);
  const auto ticket = park(pool, caller, far_away(), succeed(caller));
  pool.wake(ticket);
  EXPECT_EQ(caller.wait(), kAnswered);
  wait_until_empty(pool);
  EXPECT_EQ(caller.answers(), 1);
}

TEST(RequestPool, TheDeadlineOfWhatIsHeldCountsFromTheBeginning) {
  Caller caller;
  RequestPool pool({1});
  const auto ticket =
      hold(pool, caller, Clock::now() + std::chrono::milliseconds(20), succeed(caller));
  EXPECT_EQ(caller.wait(), ETIMEDOUT);
  wait_until_empty(pool);
  pool.wake(ticket);  // too late
  Caller nobody;
  expect_idle_worker_leaves(pool, nobody);
  EXPECT_EQ(caller.answers(), 1);
}

TEST(RequestPool, AnInterruptFreesTheCallerOfWhatIsHeld) {
  Caller caller, early;
  early.is_patient = true;
  RequestPool pool({1});
  pool.interrupt(hold(pool, caller, far_away(), succeed(caller)));
  EXPECT_EQ(caller.wait(), EINTR);
  const RequestPool::Ticket ticket = pool.announce(0);
  pool.interrupt(ticket);
  pool.hold(ticket, std::make_unique<FakeReply>(early), far_away(), succeed(early));
  const auto until = Clock::now() + kRequestLimit;
  while (early.asked < 2 && Clock::now() < until) std::this_thread::yield();
  EXPECT_EQ(early.answers(), 0);
  pool.wake(ticket);
  EXPECT_EQ(early.wait(), kAnswered);
}

TEST(RequestPool, TheEndAnswersWhatIsHeld) {
  Caller caller;
  {
    RequestPool pool({1});
    hold(pool, caller, far_away(), succeed(caller));
  }
  EXPECT_EQ(caller.wait(), ENOTCONN);
  EXPECT_EQ(caller.answers(), 1);
}

TEST(RequestPool, WorkMayHoldItsRequestAgain) {
  Caller caller;
  RequestPool pool({1});
  std::atomic<RequestPool::Ticket> second = 0;
  const auto first = hold(pool, caller, far_away(), [&](const Context&) {
    return [&] {
      second = hold(pool, caller, far_away(), succeed(caller));
      second.notify_all();
    };
  });
  pool.wake(first);
  second.wait(0);
  expect_idle_worker_leaves(pool, caller);
  pool.wake(second);
  EXPECT_EQ(caller.wait(), kAnswered);
  EXPECT_EQ(caller.answers(), 1);
}

TEST(RequestPool, WhatIsHeldWhileThePoolEndsIsAnswered) {
  Caller caller, queued;
  Stuck stuck;
  std::jthread helper;
  {
    RequestPool pool({1});
    park(
        pool, queued, far_away(),
        [&](const Context& context) {
          stuck.work(caller)(context);
          return [&] {
            hold(pool, caller, far_away(), succeed(caller));
            queued.take(kAnswered);
          };
        },
        OnGiveUp::finish);
    stuck.wait_until_started();
    helper = std::jthread([&] { stuck.let_go(); });
  }
  EXPECT_EQ(caller.wait(), ENOTCONN);
  EXPECT_EQ(caller.answers(), 1);
}

// Of 1,000 held requests none occupies a worker.
TEST(RequestPool, HeldRequestsDoNotHoldUpOthers) {
  std::vector<Caller> held(1000);
  std::vector<RequestPool::Ticket> tickets;
  RequestPool pool({1});
  for (Caller& caller : held) tickets.push_back(hold(pool, caller, far_away(), succeed(caller)));
  expect_idle_worker_leaves(pool, held.front());
  for (const auto ticket : tickets) pool.wake(ticket);
  for (Caller& caller : held) ASSERT_EQ(caller.wait(), kAnswered);
}

// ---- shares and workers ----

TEST(RequestPool, AKindThatIsFullDoesNotHoldUpAnother) {
  Caller full[2], queued[5], other;
  Stuck stuck(2);
  RequestPool pool({2, 1});
  for (Caller& caller : full) park_in(pool, 0, caller, stuck.work(caller));
  stuck.wait_until_started();
  for (Caller& caller : queued) park_in(pool, 0, caller, succeed(caller));
  park_in(pool, 1, other, succeed(other));
  EXPECT_EQ(other.wait(), kAnswered);
  for (Caller& caller : queued) EXPECT_EQ(caller.answers(), 0);
  stuck.let_go();
  for (Caller& caller : full) EXPECT_EQ(caller.wait(), kAnswered);
  for (Caller& caller : queued) EXPECT_EQ(caller.wait(), kAnswered);
}

TEST(RequestPool, AKindOccupiesNoMoreWorkersThanItsShareHoweverManyAreIdle) {
  Caller others[3], callers[6], last;
  Stuck first(3), second(2);
  std::atomic<int> running = 0, most = 0;
  RequestPool pool({2, 3});
  for (Caller& caller : others) park_in(pool, 1, caller, first.work(caller));
  first.wait_until_started();
  first.let_go();
  for (Caller& caller : others) EXPECT_EQ(caller.wait(), kAnswered);
  for (int i = 0; i < 6; i++) {
    const RequestPool::Work work = i < 2 ? second.work(callers[i]) : succeed(callers[i]);
    park_in(pool, 0, callers[i], [&, work](const Context& context) {
      const int now = ++running;
      for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) continue;
      auto send = work(context);
      running--;
      return send;
    });
  }
  second.wait_until_started();
  park_in(pool, 1, last, succeed(last));
  EXPECT_EQ(last.wait(), kAnswered);
  second.let_go();
  for (Caller& caller : callers) EXPECT_EQ(caller.wait(), kAnswered);
  EXPECT_EQ(most, 2);
}

TEST(RequestPool, AllKindsMayBeFullAtOnce) {
  const std::vector<unsigned> shares{2, 1, 3};
  std::vector<Caller> callers(6);
  Stuck stuck(6);
  RequestPool pool(shares);
  std::size_t next = 0;
  for (std::size_t share = 0; share < shares.size(); share++) {
    for (unsigned i = 0; i < shares[share]; i++, next++) {
      park_in(pool, share, callers[next], stuck.work(callers[next]));
    }
  }
  stuck.wait_until_started();
  EXPECT_EQ(pool.worker_count(), 6U);
  stuck.let_go();
  for (Caller& caller : callers) EXPECT_EQ(caller.wait(), kAnswered);
}

TEST(RequestPool, ThreadsStartOnDemand) {
  Caller held, stuck_caller, queued;
  Stuck stuck;
  RequestPool pool({1, 8});
  EXPECT_EQ(pool.worker_count(), 0U);
  const auto ticket = hold(pool, held, far_away(), succeed(held));
  EXPECT_EQ(pool.worker_count(), 0U) << "what is held needs none";
  pool.wake(ticket);
  EXPECT_EQ(held.wait(), kAnswered);
  for (int i = 0; i < 50; i++) {
    Caller caller;
    park(pool, caller, far_away(), succeed(caller));
    EXPECT_EQ(caller.wait(), kAnswered);
  }
  park(pool, stuck_caller, far_away(), stuck.work(stuck_caller));
  stuck.wait_until_started();
  park(pool, queued, far_away(), succeed(queued));
  EXPECT_EQ(pool.worker_count(), 1U) << "what may not begin needs none either";
  Caller other;
  park_in(pool, 1, other, succeed(other));
  EXPECT_EQ(other.wait(), kAnswered);
  EXPECT_EQ(pool.worker_count(), 2U);
  stuck.let_go();
  EXPECT_EQ(queued.wait(), kAnswered);
}

// Threads get a stack that does not fit into any address space, so none can be started.
class NoThreads {
 public:
  NoThreads() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t without = before_;
    EXPECT_EQ(pthread_attr_setstacksize(&without, std::size_t{1} << 56), 0);
    EXPECT_EQ(pthread_setattr_default_np(&without), 0);
  }
  ~NoThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }

 private:
  pthread_attr_t before_{};
};

TEST(RequestPool, AThreadThatTheSystemRefusesIsStartedLater) {
  Caller first, second;
  RequestPool pool({1, 1});
  {
    const NoThreads none;
    park_in(pool, 0, first, succeed(first));
    park_in(pool, 1, second, succeed(second));
    EXPECT_EQ(pool.worker_count(), 0U);
  }
  EXPECT_EQ(first.wait(), kAnswered);
  EXPECT_EQ(second.wait(), kAnswered);
}

// ---- without memory ----

TEST(RequestPool, WithoutMemoryTheCallerGetsAnErrorAndThePoolGoesOn) {
  if (test::kSanitized) GTEST_SKIP() << "a sanitizer's operator new";
  Caller parked, held, interrupted;
  interrupted.is_patient = true;
  RequestPool pool({1});
  const auto first = pool.announce(0), second = pool.announce(0);
  auto first_reply = std::make_unique<FakeReply>(parked);
  auto second_reply = std::make_unique<FakeReply>(held);
  RequestPool::Work first_work = succeed(parked), second_work = succeed(held);
  const auto third = hold(pool, interrupted, far_away(), succeed(interrupted));
  bool was_announced = true;
  {
    const test::NoMemory none;
    try {
      pool.announce(0);
    } catch (const std::bad_alloc&) {
      was_announced = false;
    }
    pool.park(first, std::move(first_reply), far_away(), std::move(first_work));
    pool.hold(second, std::move(second_reply), far_away(), std::move(second_work));
    pool.wake(second);
    pool.interrupt(third);
    const auto until = Clock::now() + kRequestLimit;
    while (interrupted.asked < 2 && Clock::now() < until) std::this_thread::yield();
  }
  EXPECT_FALSE(was_announced) << "the operation answers EIO";
  EXPECT_EQ(parked.wait(), kAnswered);
  EXPECT_EQ(held.wait(), kAnswered);
  pool.wake(third);
  EXPECT_EQ(interrupted.wait(), kAnswered);
}

TEST(RequestPool, AnAnswerThatCannotBeMadeBecomesAnErrno) {
  Caller caller;
  RequestPool pool({1});
  park(pool, caller, far_away(), [](const Context&) { return [] { throw std::bad_alloc(); }; });
  EXPECT_EQ(caller.wait(), EIO);
  EXPECT_EQ(caller.answers(), 1);
}

// ---- kinds ----

// Fills the share of `full` with what is stuck, and more behind it; `other` is answered.
void expect_not_held_up(RequestKind other, RequestKind full) {
  const WaitClass waits_for = policy_of(full).waits_for;
  ASSERT_EQ(policy_of(other).waits_for, waits_for);
  const std::size_t workers = policy_of(full).workers;
  std::vector<Caller> callers(2 * workers);
  Caller caller;
  Stuck stuck(static_cast<std::ptrdiff_t>(workers));
  RequestPool pool(shares_of(waits_for));
  for (std::size_t i = 0; i < callers.size(); i++) {
    park_in(pool, share_of(full), callers[i],
            i < workers ? stuck.work(callers[i]) : succeed(callers[i]));
  }
  stuck.wait_until_started();
  park_in(pool, share_of(other), caller, succeed(caller));
  EXPECT_EQ(caller.wait(), kAnswered);
  stuck.let_go();
  for (Caller& each : callers) EXPECT_EQ(each.wait(), kAnswered);
}

TEST(RequestKinds, ReadsOfABucketThatHangsDoNotHoldUpNamesOfOldVersions) {
  expect_not_held_up(RequestKind::name, RequestKind::remote);
  expect_not_held_up(RequestKind::fill, RequestKind::remote);
  expect_not_held_up(RequestKind::remote, RequestKind::fill);
}

TEST(RequestKinds, SyncsOfMinutesDoNotHoldUpWrites) {
  expect_not_held_up(RequestKind::change, RequestKind::sync);
  expect_not_held_up(RequestKind::sync, RequestKind::change);
}

// ---- races ----

// Work, deadlines, wakes, interrupts and the end race for the same requests.
TEST(RequestPool, EveryRequestIsAnsweredExactlyOnce) {
  constexpr std::size_t kRequests = 4000;
  std::vector<Caller> callers(kRequests);
  {
    RequestPool pool({1, 2, 1});
    const auto park_share = [&](std::size_t first) {
      test::Random rng(test::seed() + first);
      for (std::size_t i = first; i < kRequests; i += 4) {
        const std::chrono::microseconds patience(rng() % 300);
        const RequestPool::Ticket ticket = pool.announce(rng() % 3);
        if (rng() % 8 == 0) pool.interrupt(ticket);
        const bool is_held = rng() % 2 == 0;
        if (is_held && rng() % 4 == 0) pool.wake(ticket);
        auto reply = std::make_unique<FakeReply>(callers[i]);
        if (is_held) {
          pool.hold(ticket, std::move(reply), Clock::now() + patience, succeed(callers[i]));
          if (rng() % 2 == 0) pool.wake(ticket);
        } else {
          pool.park(ticket, std::move(reply), Clock::now() + patience, succeed(callers[i]));
        }
        if (rng() % 4 == 0) pool.interrupt(ticket);
      }
    };
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < 4; i++) threads.emplace_back(park_share, i);
  }
  for (Caller& caller : callers) ASSERT_EQ(caller.answers(), 1);
}

}  // namespace
}  // namespace weightfs::fs
