// Commands in-process, on repositories below a temporary directory, without a mount; tests/mount/
// has those with one.

#include "fs/commands/commands.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <barrier>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "fs/cli/parse_options.hpp"
#include "fs/directory/sync_directory.hpp"
#include "kernels/dispatch/gpu.hpp"
#include "kernels/dispatch/variant_table.hpp"
#include "store/base/context.hpp"
#include "store/base/sha256.hpp"
#include "store/os/file.hpp"
#include "store/readers/reader_record.hpp"
#include "store/repository/repository.hpp"
#include "tests/support/contains.hpp"
#include "tests/support/support.hpp"

namespace weightfs::fs {
namespace {

namespace stdfs = std::filesystem;
using Json = nlohmann::json;
using test::contains;
using test::read_tree;
using test::TempDir;
using test::write_checkpoint;
using test::write_text;

struct Result {
  int code = 0;
  std::string out, err;
  [[nodiscard]] Json json() const { return Json::parse(out); }
};

/// `columns`: of the terminal it is printed to; 0: to none.
Result run(std::vector<std::string> arguments, std::size_t columns = 0) {
  arguments.insert(arguments.begin(), "weightfs");
  std::vector<const char*> argv;
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  std::ostringstream out, err;
  Result result;
  result.code = run_command(parse_options(static_cast<int>(argv.size()), argv.data()),
                            {.out = out, .err = err, .columns = columns});
  result.out = out.str();
  result.err = err.str();
  return result;
}

/// Expects a failure with this exit code, whose message is on stderr, names `object`, and is the
/// JSON on stdout with --json.
void expect_failure(const std::vector<std::string>& arguments, int exit_code,
                    const std::string& code, const std::string& object) {
  const Result plain = run(arguments);
  EXPECT_EQ(plain.code, exit_code) << plain.err;
  EXPECT_TRUE(plain.err.starts_with("weightfs: ")) << plain.err;
  EXPECT_TRUE(contains(plain.err, object)) << plain.err;
  EXPECT_EQ(plain.out, "");

  std::vector<std::string> with_json = arguments;
  with_json.push_back("--json");
  const Result result = run(with_json);
  EXPECT_EQ(result.code, exit_code);
  EXPECT_EQ(result.json()["error"]["code"], code);
  EXPECT_TRUE(contains(result.json()["error"]["message"], object)) << result.out;
}

class CommandsTest : public testing::Test {
 protected:
  CommandsTest() {
    setenv("XDG_CONFIG_HOME", (dir_ / "config").c_str(), 1);
    setenv("TMPDIR", dir_.path().c_str(), 1);
  }
  ~CommandsTest() override {
    unsetenv("XDG_CONFIG_HOME");
    if (old_tmpdir_.empty()) {
      unsetenv("TMPDIR");
    } else {
      setenv("TMPDIR", old_tmpdir_.c_str(), 1);
    }
  }

  [[nodiscard]] std::string path(std::string_view name) const { return (dir_ / name).string(); }
  [[nodiscard]] std::string url() const { return "file://" + path("bucket"); }
  [[nodiscard]] std::string object(std::string_view key) const {
    return (dir_ / "bucket" / key).string();
  }

  Result publish(unsigned version, std::vector<std::string> more = {}) {
    const std::string directory = path("step-" + std::to_string(version));
    if (!stdfs::exists(directory)) write_checkpoint(directory, version);
    more.insert(more.begin(), {"publish", url(), directory, "--store", path("store")});
    return run(more);
  }
  void make_versions(unsigned count) {
    ASSERT_EQ(run({"init", url()}).code, 0);
    for (unsigned version = 1; version <= count; version++) {
      const Result result = publish(version);
      ASSERT_EQ(result.code, 0) << result.err;
    }
  }

  /// Changes the byte in the middle of a file.
  static void spoil(const stdfs::path& file) {
    const auto middle = static_cast<std::streamoff>(stdfs::file_size(file) / 2);
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(middle);
    const int old = stream.get();
    stream.seekp(middle);
    stream.put(static_cast<char>(old ^ 0x40));
    ASSERT_TRUE(stream.good());
  }

  /// The one file below `directory` of the bucket.
  [[nodiscard]] stdfs::path only_file(std::string_view directory) const {
    std::vector<stdfs::path> files;
    for (const auto& entry : stdfs::recursive_directory_iterator(object(directory))) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
    EXPECT_EQ(files.size(), 1U);
    return files.at(0);
  }

