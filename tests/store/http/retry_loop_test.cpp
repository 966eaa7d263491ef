#include "store/http/retry_loop.hpp"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "store/http/message.hpp"
#include "tests/support/code_of.hpp"

using namespace weightfs;
using test::code_of;

namespace {

using Outcome = RetryLoop::Outcome;
using Attempts = RetryLoop::Attempts;

const std::string kAbout = "cannot read x", kDoing = "reading x";

Error failure() { return {ErrorCode::unavailable, "it fails"}; }

TransportError lost(TransportError::Kind kind) {
  return {ErrorCode::unavailable, kind, "no answer"};
}

/// Sends until the outcomes are used up, each once.  Returns how often it was sent.
unsigned run(RetryLoop& loop, const std::vector<Outcome>& outcomes, const Context& context = {}) {
  unsigned sent = 0;
  loop.run(
      kAbout, kDoing,
      [&](Attempts& attempts) {
        attempts.cause = failure();
        return outcomes.at(sent++);
      },
      context);
  return sent;
}

}  // namespace

TEST(RetryLoop, SendsUntilItIsAnswered) {
  RetryLoop loop(10);
  EXPECT_EQ(run(loop, {Outcome::answered}), 1u);
  EXPECT_EQ(run(loop, {Outcome::again, Outcome::again_at_once, Outcome::answered}), 3u);
}

TEST(RetryLoop, ASuccessPaysItsRetryBack) {
  RetryLoop loop(10);
  std::vector<std::jthread> threads;  // their pauses are at the same time
  for (int i = 0; i < 16; i++) {
    threads.emplace_back([&] {
      for (int k = 0; k < 12; k++) EXPECT_NO_THROW(run(loop, {Outcome::again, Outcome::answered}));
    });
  }
}

TEST(RetryLoop, ARefusalIsTheError) {
  RetryLoop loop(10);
  std::string message;
  EXPECT_EQ(code_of(
                [&] {
                  run(loop, {Outcome::again, Outcome::refused});
                },
                &message),
            ErrorCode::unavailable);
  EXPECT_EQ(message, "it fails");
}

TEST(RetryLoop, GivesUpAfterTheAttemptsThatItMayMake) {
  RetryLoop loop(2);
  std::string message;
  EXPECT_EQ(code_of(
                [&] {
                  run(loop, {Outcome::again, Outcome::again});
                },
                &message),
            ErrorCode::unavailable);
  EXPECT_EQ(message, "it fails; given up after 2 attempts");
}

TEST(RetryLoop, SendsOnceForWhoAsksAgainByItself) {
  RetryLoop loop(10);
  std::string message;
  EXPECT_EQ(code_of([&] { run(loop, {Outcome::again}, Context{}.once()); }, &message),
            ErrorCode::unavailable);
  EXPECT_EQ(message, "it fails");
}

TEST(RetryLoop, AnEndpointThatWasNeverReachedIsGivenUpSoon) {
  for (const bool reached : {false, true}) {
    RetryLoop loop(RetryLoop::kFirstAttemptsMax + 1);
    if (reached) {
      EXPECT_EQ(run(loop, {Outcome::answered}), 1u);
    }
    unsigned sent = 0;
    EXPECT_EQ(code_of([&] {
                loop.run(kAbout, kDoing,
                         [&](Attempts&) -> Outcome {
                           sent++;
                           throw lost(TransportError::Kind::connect);
                         },
                         {});
              }),
              ErrorCode::unavailable);
    EXPECT_EQ(sent, RetryLoop::kFirstAttemptsMax + (reached ? 1 : 0));
  }
}

TEST(RetryLoop, KnowsWhetherAnAttemptMayHaveBeenCarriedOut) {
  using Kind = TransportError::Kind;
  for (const auto& [kind, repeated] : {std::pair(Kind::connect, false), {Kind::broken, true}}) {
    RetryLoop loop(10);
    unsigned sent = 0;
    bool seen = false;
    const Kind failing = kind;
    loop.run(kAbout, kDoing,
             [&](Attempts& attempts) {
               if (sent++ == 0) throw lost(failing);
               seen = attempts.repeated;
               return Outcome::answered;
             },
             {});
    EXPECT_EQ(seen, repeated);
  }
}

TEST(RetryLoop, ACertificateThatIsNotTrustedIsNotTriedAgain) {
  RetryLoop loop(10);
  unsigned sent = 0;
  std::string message;
  EXPECT_EQ(code_of(
                [&] {
                  loop.run(kAbout, kDoing,
                           [&](Attempts&) -> Outcome {
                             sent++;
                             throw TransportError(ErrorCode::permission, TransportError::Kind::tls,
                                                  "no trust");
                           },
                           {});
                },
                &message),
            ErrorCode::permission);
  EXPECT_EQ(sent, 1u);
  EXPECT_EQ(message, "cannot read x: no trust");
}

TEST(RetryLoop, ADeadlineNamesTheLastCause) {
  RetryLoop loop(10);
  std::string message;
  const auto send = [&](Attempts& attempts) {
    if (attempts.cause) throw Error(ErrorCode::timed_out, "no time is left");
    attempts.cause = failure();
    return Outcome::again_at_once;
  };
  EXPECT_EQ(code_of([&] { loop.run(kAbout, kDoing, send, {}); }, &message), ErrorCode::timed_out);
  EXPECT_EQ(message, "no time is left; before that: it fails");
}

TEST(RetryLoop, APauseBeyondTheDeadlineIsNotBegun) {
  RetryLoop loop(10);
  std::string message;
  const auto send = [&](Attempts& attempts) {
    attempts.cause = failure();
    attempts.retry_after = std::chrono::seconds(60);
    return Outcome::again;
  };
  const Context context{{}, Clock::now() + std::chrono::seconds(30)};
  EXPECT_EQ(code_of([&] { loop.run(kAbout, kDoing, send, context); }, &message),
            ErrorCode::timed_out);
  EXPECT_EQ(message, "timed out after 1 attempt: it fails");
}

TEST(RetryLoop, TheNumberOfAttemptsIsChecked) {
  EXPECT_EQ(parse_attempts_max("7", "NAME"), 7u);
  for (const char* text : {"", "0", "101", "-1", "7x"}) {
    std::string message;
    EXPECT_EQ(code_of([&] { parse_attempts_max(text, "NAME"); }, &message), ErrorCode::invalid);
    EXPECT_NE(message.find("NAME is '"), std::string::npos);
  }
}
