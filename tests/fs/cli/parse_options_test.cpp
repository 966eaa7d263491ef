#include "fs/cli/parse_options.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "fs/cli/command_table.hpp"
#include "fs/cli/options.hpp"
#include "kernels/dispatch/variant_table.hpp"
#include "store/os/child_process.hpp"
#include "tests/support/support.hpp"

namespace weightfs::fs {
namespace {

using test::TempDir;
using test::write_text;

/// Runs every test with no WEIGHTFS_* in the environment and with a home of its own.
class OptionsTest : public testing::Test {
 protected:
  OptionsTest() {
    std::vector<std::string> names;
    for (char** item = environ; *item != nullptr; item++) {
      const std::string entry(*item);
      if (entry.starts_with("WEIGHTFS_")) names.push_back(entry.substr(0, entry.find('=')));
    }
    for (const std::string& name : names) unset(name);
    set("XDG_CONFIG_HOME", (home_ / "config").string());
  }
  ~OptionsTest() override {
    for (const auto& [name, value] : old_) {
      if (value) {
        setenv(name.c_str(), value->c_str(), 1);
      } else {
        unsetenv(name.c_str());
      }
    }
  }

  void set(const std::string& name, const std::string& value) {
    remember(name);
    setenv(name.c_str(), value.c_str(), 1);
  }
  void unset(const std::string& name) {
    remember(name);
    unsetenv(name.c_str());
  }
  void write_config(std::string_view text) {
    write_text(home_ / "config" / "weightfs" / "config.toml", text);
  }

  static Options parse(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "weightfs");
    std::vector<const char*> argv;
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    return parse_options(static_cast<int>(argv.size()), argv.data());
  }
  /// The options of a command line that must be right.
  static Options parsed(const std::vector<std::string>& arguments) {
    Options options = parse(arguments);
    EXPECT_EQ(options.error, "");
    return options;
  }
  /// What is wrong with a command line.
  static std::string wrong(const std::vector<std::string>& arguments) {
    return parse(arguments).error;
  }

  TempDir home_;

 private:
  void remember(const std::string& name) {
    const char* value = std::getenv(name.c_str());
    old_.try_emplace(name, value == nullptr ? std::nullopt : std::optional<std::string>(value));
  }
  std::map<std::string, std::optional<std::string>> old_;
};

TEST_F(OptionsTest, WhatWasGivenCanBeGivenAgain) {
  set("WEIGHTFS_ONLY", "a*\nb c");
  write_config("pin-grace = 7");
  const Options options = parse({"mount", "--json", "--store", "here", "file:///x", "/mnt",
                                 "--foreground=no", "--read-timeout=2", "--quiet"});
  ASSERT_EQ(options.error, "");
  const std::string store = (std::filesystem::current_path() / "here").string();
  EXPECT_EQ(options.flags, (std::vector<std::string>{"--foreground=no", "--only=a*", "--only=b c",
                                                     "--read-timeout=2", "--store=" + store}));
  std::vector<std::string> again{"mount", "file:///x", "/mnt"};
  again.insert(again.end(), options.flags.begin(), options.flags.end());
  unset("WEIGHTFS_ONLY");
  EXPECT_EQ(parse(again).flags, options.flags);
  EXPECT_EQ(parse({"mount", "file:///x", "/mnt", "--writer"}).flags,
            std::vector<std::string>{"--writer"});
  set("WEIGHTFS_CONFIG", (home_ / "config/weightfs/config.toml").string());
  EXPECT_EQ(parse({"mount", "file:///x", "/mnt"}).flags.back(),
            "--config=" + (home_ / "config/weightfs/config.toml").string());
}

TEST_F(OptionsTest, ASocketIsGivenAgainForAnyDirectory) {
  const auto flags = [&](const std::string& metrics) {
    return parse({"mount", "file:///x", "/mnt", "--metrics", metrics}).flags;
  };
  const std::string socket = (std::filesystem::current_path() / "run/metrics").string();
  EXPECT_EQ(flags("unix:run/metrics"), std::vector<std::string>{"--metrics=unix:" + socket});
  EXPECT_EQ(flags("unix:/run/m"), std::vector<std::string>{"--metrics=unix:/run/m"});
  EXPECT_EQ(flags("127.0.0.1:0"), std::vector<std::string>{"--metrics=127.0.0.1:0"});
  EXPECT_NE(parse({"mount", "file:///x", "/mnt", "--metrics", "unix:"}).error, "");
}

// In the environment they may be meant for another command, or for another bucket.
TEST_F(OptionsTest, WhatTheEnvironmentSaysInVainIsNotGivenAgain) {
  set("WEIGHTFS_ANNOUNCE_EVERY", "60");
  set("WEIGHTFS_REGION", "here");
  set("WEIGHTFS_POLL", "2");
  EXPECT_EQ(parse({"mount", "file:///x", "/mnt"}).flags, std::vector<std::string>{"--poll=2"});
  const std::vector<std::string> all{"--announce", "--announce-every=60", "--poll=2",
                                     "--region=here"};
  EXPECT_EQ(parse({"mount", "s3://b/x", "/mnt", "--announce"}).flags, all);
  set("WEIGHTFS_ANNOUNCE", "no");
  EXPECT_EQ(parse({"mount", "file:///x", "/mnt"}).flags,
            (std::vector<std::string>{"--announce=no", "--poll=2"}));
}

TEST_F(OptionsTest, TakesAPartOfAVersion) {
  const std::vector<std::string> publish{"publish", "file:///b", "dir"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), publish.begin(), publish.end());
    return more;
  };
  const Options options =
      parsed(with({"--part", "2/4", "--run", "job.1", "--part-wait", "0.5", "--tag", "a"}));
  EXPECT_EQ(options.part.part, 2u);
  EXPECT_EQ(options.part.parts, 4u);
  EXPECT_EQ(options.part.run, "job.1");
  EXPECT_EQ(options.part_wait, std::chrono::milliseconds(500));
  EXPECT_EQ(parsed(with({"--part", "1/1"})).part_wait, kPartWait);
  EXPECT_EQ(parsed(with({"--part", "1/1", "--part-wait", "0"})).part_wait.count(), 0);
  for (const char* wrong : {"2", "0/4", "5/4", "1/1025", "a/b", "1/", "/1", "1/2/3"}) {
    EXPECT_FALSE(parse(with({"--part", wrong})).error.empty()) << wrong;
  }
  EXPECT_FALSE(parse(with({"--run", "job.1"})).error.empty()) << "it would do nothing";
  EXPECT_FALSE(parse(with({"--part-wait", "5"})).error.empty()) << "it would do nothing";
}

TEST_F(OptionsTest, TakesAPartOfAWritersMount) {
  const auto with = [&](std::vector<std::string> more) {
    const std::vector<std::string> mount{"mount", "file:///b", "/mnt"};
    more.insert(more.begin(), mount.begin(), mount.end());
    return more;
  };
  const Options options =
      parsed(with({"--writer", "--part", "2/4", "--run", "job.1", "--part-wait", "0.5"}));
  EXPECT_EQ(options.part.part, 2u);
  EXPECT_EQ(options.part.parts, 4u);
  EXPECT_EQ(options.part.run, "job.1");
  EXPECT_EQ(options.part_wait, std::chrono::milliseconds(500));
  EXPECT_EQ(parsed(with({"--writer", "--part", "1/1"})).part_wait, kPartWait);
  for (const std::vector<std::string>& wrong :
       {std::vector<std::string>{"--part", "2/4"},
        {"--writer", "--part", "5/4"},
        {"--writer", "--run", "job.1"},
        {"--writer", "--part-wait", "5"},
        {"--writer", "--part", "1/2", "--part-wait", "0"}}) {
    EXPECT_FALSE(parse(with(wrong)).error.empty()) << wrong.back();
  }
}

TEST_F(OptionsTest, TakesEveryOptionOfPublish) {
  const Options options =
      parsed({"publish", "file:///b", "dir", "--tag", "step-1", "--meta", "a=1", "--meta=b=x=y",
              "--include", "*.pt", "--include=sub/*.bin", "--snapshot", "--rebase", "--store", "/s",
              "--gpu", "1", "--json", "--quiet"});
  EXPECT_EQ(options.command, Command::publish);
  EXPECT_EQ(options.target, "file:///b");
  EXPECT_EQ(options.directory, "dir");
  EXPECT_EQ(options.publish.tag, "step-1");
  EXPECT_EQ(options.publish.meta, (std::map<std::string, std::string>{{"a", "1"}, {"b", "x=y"}}));
  EXPECT_EQ(options.publish.include, (std::vector<std::string>{"*.pt", "sub/*.bin"}));
  EXPECT_TRUE(options.publish.snapshot);
  EXPECT_TRUE(options.publish.rebase);
  EXPECT_FALSE(options.part.is_part());
  EXPECT_EQ(options.host.store, "/s");
  EXPECT_EQ(options.host.gpu, 1);
  EXPECT_TRUE(options.json);
  EXPECT_TRUE(options.quiet);
}

