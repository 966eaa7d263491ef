#include "fs/cache/cache_advice.hpp"

#include <gtest/gtest.h>

#include "fs/client/status_lines.hpp"
#include "fs/runtime/status.hpp"
#include "store/base/error.hpp"

namespace weightfs::fs {
namespace {

using CacheFinding = Finding::State;
using WarmingSaid = CacheState::Warming;

constexpr std::uint64_t kAdviceGib = 1u << 30;

CacheState warm_cache() {
  return {.version = 42,
          .residency = {4 * kAdviceGib, 4 * kAdviceGib, true},
          .room = MemoryRoom{8 * kAdviceGib, 16 * kAdviceGib, ""},
          .warming = WarmingSaid::idle,
          .error = {}};
}

Finding finding_about(const std::vector<Finding>& findings, const std::string& what) {
  for (const Finding& finding : findings) {
    if (finding.what == what) return finding;
  }
  ADD_FAILURE() << "no finding about " << what;
  return {};
}

bool finding_says(const Finding& finding, const std::string& part) {
  return finding.text.find(part) != std::string::npos;
}

TEST(CacheAdvice, OfAWarmVersionNothingIsToBeDone) {
  const auto findings = advise(warm_cache(), "passthrough");
  for (const Finding& finding : findings)
    EXPECT_EQ(finding.state, CacheFinding::good) << finding.text;
  EXPECT_EQ(findings.front().what, "page cache");
  EXPECT_EQ(findings.front().text, "100 % of version 42 (4.0 GiB)");
  EXPECT_TRUE(finding_says(finding_about(findings, "memory"),
                           "room for 8.0 GiB (the host's memory, 16.0 GiB)"));
}

TEST(CacheAdvice, OfAColdVersionTellsWhy) {
  CacheState cache = warm_cache();
  cache.residency.cached_bytes = kAdviceGib;
  const std::pair<WarmingSaid, const char*> cases[] = {
      {WarmingSaid::idle, "25 % of version 42 (4.0 GiB)"},
      {WarmingSaid::reading, "weightfs is prefetching the rest"},
      {WarmingSaid::no_room, "there is no room for the whole version"},
      {WarmingSaid::off, "--warm off"},
  };
  for (const auto& [warming, part] : cases) {
    cache.warming = warming;
    const auto findings = advise(cache, "passthrough");
    EXPECT_EQ(finding_about(findings, "page cache").state, CacheFinding::note);
    EXPECT_TRUE(finding_says(finding_about(findings, "page cache"), part))
        << finding_about(findings, "page cache").text;
    EXPECT_TRUE(
        finding_says(finding_about(findings, "vLLM"), "--safetensors-load-strategy prefetch"));
    EXPECT_TRUE(finding_says(finding_about(findings, "SGLang"), "--weight-loader-disable-mmap"));
  }
  cache.warming = WarmingSaid::failed;
  cache.error = "the disk is broken";
  EXPECT_EQ(finding_about(advise(cache, "passthrough"), "page cache").state, CacheFinding::warning);
  EXPECT_TRUE(finding_says(finding_about(advise(cache, "passthrough"), "page cache"),
                           "the disk is broken"));
}

TEST(CacheAdvice, WhereTheDaemonAnswersPageFaultsAreSlowAlsoWhenItIsWarm) {
  for (const char* mode : {"passthrough", "bind", "directory"}) {
    EXPECT_EQ(finding_about(advise(warm_cache(), mode), "vLLM").state, CacheFinding::good) << mode;
  }
  const Finding vllm = finding_about(advise(warm_cache(), "daemon"), "vLLM");
  EXPECT_EQ(vllm.state, CacheFinding::note);
  EXPECT_TRUE(finding_says(vllm, "--safetensors-load-strategy prefetch: the daemon"));
}

TEST(CacheAdvice, SaysWhichHomeOfImagesSuitsTheHost) {
  CacheState cache = warm_cache();
  EXPECT_TRUE(finding_says(finding_about(advise(cache, "passthrough"), "images"),
                           "a reader's mount with --images memory would fit: it takes 8.0 GiB"));
  cache.room = MemoryRoom{8 * kAdviceGib - 1, 16 * kAdviceGib, ""};
  EXPECT_TRUE(finding_says(finding_about(advise(cache, "passthrough"), "images"),
                           "two versions do not fit into memory"));
}

TEST(CacheAdvice, AVersionInMemoryFitsWhateverIsFree) {
  CacheState cache = warm_cache();
  cache.is_in_memory = true;
  cache.room = MemoryRoom{1, 16 * kAdviceGib, ""};
  const auto findings = advise(cache, "passthrough");
  EXPECT_EQ(finding_about(findings, "memory").state, CacheFinding::good);
  EXPECT_EQ(finding_about(findings, "vLLM").state, CacheFinding::good);
  EXPECT_TRUE(finding_says(finding_about(findings, "images"), "in memory: 8.0 GiB"));
  const Json status{{"cache", cache_json(cache, "passthrough")}};
  EXPECT_TRUE(advise_here(status, MemoryRoom{1, 2, "/engine"}).empty());
}

TEST(CacheAdvice, WarnsOfAVersionThatDoesNotFit) {
  CacheState cache = warm_cache();
  cache.room = MemoryRoom{4 * kAdviceGib - 1, 5 * kAdviceGib, "/engine"};
  const auto findings = advise(cache, "passthrough");
  EXPECT_EQ(finding_about(findings, "memory").state, CacheFinding::warning);
  EXPECT_TRUE(
      finding_says(finding_about(findings, "memory"), "the limit of cgroup /engine, 5.0 GiB"));
  EXPECT_TRUE(finding_says(finding_about(findings, "vLLM"), "--safetensors-load-strategy eager"));
  EXPECT_NE(advice_text(findings).find("WARNING: version 42"), std::string::npos);
  cache.room.reset();
  EXPECT_EQ(finding_about(advise(cache, "passthrough"), "memory").state, CacheFinding::note);
}

TEST(CacheAdvice, WithoutAVersionThereIsNothingToSayAboutEngines) {
  const auto findings = advise({}, "passthrough");
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].state, CacheFinding::note);
}

