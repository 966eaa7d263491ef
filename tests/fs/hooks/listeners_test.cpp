#include "fs/hooks/listeners.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <nlohmann/json.hpp>

#include "fs/doctor/hooks.hpp"
#include "store/os/file.hpp"

namespace weightfs::fs {
namespace {

using Listening = std::vector<Listener>;

const Listener kLocal{"127.0.0.1", 8000, true}, kAnywhere{"0.0.0.0", 8000, false};

bool has_words(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

TEST(Listeners, ReadsTheKernelsTable) {
  const std::string text =
      "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"
      "   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0\n"
      "   1: 00000000:1F41 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0\n"
      "   2: 0100007F:9C40 0100007F:1F40 01 00000000:00000000 00:00000000 00000000     0\n"
      "   3: nonsense\n";
  EXPECT_EQ(parse_listeners(text),
            Listening({{"127.0.0.1", 8000, true}, {"0.0.0.0", 8001, false}}));
}

TEST(Listeners, ReadsTheOneOfIpv6) {
  const std::string zero(32, '0');
  const std::string rest = " " + zero + ":0000 0A 0\n";
  const std::string text = "0: " + zero + ":1F40" + rest +
                           "1: 00000000000000000000000001000000:1F40" + rest +
                           "2: 0000000000000000FFFF00000100007F:1F40" + rest +
                           "3: 0000000000000000FFFF00000100000A:1F40" + rest;
  EXPECT_EQ(parse_listeners(text), Listening({{"::", 8000, false},
                                              {"::1", 8000, true},
                                              {"::ffff:127.0.0.1", 8000, true},
                                              {"::ffff:10.0.0.1", 8000, false}}));
}

TEST(Listeners, FindsASocketOfThisProcess) {
  for (const std::uint32_t address : {INADDR_LOOPBACK, INADDR_ANY}) {
    const File socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(address);
    ASSERT_EQ(bind(socket.fd(), reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
    ASSERT_EQ(listen(socket.fd(), 1), 0);
    socklen_t size = sizeof name;
    getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&name), &size);
    bool is_found = false;
    for (const Listener& listener : read_listeners()) {
      if (listener.port != ntohs(name.sin_port)) continue;
      is_found = true;
      EXPECT_EQ(listener.is_loopback, address == INADDR_LOOPBACK) << listener.address;
    }
    EXPECT_TRUE(is_found);
  }
}

TEST(Exposure, AnEngineOnLoopbackAloneIsFine) {
  EXPECT_EQ(exposure_of("vllm", "http://127.0.0.1:8000", {kLocal}), "");
  EXPECT_EQ(exposure_of("vllm", "http://localhost:8000", {kLocal}), "");
  EXPECT_EQ(exposure_of("vllm", "http://[::1]:8000", {{"::1", 8000, true}}), "");
  EXPECT_EQ(exposure_of("vllm", "http://127.0.0.1:8000", {{"0.0.0.0", 22, false}}), "");
}

TEST(Exposure, OneThatListensBeyondIsWarnedOf) {
  const std::string warning = exposure_of("vllm", "http://127.0.0.1:8000", {kLocal, kAnywhere});
  EXPECT_TRUE(has_words(warning, "listens on port 8000 at 0.0.0.0")) << warning;
  EXPECT_TRUE(has_words(warning, "at 0.0.0.0")) << warning;
  EXPECT_TRUE(has_words(warning, "--host 127.0.0.1")) << warning;
  EXPECT_TRUE(has_words(warning, "--api-key does not guard that")) << warning;
}

TEST(Exposure, OneThatIsReachedOverTheNetworkIsWarnedOf) {
  EXPECT_TRUE(has_words(exposure_of("sglang", "http://10.0.0.5:30000", {}), "not on this host's"));
  EXPECT_TRUE(has_words(exposure_of("vllm", "http://gpu-7:8000", {}), "not on this host's"));
}

TEST(HookWarnings, AreThoseOfEnginesWithDevelopmentEndpoints) {
  const Json exec{{"type", "exec"}, {"url", nullptr}};
  const Json http{{"type", "http"}, {"url", "http://10.0.0.5:1"}};
  const Json vllm{{"type", "vllm"}, {"url", "http://127.0.0.1:8000"}};
  const Json status{{"hooks", {exec, http, vllm, vllm}}};
  const auto warnings = hook_warnings(status, {kAnywhere});
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_TRUE(has_words(warnings[0], "port 8000"));
  EXPECT_EQ(hook_warnings(status, {kLocal}).size(), 0U);
  EXPECT_EQ(hook_warnings(Json{{"version", 1}}, {kAnywhere}).size(), 0U);
}

}  // namespace
}  // namespace weightfs::fs