TEST_F(OptionsTest, TakesEveryOptionOfRollback) {
  const Options options = parsed({"rollback", "file:///b", "41", "--tag", "good", "--meta", "a=1",
                                  "--rebase", "--store", "/s", "--gpu", "1"});
  EXPECT_EQ(options.command, Command::rollback);
  EXPECT_EQ(options.target, "file:///b");
  EXPECT_EQ(options.version.value().version, 41U);
  EXPECT_EQ(options.publish.tag, "good");
  EXPECT_EQ(options.publish.meta, (std::map<std::string, std::string>{{"a", "1"}}));
  EXPECT_TRUE(options.publish.rebase);
  EXPECT_EQ(options.host.store, "/s");
  EXPECT_NE(wrong({"rollback", "file:///b"}), "");
  EXPECT_NE(wrong({"rollback", "file:///b", "0"}), "");
  EXPECT_NE(wrong({"rollback", "file:///b", "1", "--snapshot"}), "");
}

TEST_F(OptionsTest, TakesEveryOptionOfMount) {
  const Options options =
      parsed({"mount", "file:///b", "/mnt", "--store=/s", "--foreground", "--poll", "0.25",
              "--serve=daemon", "--store-size", "10GiB", "--history", "7", "--min-free=500M",
              "--uid", "1000", "--gid=100", "--umask", "022", "--gpu=7"});
  EXPECT_EQ(options.command, Command::mount);
  EXPECT_EQ(options.target, "file:///b");
  EXPECT_EQ(options.directory, "/mnt");
  EXPECT_EQ(options.host.store, "/s");
  EXPECT_TRUE(options.mount.foreground);
  EXPECT_EQ(options.host.follow.poll.interval, std::chrono::milliseconds(250));
  EXPECT_FALSE(options.host.follow.poll.learns);
  EXPECT_EQ(options.mount.serve.how, Serve::daemon);
  EXPECT_EQ(options.host.limits.store_bytes, 10ULL << 30);
  EXPECT_EQ(options.host.history, 7u);
  EXPECT_EQ(options.host.limits.free_bytes_min, 500ULL << 20);
  EXPECT_EQ(options.mount.ownership.uid, 1000U);
  EXPECT_EQ(options.mount.ownership.gid, 100U);
  EXPECT_EQ(options.mount.ownership.umask, 022U);
  EXPECT_EQ(options.host.gpu, 7);
}

TEST_F(OptionsTest, ImagesInMemoryAreForReadersThatAreNotBound) {
  EXPECT_EQ(parsed({"mount", "/b", "/m"}).mount.images, ImagesHome::disk);
  EXPECT_EQ(parsed({"mount", "/b", "/m", "--images", "memory"}).mount.images, ImagesHome::memory);
  EXPECT_EQ(wrong({"mount", "/b", "/m", "--images=ram"}), "--images: 'ram' is not disk or memory");
  EXPECT_NE(wrong({"mount", "/b", "/m", "--images=memory", "--writer"}).find("is for readers"),
            std::string::npos);
  EXPECT_NE(wrong({"mount", "/b", "/m", "--images=memory", "--serve=bind"})
                .find("use --serve passthrough or daemon"),
            std::string::npos);
}

TEST_F(OptionsTest, HooksAreAListOnTheCommandLineInTheEnvironmentAndInAFile) {
  const auto targets = [](const Options& options) {
    std::vector<std::string> texts;
    for (const HookOptions& hook : options.host.hooks) {
      texts.push_back(std::string(to_string(hook.type)) + " " + hook.target());
    }
    return texts;
  };
  const std::vector<std::string> both{"vllm http://h:1", "exec /bin/x"};
  EXPECT_EQ(targets(parsed({"mount", "/b", "/m"})), std::vector<std::string>());
  EXPECT_EQ(
      targets(parsed({"mount", "/b", "/m", "--hook", "vllm=http://h:1", "--hook=exec=/bin/x a"})),
      both);
  set("WEIGHTFS_HOOK", "vllm=http://h:1\nexec=/bin/x a\n");
  EXPECT_EQ(targets(parsed({"mount", "/b", "/m"})), both);
  unset("WEIGHTFS_HOOK");
  write_config("[mount]\nhook = [\"vllm=http://h:1\", \"exec=/bin/x a\"]\n");
  EXPECT_EQ(targets(parsed({"mount", "/b", "/m"})), both);
}

TEST_F(OptionsTest, AHookThatIsWrongOrGivenTwiceIsAUsageError) {
  EXPECT_EQ(wrong({"mount", "/b", "/m", "--hook", "exec=reload"}).find("--hook: exec needs"), 0U);
  EXPECT_EQ(wrong({"mount", "/b", "/m", "--hook", "vllm=http://h:1", "--hook",
                   "vllm=http://h:1/,every=1"}),
            "--hook: vllm http://h:1 is given twice");
  EXPECT_EQ(parsed({"mount", "/b", "/m", "--hook", "vllm-lora=http://h:1,name=a", "--hook",
                    "vllm-lora=http://h:1,name=b"})
                .host.hooks.size(),
            2U);
  EXPECT_EQ(wrong({"log", "/b", "--hook", "exec=/bin/x"}),
            "log has no option --hook; --hook is an option of mount, sync");
}

TEST_F(OptionsTest, ASyncHasHooksUnlessItEndsAtOnce) {
  EXPECT_EQ(parsed({"sync", "/b", "/d", "--hook", "vllm=http://h:1"}).host.hooks.size(), 1U);
  EXPECT_EQ(wrong({"sync", "/b", "/d", "--hook", "vllm=http://h:1", "--once"}),
            "--once ends before a hook could update its engine: leave out --once, or update the "
            "engine after this command");
}

TEST_F(OptionsTest, HasTheDefaultsThatTheHelpTells) {
  const Options options = parsed({"mount", "/b", "/m"});
  EXPECT_EQ(options.host.store, "");
  EXPECT_FALSE(options.mount.foreground);
  EXPECT_EQ(options.host.follow.poll.interval, std::chrono::milliseconds(1000));
  EXPECT_TRUE(options.host.follow.poll.learns);
  EXPECT_EQ(options.mount.serve.how, Serve::automatic);
  EXPECT_EQ(options.host.limits.store_bytes, std::nullopt);
  EXPECT_EQ(options.host.history, 64u);
  EXPECT_EQ(options.host.limits.free_bytes_min, std::nullopt);
  EXPECT_EQ(options.mount.ownership.uid, 0U);
  EXPECT_EQ(options.mount.ownership.umask, 0222U);
  EXPECT_EQ(options.host.gpu, std::nullopt);
  EXPECT_EQ(options.kernels, "");
  EXPECT_EQ(options.host.bucket.endpoint_url, "");
  EXPECT_FALSE(options.host.bucket.path_style);
  EXPECT_TRUE(options.host.bucket.sign);
  EXPECT_FALSE(options.json);
}

TEST_F(OptionsTest, MetricsAndLogsAreOfAMountAndASync) {
  const Options plain = parsed({"mount", "/b", "/m"});
  EXPECT_FALSE(plain.host.metrics);
  EXPECT_EQ(plain.host.log.format, LogFormat::text);
  EXPECT_EQ(plain.host.log.least, LogLevel::info);
  for (const char* const command : {"mount", "sync"}) {
    const Options options = parsed({command, "/b", "/m", "--metrics", "[::1]:9090", "--log-format",
                                    "json", "--log-level", "debug"});
    EXPECT_EQ(to_string(options.host.metrics.value()), "[::1]:9090");
    EXPECT_EQ(options.host.log.format, LogFormat::json);
    EXPECT_EQ(options.host.log.least, LogLevel::debug);
  }
  EXPECT_EQ(wrong({"sync", "/b", "/m", "--once", "--metrics", "127.0.0.1:0"}),
            "--once ends before its metrics could be asked for: leave out --once or --metrics");
  EXPECT_EQ(wrong({"mount", "/b", "/m", "--metrics", "9090"}),
            "--metrics: '9090' is not an address for metrics: give 127.0.0.1:9090, [::1]:9090 or "
            "unix:/path/of/a/socket");
  EXPECT_NE(wrong({"mount", "/b", "/m", "--log-level", "all"}), "");
  EXPECT_NE(wrong({"mount", "/b", "/m", "--log-format", "xml"}), "");
}

