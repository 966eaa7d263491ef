#include "fs/hooks/hook_options.hpp"

#include <gtest/gtest.h>

#include "store/base/error.hpp"
#include "store/os/child_process.hpp"

namespace weightfs::fs {
namespace {

using std::chrono::milliseconds;
using Words = std::vector<std::string>;

std::string hook_problem(std::string_view text) {
  try {
    parse_hook(text);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid) << text;
    return error.what();
  }
}

void expect_refused(std::string_view text, std::string_view words) {
  const std::string problem = hook_problem(text);
  EXPECT_NE(problem.find(words), std::string::npos) << text << ": " << problem;
}

TEST(HookSpecs, AnEngineHasAUrlAndKeys) {
  const HookOptions spec =
      parse_hook("vllm=http://127.0.0.1:8000/,every=0.5,timeout=60,token-file=/run/token");
  EXPECT_EQ(spec.type, HookType::vllm);
  EXPECT_EQ(spec.url, "http://127.0.0.1:8000");
  EXPECT_EQ(spec.every, milliseconds(500));
  EXPECT_EQ(spec.timeout, milliseconds(60'000));
  EXPECT_EQ(spec.token_file, "/run/token");
  EXPECT_EQ(spec.target(), "http://127.0.0.1:8000");
}

TEST(HookSpecs, VllmIsInPlaceAndComputesRunningRequestsAnewUnlessToldOtherwise) {
  EXPECT_TRUE(parse_hook("vllm=http://h:1").is_in_place);
  EXPECT_FALSE(parse_hook("vllm=http://h:1").keeps_running);
  EXPECT_FALSE(parse_hook("vllm=http://h:1,kv=reset").keeps_running);
  const HookOptions spec = parse_hook("vllm=http://h:1,inplace=no,kv=keep");
  EXPECT_FALSE(spec.is_in_place);
  EXPECT_TRUE(spec.keeps_running);
  expect_refused("vllm=http://h:1,kv=no", "kv: 'no' is not one of reset and keep");
  expect_refused("vllm=http://h:1,reset=no", "token-file, inplace and kv");
  expect_refused("sglang=http://h:1,inplace=no", "inplace: sglang has no such key");
  expect_refused("vllm-lora=http://h:1,name=a,kv=keep", "kv: vllm-lora has no such key");
}

TEST(HookSpecs, TheDefaultsAreFiveSecondsAndAQuarterOfAnHour) {
  const HookOptions spec = parse_hook("sglang=https://engine:30000");
  EXPECT_EQ(spec.type, HookType::sglang);
  EXPECT_EQ(spec.every, milliseconds(5000));
  EXPECT_EQ(spec.timeout, milliseconds(900'000));
  EXPECT_TRUE(spec.token_file.empty());
}

TEST(HookSpecs, ALoraAdapterHasAName) {
  const HookOptions spec = parse_hook("vllm-lora=http://h:1,name=mine,inplace=no,reset=no");
  EXPECT_EQ(spec.type, HookType::vllm_lora);
  EXPECT_EQ(spec.name, "mine");
  EXPECT_FALSE(spec.is_in_place);
  EXPECT_FALSE(spec.is_reset);
  EXPECT_EQ(spec.target(), "http://h:1 (mine)");
  expect_refused("vllm-lora=http://h:1", "needs the adapter's name");
  expect_refused("vllm=http://h:1,name=mine", "name: vllm has no such key");
}

TEST(HookSpecs, WhatIsShownHasNoSecrets) {
  const HookOptions spec = parse_hook("http=http://h:1/weights?key=secret");
  EXPECT_EQ(spec.url, "http://h:1/weights?key=secret");
  EXPECT_EQ(spec.target(), "http://h:1/weights");
  EXPECT_EQ(spec.shown_url(), "http://h:1/weights");
  EXPECT_EQ(parse_hook("exec=/bin/x --token secret").target(), "/bin/x");
  expect_refused("vllm=http://user:secret@h:1", "token-file");
  EXPECT_EQ(hook_problem("vllm=http://user:secret@h:1").find("secret"), std::string::npos);
}

TEST(HookSpecs, OptionsThatDoNotNameAnotherEngineAreTheSameHook) {
  const auto identity = [](const char* text) { return parse_hook(text).identity(); };
  EXPECT_EQ(identity("vllm=http://h:1"), "vllm=http://h:1");
  EXPECT_EQ(identity("vllm=http://h:1/,timeout=60,kv=keep,inplace=no,token-file=/t"),
            identity("vllm=http://h:1"));
  EXPECT_EQ(identity("vllm-lora=http://h:1,reset=no,name=a"), "vllm-lora=http://h:1,name=a");
  EXPECT_NE(identity("vllm=http://h:1"), identity("sglang=http://h:1"));
  EXPECT_NE(identity("http=http://h:1/w?a=1"), identity("http=http://h:1/w?a=2"));
  EXPECT_NE(identity("exec=/bin/x a"), identity("exec=/bin/x b"));
}

TEST(HookSpecs, TwoHooksOfOneEngineHaveOneOrigin) {
  EXPECT_EQ(parse_hook("vllm=http://h:1").origin(),
            parse_hook("vllm-lora=http://h:1,name=a").origin());
  EXPECT_EQ(parse_hook("http=http://h:1/a?b").origin(), "http://h:1");
  EXPECT_NE(parse_hook("vllm=http://h:1").origin(), parse_hook("vllm=http://h:2").origin());
  for (const char* host : {"127.0.0.1", "localhost", "[::1]"}) {
    const std::string url = "http://" + std::string(host);
    EXPECT_EQ(parse_hook("vllm=" + url + ":8000/x").origin(), "http://localhost:8000");
    EXPECT_EQ(parse_hook("vllm=" + url).origin(), "http://localhost:80");
  }
  EXPECT_NE(parse_hook("vllm=http://127.0.0.2:1").origin(),
            parse_hook("vllm=http://127.0.0.1:1").origin());
}

TEST(HookSpecs, RefusalsSayWhatWouldHaveBeenRight) {
  expect_refused("", "is not a kind of hook; expected vllm=URL");
  expect_refused("tgi=http://h:1", "'tgi' is not a kind of hook");
  expect_refused("vllm", "expected http://HOST:PORT");
  expect_refused("vllm=127.0.0.1:8000", "expected http://HOST:PORT");
  expect_refused("vllm=http://:8000", "has no host");
  expect_refused("vllm=http://h:99999", "65535");
  expect_refused("vllm=http://h h:1", "must not have spaces");
  expect_refused("vllm=http://h:1,poll=1", "poll: vllm has no such key");
  expect_refused("vllm=http://h:1,every=soon", "every: ");
  expect_refused("vllm=http://h:1,token-file=key", "not an absolute path");
  expect_refused("exec=", "absolute path");
  expect_refused("exec=reload.sh", "absolute path");
  expect_refused("exec=/bin/x 'a", "not closed");
}

TEST(HookSpecs, EverythingBehindExecIsTheCommand) {
  EXPECT_EQ(parse_hook("exec=/bin/x a,every=1").argv, Words({"/bin/x", "a,every=1"}));
}

TEST(SplitCommand, KnowsQuotesAndNothingElse) {
  EXPECT_EQ(split_command("/bin/x  a\tb\n"), Words({"/bin/x", "a", "b"}));
  EXPECT_EQ(split_command("x 'a b' \"c d\" e\\ f"), Words({"x", "a b", "c d", "e f"}));
  EXPECT_EQ(split_command("x '' \"\""), Words({"x", "", ""}));
  EXPECT_EQ(split_command("x 'a\\b' \"a\\\"b\""), Words({"x", "a\\b", "a\"b"}));
  EXPECT_EQ(split_command("x --a='b c'd"), Words({"x", "--a=b cd"}));
  EXPECT_EQ(split_command("x $HOME;rm *|y"), Words({"x", "$HOME;rm", "*|y"}));
  EXPECT_EQ(split_command("  "), Words());
}

TEST(UrlPlaces, HostAndPort) {
  EXPECT_EQ(place_of_url("http://127.0.0.1:8000/x").host, "127.0.0.1");
  EXPECT_EQ(place_of_url("http://127.0.0.1:8000/x").port, 8000);
  EXPECT_EQ(place_of_url("http://[::1]:81").host, "::1");
  EXPECT_EQ(place_of_url("http://[::1]:81").port, 81);
  EXPECT_EQ(place_of_url("http://[::1]/").port, 80);
  EXPECT_EQ(place_of_url("https://h").port, 443);
}

}  // namespace
}  // namespace weightfs::fs
