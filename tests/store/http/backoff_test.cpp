#include "store/http/backoff.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

using namespace weightfs;
using namespace std::chrono_literals;

namespace {

/// The pauses of many requests after this many failures.
std::vector<Clock::duration> pauses(unsigned failures_before, std::size_t count,
                                    std::optional<std::chrono::seconds> at_least = {}) {
  std::vector<Clock::duration> result;
  for (std::size_t i = 0; i < count; i++) {
    RetryBudget budget;
    Backoff backoff(budget, 100);
    for (unsigned k = 0; k < failures_before; k++) EXPECT_TRUE(backoff.next(std::nullopt));
    const auto pause = backoff.next(at_least);
    EXPECT_TRUE(pause.has_value());
    if (pause) result.push_back(*pause);
  }
  return result;
}

/// All are below `limit` and spread: each half has some.  The chance that 1,000 draws miss a half
/// is 2^-1000.
void expect_spread(const std::vector<Clock::duration>& drawn, Clock::duration from,
                   Clock::duration limit) {
  std::size_t low = 0, high = 0;
  for (const Clock::duration pause : drawn) {
    EXPECT_GE(pause, from);
    EXPECT_LE(pause, limit);
    (pause < from + (limit - from) / 2 ? low : high)++;
  }
  EXPECT_GT(low, 0u);
  EXPECT_GT(high, 0u);
}

}  // namespace

TEST(Backoff, pauses_are_random_below_a_limit_that_doubles) {
  expect_spread(pauses(0, 1'000), 0ms, 100ms);
  expect_spread(pauses(1, 1'000), 0ms, 200ms);
  expect_spread(pauses(5, 1'000), 0ms, 3'200ms);
}

TEST(Backoff, the_limit_is_twenty_seconds_however_many_attempts_were_made) {
  expect_spread(pauses(8, 1'000), 0ms, 20s);
  expect_spread(pauses(70, 1'000), 0ms, 20s);
}

TEST(Backoff, retry_after_is_a_lower_bound_with_a_cap) {
  expect_spread(pauses(0, 1'000, 7s), 7s, 7s + 100ms);
  expect_spread(pauses(0, 1'000, 60s), 60s, 60s + 100ms);
  expect_spread(pauses(0, 1'000, 100'000s), 60s, 60s + 100ms);
  expect_spread(pauses(0, 1'000, -5s), 0s, 100ms);
}

// As those do that wait for a secret (store/s3/request.cpp): until its retries end, each has so
// much.
TEST(Backoff, sixteen_requests_with_pauses_of_three_seconds_last_eighteen) {
  RetryBudget budget;
  std::vector<Backoff> requests(16, Backoff(budget, 10));
  std::vector<Clock::duration> waited(requests.size());
  for (unsigned round = 0; round < 6; round++) {
    for (std::size_t i = 0; i < requests.size(); i++) {
      const auto pause = requests[i].next(3s);
      ASSERT_TRUE(pause) << round;
      waited[i] += *pause;
    }
  }
  for (const Clock::duration all : waited) EXPECT_GE(all, 18s);
}

TEST(Backoff, gives_up_after_so_many_attempts) {
  RetryBudget budget;
  Backoff backoff(budget, 3);
  EXPECT_EQ(backoff.attempts(), 0u);
  EXPECT_TRUE(backoff.next(std::nullopt));
  EXPECT_EQ(backoff.attempts(), 1u);
  EXPECT_TRUE(backoff.next(std::nullopt));
  EXPECT_FALSE(backoff.next(std::nullopt));
  EXPECT_EQ(backoff.attempts(), 3u);
  EXPECT_FALSE(backoff.next(std::nullopt));

  Backoff once(budget, 1), never(budget, 0);
  EXPECT_FALSE(once.next(std::nullopt));
  EXPECT_FALSE(never.next(std::nullopt));
}

TEST(Backoff, an_attempt_that_was_the_last_takes_nothing_of_the_budget) {
  RetryBudget budget;
  for (int i = 0; i < 1'000; i++) {
    Backoff backoff(budget, 1);
    EXPECT_FALSE(backoff.next(std::nullopt));
  }
  EXPECT_TRUE(budget.take());
}

TEST(Backoff, the_budget_ends_and_comes_back_by_successes) {
  RetryBudget budget;
  int taken = 0;
  while (budget.take()) taken++;
  EXPECT_EQ(taken, 100);
  Backoff backoff(budget, 10);
  EXPECT_FALSE(backoff.next(std::nullopt)) << "no token is left";

  for (int i = 0; i < 4; i++) budget.succeeded(false);
  EXPECT_FALSE(budget.take()) << "four fifths of a token";
  for (int i = 0; i < 2; i++) budget.succeeded(false);
  EXPECT_TRUE(budget.take());
  EXPECT_FALSE(budget.take());

  for (int i = 0; i < 100'000; i++) budget.succeeded(false);
  for (taken = 0; budget.take();) taken++;
  EXPECT_EQ(taken, 100) << "never more than at first";
}

// Each of its requests cost a fifth of a token more than it gave back: no large version could be
// published.
TEST(Backoff, a_service_that_fails_one_attempt_in_five_is_not_given_up) {
  RetryBudget budget;
  int attempts = 0;
  for (int request = 0; request < 10'000; request++) {
    bool retried = false;
    while (++attempts % 5 == 0) {
      ASSERT_TRUE(budget.take()) << request;
      retried = true;
    }
    budget.succeeded(retried);
  }
}

TEST(Backoff, a_success_gives_back_its_last_retry_alone) {
  RetryBudget budget;
  while (budget.take()) {
  }
  budget.succeeded(true);
  EXPECT_TRUE(budget.take());
  EXPECT_FALSE(budget.take());
}

TEST(Backoff, the_budget_is_exact_with_several_threads) {
  RetryBudget budget;
  std::atomic<int> taken{0};
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 8; i++) {
      threads.emplace_back([&] {
        while (budget.take()) taken++;
      });
    }
  }
  EXPECT_EQ(taken, 100);
}