TEST_F(OptionsTest, GcKeepsEveryTagAndDeletesNothingUnlessItIsTold) {
  const Options plain = parsed({"gc", "/b"});
  EXPECT_FALSE(plain.gc.deletes);
  EXPECT_EQ(plain.gc.keep.newest, 100u);
  EXPECT_EQ(plain.gc.keep.every, 0u);
  EXPECT_EQ(plain.gc.keep.tags, (std::vector<std::string>{"*"}));
  EXPECT_EQ(plain.gc.grace, std::chrono::hours(24));
  const Options all =
      parsed({"gc", "/b", "--keep", "7", "--keep-tagged", "best-*", "--keep-tagged=x",
              "--keep-every", "64", "--grace", "90m", "--delete"});
  EXPECT_TRUE(all.gc.deletes);
  EXPECT_EQ(all.gc.keep.newest, 7u);
  EXPECT_EQ(all.gc.keep.every, 64u);
  EXPECT_EQ(all.gc.keep.tags, (std::vector<std::string>{"best-*", "x"}));
  EXPECT_EQ(all.gc.grace, std::chrono::minutes(90));
  EXPECT_TRUE(parsed({"gc", "/b", "--keep-tagged="}).gc.keep.tags.empty());
  EXPECT_EQ(parsed({"gc", "/b", "--store", "/s"}).host.store, "/s");
  EXPECT_EQ(parsed({"du", "/b", "--keep", "3"}).gc.keep.newest, 3u);
  for (const char* grace : {"", "24", "h", "-1h", "1.5h", "1w", "4000d"}) {
    EXPECT_NE(wrong({"gc", "/b", "--grace", grace}), "") << grace;
  }
  EXPECT_NE(wrong({"gc", "/b", "--keep", "0"}), "");
  EXPECT_NE(wrong({"du", "/b", "--delete"}), "");
}

TEST_F(OptionsTest, SkipsAndSnapshots) {
  EXPECT_EQ(parsed({"skip", "/b"}).skip.newest, 0u);
  EXPECT_FALSE(parsed({"skip", "/b"}).skip.dry_run);
  const Options skip = parsed({"skip", "/b", "--newest", "128", "--dry-run", "--store", "/s"});
  EXPECT_EQ(skip.skip.newest, 128u);
  EXPECT_TRUE(skip.skip.dry_run);
  EXPECT_EQ(skip.host.store, "/s");
  EXPECT_NE(wrong({"skip", "/b", "--newest", "0"}), "");

  EXPECT_TRUE(parsed({"mount", "/b", "/m", "--writer"}).mount.writing.skips);
  EXPECT_FALSE(parsed({"mount", "/b", "/m", "--writer", "--skips", "no"}).mount.writing.skips);
  EXPECT_TRUE(parsed({"mount", "/b", "/m", "--writer", "--skips", "yes"}).mount.writing.skips);
  EXPECT_NE(wrong({"mount", "/b", "/m", "--writer", "--skips", "maybe"}), "");
  EXPECT_NE(wrong({"mount", "/b", "/m", "--skips", "no"}), "") << "a reader makes none";

  EXPECT_EQ(parsed({"publish", "/b", "d"}).snapshots.every, 0u);
  EXPECT_EQ(parsed({"publish", "/b", "d", "--snapshot-every", "32"}).snapshots.every, 32u);
  EXPECT_EQ(parsed({"mount", "/b", "/m", "--writer", "--snapshot-every", "0"})
                .mount.writing.snapshots.every,
            0u);
  EXPECT_NE(wrong({"mount", "/b", "/m", "--snapshot-every", "8"}), "");
}

TEST_F(OptionsTest, ABaseIsACommitOnTheHub) {
  const std::string base = "hub:org/model@0123456789abcdef0123456789abcdef01234567";
  EXPECT_EQ(parsed({"publish", "/b", "d", "--base", base}).base.value().text(), base);
  EXPECT_FALSE(parsed({"publish", "/b", "d"}).base);
  EXPECT_NE(
      wrong({"publish", "/b", "d", "--base", "hub:org/model@main"})
          .find("'hub:org/model@main' is not hub:ORG/MODEL@COMMIT, with the 40 lower-case hex "
                "digits of a commit"),
      std::string::npos);
  EXPECT_NE(wrong({"rollback", "/b", "1", "--base", base}), "");
  EXPECT_NE(wrong({"mount", "/b", "/m", "--base", base}), "");
}

TEST_F(OptionsTest, GcDeletesOnlyIfTheCommandLineSaysSo) {
  set("WEIGHTFS_DELETE", "true");
  EXPECT_FALSE(parsed({"gc", "/b"}).gc.deletes);
  unset("WEIGHTFS_DELETE");
  write_config("[gc]\ndelete = true\n");
  EXPECT_NE(wrong({"gc", "/b"}).find("command line only"), std::string::npos);
}

TEST_F(OptionsTest, ReadersAnnounceThemselves) {
  EXPECT_FALSE(parsed({"mount", "/b", "/m"}).host.announce.is_on);
  const Options given = parsed({"sync", "/b", "/d", "--announce", "--announce-every", "5"});
  EXPECT_TRUE(given.host.announce.is_on);
  EXPECT_EQ(given.host.announce.every, std::chrono::seconds(5));
  EXPECT_EQ(wrong({"mount", "/b", "/m", "--announce-every", "5"}),
            "--announce-every needs --announce");
  EXPECT_NE(wrong({"mount", "/b", "/m", "--announce", "--announce-every", "3601"}), "");
  EXPECT_TRUE(wrong({"mount", "/b", "/m", "--announce", "--writer"})
                  .starts_with("--announce is for readers"));
  EXPECT_TRUE(
      wrong({"sync", "/b", "/d", "--announce", "--once"}).starts_with("--once ends before"));
  set("WEIGHTFS_ANNOUNCE", "1");
  EXPECT_TRUE(parsed({"mount", "/b", "/m"}).host.announce.is_on);
  EXPECT_FALSE(parsed({"mount", "/b", "/m", "--announce=off"}).host.announce.is_on);
}

TEST_F(OptionsTest, AWritersMountCollectsOnlyIfItIsTold) {
  EXPECT_FALSE(parsed({"mount", "/b", "/m", "--writer"}).gc.in_background);
  const Options options =
      parsed({"mount", "/b", "/m", "--writer", "--gc", "--gc-keep", "7", "--gc-keep-tagged", "x",
              "--gc-keep-every", "64", "--gc-grace", "2d", "--gc-interval", "30m"});
  EXPECT_TRUE(options.gc.in_background);
  EXPECT_EQ(options.gc.keep.newest, 7U);
  EXPECT_EQ(options.gc.keep.every, 64U);
  EXPECT_EQ(options.gc.keep.tags, std::vector<std::string>{"x"});
  EXPECT_EQ(options.gc.grace, std::chrono::hours(48));
  EXPECT_EQ(options.gc.interval, std::chrono::minutes(30));
  EXPECT_EQ(wrong({"mount", "/b", "/m", "--gc"}), "--gc needs --writer");
  EXPECT_EQ(wrong({"mount", "/b", "/m", "--writer", "--gc-keep", "7"}), "--gc-keep needs --gc");
}

TEST_F(OptionsTest, TakesTheOperandsOfTheOthers) {
  EXPECT_EQ(parsed({"init", "/b"}).command, Command::init);
  EXPECT_EQ(parsed({"verify", "/b"}).command, Command::verify);
  EXPECT_EQ(parsed({"doctor"}).command, Command::doctor);
  EXPECT_EQ(parsed({"doctor", "/b"}).target, "/b");
  EXPECT_EQ(wrong({"doctor", "/b", "/c"}), "unexpected operand '/c'");
  EXPECT_EQ(parsed({"status"}).target, "");
  EXPECT_EQ(parsed({"status", "/m"}).target, "/m");
  EXPECT_TRUE(parsed({"umount", "/m", "--lazy"}).lazy);
  EXPECT_EQ(parsed({"log", "/b", "--limit", "3"}).look.limit, 3U);
  EXPECT_EQ(parsed({"show", "/b"}).version, std::nullopt);
  EXPECT_EQ(parsed({"show", "/b", "7"}).version, parse_follow("7"));
  const Options diff = parsed({"diff", "/b", "7", "9"});
  EXPECT_EQ(diff.look.from, parse_follow("7"));
  EXPECT_EQ(diff.look.to, parse_follow("9"));
  const Options exported = parsed({"export", "/b", "out", "--version", "4"});
  EXPECT_EQ(exported.command, Command::export_);
  EXPECT_EQ(exported.directory, "out");
  EXPECT_EQ(exported.version, parse_follow("4"));
  const Options change = parsed({"export", "/b", "file", "--from", "4", "--to", "2"});
  EXPECT_EQ(change.directory, "file");
  EXPECT_EQ(change.look.from, parse_follow("4"));
  EXPECT_EQ(change.look.to, parse_follow("2"));
}