TEST(CacheAdvice, ASampleSaysThatItIsOne) {
  CacheState cache = warm_cache();
  cache.residency.is_exact = false;
  EXPECT_EQ(advise(cache, "passthrough").front().text, "about 100 % of version 42 (4.0 GiB)");
}

DaemonState status_with(const CacheState& cache) {
  DaemonState state;
  state.mount_point = "/mnt/w";
  state.store = "/s";
  state.serving.mode = "passthrough";
  state.coder = {"avx2", std::nullopt, ""};
  state.cache = cache;
  return state;
}

TEST(CacheAdvice, ComesBackFromTheStatusAsItWas) {
  CacheState cache = warm_cache();
  cache.room = MemoryRoom{kAdviceGib, 2 * kAdviceGib, "/engine"};
  const Json status = Json::parse(status_text(status_with(cache), 1000));
  EXPECT_EQ(status["cache"]["version"], 42);
  EXPECT_EQ(status["cache"]["percent"], 100);
  EXPECT_EQ(status["cache"]["fits"], false);
  EXPECT_EQ(status["cache"]["warming"], "idle");
  EXPECT_EQ(status["cache"]["room"],
            Json({{"bytes", kAdviceGib}, {"limit", 2 * kAdviceGib}, {"cgroup", "/engine"}}));
  const auto said = advise(cache, "passthrough");
  const auto found = findings_of(status);
  ASSERT_EQ(found.size(), said.size());
  for (std::size_t i = 0; i < said.size(); i++) {
    EXPECT_EQ(found[i].what, said[i].what);
    EXPECT_EQ(found[i].state, said[i].state);
    EXPECT_EQ(found[i].text, said[i].text);
  }
  EXPECT_TRUE(findings_of(Json::object()).empty()) << "an older daemon's";
}

TEST(CacheAdvice, IsAmongTheStatusLines) {
  const auto lines = [](const CacheState& cache) {
    return status_lines(Json::parse(status_text(status_with(cache), 1000)));
  };
  EXPECT_NE(lines(warm_cache()).find("page cache   100 % of version 42 (4.0 GiB)\n"),
            std::string::npos)
      << lines(warm_cache());
  EXPECT_EQ(lines(warm_cache()).find("warning"), std::string::npos);
  CacheState cache = warm_cache();
  cache.room = MemoryRoom{kAdviceGib, 2 * kAdviceGib, ""};
  EXPECT_NE(lines(cache).find("warning      version 42 (4.0 GiB) does not fit"), std::string::npos)
      << lines(cache);
}

TEST(CacheAdvice, WarnsWhereDoctorRunsInASmallerPlace) {
  const Json status = Json::parse(status_text(status_with(warm_cache()), 1000));
  EXPECT_TRUE(advise_here(status, MemoryRoom{4 * kAdviceGib, 8 * kAdviceGib, ""}).empty());
  EXPECT_TRUE(advise_here(status, std::nullopt).empty());
  const MemoryRoom small{kAdviceGib, 2 * kAdviceGib, "/engine"};
  ASSERT_EQ(advise_here(status, small).size(), 1u);
  EXPECT_EQ(advise_here(status, small)[0].state, CacheFinding::warning);
  CacheState cache = warm_cache();
  cache.room = small;
  EXPECT_TRUE(advise_here(Json::parse(status_text(status_with(cache), 1000)), small).empty())
      << "the mount has said it";
}

}  // namespace
}  // namespace weightfs::fs
