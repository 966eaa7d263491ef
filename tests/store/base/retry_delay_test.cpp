#include "store/base/retry_delay.hpp"

#include <gtest/gtest.h>

#include <map>
#include <queue>

namespace weightfs {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(RetryDelay, DrawsFromTheWholeQuarterAroundTheDelay) {
  std::minstd_rand random(1);
  constexpr int kDraws = 20'000;
  double sum = 0;
  std::map<std::int64_t, int> tenths;  // histogram of the range from 0.75 to 1.25 s
  for (int i = 0; i < kDraws; i++) {
    const microseconds delay = retry_delay(seconds(1), 0, random);
    ASSERT_GE(delay, milliseconds(750));
    ASSERT_LE(delay, milliseconds(1250));
    sum += static_cast<double>(delay.count());
    tenths[(delay.count() - 750'000) / 50'000]++;
  }
  EXPECT_NEAR(sum / kDraws, 1e6, 5e3);
  for (int tenth = 0; tenth < 10; tenth++) EXPECT_NEAR(tenths[tenth], kDraws / 10, kDraws / 100);
}

TEST(RetryDelay, DoublesUpToACap) {
  std::minstd_rand random(1);
  for (unsigned failures = 0; failures < 40; failures++) {
    const milliseconds expected = failures < 5 ? milliseconds(1000 << failures) : kRetryDelayMax;
    const microseconds delay = retry_delay(seconds(1), failures, random);
    EXPECT_GE(delay, expected * 3 / 4) << failures;
    EXPECT_LE(delay, expected * 5 / 4) << failures;
  }
  EXPECT_GE(retry_delay(seconds(60), 3, random), seconds(45)) << "a poll is never made faster";
  EXPECT_GT(retry_delay(milliseconds(0), 0, random), microseconds(0));
}

/// A thousand hosts start at the same moment.  A minute later their polls are spread evenly: no
/// tenth of a second has much more than its share of a hundred.
TEST(RetryDelay, AThousandPollersDoNotMarchInStep) {
  struct Host {
    microseconds next;
    std::size_t number;
    bool operator<(const Host& other) const { return next > other.next; }
  };
  std::vector<std::minstd_rand> randoms;
  std::priority_queue<Host> hosts;
  std::seed_seq seeds{20261122};
  std::vector<std::uint32_t> seed_of(1000);
  seeds.generate(seed_of.begin(), seed_of.end());
  for (std::size_t i = 0; i < seed_of.size(); i++) {
    randoms.emplace_back(seed_of[i]);
    hosts.push({microseconds(0), i});
  }
  std::map<std::int64_t, int> polls;  // by tenth of a second
  while (hosts.top().next < seconds(90)) {
    Host host = hosts.top();
    hosts.pop();
    if (host.next >= seconds(60)) polls[host.next.count() / 100'000]++;
    host.next += retry_delay(seconds(1), 0, randoms[host.number]);
    hosts.push(host);
  }
  EXPECT_EQ(polls.size(), 300u);
  for (const auto& [tenth, count] : polls) EXPECT_NEAR(count, 100, 50) << tenth;
}

}  // namespace
}  // namespace weightfs