TEST_F(OptionsTest, WhateverTakesAUrlTakesTheOptionsOfABucket) {
  for (std::vector<std::string> arguments :
       std::vector<std::vector<std::string>>{{"init", "s3://b"},
                                             {"publish", "s3://b", "dir"},
                                             {"mount", "s3://b", "/m"},
                                             {"log", "s3://b"},
                                             {"show", "s3://b"},
                                             {"diff", "s3://b", "1", "2"},
                                             {"export", "s3://b", "out"},
                                             {"verify", "s3://b"},
                                             {"doctor", "s3://b"}}) {
    EXPECT_FALSE(parsed(arguments).bucket_flagged);
    for (const char* flag : {"--endpoint-url=https://h:1", "--region=eu", "--profile=p q",
                             "--path-style", "--no-sign-request"}) {
      arguments.emplace_back(flag);
    }
    const Options options = parsed(arguments);
    EXPECT_EQ(options.host.bucket.endpoint_url, "https://h:1") << arguments[0];
    EXPECT_EQ(options.host.bucket.region, "eu");
    EXPECT_EQ(options.host.bucket.profile, "p q");
    EXPECT_TRUE(options.host.bucket.path_style);
    EXPECT_FALSE(options.host.bucket.sign);
    EXPECT_TRUE(options.bucket_flagged);
  }
  EXPECT_EQ(wrong({"umount", "/m", "--region=eu"}), "umount has no option --region");
  EXPECT_EQ(wrong({"pin", "/m", "--region=eu"}), "pin has no option --region");
}

TEST_F(OptionsTest, TheOptionsOfABucketAreFoundWhereAllAre) {
  set("WEIGHTFS_ENDPOINT_URL", "http://127.0.0.1:9000");
  set("WEIGHTFS_NO_SIGN_REQUEST", "yes");
  write_config("region = \"eu\"\n[publish]\nprofile = \"writer\"\n");
  const Options options = parsed({"publish", "s3://b", "dir"});
  EXPECT_EQ(options.host.bucket.endpoint_url, "http://127.0.0.1:9000");
  EXPECT_FALSE(options.host.bucket.sign);
  EXPECT_EQ(options.host.bucket.region, "eu");
  EXPECT_EQ(options.host.bucket.profile, "writer");
  EXPECT_FALSE(options.bucket_flagged);
  EXPECT_EQ(parsed({"log", "s3://b"}).host.bucket.profile, "");
}

// What is set for all commands is not meant for a hand-over, which warns of what has no effect.
TEST_F(OptionsTest, WhatIsTypedIsToldFromWhatIsSetForAll) {
  const Options typed = parsed({"publish", "/b", "d", "--gpu", "0", "--snapshot-every", "0"});
  EXPECT_TRUE(typed.gpu_flagged);
  EXPECT_TRUE(typed.snapshots_flagged);
  set("WEIGHTFS_GPU", "0");
  write_config("snapshot-every = 32\n");
  const Options options = parsed({"publish", "/b", "d"});
  EXPECT_EQ(options.snapshots.every, 32u);
  EXPECT_FALSE(options.gpu_flagged);
  EXPECT_FALSE(options.snapshots_flagged);
}

// A hook's command has both variables: `weightfs export --from 41 --to 42` failed in it, and
// `weightfs publish` took the tag.
TEST_F(OptionsTest, WhatAHookIsToldIsNoOption) {
  set("WEIGHTFS_VERSION", "42");
  set("WEIGHTFS_TAG", "step-42");
  EXPECT_FALSE(parsed({"export", "/b", "file", "--from", "41", "--to", "42"}).version);
  EXPECT_FALSE(parsed({"wait", "/m", "--newer-than", "42"}).version);
  EXPECT_EQ(parsed({"wait", "/m", "--newer-than", "42"}).wait.tag, "");
  EXPECT_EQ(parsed({"publish", "/b", "d"}).publish.tag, "");
  EXPECT_EQ(parsed({"rollback", "/b", "41"}).publish.tag, "");
  EXPECT_TRUE(parsed({"publish", "/b", "d"}).warnings.empty());
}

TEST_F(OptionsTest, NoSecretHasAnOption) {
  for (const char* name : {"access-key-id", "secret-access-key", "session-token", "token"}) {
    EXPECT_EQ(find_any_option(name), nullptr) << name;
  }
}

TEST_F(OptionsTest, AWaitIsForExactlyOneThing) {
  const Options tag = parsed({"wait", "/m", "--tag", "step-1", "--timeout", "1.5"});
  EXPECT_EQ(tag.command, Command::wait);
  EXPECT_EQ(tag.target, "/m");
  EXPECT_EQ(tag.wait.tag, "step-1");
  EXPECT_EQ(tag.wait.timeout, std::chrono::milliseconds(1500));
  EXPECT_EQ(parsed({"wait", "/m", "--version", "7"}).version, parse_follow("7"));
  const Options newer = parsed({"wait", "/m", "--newer-than", "0"});
  EXPECT_EQ(newer.wait.newer_than, (Follow{.kind = Follow::Kind::version, .version = 0}));
  EXPECT_EQ(newer.wait.timeout, std::nullopt);
  const std::string one =
      "wait needs exactly one of --tag, --version and --newer-than, or --ready with at most one of "
      "them; ";
  EXPECT_TRUE(parsed({"wait", "/m", "--ready"}).wait.ready);
  EXPECT_TRUE(parsed({"wait", "/m", "--ready", "--version", "7"}).wait.ready);
  EXPECT_EQ(wrong({"wait", "/m", "--ready", "--tag", "a", "--version", "1"}), one + "2 are given");
  EXPECT_EQ(parsed({"mount", "/b", "/m", "--read-timeout", "0.5"}).mount.serve.read_timeout,
            std::chrono::milliseconds(500));
  EXPECT_EQ(wrong({"wait", "/m"}), one + "0 are given");
  EXPECT_TRUE(wrong({"wait", "file:///b", "--version", "1"})
                  .starts_with("wait file:///b needs --replicas"));
  const Options gate =
      parsed({"wait", "/b", "--replicas", "3", "--version", "v", "--max-lag", "2"});
  EXPECT_EQ(gate.wait.replicas, 3u);
  EXPECT_EQ(gate.wait.max_lag, 2u);
  EXPECT_TRUE(wrong({"wait", "/b", "--replicas", "3"}).starts_with("--replicas waits for"));
  EXPECT_TRUE(wrong({"wait", "/b", "--replicas", "3", "--version", "1", "--ready"})
                  .starts_with("--replicas waits for"));
  EXPECT_EQ(wrong({"wait", "/m", "--version", "1", "--max-lag", "2"}),
            "--max-lag needs --replicas");
  // A mount's --max-lag is seconds: no environment or file loosens a gate.
  set("WEIGHTFS_MAX_LAG", "600");
  write_config("max-lag = 600\n");
  EXPECT_EQ(parsed({"wait", "/b", "--replicas", "3", "--version", "v"}).wait.max_lag, 0u);
  EXPECT_EQ(parsed({"mount", "/b", "/m"}).host.max_lag, std::chrono::seconds(600));
  EXPECT_EQ(wrong({"wait", "/m", "--tag", "a", "--version", "1"}), one + "2 are given");
  EXPECT_NE(wrong({"wait", "/m", "--tag", "../x"}).find("--tag: '../x'"), std::string::npos);
  EXPECT_EQ(wrong({"wait", "/m", "--version", "0"}),
            "--version: '0' is not a version: versions are numbers from 1 to 68719476735");
}

