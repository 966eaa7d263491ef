// Background and run_both: who stops whom, and which failure is thrown.
#include "store/threads/background.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <stop_token>
#include <string>

#include "store/base/error.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/few_threads.hpp"

namespace weightfs {
namespace {

using test::code_of;

/// Ends when it is stopped, and no later than after this.
void wait_for_a_stop(const Context& context) {
  context.pause(std::chrono::minutes(2), "waiting for a stop");
  ADD_FAILURE() << "nobody stopped it";
}

std::string message_of(const std::function<void()>& call) {
  std::string message;
  code_of(call, &message);
  return message;
}

TEST(Background, RunsBesideItsMaker) {
  std::atomic<bool> is_asked = false, is_answered = false;
  Background work({}, [&](const Context&) {
    is_asked.wait(false);
    is_answered = true;
    is_answered.notify_all();
  });
  is_asked = true;
  is_asked.notify_all();
  is_answered.wait(false);
  work.finish();
}

TEST(Background, FinishRethrowsWhatTheWorkThrew) {
  Background work({}, [](const Context&) { throw Error(ErrorCode::corrupt, "work"); });
  EXPECT_EQ(code_of([&] { work.finish(); }), ErrorCode::corrupt);
}

TEST(Background, ItsDestructionStopsTheWorkAndWaits) {
  std::atomic<bool> has_ended = false;
  {
    const Background work({}, [&](const Context& context) {
      EXPECT_EQ(code_of([&] { wait_for_a_stop(context); }), ErrorCode::cancelled);
      has_ended = true;
      throw Error(ErrorCode::corrupt, "dropped");
    });
  }
  EXPECT_TRUE(has_ended);
}

TEST(Background, IsStoppedWithTheContextOfItsMakerAndHasItsDeadline) {
  std::stop_source outer;
  const Context context = Context{outer.get_token()}.within(std::chrono::hours(1));
  Background work(context, [&](const Context& inner) {
    EXPECT_EQ(inner.deadline, context.deadline);
    wait_for_a_stop(inner);
  });
  outer.request_stop();
  EXPECT_EQ(code_of([&] { work.finish(); }), ErrorCode::cancelled);
}

TEST(OwnContext, IsStoppedByItsOwnerAlone) {
  std::stop_source outer;
  const Context context{outer.get_token()};
  OwnContext one(context), other(context);
  one.stop();
  EXPECT_TRUE(one.get().stop.stop_requested());
  EXPECT_FALSE(other.get().stop.stop_requested());
  EXPECT_FALSE(outer.stop_requested());
  outer.request_stop();
  EXPECT_TRUE(other.get().stop.stop_requested());
}

TEST(RunBoth, RunsBothAtATime) {
  std::atomic<int> begun = 0;
  const auto meet = [&] {
    begun++;
    begun.notify_all();
    for (int seen = begun; seen < 2; seen = begun) begun.wait(seen);
  };
  OwnContext own({});
  run_both(own, meet, meet);
  EXPECT_EQ(begun, 2);
  EXPECT_FALSE(own.get().stop.stop_requested());
}

TEST(RunBoth, AFailureOfEitherStopsTheOtherAndIsThrown) {
  const auto fail = [] { throw Error(ErrorCode::corrupt, "first"); };
  {
    OwnContext own({});
    EXPECT_EQ(message_of([&] { run_both(own, fail, [&] { wait_for_a_stop(own.get()); }); }),
              "first");
  }
  {
    OwnContext own({});
    EXPECT_EQ(message_of([&] {
                run_both(
                    own, [&] { wait_for_a_stop(own.get()); }, fail);
              }),
              "first");
  }
}

TEST(RunBoth, AFailureBesideIsThrownThoughTheWorkEndsWell) {
  OwnContext own({});
  std::atomic<bool> has_ended = false;
  EXPECT_EQ(message_of([&] {
              run_both(
                  own,
                  [&] {
                    has_ended.wait(false);
                    throw Error(ErrorCode::corrupt, "beside");
                  },
                  [&] {
                    has_ended = true;
                    has_ended.notify_all();
                  });
            }),
            "beside");
}

// Each hand-over waited for ever where a publish may start no thread.
TEST(RunBoth, DoesBothOneAfterTheOtherWhereTheSystemRefusesAThread) {
  const test::FewThreads few(0);
  if (!few.works()) GTEST_SKIP() << "needs to become another user";
  std::string done;
  OwnContext own({});
  run_both(
      own, [&] { done += "beside "; }, [&] { done += "work"; });
  EXPECT_EQ(done, "beside work");
  EXPECT_FALSE(own.get().stop.stop_requested());
  const auto fail = [] { throw Error(ErrorCode::corrupt, "first"); };
  EXPECT_EQ(message_of([&] { run_both(own, fail, [] { ADD_FAILURE() << "of no use"; }); }),
            "first");
  EXPECT_TRUE(own.get().stop.stop_requested());
}

TEST(RunBoth, IsStoppedWithTheContextOfItsOwner) {
  std::stop_source outer;
  OwnContext own(Context{outer.get_token()});
  std::atomic<int> stopped = 0;
  const auto wait = [&] {
    EXPECT_EQ(code_of([&] { wait_for_a_stop(own.get()); }), ErrorCode::cancelled);
    stopped++;
  };
  run_both(own, wait, [&] {
    outer.request_stop();
    wait();
  });
  EXPECT_EQ(stopped, 2);
}

}  // namespace
}  // namespace weightfs
