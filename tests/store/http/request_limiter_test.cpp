#include "store/http/request_limiter.hpp"

#include <gtest/gtest.h>

#include "tests/support/code_of.hpp"

using namespace weightfs;
using test::code_of;

TEST(RequestLimiter, HalvesOnceForRequestsInFlightTogether) {
  RequestLimiter limiter(8);
  {
    RequestLimiter::Place a(limiter, {}), b(limiter, {});
    a.throttled();
    b.throttled();
    EXPECT_EQ(limiter.limit(), 4u);
    RequestLimiter::Place c(limiter, {});
    c.throttled();
    EXPECT_EQ(limiter.limit(), 2u);
    const Context late{{}, Clock::now()};
    EXPECT_EQ(code_of([&] { RequestLimiter::Place(limiter, late); }), ErrorCode::timed_out);
  }
  for (int i = 0; i < 10; i++) RequestLimiter::Place(limiter, {}).succeeded();
  EXPECT_EQ(limiter.limit(), 8u);
}