TEST_F(OptionsTest, WhateverMakesVersionsTakesAGpu) {
  EXPECT_EQ(parsed({"verify", "/b", "--gpu", "0"}).host.gpu, 0);
  EXPECT_EQ(parsed({"export", "/b", "out", "--gpu", "0"}).host.gpu, 0);
  EXPECT_EQ(parsed({"diff", "/b", "1", "2", "--gpu", "0"}).host.gpu, 0);
  EXPECT_EQ(wrong({"log", "/b", "--gpu", "0"}), "log has no option --gpu");
  EXPECT_EQ(wrong({"verify", "/b", "--gpu", "-1"}), "--gpu: '-1' is not a number from 0 to 1023");
  set("WEIGHTFS_GPU", "2");
  EXPECT_EQ(parsed({"verify", "/b"}).host.gpu, 2);
  EXPECT_EQ(parsed({"log", "/b"}).host.gpu, std::nullopt);
  unset("WEIGHTFS_GPU");
  write_config("[mount]\ngpu = 3\n");
  EXPECT_EQ(parsed({"mount", "/b", "/m"}).host.gpu, 3);
  EXPECT_EQ(parsed({"verify", "/b"}).host.gpu, std::nullopt);
}

TEST_F(OptionsTest, TheKernelsAreChosenInTheEnvironment) {
  for (const kernels::Variant& variant : kernels::variants()) {
    set("WEIGHTFS_KERNELS", std::string(variant.name));
    EXPECT_EQ(parsed({"log", "/b"}).kernels, variant.name);
  }
  set("WEIGHTFS_KERNELS", "simd");
  EXPECT_EQ(parsed({"log", "/b"}).kernels, "simd");
  EXPECT_EQ(parsed({"publish", "/b", "d"}).host.gpu, std::nullopt);
}

TEST_F(OptionsTest, TheKernelsCudaMeanTheFirstGpu) {
  set("WEIGHTFS_KERNELS", "cuda");
  EXPECT_EQ(parsed({"publish", "/b", "d"}).host.gpu, 0);
  EXPECT_EQ(parsed({"publish", "/b", "d"}).kernels, "");
  EXPECT_EQ(parsed({"publish", "/b", "d", "--gpu", "1"}).host.gpu, 1);
  EXPECT_EQ(parsed({"log", "/b"}).host.gpu, std::nullopt);
}

TEST_F(OptionsTest, UnknownKernelsAreAUsageErrorThatListsThoseOfThisMachine) {
  set("WEIGHTFS_KERNELS", "fastest");
  const std::string problem = wrong({"log", "/b"});
  EXPECT_TRUE(problem.starts_with("WEIGHTFS_KERNELS: 'fastest' is not among")) << problem;
  for (const kernels::Variant& variant : kernels::variants()) {
    EXPECT_NE(problem.find(std::string(variant.name) + ", "), std::string::npos) << problem;
  }
  EXPECT_NE(problem.find("simd and cuda"), std::string::npos) << problem;
  EXPECT_EQ(parsed({"help"}).command, Command::help);
}

TEST_F(OptionsTest, OptionsMayStandAnywhere) {
  for (const auto& arguments :
       std::vector<std::vector<std::string>>{{"--json", "log", "--limit", "2", "/b"},
                                             {"--limit", "2", "log", "/b", "--json"},
                                             {"log", "--limit=2", "--json", "/b"},
                                             {"--limit=2", "--json", "log", "/b"}}) {
    const Options options = parsed(arguments);
    EXPECT_EQ(options.command, Command::log);
    EXPECT_EQ(options.target, "/b");
    EXPECT_EQ(options.look.limit, 2U);
    EXPECT_TRUE(options.json);
  }
}

TEST_F(OptionsTest, TwoDashesEndTheOptions) {
  const Options options = parsed({"publish", "/b", "--", "--odd"});
  EXPECT_EQ(options.directory, "--odd");
}

TEST_F(OptionsTest, AnOptionMayHaveAnEmptyValueAndOneThatBeginsWithADash) {
  EXPECT_EQ(parsed({"publish", "/b", "d", "--tag="}).publish.tag, "");
  EXPECT_EQ(parsed({"publish", "/b", "d", "--tag", "-x"}).publish.tag, "-x");
}

TEST_F(OptionsTest, AnEmptyPathIsAUsageError) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"mount", "/b", "/m", "--store="}, "--store"},
      {{"mount", "/b", "/m", "--store", ""}, "--store"},
      {{"sync", "/b", "d", "--seed="}, "--seed"},
      {{"publish", "/b", "d", "--store="}, "--store"},
      {{"report", "/b", "-o", ""}, "--output"},
      {{"doctor", "/b", "--bundle="}, "--bundle"},
      {{"status", "--config="}, "--config"},
      {{"help", "--man="}, "--man"}};
  for (const auto& [arguments, option] : cases) {
    EXPECT_EQ(wrong(arguments), option + " needs a path; it is empty (an unset variable?)");
  }
  EXPECT_TRUE(parse({"mount", "/b", "/m", "--json", "--store="}).json);
}

TEST_F(OptionsTest, ARelativePathInADirectoryThatIsGoneIsAUsageError) {
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::create_directory(home_ / "gone");
  std::filesystem::current_path(home_ / "gone");
  std::filesystem::remove(home_ / "gone");
  const std::string error = wrong({"mount", "/b", "/m", "--store", "here"});
  std::filesystem::current_path(before);
  EXPECT_NE(error.find("working directory"), std::string::npos) << error;
}

TEST_F(OptionsTest, SwitchesMaySayNo) {
  EXPECT_FALSE(parsed({"log", "/b", "--json=false"}).json);
  EXPECT_TRUE(parsed({"log", "/b", "--json=yes"}).json);
  EXPECT_EQ(wrong({"log", "/b", "--quiet=maybe"}), "--quiet: 'maybe' is not true or false");
}

TEST_F(OptionsTest, UnknownOptionsAreNamed) {
  EXPECT_EQ(wrong({"log", "/b", "--colour"}), "log has no option --colour");
  EXPECT_EQ(wrong({"log", "/b", "--colour=red"}), "log has no option --colour");
  EXPECT_EQ(wrong({"log", "/b", "-x"}), "log has no option -x");
  EXPECT_EQ(wrong({"--foreground", "log", "/b"}),
            "log has no option --foreground; --foreground is an option of mount");
  EXPECT_EQ(wrong({"log", "/b", "--lim", "2"}), "log has no option --lim; did you mean --limit?");
}

TEST_F(OptionsTest, WhatIsMistypedIsToldWhatItMayMean) {
  EXPECT_EQ(wrong({"stauts"}), "there is no command 'stauts'; did you mean status?");
  EXPECT_EQ(wrong({"unmount", "/m"}), "there is no command 'unmount'; did you mean umount?");
  EXPECT_EQ(wrong({"help", "pub"}), "there is no command 'pub'; did you mean publish?");
  EXPECT_EQ(wrong({"frobnicate"}), "there is no command 'frobnicate'");
  EXPECT_EQ(wrong({"mount", "/b", "/m", "--stor-size=1G"}),
            "mount has no option --stor-size; did you mean --store-size?");
  EXPECT_EQ(wrong({"log", "/b", "-json"}),
            "log has no option -json; --json is an option of every command");
}

TEST_F(OptionsTest, AMistypedVariableIsAWarning) {
  set("WEIGHTFS_STOR_SIZE", "1G");
  const Options options = parsed({"log", "/b"});
  ASSERT_EQ(options.warnings.size(), 1U);
  EXPECT_EQ(options.warnings[0],
            "the environment variable WEIGHTFS_STOR_SIZE is not an option and is ignored; did you "
            "mean WEIGHTFS_STORE_SIZE?");
  unset("WEIGHTFS_STOR_SIZE");
  set("WEIGHTFS_PORT", "tcp://10.0.0.1:80");  // as Kubernetes does for a service `weightfs`
  set("WEIGHTFS_POLL", "2");
  set("WEIGHTFS_KERNELS", "simd");
  EXPECT_TRUE(parsed({"log", "/b"}).warnings.empty());
}

TEST_F(OptionsTest, TheVersionIsPrintedForBothSpellings) {
  for (const char* option : {"--version", "-V"}) {
    const Options options = parsed({option});
    EXPECT_EQ(options.command, Command::version) << option;
    EXPECT_EQ(options.text.rfind("weightfs ", 0), 0U);
  }
}

