#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>
#include <vector>

#include "fs/report/bar_text.hpp"
#include "fs/report/log_graph.hpp"
#include "fs/report/report_page.hpp"
#include "fs/report/top_frame.hpp"
#include "tests/support/contains.hpp"

namespace weightfs::fs {
namespace {

using test::contains;

std::size_t characters_of(const std::string& text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
}

/// The newest first.
std::vector<VersionPoint> run_of(std::uint64_t count) {
  std::vector<VersionPoint> versions;
  for (std::uint64_t number = count; number >= 1; number--) {
    VersionPoint version;
    version.number = number;
    version.time = 1'790'000'000 + static_cast<std::int64_t>(60 * number);
    version.elements = 1'000'000;
    version.version_bytes = 2'000'000;
    version.has_delta = number > 1;
    if (number > 1) {
      version.changed = number * 1'000;
      version.delta_bytes = number * 1'000;
    } else {
      version.snapshot_bytes = 2'000'000;
    }
    versions.push_back(version);
  }
  return versions;
}

TEST(BarText, FillsItsColumns) {
  EXPECT_EQ(bar_text(0, 4, true), "    ");
  EXPECT_EQ(bar_text(1, 4, false), "####");
  EXPECT_EQ(bar_text(0.5, 4, false), "##  ");
  EXPECT_EQ(bar_text(0.5, 4, true), "\u2588\u2588  ");
  EXPECT_EQ(bar_text(0.00001, 4, true), "\u258F   ");  // not nothing
  EXPECT_EQ(bar_text(0.00001, 4, false), "-   ");
  EXPECT_EQ(bar_text(7, 4, false), "###+");
  EXPECT_EQ(bar_text(1, 0, false), "");
  for (int i = 0; i <= 1000; i++) {
    EXPECT_EQ(characters_of(bar_text(i / 1000.0, 13, true)), 13u) << i;
    EXPECT_EQ(bar_text(i / 1000.0, 13, false).size(), 13u) << i;
  }
}

TEST(BarText, KnowsTheLocale) {
  const auto with = [](const char* all, const char* lang) {
    setenv("LC_ALL", all, 1);
    setenv("LC_CTYPE", "", 1);
    setenv("LANG", lang, 1);
    return shows_utf8();
  };
  const std::string all = std::getenv("LC_ALL") ? std::getenv("LC_ALL") : "";
  const std::string type = std::getenv("LC_CTYPE") ? std::getenv("LC_CTYPE") : "";
  const std::string lang = std::getenv("LANG") ? std::getenv("LANG") : "";
  EXPECT_TRUE(with("", "en_US.UTF-8"));
  EXPECT_TRUE(with("C.utf8", "C"));
  EXPECT_FALSE(with("", "C"));
  EXPECT_FALSE(with("C", "en_US.UTF-8"));
  EXPECT_FALSE(with("", ""));
  setenv("LC_ALL", all.c_str(), 1);
  setenv("LC_CTYPE", type.c_str(), 1);
  setenv("LANG", lang.c_str(), 1);
}

TEST(LogGraph, IsNeverWiderThanTheTerminal) {
  const auto versions = run_of(12);
  for (std::size_t columns = 1; columns <= 200; columns++) {
    for (const bool is_utf8 : {false, true}) {
      std::istringstream lines(log_graph(versions, columns, is_utf8));
      int count = 0;
      for (std::string line; std::getline(lines, line); count++) {
        EXPECT_LE(characters_of(line), columns) << line;
        EXPECT_EQ(line.find('\x1b'), line.npos);
        EXPECT_TRUE(is_utf8 || characters_of(line) == line.size()) << line;
      }
      EXPECT_EQ(count, 13);
    }
  }
}

TEST(LogGraph, BarsAreOfDeltasAndCutWhereASnapshotIsLonger) {
  EXPECT_EQ(log_graph(run_of(3), 52, false),
            "VERSION  UPLOADED               CHANGED\n"
            "      3   2.9 KiB ############   0.30 % ############\n"
            "      2   2.0 KiB ########       0.20 % ########\n"
            "      1   1.9 MiB ###########+        -\n");
  EXPECT_EQ(log_graph({}, 80, false), "VERSION  UPLOADED                             CHANGED\n");
}

// ---- top ----

Json mount_status(std::uint64_t version, std::uint64_t fetched, std::uint64_t pid = 7) {
  const Json status{{"mountpoint", "/mnt/w"},
                    {"pid", pid},
                    {"version", version},
                    {"lag_versions", 2},
                    {"lag_seconds", 31},
                    {"health", "degraded: an engine"},
                    {"state", "hook-failed"},
                    {"serve", {{"open_passthrough", 3}, {"open_daemon", 1}, {"daemon_reads", 10}}},
                    {"bytes", {{"fetched", fetched}}},
                    {"pins", {{{"session", nullptr}}, {{"session", "a"}}}},
                    {"hooks", {{{"reported", 41}, {"state", "telling"}}}}};
  return Json::parse(status.dump());  // as it is read: numbers are unsigned
}

TEST(TopFrame, HasRatesOfTwoReadings) {
  const TopReading before{{mount_status(42, 1'000)}, 1}, now{{mount_status(42, 5'097)}, 3};
  EXPECT_EQ(top_frame(now, before, 0, 0),
            "MOUNT POINT  VERSION       LAG  HEALTH    STATE          FETCHED  READS  OPEN  PASSES"
            "  HOOKS\n"
            "/mnt/w            42  2 (31 s)  degraded  hook-failed  2.0 KiB/s    0/s     4       1"
            "  41 telling\n");
  const TopReading other{{mount_status(42, 1'000, 8)}, 1};  // it was started again
  EXPECT_FALSE(contains(top_frame(now, other, 0, 0), "/s"));
  EXPECT_FALSE(contains(top_frame(other, now, 0, 0), "/s"));
}

TEST(TopFrame, FitsWhateverADaemonSays) {
  Json odd = {{"mountpoint", "/mnt/\x1b[2J"},
              {"pid", "x"},
              {"bytes", 3},
              {"hooks", {1, "a"}},
              {"pins", {2}},
              {"serve", {}},
              {"health", 1}};
  const TopReading now{{odd, Json(), mount_status(1, 1)}, 1};
  EXPECT_EQ(top_frame(now, {}, 0, 0).find('\x1b'), std::string::npos);
  for (std::size_t columns = 1; columns < 120; columns++) {
    const std::string frame = top_frame(now, {}, columns, 2);
    EXPECT_EQ(std::ranges::count(frame, '\n'), 2);
    std::istringstream lines(frame);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), columns);
  }
  EXPECT_EQ(top_frame({}, {}, 80, 24), "nothing is mounted\n");
}

// ---- the page ----

TEST(ReportPageTest, EscapesWhateverItIsGiven) {
  EXPECT_EQ(escape_html("<b a=\"x\" c='y'>&"), "&lt;b a=&quot;x&quot; c=&#39;y&#39;&gt;&amp;");
  EXPECT_EQ(escape_html("\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80"),
            "\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80");
  EXPECT_EQ(escape_html("a\x1b\xFF\xC0\xAF\xED\xA0\x80"
                        "b\xC3"),
            "a\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDb\uFFFD");
}

TEST(ReportPageTest, HostileTagsStayText) {
  auto versions = run_of(3);
  std::ranges::reverse(versions);
  versions[2].tag = "\"><script>alert(1)</script><img src=x onerror=alert(1)>'";
  const std::string html = report_page({.url = "file:///<runs>&\"a\"",
                                        .repository = std::string(32, 'a'),
                                        .made = 1'790'000'000,
                                        .versions = versions,
                                        .newest = 3});
  EXPECT_FALSE(contains(html, "<script"));
  EXPECT_FALSE(contains(html, "<img"));
  EXPECT_FALSE(contains(html, "<runs>"));
  EXPECT_TRUE(contains(html, "&lt;script&gt;alert(1)"));
  for (const char* other : {"http://", "https://", "href=", "url(", "@import"}) {
    EXPECT_FALSE(contains(html, other)) << other;
  }
  EXPECT_TRUE(contains(html, "prefers-color-scheme: dark"));
  EXPECT_TRUE(contains(html, "Content-Security-Policy"));
}

TEST(ReportPageTest, IsBoundedForManyVersions) {
  auto versions = run_of(100'000);
  std::ranges::reverse(versions);
  const std::string html = report_page({.url = "file:///b",
                                        .repository = std::string(32, 'a'),
                                        .made = 0,
                                        .versions = versions,
                                        .newest = 100'000});
  EXPECT_LT(html.size(), 1u << 20);
  EXPECT_TRUE(contains(html, "99000 older versions are not in this table"));
  EXPECT_TRUE(contains(html, "version 100000: "));
}

TEST(ReportPageTest, OfNoVersions) {
  const std::string html = report_page({.url = "file:///b", .repository = "", .versions = {}});
  EXPECT_TRUE(contains(html, "There are no versions yet."));
  EXPECT_TRUE(html.ends_with("</html>\n"));
}

}  // namespace
}  // namespace weightfs::fs
