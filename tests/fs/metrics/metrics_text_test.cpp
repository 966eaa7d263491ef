#include "fs/metrics/metrics_text.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "fs/metrics/metrics_address.hpp"
#include "store/base/error.hpp"

namespace weightfs::fs {
namespace {

using namespace std::chrono_literals;

TEST(MetricsText, AFamilyHasItsHelpItsTypeAndItsSamples) {
  MetricsText text;
  text.gauge("weightfs_a", "What it is.");
  text.add({{"x", "1"}, {"y", "2"}}, std::uint64_t{7});
  text.counter("weightfs_b_total", "Another.");
  text.add(0.25);
  text.gauge("weightfs_c", "None.");
  EXPECT_EQ(text.text(),
            "# HELP weightfs_a What it is.\n# TYPE weightfs_a gauge\n"
            "weightfs_a{x=\"1\",y=\"2\"} 7\n"
            "# HELP weightfs_b_total Another.\n# TYPE weightfs_b_total counter\n"
            "weightfs_b_total 0.25\n"
            "# HELP weightfs_c None.\n# TYPE weightfs_c gauge\n");
}

TEST(MetricsText, NoLabelCanForgeALine) {
  MetricsText text;
  text.gauge("weightfs_a", "A.");
  text.add({{"x", "q\"} 1\nforged 2\\\xff"}}, std::uint64_t{3});
  EXPECT_EQ(text.text(),
            "# HELP weightfs_a A.\n# TYPE weightfs_a gauge\n"
            "weightfs_a{x=\"q\\\"} 1\\\\x0aforged 2\\\\x5c\\\\xff\"} 3\n");
}

TEST(MetricsText, AHistogramAddsUp) {
  TimeHistogram times;
  times.add(1ms);  // a bound is in its bucket
  times.add(20ms);
  times.add(2000s);  // beyond the last one
  times.add(-1s);    // a clock that was set back
  MetricsText text;
  text.histogram("weightfs_t_seconds", "T.");
  text.add({{"phase", "plan"}}, times);
  const std::string all = text.text();
  EXPECT_NE(all.find("weightfs_t_seconds_bucket{phase=\"plan\",le=\"0.001\"} 2\n"),
            std::string::npos)
      << all;
  EXPECT_NE(all.find("{phase=\"plan\",le=\"0.01\"} 2\n"), std::string::npos) << all;
  EXPECT_NE(all.find("{phase=\"plan\",le=\"0.03\"} 3\n"), std::string::npos) << all;
  EXPECT_NE(all.find("{phase=\"plan\",le=\"1000\"} 3\n"), std::string::npos) << all;
  EXPECT_NE(all.find("{phase=\"plan\",le=\"+Inf\"} 4\n"), std::string::npos) << all;
  EXPECT_NE(all.find("weightfs_t_seconds_sum{phase=\"plan\"} 2000.021\n"), std::string::npos)
      << all;
  EXPECT_NE(all.find("weightfs_t_seconds_count{phase=\"plan\"} 4\n"), std::string::npos) << all;
}

TEST(MetricsAddress, IsAnIpAndAPortOrASocket) {
  EXPECT_EQ(parse_metrics_address("127.0.0.1:9090"),
            (MetricsAddress{"", "127.0.0.1", false, 9090}));
  EXPECT_EQ(parse_metrics_address("[::1]:0"), (MetricsAddress{"", "::1", true, 0}));
  EXPECT_EQ(parse_metrics_address("unix:/run/x"), (MetricsAddress{"/run/x", "", false, 0}));
  EXPECT_TRUE(parse_metrics_address("unix:x").socket.is_absolute());
  for (const char* const same : {"127.0.0.1:9090", "[::1]:0", "unix:/run/x"}) {
    EXPECT_EQ(to_string(parse_metrics_address(same)), same);
  }
}

TEST(MetricsAddress, RefusesWhatIsNone) {
  for (const char* const bad :
       {"", ":", "9090", ":9090", "localhost:9090", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536",
        "127.0.0.1:-1", "::1:9090", "[::1]", "[127.0.0.1]:1", "unix:", "unix:/run/",
        "http://127.0.0.1:9090"}) {
    EXPECT_THROW(parse_metrics_address(bad), Error) << bad;
  }
}

}  // namespace
}  // namespace weightfs::fs