TEST_F(OptionsTest, WhateverTakesAVersionTakesATagAndLatest) {
  for (const char* word : {"42", "step-42", "latest"}) {
    const Follow expected = parse_follow(word);
    EXPECT_EQ(parsed({"show", "/b", word}).version, expected);
    EXPECT_EQ(parsed({"export", "/b", "out", "--version", word}).version, expected);
    EXPECT_EQ(parsed({"export", "/b", "out", "--from", word, "--to", "1"}).look.from, expected);
    EXPECT_EQ(parsed({"diff", "/b", "1", word}).look.to, expected);
    EXPECT_EQ(parsed({"diff", "/b", word, "1"}).look.from, expected);
    EXPECT_EQ(parsed({"verify", "/b", "--version", word}).version, expected);
    EXPECT_EQ(parsed({"wait", "/m", "--version", word}).version, expected);
    EXPECT_EQ(parsed({"wait", "/m", "--newer-than", word}).wait.newer_than, expected);
    EXPECT_EQ(parsed({"pin", "/m", "--version", word}).version, expected);
    EXPECT_EQ(parsed({"unpin", "/m", "--version", word}).version, expected);
    EXPECT_EQ(parsed({"mount", "/b", "/m", "--follow", word}).host.follow.what, expected);
  }
  EXPECT_EQ(
      wrong({"show", "/b", "a/b"}),
      "'a/b' is not a version: expected a number, a tag or latest, and as a tag it has a '/'");
}

TEST_F(OptionsTest, OptionsOfLaterIssuesDoNotExist) {
  for (const char* option : {"--hook=x", "--base=x"}) {
    EXPECT_NE(wrong({"mount", "/b", "/m", option}), "") << option;
    EXPECT_NE(wrong({"publish", "/b", "d", option}), "") << option;
  }
  EXPECT_EQ(wrong({"import", "/b"}).rfind("there is no command 'import", 0), 0U);
}

TEST_F(OptionsTest, PinAndUnpinTakeAVersionAndUnpinASession) {
  EXPECT_EQ(parsed({"pin", "/m"}).version, std::nullopt);
  const Options pin = parsed({"pin", "/m", "--version", "42"});
  EXPECT_EQ(pin.command, Command::pin);
  EXPECT_EQ(pin.target, "/m");
  EXPECT_EQ(pin.version, parse_follow("42"));
  EXPECT_EQ(parsed({"unpin", "/m", "--version=42"}).version, parse_follow("42"));
  EXPECT_EQ(parsed({"unpin", "/m", "--session", "session 7"}).session, "session 7");
  EXPECT_EQ(wrong({"unpin", "/m", "--session", "session 7", "--version", "42"}),
            "unpin takes --version or --session, not both");
  EXPECT_EQ(wrong({"pin", "/m", "--session", "x"}),
            "pin has no option --session; --session is an option of unpin");
}

TEST_F(OptionsTest, ThePinGraceIsAMinuteOrWhatIsGiven) {
  EXPECT_EQ(parsed({"mount", "/b", "/m"}).mount.pin_grace, std::chrono::seconds(60));
  EXPECT_EQ(parsed({"mount", "/b", "/m", "--pin-grace", "0.6"}).mount.pin_grace,
            std::chrono::milliseconds(600));
}

TEST_F(OptionsTest, WhatIsColdIsReadInUnlessThatIsOff) {
  for (const char* command : {"mount", "sync"}) {
    EXPECT_EQ(parsed({command, "/b", "/m"}).host.warm, Warm::automatic);
    EXPECT_EQ(parsed({command, "/b", "/m", "--warm", "off"}).host.warm, Warm::off);
    EXPECT_EQ(wrong({command, "/b", "/m", "--warm", "on"}), "--warm: 'on' is not auto or off");
  }
  write_config("warm = 'off'\n");
  EXPECT_EQ(parsed({"mount", "/b", "/m"}).host.warm, Warm::off);
  set("WEIGHTFS_WARM", "auto");
  EXPECT_EQ(parsed({"mount", "/b", "/m"}).host.warm, Warm::automatic);
}

TEST_F(OptionsTest, AWritersMountHasOptionsOfItsOwn) {
  const Options options =
      parsed({"mount", "/b", "/m", "--writer", "--rebase", "--include", "*.py", "--include=x/*"});
  EXPECT_TRUE(options.mount.writer);
  EXPECT_TRUE(options.mount.writing.rebase);
  EXPECT_EQ(options.mount.writing.include, (std::vector<std::string>{"*.py", "x/*"}));
  EXPECT_FALSE(parsed({"mount", "/b", "/m", "--writer"}).mount.writing.rebase);
  EXPECT_EQ(parsed({"mount", "/b", "/m", "--writer"}).mount.writing.staging_mode, 0755U);
  EXPECT_EQ(
      parsed({"mount", "/b", "/m", "--writer", "--staging-mode=1777"}).mount.writing.staging_mode,
      01777U);
}

TEST_F(OptionsTest, SyncTakesWhatAFollowerTakes) {
  const Options options =
      parsed({"sync", "file:///b", "/models", "--once", "--follow=canary", "--poll", "0.25",
              "--store", "/s", "--store-size=1G", "--min-free", "2M", "--region", "eu"});
  EXPECT_EQ(options.command, Command::sync);
  EXPECT_EQ(options.target, "file:///b");
  EXPECT_EQ(options.directory, "/models");
  EXPECT_TRUE(options.sync.once);
  EXPECT_EQ(options.host.follow.what, parse_follow("canary"));
  EXPECT_EQ(options.host.follow.poll.interval, std::chrono::milliseconds(250));
  EXPECT_EQ(options.host.store, "/s");
  EXPECT_TRUE(options.host.limits.store_bytes.has_value());
  EXPECT_EQ(options.host.bucket.region, "eu");
  EXPECT_FALSE(parsed({"sync", "/b", "/m"}).sync.once);
  EXPECT_EQ(wrong({"sync", "/b", "/m", "--writer"}),
            "sync has no option --writer; --writer is an option of mount");
  EXPECT_NE(wrong({"sync", "/b", "/m", "--follow", "a/b"}), "");
}

TEST_F(OptionsTest, AWriterFollowsItself) {
  EXPECT_EQ(parsed({"mount", "/b", "/m", "--follow", "7"}).host.follow.what, parse_follow("7"));
  EXPECT_EQ(parsed({"mount", "/b", "/m", "--writer", "--follow=latest"}).host.follow.what,
            Follow{});
  EXPECT_NE(
      wrong({"mount", "/b", "/m", "--writer", "--follow=7"}).find("--follow 7 is for readers"),
      std::string::npos);
}

TEST_F(OptionsTest, AReaderMayKeepAPart) {
  const std::vector<std::string> globs{"*-00003-of-*", "sub/*"};
  EXPECT_EQ(parsed({"mount", "/b", "/m", "--only", globs[0], "--only=" + globs[1]}).mount.only,
            globs);
  EXPECT_TRUE(parsed({"mount", "/b", "/m"}).mount.only.empty());
  EXPECT_NE(wrong({"mount", "/b", "/m", "--writer", "--only", "x"}).find("--only is for readers"),
            std::string::npos);
  EXPECT_NE(wrong({"mount", "/b", "/m", "--only", ""}), "");
  EXPECT_EQ(wrong({"sync", "/b", "/m", "--only", "x"}),
            "sync has no option --only; --only is an option of mount");
}

TEST_F(OptionsTest, AHostMayHaveASeed) {
  EXPECT_EQ(parsed({"mount", "/b", "/m", "--seed", "/hub"}).host.seed, "/hub");
  EXPECT_EQ(parsed({"sync", "/b", "/m", "--seed", "/hub", "--once"}).host.seed, "/hub");
  EXPECT_EQ(parsed({"mount", "/b", "/m"}).host.seed, "");
}

TEST_F(OptionsTest, OptionsOfAWriterNeedIt) {
  EXPECT_EQ(wrong({"mount", "/b", "/m", "--rebase"}), "--rebase needs --writer");
  EXPECT_EQ(wrong({"mount", "/b", "/m", "--include", "*.py"}), "--include needs --writer");
  EXPECT_EQ(wrong({"mount", "/b", "/m", "--staging-mode", "775"}), "--staging-mode needs --writer");
  EXPECT_EQ(wrong({"mount", "/b", "/m", "--include=*", "--writer=false"}),
            "--include needs --writer");
  write_config("[mount]\nwriter = true\n");
  EXPECT_TRUE(parsed({"mount", "/b", "/m", "--rebase"}).mount.writing.rebase);
  write_config("include = ['*.py']\n");  // meant for publish
  EXPECT_FALSE(parsed({"mount", "/b", "/m"}).mount.writer);
}