  const std::string old_tmpdir_ = std::getenv("TMPDIR") != nullptr ? std::getenv("TMPDIR") : "";
  TempDir dir_;
};

// ---- what works ----

TEST_F(CommandsTest, InitMakesARepositoryOnceAndSaysWhatToDoNext) {
  const Result first = run({"init", url()});
  EXPECT_EQ(first.code, 0);
  EXPECT_TRUE(contains(first.out, "weightfs publish " + url() + " DIR"));
  EXPECT_TRUE(stdfs::exists(object("weightfs.json")));
  const Json again = run({"init", path("bucket"), "--json"}).json();
  EXPECT_EQ(again["created"], false);
  EXPECT_EQ(again["url"], url());
  EXPECT_TRUE(contains(first.out, again["repository"].get<std::string>()));
}

TEST_F(CommandsTest, PublishTellsWhatItDid) {
  run({"init", url()});
  const Result first = publish(1, {"--tag", "step-1", "--meta", "loss=0.5"});
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_TRUE(first.out.starts_with("published version 1 as step-1")) << first.out;
  EXPECT_TRUE(contains(first.out, "weightfs mount " + url() + " MOUNTPOINT"));

  write_checkpoint(path("step-2"), 2);
  write_text(dir_ / "step-2" / "optimizer.pt", "pickle");
  const Json second = publish(2, {"--json"}).json();
  EXPECT_EQ(second["version"], 2);
  EXPECT_EQ(second["parent"], 1);
  EXPECT_EQ(second["unpublished"], Json::array({"optimizer.pt"}));
  EXPECT_GT(second["changed_elements"], 0);
  EXPECT_GT(second["elements"], second["changed_elements"]);
  EXPECT_LT(second["uploaded_bytes"], second["version_bytes"].get<std::uint64_t>() / 4);
  EXPECT_EQ(second["snapshot"], false);
}

TEST_F(CommandsTest, PublishIncludesAndSnapshotsOnRequest) {
  make_versions(1);
  write_checkpoint(path("step-2"), 2);
  write_text(dir_ / "step-2" / "optimizer.pt", "pickle");
  const Json second = publish(2, {"--json", "--include", "*.pt", "--snapshot"}).json();
  EXPECT_EQ(second["unpublished"], Json::array());
  EXPECT_EQ(second["snapshot"], true);
  ASSERT_EQ(run({"export", url(), path("out")}).code, 0);
  EXPECT_EQ(read_tree(dir_ / "out").at("optimizer.pt"), "pickle");
}

TEST_F(CommandsTest, LogListsTheVersionsNewestFirst) {
  make_versions(1);
  publish(2, {"--tag", "step-2", "--meta", "a=1", "--meta", "b=2"});
  publish(3);
  const Json log = run({"log", url(), "--json"}).json();
  ASSERT_EQ(log.size(), 3U);
  EXPECT_EQ(log[0]["version"], 3);
  EXPECT_EQ(log[1]["version"], 2);
  EXPECT_EQ(log[1]["tag"], "step-2");
  EXPECT_EQ(log[1]["meta"], Json({{"a", "1"}, {"b", "2"}}));
  EXPECT_GT(log[1]["changed_elements"], 0);
  EXPECT_GT(log[1]["delta_bytes"], 0);
  EXPECT_EQ(log[1]["snapshot"], false);
  EXPECT_EQ(log[2]["snapshot"], true);
  EXPECT_FALSE(log[2].contains("delta_bytes"));

  const Result text = run({"log", url()});
  EXPECT_TRUE(text.out.starts_with("VERSION  TIME")) << text.out;
  EXPECT_TRUE(contains(text.out, "step-2"));
  EXPECT_TRUE(contains(text.out, "a=1 b=2"));
  EXPECT_EQ(run({"log", url(), "--limit", "2", "--json"}).json().size(), 2U);
  EXPECT_EQ(run({"log", url(), "--limit", "9", "--json"}).json().size(), 3U);
}

// A renamed file in its place would be no device any more, nor what somebody else has open.
TEST_F(CommandsTest, WhatIsWrittenToAPipeLeavesItThere) {
  make_versions(1);
  ASSERT_EQ(mkfifo(path("fifo").c_str(), 0600), 0);
  const File reader = File::open(path("fifo"), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(fcntl(reader.fd(), F_SETPIPE_SZ, 1 << 20), 1 << 20);
  std::string bytes(1 << 20, '\0');
  const auto take = [&] {
    const ssize_t got = read(reader.fd(), bytes.data(), bytes.size());
    return bytes.substr(0, static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  };
  EXPECT_EQ(run({"report", url(), "-o", path("fifo")}).code, 0);
  EXPECT_TRUE(contains(take(), "</html>"));
  run({"doctor", "--bundle", path("fifo")});
  EXPECT_TRUE(take().starts_with("\x1f\x8b"));  // gzip
  EXPECT_TRUE(stdfs::is_fifo(stdfs::symlink_status(path("fifo"))));
}

TEST_F(CommandsTest, LogTellsTheBytesOfASnapshot) {
  make_versions(1);
  publish(2, {"--snapshot"});
  const Json log = run({"log", url(), "--json"}).json();
  EXPECT_GT(log[0]["delta_bytes"], 0);
  for (const Json& version : log) {
    EXPECT_GT(version["snapshot_bytes"], 0);
    EXPECT_LE(version["snapshot_bytes"], version["version_bytes"]);
  }
  const Result text = run({"log", url()});
  EXPECT_TRUE(contains(text.out, "DELTA   SNAPSHOT")) << text.out;
  EXPECT_FALSE(contains(text.out, "+ snapshot")) << text.out;
}

TEST_F(CommandsTest, LogFitsTheTerminal) {
  make_versions(1);
  const std::string tag = "run-7-with-a-rather-long-name-of-its-own-step-000000000042";
  publish(2, {"--tag", tag, "--meta", "reward=0.31", "--meta", "learning_rate=0.0000001", "--meta",
              "comment=the one with the new sampler and the old optimizer"});
  const Result text = run({"log", url()}, 100);
  std::istringstream lines(text.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100U) << line;
  EXPECT_TRUE(contains(text.out, tag)) << text.out;
  EXPECT_TRUE(contains(text.out, "optimizer")) << text.out;
  std::istringstream plain(run({"log", url()}).out);
  std::size_t count = 0;
  for (std::string line; std::getline(plain, line);) count++;
  EXPECT_EQ(count, 3U);
}

TEST_F(CommandsTest, LogAsAGraphFitsTheTerminal) {
  make_versions(3);
  setenv("LC_ALL", "C", 1);
  const Result text = run({"log", url(), "--graph"}, 46);
  unsetenv("LC_ALL");
  ASSERT_EQ(text.code, 0) << text.err;
  std::istringstream lines(text.out);
  std::size_t count = 0;
  for (std::string line; std::getline(lines, line); count++) {
    EXPECT_LE(line.size(), 46U) << line;
    EXPECT_TRUE(std::ranges::all_of(line, [](char c) { return c >= 0x20 && c < 0x7F; })) << line;
  }
  EXPECT_EQ(count, 4U);
  EXPECT_TRUE(contains(text.out, "#")) << text.out;
  EXPECT_EQ(run({"log", url(), "--graph", "--limit", "1", "--json"}).json().size(), 1U);
  setenv("COLUMNS", "20", 1);
  std::istringstream piped(run({"log", url(), "--graph"}).out);
  unsetenv("COLUMNS");
  for (std::string line; std::getline(piped, line);) EXPECT_LE(line.size(), 20U) << line;
  expect_failure({"log", url(), "--graph", "--timing"}, 2, "invalid", "--graph");
}

TEST_F(CommandsTest, AReportIsOneFileThatEscapesWhatItShows) {
  make_versions(1);
  publish(2, {"--tag", "<script>alert('x')<&"});
  const std::string file = (dir_ / "out" / "report.html").string();
  expect_failure({"report", url()}, 2, "invalid", "-o report.html");
  expect_failure({"report", url(), "-o", file}, 1, "not_found", "out");
  stdfs::create_directory(dir_ / "out");
  const Result done = run({"report", url(), "-o", file, "--json"});
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_EQ(done.json()["versions"], 2);
  const std::string page = read_tree(dir_ / "out").at("report.html");
  EXPECT_EQ(page.size(), done.json()["bytes"]);
  EXPECT_TRUE(contains(page, "&lt;script&gt;alert(&#39;x&#39;)&lt;&amp;"));
  EXPECT_FALSE(contains(page, "<script"));
  EXPECT_EQ(run({"report", url(), "-o", file, "--limit", "1"}).code, 0);  // replaced
  EXPECT_TRUE(contains(read_tree(dir_ / "out").at("report.html"), "Of 2 versions the newest 1"));
  EXPECT_EQ(read_tree(dir_ / "out").size(), 1U);
}

TEST_F(CommandsTest, ADryRunChecksAndWritesNothing) {
  make_versions(2);
  write_checkpoint(dir_ / "next", 3);
  write_text(dir_ / "next" / "optimizer.pt", "x");
  const std::string next = (dir_ / "next").string();
  const auto before = read_tree(dir_ / "bucket");
  const Result plan = run({"publish", url(), next, "--dry-run", "--tag", "a"});
  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_TRUE(plan.out.starts_with("would publish version 3 of " + url() + ": ")) << plan.out;
  EXPECT_TRUE(contains(plan.out, "left out: optimizer.pt\nnothing was changed\n")) << plan.out;
  const Json back = run({"rollback", url(), "1", "--dry-run", "--json"}).json();
  EXPECT_EQ(back["rollback"], 1);
  EXPECT_EQ(back["version"], 3);
  EXPECT_EQ(back["files"], read_tree(dir_ / "step-1").size());
  expect_failure({"rollback", url(), "9", "--dry-run"}, 1, "not_found", "9");
  expect_failure({"publish", url(), next, "--dry-run", "--tag", "../x"}, 2, "invalid", "../x");
  write_text(dir_ / "next" / "model.safetensors.index.json",
             R"({"weight_map":{"x":"shard-of-another-part.safetensors"}})");
  expect_failure({"publish", url(), next, "--dry-run"}, 1, "not_found", "shard-of-another-part");
  EXPECT_EQ(run({"publish", url(), next, "--dry-run", "--tag", "a", "--part", "1/2"}).code, 0);
  write_text(dir_ / "next" / "broken.safetensors", "not one");
  expect_failure({"publish", url(), next, "--dry-run"}, 4, "corrupt", "broken.safetensors");
  EXPECT_EQ(read_tree(dir_ / "bucket"), before);
  setenv("WEIGHTFS_DRY_RUN", "1", 1);  // it is typed: nobody is kept from publishing by accident
  EXPECT_EQ(run({"rollback", url(), "1", "--json", "--store", path("store")}).json()["version"], 3);
  unsetenv("WEIGHTFS_DRY_RUN");
}

TEST_F(CommandsTest, LogOfAnEmptyRepositorySaysHowToPublish) {
  run({"init", url()});
  const Result text = run({"log", url()});
  EXPECT_EQ(text.code, 0);
  EXPECT_TRUE(contains(text.out, "weightfs publish " + url() + " DIR"));
  EXPECT_EQ(run({"log", url(), "--json"}).json(), Json::array());
}

TEST_F(CommandsTest, ShowTellsOfOneVersionOrTheNewest) {
  make_versions(2);
  const Json newest = run({"show", url(), "--json"}).json();
  EXPECT_EQ(newest["version"], 2);
  EXPECT_EQ(newest["manifest"]["version"], 2);
  EXPECT_EQ(newest["manifest_sha256"].get<std::string>().size(), 64U);
  std::vector<std::string> paths;
  for (const Json& file : newest["files"]) {
    paths.push_back(file["path"]);
    EXPECT_EQ(file["size"], stdfs::file_size(dir_ / "step-2" / paths.back()));
  }
  EXPECT_EQ(paths.size(), read_tree(dir_ / "step-2").size());
  EXPECT_TRUE(std::is_sorted(paths.begin(), paths.end()));

  const Result first = run({"show", url(), "1"});
  EXPECT_TRUE(contains(first.out, "version   1 of repository")) << first.out;
  EXPECT_TRUE(contains(first.out, "config.json"));
}

TEST_F(CommandsTest, DiffListsTensorsByTheShareThatChanged) {
  make_versions(3);
  const Json json = run({"diff", url(), "1", "3", "--json"}).json();
  EXPECT_EQ(json["from"], 1);
  EXPECT_EQ(json["to"], 3);
  std::uint64_t changed = 0;
  double last_share = 1;
  for (const Json& tensor : json["tensors"]) {
    EXPECT_LE(tensor["share"], last_share);
    last_share = tensor["share"];
    changed += tensor["changed"].get<std::uint64_t>();
  }
  EXPECT_GT(changed, 0U);
  EXPECT_EQ(json["changed"], changed);
  EXPECT_GT(json["largest_ulp"], 0);

  const Result text = run({"diff", url(), "1", "3"});
  EXPECT_TRUE(contains(text.out, "SHARE")) << text.out;
  EXPECT_TRUE(contains(text.out, "elements changed")) << text.out;
}

TEST_F(CommandsTest, ADiffOfAVersionWithItselfIsEmpty) {
  make_versions(1);
  const Result text = run({"diff", url(), "1", "1"});
  EXPECT_EQ(text.code, 0);
  EXPECT_TRUE(text.out.starts_with("0 of ")) << text.out;
}

TEST_F(CommandsTest, ExportGivesBackWhatWasPublished) {
  make_versions(3);
  EXPECT_EQ(run({"export", url(), path("newest")}).code, 0);
  EXPECT_EQ(read_tree(dir_ / "newest"), read_tree(dir_ / "step-3"));
  const Json json = run({"export", url(), path("second"), "--version", "2", "--json"}).json();
  EXPECT_EQ(json["version"], 2);
  EXPECT_EQ(json["directory"], path("second"));
  EXPECT_EQ(read_tree(dir_ / "second"), read_tree(dir_ / "step-2"));
}

TEST_F(CommandsTest, ATagAndLatestAreVersionsEverywhere) {
  make_versions(1);
  publish(2, {"--tag", "canary"});
  publish(3, {"--tag", "canary"});
  publish(4, {"--tag", "step-4"});
  publish(5);
  EXPECT_EQ(run({"show", url(), "canary", "--json"}).json()["version"], 3);
  EXPECT_EQ(run({"show", url(), "latest", "--json"}).json()["version"], 5);
  const Json diff = run({"diff", url(), "canary", "latest", "--json"}).json();
  EXPECT_EQ(diff["from"], 3);
  EXPECT_EQ(diff["to"], 5);
  EXPECT_EQ(run({"export", url(), path("step-4-again"), "--version", "step-4"}).code, 0);
  EXPECT_EQ(read_tree(dir_ / "step-4-again"), read_tree(dir_ / "step-4"));
  const Json change =
      run({"export", url(), path("change"), "--from", "canary", "--to", "latest", "--json"}).json();
  EXPECT_EQ(change["from"], 3);
  EXPECT_EQ(change["to"], 5);
  EXPECT_EQ(run({"verify", url(), "--version", "canary", "--json"}).json()["versions"], 1);
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"show", url(), "canray"},
                                             {"diff", url(), "1", "canray"},
                                             {"export", url(), path("none"), "--version", "canray"},
                                             {"verify", url(), "--version", "canray"}}) {
    expect_failure(arguments, 1, "not_found",
                   "carries the tag canray; did you mean canary?; the tags are step-4, canary");
  }
}

TEST_F(CommandsTest, ExportOfADamagedVersionNamesOneThatIsWhole) {
  make_versions(4);
  const auto expect_whole = [&](const std::string& version, const std::string& whole) {
    expect_failure({"export", url(), path("out"), "--version", version}, 4, "corrupt",
                   "the newest version that does not need it is " + whole + ": weightfs export " +
                       url() + " " + path("out") + " --version " + whole);
    EXPECT_EQ(
        run({"export", url(), path("whole-" + version + "-" + whole), "--version", whole}).code, 0);
  };
  spoil(only_file("packs/3"));
  expect_whole("3", "2");
  expect_whole("4", "2");
  ASSERT_EQ(publish(5, {"--snapshot"}).code, 0);
  expect_whole("3", "5");
}

TEST_F(CommandsTest, ExportSaysIfNoVersionIsWhole) {
  make_versions(2);
  for (const auto& entry : stdfs::recursive_directory_iterator(object("snapshots/1"))) {
    if (entry.path().extension() == ".safetensors") spoil(entry.path());
  }
  expect_failure(
      {"export", url(), path("out")}, 4, "corrupt",
      "no other version can be built without it; to list all damage: weightfs verify " + url());
}

TEST_F(CommandsTest, VerifyFindsNothingWrongWithAGoodRepository) {
  make_versions(3);
  const Json json = run({"verify", url(), "--json"}).json();
  EXPECT_EQ(json["versions"], 3);
  EXPECT_EQ(json["problems"], Json::array());
  EXPECT_TRUE(contains(run({"verify", url()}).out, "no problems"));
}

// Whoever may write to the bucket names its objects.
TEST_F(CommandsTest, NoNameOfAnObjectReachesATerminalRaw) {
  make_versions(1);
  write_text(object("packs/\xC2\x9B"
                    "2J/left"),
             "x");
  const std::string text = run({"verify", url()}).out;
  EXPECT_TRUE(contains(text, "packs/?2J/: 1 object")) << text;
}

TEST_F(CommandsTest, NoWordOfAReaderReachesATerminalRaw) {
  make_versions(1);
  const auto repository = Repository::open(url(), {});
  for (const std::uint64_t version : {0u, 1u}) {
    ReaderRecord record;
    record.id = random_hex(16);
    record.repository = repository->id();
    record.host = "host";
    record.place =
        "/\xC2\x9B"
        "2J";
    record.follow = "latest";
    record.version = record.newest = version;
    record.is_whole = true;
    record.health = "ok";
    record.since = record.time = static_cast<std::uint64_t>(seconds_now());
    write_text(object("readers/" + record.id + ".json"), record.serialize());
  }
  const Result result = run({"wait", url(), "--replicas", "1", "--version", "1"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(contains(result.out, "host:/?2J shows no version yet")) << result.out;
}

TEST_F(CommandsTest, VerifyNamesEveryProblemAndHasExitCode4) {
  make_versions(2);
  const stdfs::path pack = only_file("packs/2");
  spoil(pack);
  const std::string key = stdfs::relative(pack, dir_ / "bucket").string();
  const Result text = run({"verify", url()});
  EXPECT_EQ(text.code, 4);
  EXPECT_TRUE(contains(text.out, key)) << text.out;
  const Result json = run({"verify", url(), "--json"});
  EXPECT_EQ(json.code, 4);
  ASSERT_FALSE(json.json()["problems"].empty());
  EXPECT_TRUE(contains(json.json()["problems"][0]["object"], key)) << json.out;
}

// A flipped bit of a tag, a name or a size was once believed by every command.
TEST_F(CommandsTest, NoCommandBelievesAManifestWithAFlippedBit) {
  make_versions(3);
  auto rng = test::make_rng();
  for (int round = 0; round < 12; round++) {
    const unsigned version = 1 + static_cast<unsigned>(round) % 3;
    const std::string key = object(keys::manifest(version));
    const std::string good = test::read_text(key);
    std::string bad = good;
    const std::size_t bit = rng() % (8 * good.size());
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
    write_text(key, bad);
    SCOPED_TRACE("version " + std::to_string(version) + ", bit " + std::to_string(bit));
    EXPECT_NE(run({"verify", url()}).code, 0);
    EXPECT_NE(run({"log", url()}).code, 0);
    EXPECT_NE(run({"export", url(), std::to_string(version), path("out")}).code, 0);
    EXPECT_FALSE(stdfs::exists(path("out")));
    // It may bring an older version, and says which.
    if (round % 4 == 0) run({"sync", url(), path("synced"), "--once"});
    if (stdfs::exists(path("synced/latest"))) {
      const std::string shown = stdfs::read_symlink(path("synced/latest")).filename();
      EXPECT_EQ(read_tree(path("synced/versions/" + shown)), read_tree(path("step-" + shown)));
    }
    stdfs::remove_all(path("synced"));
    write_text(key, good);
  }
  EXPECT_EQ(run({"verify", url()}).code, 0);
}

TEST_F(CommandsTest, VerifyDeepIsForABucket) {
  make_versions(1);
  ASSERT_EQ(publish(2, {"--snapshot"}).code, 0);
  const Result deep = run({"verify", url(), "--deep"});
  EXPECT_EQ(deep.code, 0) << deep.out;
  EXPECT_TRUE(contains(deep.out, "verified 2 versions")) << deep.out;
  ASSERT_EQ(run({"sync", url(), path("synced"), "--once"}).code, 0);
  expect_failure({"verify", path("synced"), "--deep"}, 2, "invalid", "use the URL, " + url());
}

TEST_F(CommandsTest, ABucketThatHasAnotherRepositoryNowIsNotReadForADirectory) {
  make_versions(2);
  ASSERT_EQ(run({"sync", url(), path("synced"), "--once"}).code, 0);
  const std::string before = run({"status", path("synced"), "--json"}).json()["repository"];
  stdfs::remove_all(path("bucket"));
  const std::string now = run({"init", url(), "--json"}).json()["repository"];
  for (const unsigned version : {3u, 4u}) {
    write_checkpoint(path("step-" + std::to_string(version)), version);
    ASSERT_EQ(run({"publish", url(), path("step-" + std::to_string(version)), "--store",
                   path("another-store")})
                  .code,
              0);
  }
  const std::vector<std::vector<std::string>> commands{
      {"log", path("synced")},
      {"show", path("synced"), "latest"},
      {"diff", path("synced"), "1", "2"},
      {"export", path("synced"), path("out"), "--version", "1"},
      {"report", path("synced"), "-o", path("report.html")},
      {"verify", path("synced")},
      {"du", path("synced")},
      {"gc", path("synced")},
      {"fleet", path("synced")}};
  for (const auto& command : commands) {
    SCOPED_TRACE(command.front());
    for (const std::string& named : {url(), path("synced"), before, now}) {
      expect_failure(command, 4, "corrupt", named);
    }
  }
  EXPECT_FALSE(stdfs::exists(path("out")));
  EXPECT_EQ(run({"log", url()}).code, 0);
}

// ---- status --check ----

TEST_F(CommandsTest, ACheckOfWhatIsNotServedIsALineToo) {
  for (const std::string& place : {path("absent"), dir_.path().string()}) {
    const Result plain = run({"status", place, "--check"});
    EXPECT_EQ(plain.code, 2);
    EXPECT_EQ(plain.err, "");
    EXPECT_TRUE(plain.out.starts_with("failed: " + place + " is not a weightfs mount: "))
        << plain.out;
    EXPECT_EQ(std::ranges::count(plain.out, '\n'), 1);
    const Result json = run({"status", place, "--check", "--json"});
    EXPECT_EQ(json.code, 2);
    EXPECT_EQ(json.json()["health"], "failed");
    EXPECT_EQ(json.json()["mounts"][0]["mountpoint"], place);
  }
  EXPECT_EQ(run({"status", path("absent")}).code, 1);  // nobody asked for a line
}

/// The directory of a sync, which this process holds as the sync would.
class CheckedDirectoryTest : public CommandsTest {
 protected:
  CheckedDirectoryTest() {
    make_versions(1);
    EXPECT_EQ(run({"sync", url(), path("synced"), "--once"}).code, 0);
    const std::string status = test::read_text(path("synced/.weightfs/status"));
    const std::string repository = Json::parse(status)["repository"];
    directory_ = std::make_unique<SyncDirectory>(path("synced"), repository, url());
    directory_->write_status(status);
  }

  void expect_check(int code, const std::string& text) {
    const Result result = run({"status", path("synced"), "--check"});
    EXPECT_EQ(result.code, code) << result.out << result.err;
    EXPECT_TRUE(contains(result.out, text)) << result.out;
  }

  std::unique_ptr<SyncDirectory> directory_;
};

TEST_F(CheckedDirectoryTest, OneWhoseStatusIsOldIsStuck) {
  expect_check(0, "healthy: " + path("synced") + " shows version 1");
  for (const char* const name : {"synced/.weightfs/status", "synced/.weightfs/lock"}) {
    stdfs::last_write_time(path(name),
                           stdfs::last_write_time(path(name)) - std::chrono::seconds(60));
  }
  expect_check(2, "failed: " + path("synced") + ": weightfs sync, pid ");
  expect_check(2, "does not answer: its status was written 6");
  EXPECT_EQ(run({"status", path("synced"), "--json"}).json()["state"], "stuck");
  directory_.reset();
  expect_check(2, "no process keeps it up to date");
}

TEST_F(CheckedDirectoryTest, OneThatLacksWhatItShowsIsIncomplete) {
  stdfs::rename(path("synced/versions/1"), path("taken"));
  expect_check(2, path("synced/versions/1") + " is missing");
  EXPECT_EQ(run({"status", path("synced"), "--json"}).json()["state"], "incomplete");
  stdfs::rename(path("taken"), path("synced/versions/1"));
  expect_check(0, "healthy");
  stdfs::remove(path("synced/latest"));
  expect_check(2, path("synced/latest") + " is missing");
  Json status = Json::parse(test::read_text(path("synced/.weightfs/status")));
  status["version"] = 0;  // as the sync says when it looks at the link
  directory_->write_status(status.dump());
  expect_check(2, path("synced/latest") + " is missing");
}

TEST_F(CommandsTest, VerifyAndDiffLeaveNoTemporaryFiles) {
  make_versions(2);
  const auto names = [&] {
    std::vector<std::string> all;
    for (const auto& entry : stdfs::directory_iterator(dir_.path())) {
      all.push_back(entry.path().filename());
    }
    std::sort(all.begin(), all.end());
    return all;
  };
  const auto before = names();
  EXPECT_EQ(run({"verify", url()}).code, 0);
  EXPECT_EQ(run({"diff", url(), "1", "2"}).code, 0);
  EXPECT_EQ(run({"diff", url(), "1", "9"}).code, 1);
  spoil(only_file("packs/2"));
  EXPECT_EQ(run({"diff", url(), "1", "2"}).code, 4);
  EXPECT_EQ(names(), before);
}

// Both take version 1 as the parent; only one can be version 2.
TEST_F(CommandsTest, OfTwoPublishersAtOnceOneHasExitCode3) {
  make_versions(1);
  unsigned newest = 1;
  for (int round = 0; round < 20; round++) {
    for (const unsigned version : {2U, 3U}) {
      const std::string directory = path("step-" + std::to_string(version));
      if (!stdfs::exists(directory)) write_checkpoint(directory, version);
    }
    std::barrier start(2);
    Result results[2];
    const auto publish_from = [&](int i) {
      start.arrive_and_wait();
      results[i] = run({"publish", url(), path(i == 0 ? "step-2" : "step-3"), "--store",
                        path("store-" + std::to_string(i))});
    };
    {
      const std::jthread other(publish_from, 1);
      publish_from(0);
    }
    for (const Result& result : results) {
      EXPECT_TRUE(result.code == 0 || result.code == 3) << result.err;
      if (result.code == 0) newest++;
    }
    EXPECT_EQ(run({"log", url(), "--json"}).json().size(), newest);
    if (results[0].code != 3 && results[1].code != 3) continue;  // one after the other: once more
    const Result& loser = results[results[0].code == 3 ? 0 : 1];
    EXPECT_TRUE(contains(loser.err, "weightfs: ")) << loser.err;
    EXPECT_EQ(publish(3).code, 0);  // trying again works
    return;
  }
  FAIL() << "in 20 rounds no two publishers met";
}

TEST_F(CommandsTest, OfPublishersAtOnceAllAreDoneWithRebase) {
  make_versions(1);
  constexpr unsigned kPublishers = 3;
  for (unsigned i = 0; i < kPublishers; i++) {
    write_checkpoint(path("mine-" + std::to_string(i)), 2 + i);
  }
  std::barrier start(kPublishers);
  Result results[kPublishers];
  {
    std::vector<std::jthread> publishers;
    for (unsigned i = 0; i < kPublishers; i++) {
      publishers.emplace_back([&, i] {
        start.arrive_and_wait();
        results[i] = run({"publish", url(), path("mine-" + std::to_string(i)), "--rebase",
                          "--store", path("store-" + std::to_string(i))});
      });
    }
  }
  for (const Result& result : results) EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(run({"log", url(), "--json"}).json().size(), 1 + kPublishers);
  EXPECT_EQ(run({"verify", url()}).code, 0);
}

TEST_F(CommandsTest, StatusIsAListOfMounts) {
  const Result json = run({"status", "--json"});
  EXPECT_EQ(json.code, 0);
  EXPECT_TRUE(json.json().is_array());
}

TEST_F(CommandsTest, FlagsOfS3AreRefusedWithADirectory) {
  expect_failure({"init", url(), "--region", "eu"}, 2, "invalid", "is a directory");
  EXPECT_FALSE(stdfs::exists(path("bucket")));
}

TEST_F(CommandsTest, DoctorLooksAtABucketIfItIsAsked) {
  const Result none = run({"doctor", "--json"});
  EXPECT_TRUE(none.json()["bucket"].is_null());
  make_versions(1);
  const Result result = run({"doctor", url(), "--json"});
  EXPECT_EQ(result.code, none.code);
  const Json bucket = result.json()["bucket"];
  EXPECT_EQ(bucket["url"], url());
  EXPECT_EQ(bucket["usable"], true);
  for (const char* what : {"read", "list", "write", "repository"}) {
    EXPECT_EQ(bucket["findings"][what]["state"], "good") << what;
  }
  EXPECT_TRUE(contains(run({"doctor", url()}).out, "put-if-absent is supported"));
  const Result absent = run({"doctor", "file://" + path("absent")});
  EXPECT_EQ(absent.code, 1);
  EXPECT_TRUE(contains(absent.out, "BAD: ")) << absent.out;
  for (const auto& entry : stdfs::directory_iterator(path("bucket"))) {
    EXPECT_FALSE(contains(entry.path().filename(), ".probe")) << entry.path();
  }
}

TEST_F(CommandsTest, DoctorTellsWhatIsInUse) {
  const Result result = run({"doctor", "--json"});
  const Json json = result.json();
  EXPECT_EQ(result.code, json["fuse"]["usable"].get<bool>() ? 0 : 1);
  EXPECT_EQ("weightfs " + json["weightfs"].get<std::string>() + "\n", run({"--version"}).out);
  EXPECT_EQ(json["kernels"]["variant"], kernels::chosen_variant().name);
  EXPECT_EQ(json["kernels"]["why"], "default");
  EXPECT_EQ(json["kernels"]["variants"].size(), kernels::variants().size());
  EXPECT_EQ(json["kernels"]["variants"][0], "scalar");
  EXPECT_EQ(json["gpus"].empty(), !json["gpus_why"].get<std::string>().empty());
  const Result text = run({"doctor"});
  EXPECT_TRUE(contains(text.out, fmt::format("[{}]", kernels::chosen_variant().name))) << text.out;
  EXPECT_TRUE(contains(text.out, json["libfuse"])) << text.out;
}

/// Chooses kernels as the environment of a command, and the fastest ones again at the end.
class KernelsTest : public CommandsTest {
 protected:
  static void choose(const std::string& name) { setenv("WEIGHTFS_KERNELS", name.c_str(), 1); }
  ~KernelsTest() override {
    unsetenv("WEIGHTFS_KERNELS");
    static_cast<void>(kernels::choose_variant("simd"));
  }
};

TEST_F(KernelsTest, DoctorTellsThatTheEnvironmentChoseThem) {
  choose("scalar");
  const Json json = run({"doctor", "--json"}).json();
  EXPECT_EQ(json["kernels"]["variant"], "scalar");
  EXPECT_EQ(json["kernels"]["why"], "WEIGHTFS_KERNELS=scalar");
  for (const auto& [operation, variant] : json["kernels"]["operations"].items()) {
    EXPECT_EQ(variant, "scalar") << operation;
  }
}

TEST_F(KernelsTest, UnknownOnesHaveExitCode2) {
  choose("fastest");
  EXPECT_EQ(run({"doctor"}).code, 2);
  choose("simd");
  EXPECT_EQ(run({"doctor", "--json"}).json()["kernels"]["variant"],
            kernels::variants().back().name);
}

TEST_F(KernelsTest, AGpuThatIsNotThereIsToldOnceAndTheWorkIsDone) {
  if (!kernels::find_gpus().devices.empty()) GTEST_SKIP() << "this machine has a GPU";
  ASSERT_EQ(run({"init", url()}).code, 0);
  for (unsigned version = 1; version <= 2; version++) {
    testing::internal::CaptureStderr();
    const Result result = publish(version, {"--gpu", "0"});
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_EQ(result.code, 0) << result.err;
    const auto first = log.find("--gpu 0: ");
    EXPECT_NE(first, std::string::npos) << log;
    EXPECT_EQ(log.find("--gpu 0: ", first + 1), std::string::npos) << log;
  }
  EXPECT_EQ(run({"verify", url(), "--gpu", "0"}).code, 0);
  EXPECT_EQ(run({"verify", url()}).code, 0);
}

TEST_F(CommandsTest, HelpAndVersionAreData) {
  const Result help = run({"help", "mount"});
  EXPECT_EQ(help.code, 0);
  EXPECT_TRUE(contains(help.out, "usage: weightfs mount"));
  EXPECT_EQ(help.err, "");
  EXPECT_TRUE(contains(run({"help", "--json"}).json()["text"], "usage"));
  EXPECT_TRUE(run({"--version"}).out.starts_with("weightfs "));
}

TEST_F(CommandsTest, NothingIsSaidOnStderrWhenAllIsWell) {
  make_versions(1);
  for (const auto& arguments : std::vector<std::vector<std::string>>{
           {"log", url()}, {"show", url()}, {"verify", url()}, {"export", url(), path("out")}}) {
    EXPECT_EQ(run(arguments).err, "") << arguments[0];
  }
}

// ---- bad input ----

TEST_F(CommandsTest, AUsageErrorHasExitCode2) {
  const Result plain = run({"publish", url()});
  EXPECT_EQ(plain.code, 2);
  EXPECT_EQ(plain.out, "");
  EXPECT_EQ(plain.err, "weightfs: publish needs URL|MOUNTPOINT DIR; only " + url() +
                           " is given\n"
                           "usage: weightfs publish URL|MOUNTPOINT DIR [OPTION...]\n"
                           "run weightfs help publish\n");
  const Result json = run({"publish", url(), "--json"});
  EXPECT_EQ(json.code, 2);
  EXPECT_EQ(json.err, plain.err);
  EXPECT_EQ(json.json()["error"]["code"], "invalid");
}

TEST_F(CommandsTest, AUrlThatIsNoneIsAUsageError) {
  for (const char* command : {"log", "init"}) {
    expect_failure({command, "bucket"}, 2, "invalid", "'bucket'");
    expect_failure({command, "ftp://x/y"}, 2, "invalid", "ftp");
    expect_failure({command, "file://relative"}, 2, "invalid", "relative");
  }
}

TEST_F(CommandsTest, AUrlThatIsNoRepositorySaysHowToMakeOne) {
  stdfs::create_directory(dir_ / "bucket");
  for (const auto& arguments :
       std::vector<std::vector<std::string>>{{"log", url()},
                                             {"show", url()},
                                             {"diff", url(), "1", "2"},
                                             {"export", url(), path("out")},
                                             {"verify", url()},
                                             {"publish", url(), path("x")}}) {
    expect_failure(arguments, 1, "not_found", url());
    EXPECT_TRUE(contains(run(arguments).err, "weightfs init")) << arguments[0];
  }
}

TEST_F(CommandsTest, ANewerFormatAndUnknownFeaturesAreRefused) {
  make_versions(1);
  const auto rewrite = [&](const auto& change) {
    Json record = Json::parse(test::read_text(object("weightfs.json")));
    change(record);
    write_text(object("weightfs.json"), record.dump());
  };
  rewrite([](Json& record) { record["required_features"] = {"time-travel"}; });
  expect_failure({"log", url()}, 1, "unsupported", "time-travel");
  rewrite([](Json& record) {
    record["required_features"] = Json::array();
    record["format"] = 2;
  });
  expect_failure({"log", url()}, 1, "unsupported", "format 2");
  expect_failure({"publish", url(), path("step-1"), "--store", path("store")}, 1, "unsupported",
                 "format 2");
}

TEST_F(CommandsTest, AVersionThatDoesNotExistIsNamed) {
  make_versions(2);
  expect_failure({"show", url(), "7"}, 1, "not_found", "version 7");
  expect_failure({"diff", url(), "1", "7"}, 1, "not_found", "version 7");
  expect_failure({"export", url(), path("out"), "--version", "7"}, 1, "not_found", "version 7");
  EXPECT_FALSE(stdfs::exists(dir_ / "out"));
}

TEST_F(CommandsTest, AnEmptyRepositoryHasNothingToShow) {
  run({"init", url()});
  expect_failure({"show", url()}, 1, "not_found", "empty");
  expect_failure({"export", url(), path("out")}, 1, "not_found", "empty");
}

TEST_F(CommandsTest, ADirectoryWithNothingToPublishIsRefused) {
  run({"init", url()});
  stdfs::create_directory(dir_ / "empty");
  expect_failure({"publish", url(), path("empty"), "--store", path("store")}, 2, "invalid",
                 path("empty"));
  write_text(dir_ / "pickles" / "model.pt", "pickle");
  expect_failure({"publish", url(), path("pickles"), "--store", path("store")}, 2, "invalid",
                 path("pickles"));
  expect_failure({"publish", url(), path("absent"), "--store", path("store")}, 1, "not_found",
                 path("absent"));
  write_text(dir_ / "file", "x");
  expect_failure({"publish", url(), path("file"), "--store", path("store")}, 2, "invalid",
                 path("file"));
  EXPECT_EQ(run({"log", url(), "--json"}).json(), Json::array());
}

TEST_F(CommandsTest, WhatAKilledSaverLeftIsRefused) {
  make_versions(1);
  const std::string left = path("left");
  for (const auto& [name, bytes] : read_tree(dir_ / "step-1")) {
    if (name == "config.json") write_text(dir_ / "left" / name, bytes);
  }
  write_text(dir_ / "left" / "model.py", "code");
  expect_failure(
      {"publish", url(), left, "--store", path("store")}, 2, "invalid",
      "no weights in it (*.safetensors), and version 1 has some; left out were model.py");
  const std::string shard = "model-00001-of-00002.safetensors";
  write_text(dir_ / "left" / shard, read_tree(dir_ / "step-1").at(shard));
  expect_failure({"publish", url(), left, "--store", path("store")}, 1, "not_found",
                 "model-00002-of-00002.safetensors is missing");
  EXPECT_EQ(run({"log", url(), "--json"}).json().size(), 1U);
}

TEST_F(CommandsTest, ABrokenCheckpointHasExitCode4AndIsNamed) {
  run({"init", url()});
  write_text(dir_ / "broken" / "model.safetensors", "no safetensors");
  expect_failure({"publish", url(), path("broken"), "--store", path("store")}, 4, "corrupt",
                 "model.safetensors");
}

TEST_F(CommandsTest, ABadTagIsRefused) {
  run({"init", url()});
  write_checkpoint(path("step-1"), 1);
  expect_failure({"publish", url(), path("step-1"), "--store", path("store"), "--tag", "a/b"}, 2,
                 "invalid", "a/b");
}

TEST_F(CommandsTest, ABucketThatCannotBeWrittenIsNamed) {
  const Result result = run({"init", "file:///proc/x"});
  EXPECT_EQ(result.code, 1);
  EXPECT_TRUE(contains(result.err, "/proc/x")) << result.err;
}

TEST_F(CommandsTest, ExportRefusesADirectoryThatIsNotEmpty) {
  make_versions(1);
  write_text(dir_ / "out" / "mine", "x");
  const Result result = run({"export", url(), path("out")});
  EXPECT_NE(result.code, 0);
  EXPECT_TRUE(contains(result.err, path("out"))) << result.err;
  EXPECT_EQ(read_tree(dir_ / "out"), (std::map<std::string, std::string>{{"mine", "x"}}));
}

TEST_F(CommandsTest, AStoreOfAnotherRepositoryIsRefused) {
  make_versions(1);
  const std::string other = "file://" + path("other");
  run({"init", other});
  expect_failure({"publish", other, path("step-1"), "--store", path("store")}, 2, "invalid",
                 path("store"));
}

TEST_F(CommandsTest, MountSaysWhatIsWrongWithTheMountPoint) {
  make_versions(1);
  const auto mount = [&](const std::string& at) {
    return std::vector<std::string>{"mount", url(), at, "--store", path("reader")};
  };
  expect_failure(mount(path("absent")), 1, "not_found", path("absent"));
  write_text(dir_ / "file", "x");
  expect_failure(mount(path("file")), 2, "invalid", path("file"));
  expect_failure(mount(path("step-1")), 2, "invalid", path("step-1"));  // not empty
  expect_failure(mount("/proc"), 1, "busy", "/proc");
  EXPECT_FALSE(stdfs::exists(dir_ / "reader"));
}

TEST_F(CommandsTest, MountSaysWhatIsWrongWithTheRepository) {
  stdfs::create_directory(dir_ / "mnt");
  stdfs::create_directory(dir_ / "bucket");
  expect_failure({"mount", url(), path("mnt"), "--store", path("reader")}, 1, "not_found", url());
  expect_failure({"mount", "bucket", path("mnt")}, 2, "invalid", "bucket");
}

// The daemon would wait for itself.
TEST_F(CommandsTest, MountRefusesAStoreOrABucketBelowTheMountPoint) {
  make_versions(1);
  stdfs::create_directory(dir_ / "mnt");
  stdfs::create_symlink(dir_ / "mnt", dir_ / "link");
  expect_failure({"mount", url(), path("mnt"), "--store", path("link/store")}, 2, "invalid",
                 path("link/store"));
  stdfs::create_directories(dir_ / "reader/inside");
  expect_failure({"mount", url(), path("reader/inside"), "--store", path("reader")}, 2, "invalid",
                 path("reader/inside"));
}

TEST_F(CommandsTest, UmountAndStatusRefuseWhatIsNoWeightfsMount) {
  stdfs::create_directory(dir_ / "mnt");
  for (const char* command : {"umount", "status"}) {
    expect_failure({command, path("mnt")}, 1, "not_found", path("mnt"));
    expect_failure({command, "/proc"}, 1, "not_found", "proc is mounted there");
  }
}

TEST_F(CommandsTest, AnExportToWhereNothingCanBeIsNotDamageOfTheBucket) {
  make_versions(2);
  for (const char* version : {"1", "2"}) {
    const Result result = run({"export", url(), "/proc/weightfs", "--version", version});
    EXPECT_EQ(result.code, 1);
    EXPECT_TRUE(contains(result.err, "/proc"));
    EXPECT_FALSE(contains(result.err, "weightfs export")) << "another version is not the way";
  }
}

TEST_F(CommandsTest, AnOutputThatCannotBeWrittenIsAFailure) {
  make_versions(1);
  std::ofstream full("/dev/full");
  std::ostringstream err;
  const std::string target = url();
  const char* argv[] = {"weightfs", "log", target.c_str()};
  EXPECT_EQ(run_command(parse_options(3, argv), {.out = full, .err = err}), 1);
  EXPECT_TRUE(contains(err.str(), "standard output"));
}

}  // namespace
}  // namespace weightfs::fs
