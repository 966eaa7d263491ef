// parallel_for: each piece once, and which error is thrown.
#include "store/threads/parallel.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <stop_token>
#include <string>
#include <vector>

#include "store/base/error.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/few_threads.hpp"

namespace weightfs {
namespace {

using test::code_of;

TEST(ParallelFor, CallsEachIndexOnce) {
  std::vector<std::atomic<int>> calls(1000);
  parallel_for(calls.size(), 4, {}, [&](std::size_t i) { calls[i]++; });
  for (const auto& count : calls) EXPECT_EQ(count, 1);
}

TEST(ParallelFor, RethrowsTheFirstErrorAndBeginsNothingNew) {
  std::atomic<int> calls{0};
  EXPECT_EQ(code_of([&] {
              parallel_for(1'000'000, 2, {}, [&](std::size_t) {
                calls++;
                throw Error(ErrorCode::corrupt, "piece");
              });
            }),
            ErrorCode::corrupt);
  EXPECT_LE(calls, 2);
}

// Otherwise the reported error would depend on the timing of the threads.
TEST(ParallelFor, RethrowsTheErrorOfTheLowestPieceThatFails) {
  for (int round = 0; round < 100; round++) {
    std::atomic<bool> higher_failed = false;
    std::string message;
    EXPECT_EQ(code_of(
                  [&] {
                    parallel_for(8, 4, {}, [&](std::size_t i) {
                      if (i == 1) higher_failed.wait(false);
                      if (i != 1 && i != 2) return;
                      higher_failed = true;
                      higher_failed.notify_all();
                      throw Error(ErrorCode::corrupt, "piece " + std::to_string(i));
                    });
                  },
                  &message),
              ErrorCode::corrupt);
    EXPECT_EQ(message, "piece 1");
  }
}

// It once did all the work and then threw, so whoever called it began again for ever.
TEST(ParallelFor, IsDoneByTheThreadsThatTheSystemGives) {
  for (const unsigned most : {0u, 1u, 2u}) {
    const test::FewThreads few(most);
    if (!few.works()) GTEST_SKIP() << "a limit of threads needs root";
    std::vector<std::atomic<int>> calls(1000);
    parallel_for(calls.size(), 4, {}, [&](std::size_t i) { calls[i]++; });
    for (const auto& count : calls) EXPECT_EQ(count, 1);
  }
}

TEST(ParallelFor, StopsWhenTheContextDoes) {
  std::stop_source source;
  const Context context{source.get_token()};
  EXPECT_EQ(code_of([&] {
              parallel_for(100, 1, context, [&](std::size_t i) {
                if (i == 3) source.request_stop();
                EXPECT_LE(i, 3u);
              });
            }),
            ErrorCode::cancelled);
}

}  // namespace
}  // namespace weightfs