TEST_F(OptionsTest, RepeatedOptionsAreNamed) {
  EXPECT_EQ(wrong({"publish", "/b", "d", "--tag", "a", "--tag=b"}),
            "--tag is given more than once");
  EXPECT_EQ(wrong({"log", "/b", "--json", "--json"}), "--json is given more than once");
  EXPECT_EQ(wrong({"publish", "/b", "d", "--meta", "a=1", "--meta", "a=2"}),
            "--meta: the key 'a' is given twice");
}

TEST_F(OptionsTest, WrongValuesNameTheOption) {
  EXPECT_EQ(wrong({"mount", "/b", "/m", "--poll", "often"}),
            "--poll: 'often' is not a number of seconds from 0.01 to 86400, or auto");
  EXPECT_EQ(wrong({"mount", "/b", "/m", "--serve=fast"}),
            "--serve: 'fast' is not auto, passthrough, bind or daemon");
  EXPECT_EQ(wrong({"publish", "/b", "d", "--meta", "x"}), "--meta: 'x' is not KEY=VALUE");
  EXPECT_EQ(wrong({"export", "/b", "d", "--version", "0"}),
            "--version: '0' is not a version: versions are numbers from 1 to 68719476735");
  EXPECT_EQ(wrong({"export", "/b", "f", "--from", "1"}), "export takes --from and --to together");
  EXPECT_EQ(wrong({"export", "/b", "f", "--to", "1"}), "export takes --from and --to together");
  EXPECT_EQ(wrong({"export", "/b", "f", "--from", "1", "--to", "2", "--version", "1"}),
            "export takes either --version or --from and --to");
  EXPECT_EQ(wrong({"show", "/b", "0"}),
            "'0' is not a version: versions are numbers from 1 to 68719476735");
}

TEST_F(OptionsTest, MissingAndSuperfluousOperandsAreUsageErrors) {
  EXPECT_EQ(wrong({}), "no command given");
  EXPECT_EQ(wrong({"publish", "/b"}), "publish needs URL|MOUNTPOINT DIR; only /b is given");
  EXPECT_EQ(wrong({"diff", "/b", "1"}), "diff needs URL|MOUNTPOINT A B; only /b 1 is given");
  EXPECT_EQ(wrong({"init", "/b", "c"}), "unexpected operand 'c'");
  EXPECT_EQ(wrong({"publish", "/b", "d", "--tag"}), "--tag needs a value: --tag TAG");
  EXPECT_EQ(wrong({"lg", "/b"}), "there is no command 'lg'; did you mean log?");
}

// An unset variable: what is meant is never all that there is.
TEST_F(OptionsTest, AnEmptyOperandIsAUsageError) {
  EXPECT_EQ(wrong({"status", "--check", ""}),
            "status is given an empty MOUNTPOINT|DIR (an unset variable?)");
  EXPECT_EQ(wrong({"export", "/b", ""}), "export is given an empty DIR|FILE (an unset variable?)");
  EXPECT_EQ(wrong({"mount", ""}), "mount is given an empty URL (an unset variable?)");
  EXPECT_EQ(wrong({"mount", "--again", ""}),
            "mount is given an empty MOUNTPOINT (an unset variable?)");
  EXPECT_EQ(wrong({"diff", "/b", "1", ""}), "diff is given an empty B (an unset variable?)");
  EXPECT_EQ(wrong({"show", "/b", ""}), "show is given an empty VERSION (an unset variable?)");
  EXPECT_EQ(wrong({"init", "/b", ""}), "unexpected operand ''");
  for (const CommandSpec& command : all_commands()) {
    std::vector<std::string> arguments{std::string(command.name)};
    arguments.resize(1 + operand_count(command.operands).most);
    EXPECT_NE(wrong(arguments).find("is given an empty "), std::string::npos) << command.name;
  }
}

TEST_F(OptionsTest, AMountAgainTakesAMountPointAndNothingElse) {
  write_config("[mount]\npoll = 7\n");
  const Options options = parsed({"mount", "--again", "/m", "--foreground", "--json"});
  EXPECT_TRUE(options.again && options.mount.foreground && options.json);
  EXPECT_EQ(options.directory, "/m");
  EXPECT_EQ(options.host.follow.poll.interval, HostOptions{}.follow.poll.interval);
  EXPECT_EQ(wrong({"mount", "--again"}), "mount needs MOUNTPOINT; none is given");
  EXPECT_EQ(wrong({"mount", "--again", "/b", "/m"}), "unexpected operand '/m'");
  EXPECT_NE(wrong({"mount", "--again", "/m", "--poll", "1"}).find("--poll does not go with"),
            std::string::npos);
}

TEST_F(OptionsTest, OperandsMayStandInTheTableOfTheirCommand) {
  write_config("[mount]\nurl = '/b'\nmountpoint = '/m'\n[sync]\nurl = '/c'\n");
  const Options options = parsed({"mount", "--writer"});
  EXPECT_EQ(options.target, "/b");
  EXPECT_EQ(options.directory, "/m");
  EXPECT_EQ(parsed({"mount", "/x", "/y"}).target, "/x");
  EXPECT_EQ(wrong({"mount", "/x"}), "mount needs URL MOUNTPOINT; only /x is given");
  EXPECT_EQ(wrong({"sync"}), "sync needs URL DIR; none is given");  // not all of them
  write_config("url = '/b'\n");
  EXPECT_NE(wrong({"mount"}).find("unknown key 'url'"), std::string::npos);
  write_config("[log]\nurl = '/b'\n");
  EXPECT_NE(wrong({"log"}).find("unknown key 'url'"), std::string::npos);
}

TEST_F(OptionsTest, AUsageErrorSaysWhatTheUsageIsAndWhereToReadOn) {
  const Options options = parse({"mount", "/b", "--json"});
  EXPECT_EQ(options.text,
            "weightfs: mount needs URL MOUNTPOINT; only /b is given\n"
            "usage: weightfs mount URL MOUNTPOINT [OPTION...]\n"
            "       weightfs mount --again MOUNTPOINT [--foreground]\n"
            "run weightfs help mount\n");
  EXPECT_TRUE(options.json);
  EXPECT_EQ(parse({}).text,
            "weightfs: no command given\n"
            "usage: weightfs COMMAND OPERAND... [OPTION...]\n"
            "run weightfs help\n");
}

TEST_F(OptionsTest, TheEnvironmentSetsWhatNoFlagSets) {
  set("WEIGHTFS_STORE", "/from/environment");
  set("WEIGHTFS_POLL", "0.5");
  set("WEIGHTFS_STORE_SIZE", "1G");
  set("WEIGHTFS_MIN_FREE", "2G");
  set("WEIGHTFS_SERVE", "daemon");
  set("WEIGHTFS_JSON", "1");
  const Options options = parsed({"mount", "/b", "/m", "--poll", "3"});
  EXPECT_EQ(options.host.store, "/from/environment");
  EXPECT_EQ(options.host.follow.poll.interval, std::chrono::seconds(3));
  EXPECT_EQ(options.host.limits.store_bytes, 1ULL << 30);
  EXPECT_EQ(options.host.limits.free_bytes_min, 2ULL << 30);
  EXPECT_EQ(options.mount.serve.how, Serve::daemon);
  EXPECT_TRUE(options.json);
}

TEST_F(OptionsTest, ListsInTheEnvironmentHaveOneEntryALine) {
  set("WEIGHTFS_INCLUDE", "*.pt\n\nmy *.bin\n");
  EXPECT_EQ(parsed({"publish", "/b", "d"}).publish.include,
            (std::vector<std::string>{"*.pt", "my *.bin"}));
}

TEST_F(OptionsTest, AnEmptyVariableIsNone) {
  set("WEIGHTFS_POLL", "");
  EXPECT_EQ(parsed({"mount", "/b", "/m"}).host.follow.poll.interval, std::chrono::seconds(1));
}

TEST_F(OptionsTest, AWrongValueInTheEnvironmentNamesTheVariable) {
  set("WEIGHTFS_POLL", "x");
  EXPECT_EQ(wrong({"mount", "/b", "/m"}),
            "WEIGHTFS_POLL: 'x' is not a number of seconds from 0.01 to 86400, or auto");
}

TEST_F(OptionsTest, AConfigurationFileSetsWhatNobodyElseSets) {
  write_config(
      "store = \"/top\"\n"
      "[mount]\n"
      "poll = 0.5\n"
      "serve = 'daemon'\n"
      "uid = 5\n"
      "[publish]\n"
      "include = [\"*.pt\", \"*.bin\"]\n"
      "store = \"/of/publish\"\n");
  set("WEIGHTFS_SERVE", "bind");
  EXPECT_EQ(parsed({"mount", "/b", "/m"}).mount.serve.how, Serve::bind);
  set("WEIGHTFS_SERVE", "passthrough");
  const Options mount = parsed({"mount", "/b", "/m", "--uid=6"});
  EXPECT_EQ(mount.host.store, "/top");
  EXPECT_EQ(mount.host.follow.poll.interval, std::chrono::milliseconds(500));
  EXPECT_EQ(mount.mount.serve.how, Serve::passthrough);
  EXPECT_EQ(mount.mount.ownership.uid, 6U);
  const Options publish = parsed({"publish", "/b", "d"});
  EXPECT_EQ(publish.host.store, "/of/publish");
  EXPECT_EQ(publish.publish.include, (std::vector<std::string>{"*.pt", "*.bin"}));
  parsed({"log", "/b"});  // has no --store, and needs none
}

TEST_F(OptionsTest, TheConfigurationFileCanBeChosen) {
  write_config("[mount]\npoll = 7\n");
  write_text(home_ / "a.toml", "[mount]\npoll = 8\n");
  write_text(home_ / "b.toml", "[mount]\npoll = 9\n");
  EXPECT_EQ(parsed({"mount", "/b", "/m"}).host.follow.poll.interval, std::chrono::seconds(7));
  set("WEIGHTFS_CONFIG", (home_ / "a.toml").string());
  EXPECT_EQ(parsed({"mount", "/b", "/m"}).host.follow.poll.interval, std::chrono::seconds(8));
  const std::string chosen = (home_ / "b.toml").string();
  EXPECT_EQ(parsed({"mount", "/b", "/m", "--config", chosen}).host.follow.poll.interval,
            std::chrono::seconds(9));
  EXPECT_EQ(parsed({"--config=" + chosen, "mount", "/b", "/m"}).host.follow.poll.interval,
            std::chrono::seconds(9));
}

TEST_F(OptionsTest, AConfigurationFileThatIsAskedForMustExist) {
  const std::string absent = (home_ / "absent.toml").string();
  EXPECT_NE(wrong({"log", "/b", "--config", absent}).find(absent), std::string::npos);
}

TEST_F(OptionsTest, UnknownKeysNameTheKeyAndTheFile) {
  const std::string file = (home_ / "config/weightfs/config.toml").string();
  write_config("pol = 1\n");
  EXPECT_EQ(wrong({"log", "/b"}), file + ": unknown key 'pol'; did you mean poll?");
  write_config("[mount]\ntag = 'x'\n");
  EXPECT_EQ(wrong({"log", "/b"}), file + ": unknown key 'tag' in [mount]");
  write_config("[mout]\npoll = 1\n");
  EXPECT_EQ(wrong({"log", "/b"}),
            file + ": there is no command for the table [mout]; did you mean mount?");
  write_config("[mount]\npoll = [1, 2]\n");
  EXPECT_EQ(wrong({"log", "/b"}), file + ": 'poll' takes one value, not an array");
  write_config("config = 'x'\n");
  EXPECT_EQ(wrong({"log", "/b"}), file + ": unknown key 'config'");
  write_config("[mount]\npoll = 'x'\n");
  EXPECT_EQ(wrong({"mount", "/b", "/m"}),
            "'poll' in " + file + ": 'x' is not a number of seconds from 0.01 to 86400, or auto");
}

TEST_F(OptionsTest, HelpIsPrintedForAllAndForEachCommand) {
  EXPECT_EQ(parsed({"help"}).text, help_text());
  EXPECT_EQ(parsed({"-h"}).text, help_text());
  EXPECT_EQ(parsed({"--help"}).text, help_text());
  EXPECT_EQ(parsed({"help", "mount"}).text, help_text(*find_command("mount")));
  EXPECT_EQ(parsed({"mount", "-h"}).text, help_text(*find_command("mount")));
  EXPECT_EQ(parsed({"mount", "--help", "--colour"}).command, Command::help);
  EXPECT_EQ(wrong({"help", "mout"}), "there is no command 'mout'; did you mean mount?");
}

TEST_F(OptionsTest, TheHelpOfACommandTellsItsOptionsItsExitCodesAndAnExample) {
  for (const CommandSpec& command : all_commands()) {
    const std::string text = help_text(command);
    EXPECT_NE(text.find("usage: " + usage_line(command)), std::string::npos) << command.name;
    EXPECT_NE(text.find(std::string(command.example)), std::string::npos) << command.name;
    EXPECT_NE(text.find("3 conflict"), std::string::npos) << command.name;
    EXPECT_FALSE(command.example.empty()) << command.name;
    for (const OptionSpec& option : command.options) {
      EXPECT_NE(text.find("--" + std::string(option.name)), std::string::npos) << option.name;
      EXPECT_NE(option.help.find("(default: "), std::string_view::npos) << option.name;
      EXPECT_NE(option.set, nullptr) << option.name;
    }
    EXPECT_NE(help_text().find("  " + std::string(command.name) + " "), std::string::npos);
  }
}

TEST_F(OptionsTest, EveryExampleOfTheHelpIsARightCommandLine) {
  for (const CommandSpec& command : all_commands()) {
    std::vector<std::string> words;
    std::string word;
    for (const char c : std::string(command.example) + " ") {
      if (c != ' ') word += c;
      if (c == ' ') words.push_back(std::exchange(word, ""));
    }
    ASSERT_EQ(words.front(), "weightfs");
    words.erase(words.begin());
    EXPECT_EQ(wrong(words), "") << command.example;
  }
}

/// What a shell or YAML has behind a command line is none of it: comments, other commands,
/// brackets.
std::string without_the_rest(std::string text, std::string_view closing) {
  for (const std::string_view end :
       std::initializer_list<std::string_view>{" #", " &", " |", " >", ";", closing}) {
    text = text.substr(0, text.find(end));
  }
  return text;
}

/// The command lines of weightfs in the code of a page: lines that are indented by four, and YAML.
std::vector<std::vector<std::string>> commands_of_page(const std::string& page) {
  std::vector<std::vector<std::string>> found;
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    const bool is_list = line.find("[weightfs, ") != std::string::npos;
    if (is_list) std::erase(line, ',');
    const std::size_t at = line.find("weightfs ");
    if (!line.starts_with("    ") || at == std::string::npos) continue;
    if (at > 0 && line[at - 1] != ' ' && line[at - 1] != '[') continue;  // a path, or quoted
    std::vector<std::string> words =
        split_command(without_the_rest(line.substr(at), is_list ? "]" : "\"]"));
    const bool is_command =
        words.size() > 1 && std::ranges::any_of(all_commands(), [&](const CommandSpec& command) {
          return command.name == words[1];
        });
    if (!is_command) continue;
    words.erase(words.begin());
    found.push_back(std::move(words));
  }
  return found;
}

TEST_F(OptionsTest, EveryCommandLineOfThePagesIsRight) {
  namespace stdfs = std::filesystem;
  const stdfs::path root = stdfs::path(WEIGHTFS_TEST_DATA).parent_path().parent_path();
  std::vector<stdfs::path> pages = {root / "README.md"};
  for (const auto& entry : stdfs::recursive_directory_iterator(root / "docs")) {
    if (entry.path().extension() == ".md") pages.push_back(entry.path());
  }
  std::size_t count = 0;
  for (const stdfs::path& page : pages) {
    for (const auto& words : commands_of_page(test::read_text(page))) {
      count++;
      EXPECT_EQ(wrong(words), "") << page << ": weightfs "
                                  << fmt::format("{}", fmt::join(words, " "));
    }
  }
  EXPECT_GT(count, 40U);
}

TEST_F(OptionsTest, HelpFitsATerminal) {
  for (const CommandSpec& command : all_commands()) {
    const std::string text = help_text(command) + help_text();
    std::size_t begin = 0;
    for (std::size_t end = 0; (end = text.find('\n', begin)) != std::string::npos;
         begin = end + 1) {
      EXPECT_LE(end - begin, 100U) << text.substr(begin, end - begin);
    }
  }
}

TEST_F(OptionsTest, TheVersionIsPrinted) {
  const Options options = parsed({"--version"});
  EXPECT_EQ(options.command, Command::version);
  EXPECT_TRUE(options.text.starts_with("weightfs "));
}

}  // namespace
}  // namespace weightfs::fs
