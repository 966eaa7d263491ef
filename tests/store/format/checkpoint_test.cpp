#include "store/format/checkpoint.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "store/base/error.hpp"
#include "store/os/file.hpp"
#include "tests/support/support.hpp"

namespace weightfs {
namespace {

namespace stdfs = std::filesystem;

std::string weights(const std::string& tensor = "w") {
  return test::make_safetensors({{tensor, Dtype::u8, {3}, Bytes(3)}});
}

std::vector<std::string> paths_of(const Checkpoint& checkpoint) {
  std::vector<std::string> paths;
  for (const CheckpointFile& file : checkpoint.files) paths.push_back(file.path);
  return paths;
}

void expect_checkpoint_refused(const stdfs::path& directory, ErrorCode code,
                               const std::string& reason,
                               const std::vector<std::string>& include = {}) {
  try {
    scan_checkpoint(directory, include);
    ADD_FAILURE() << "accepted; expected: " << reason;
  } catch (const Error& error) {
    EXPECT_EQ(to_string(error.code()), to_string(code)) << error.what();
    EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
  }
}

class CheckpointTest : public testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) const {
    test::write_text(dir_ / path, text);
  }
  [[nodiscard]] Checkpoint scan(const std::vector<std::string>& include = {}) const {
    return scan_checkpoint(dir_.path(), include);
  }
  void refuse(ErrorCode code, const std::string& reason) const {
    expect_checkpoint_refused(dir_.path(), code, reason);
  }
  void write_shards() const {
    write("one.safetensors", weights("x"));
    write("two.safetensors", weights("y"));
  }

  test::TempDir dir_;
};

TEST_F(CheckpointTest, FindsAWholeCheckpoint) {
  test::write_checkpoint(dir_.path(), 1, 1000);
  const Checkpoint checkpoint = scan();
  EXPECT_EQ(paths_of(checkpoint),
            (std::vector<std::string>{"config.json", "model-00001-of-00002.safetensors",
                                      "model-00002-of-00002.safetensors",
                                      "model.safetensors.index.json"}));
  EXPECT_TRUE(checkpoint.unpublished.empty());
  std::uint64_t size = 0;
  for (const CheckpointFile& file : checkpoint.files) {
    EXPECT_EQ(file.stamp.size_bytes, stdfs::file_size(dir_ / file.path));
    size += file.stamp.size_bytes;
  }
  EXPECT_EQ(checkpoint.size_bytes(), size);
  const CheckpointFile& shard = checkpoint.files[1];
  EXPECT_EQ(shard.kind, CheckpointFile::Kind::safetensors);
  EXPECT_TRUE(test::read_text(dir_ / shard.path).starts_with(shard.head));
  EXPECT_EQ(shard.header.tensors.size(), 1U);
  EXPECT_EQ(checkpoint.files[0].kind, CheckpointFile::Kind::blob);
  EXPECT_TRUE(checkpoint.files[0].head.empty());
}

TEST_F(CheckpointTest, PublishesTheBuiltInPatternsOnly) {
  const std::vector<std::string> published = {"LICENSE",
                                              "LICENSE.txt",
                                              "NOTICE",
                                              "README.md",
                                              "a.jinja",
                                              "a.json",
                                              "a.jsonl",
                                              "a.model",
                                              "a.safetensors",
                                              "a.spm",
                                              "a.tiktoken",
                                              "a.txt",
                                              "a.vocab",
                                              "sub/dir/b.json",
                                              "tokenizer",
                                              "tokenizer_config",
                                              "optimizer-state.safetensors"};
  const std::vector<std::string> left_out = {
      "a.bin",         "a.ckpt",           "a.pkl",        "a.pt",
      "a.pth",         "model.py",         "optimizer",    "sub/c.pt",
      "tokenizer.bin", "tokenizer.pickle", "tokenizer.py", "training_args.bin",
      "tokenizer.pt"};
  for (const std::string& path : published) {
    write(path, path.ends_with(".safetensors") ? weights() : "{}");
  }
  for (const std::string& path : left_out) write(path, "x");
  const Checkpoint checkpoint = scan();
  const auto sorted = [](std::vector<std::string> names) {
    std::sort(names.begin(), names.end());
    return names;
  };
  EXPECT_EQ(paths_of(checkpoint), sorted(published));
  EXPECT_EQ(checkpoint.unpublished, sorted(left_out));
}

TEST_F(CheckpointTest, IncludesWhatTheCallerNames) {
  write("a.safetensors", weights());
  write("a.pt", "x");
  write("sub/b.pt", "x");
  write("sub/c.py", "x");
  write("sub/deep/d.py", "x");
  EXPECT_EQ(paths_of(scan({"*.pt"})),
            (std::vector<std::string>{"a.pt", "a.safetensors", "sub/b.pt"}));
  const Checkpoint checkpoint = scan({"sub/*.py"});
  EXPECT_EQ(paths_of(checkpoint), (std::vector<std::string>{"a.safetensors", "sub/c.py"}));
  EXPECT_EQ(checkpoint.unpublished,
            (std::vector<std::string>{"a.pt", "sub/b.pt", "sub/deep/d.py"}));
}

TEST_F(CheckpointTest, IgnoresHiddenFilesAndDirectories) {
  write("a.safetensors", weights());
  write(".tmpAbCdEf.safetensors", "half written");
  write(".cache/b.json", "x");
  ASSERT_EQ(::mkfifo((dir_ / ".fifo").c_str(), 0600), 0);
  const Checkpoint checkpoint = scan({"*"});
  EXPECT_EQ(paths_of(checkpoint), (std::vector<std::string>{"a.safetensors"}));
  EXPECT_TRUE(checkpoint.unpublished.empty());
}

TEST_F(CheckpointTest, TakesLargeFilesAsOpaque) {
  write("small.json", "{}");
  write("large.json", "{}");
  write("limit.txt", "");
  stdfs::resize_file(dir_ / "large.json", kBlobBytesMax + 1);
  stdfs::resize_file(dir_ / "limit.txt", kBlobBytesMax);
  const Checkpoint checkpoint = scan();
  ASSERT_EQ(checkpoint.files.size(), 3U);
  EXPECT_EQ(checkpoint.files[0].kind, CheckpointFile::Kind::opaque);
  EXPECT_EQ(checkpoint.files[1].kind, CheckpointFile::Kind::blob);
  EXPECT_EQ(checkpoint.files[2].kind, CheckpointFile::Kind::blob);
}

TEST_F(CheckpointTest, FollowsSymlinksToFilesOnly) {
  const test::TempDir other;
  test::write_text(other / "blob", weights());
  stdfs::create_symlink(other / "blob", dir_ / "a.safetensors");
  const Checkpoint checkpoint = scan();
  ASSERT_EQ(checkpoint.files.size(), 1U);
  EXPECT_EQ(checkpoint.files[0].stamp.size_bytes, weights().size());

  stdfs::create_symlink(other / "gone", dir_ / "dangling.json");
  refuse(ErrorCode::invalid, "dangling.json is a symlink to nothing");
  stdfs::remove(dir_ / "dangling.json");
  stdfs::create_directory_symlink(other.path(), dir_ / "directory");
  refuse(ErrorCode::invalid, "directory is a symlink to a directory");
}

TEST_F(CheckpointTest, MayBeGivenAsASymlink) {
  write("a.safetensors", weights());
  const test::TempDir other;
  stdfs::create_directory_symlink(dir_.path(), other / "link");
  EXPECT_EQ(scan_checkpoint(other / "link", {}).files.size(), 1U);
}

TEST_F(CheckpointTest, RefusesSpecialFilesWithoutOpeningThem) {
  write("a.safetensors", weights());
  ASSERT_EQ(::mkfifo((dir_ / "pipe.json").c_str(), 0600), 0);
  refuse(ErrorCode::invalid, "pipe.json is a FIFO, socket or device");
  stdfs::remove(dir_ / "pipe.json");

  const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  const File owner(fd);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = (dir_ / "socket").string();
  ASSERT_LT(path.size(), sizeof address.sun_path);
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  ASSERT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  refuse(ErrorCode::invalid, "socket is a FIFO, socket or device");
  stdfs::remove(dir_ / "socket");

  stdfs::create_symlink("/dev/null", dir_ / "null.json");
  refuse(ErrorCode::invalid, "null.json is a symlink to a special file");
}

TEST_F(CheckpointTest, RefusesNamesThatNoVersionMayHold) {
  write("a.safetensors", weights());
  write("bad\nname.json", "{}");
  refuse(ErrorCode::invalid, "bad\\x0aname.json has a control character: rename it");
  stdfs::remove(dir_ / "bad\nname.json");
  write("bad\xFFname.json", "{}");
  refuse(ErrorCode::invalid, "bad\\xffname.json is not valid UTF-8");
  stdfs::remove(dir_ / "bad\xFFname.json");
  write("back\\slash/a.json", "{}");
  refuse(ErrorCode::invalid, "has a backslash");
  stdfs::remove_all(dir_ / "back\\slash");
  write("bad\xFFname.pt", "not published, so its name does not matter");
  EXPECT_EQ(scan().unpublished, (std::vector<std::string>{"bad\\xffname.pt"}));
}

TEST_F(CheckpointTest, RefusesWhatIsNoCheckpoint) {
  refuse(ErrorCode::invalid, "is empty");
  write(".hidden.json", "{}");
  refuse(ErrorCode::invalid, "is empty (hidden files do not count)");
  write("model.pt", "x");
  refuse(ErrorCode::invalid, "only model.pt; --include GLOB");
  expect_checkpoint_refused(dir_ / "model.pt", ErrorCode::invalid, "model.pt is not a directory");
  expect_checkpoint_refused(dir_ / "absent", ErrorCode::not_found, "absent");
}

TEST_F(CheckpointTest, RefusesDirectoriesThatAreTooDeep) {
  std::string deep;
  for (int i = 0; i < 15; i++) deep += "d/";
  write(deep + "a.json", "{}");
  EXPECT_EQ(scan().files.size(), 1U);
  write(deep + "d/a.json", "{}");
  refuse(ErrorCode::invalid, "is nested deeper than 16 directories");
}

TEST_F(CheckpointTest, RefusesMoreBytesThanAVersionHolds) {
  // Sparse files, as large as the tests' file system allows.
  const std::uint64_t size = std::uint64_t{1} << 43;
  for (int i = 0; i < 9; i++) {
    const std::string name = "sparse" + std::to_string(i) + ".txt";
    write(name, "x");
    std::error_code error;
    stdfs::resize_file(dir_ / name, size, error);
    if (error) GTEST_SKIP() << "no sparse files of " << size << " bytes here: " << error.message();
  }
  refuse(ErrorCode::invalid, "a version has at most 70368744177664");
}

TEST_F(CheckpointTest, ReportsABadHeaderWithItsFile) {
  write("sub/a.safetensors", "");
  refuse(ErrorCode::corrupt, "sub/a.safetensors: not a safetensors file");
}

TEST_F(CheckpointTest, AcceptsAnIndexThatTellsTheTruth) {
  write_shards();
  write("model.safetensors.index.json",
        R"({"metadata":{},"weight_map":{"x":"one.safetensors","y":"two.safetensors"}})");
  write("sub/three.safetensors", weights("z"));
  write("sub/model.safetensors.index.json", R"({"weight_map":{"z":"three.safetensors"}})");
  EXPECT_EQ(scan().files.size(), 5U);
}

TEST_F(CheckpointTest, RefusesAnIndexThatNamesAPathOutside) {
  write_shards();
  for (const char* shard :
       {"../one.safetensors", "/etc/x.safetensors", "sub/one.safetensors", ".."}) {
    write("m.safetensors.index.json", R"({"weight_map":{"x":")" + std::string(shard) + "\"}}");
    refuse(ErrorCode::corrupt, "names a path outside the directory: '" + std::string(shard));
  }
  write("m.safetensors.index.json", R"({"weight_map":{"x":".one.safetensors"}})");
  refuse(ErrorCode::corrupt, "the name of the shard '.one.safetensors' has a hidden component");
}

TEST_F(CheckpointTest, RefusesAnIndexOfAMissingShard) {
  write_shards();
  write("m.safetensors.index.json", R"({"weight_map":{"x":"three.safetensors"}})");
  refuse(ErrorCode::not_found, "three.safetensors is listed in the index");
  write("m.safetensors.index.json", R"({"weight_map":{"x":"m.safetensors.index.json"}})");
  refuse(ErrorCode::corrupt, "is not a safetensors file");
}

TEST_F(CheckpointTest, RefusesAnIndexThatPutsATensorIntoTheWrongShard) {
  write_shards();
  write("m.safetensors.index.json", R"({"weight_map":{"x":"two.safetensors"}})");
  refuse(ErrorCode::corrupt, "tensor 'x' is in shard one.safetensors, but the index");
  refuse(ErrorCode::corrupt, "m.safetensors.index.json says two.safetensors");
  write("m.safetensors.index.json", R"({"weight_map":{"q":"two.safetensors"}})");
  refuse(ErrorCode::corrupt, "tensor 'q' is in no shard");
}

TEST_F(CheckpointTest, RefusesAnIndexThatIsNone) {
  write_shards();
  for (const char* text : {"", "[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{"x":1}})",
                           R"({"weight_map":{"x":"one.safetensors","x":"two.safetensors"}})"}) {
    write("m.safetensors.index.json", text);
    refuse(ErrorCode::corrupt, "m.safetensors.index.json");
  }
}

/// A saver that is killed has not written its index yet.
TEST_F(CheckpointTest, RefusesShardsWhoseSiblingsAreMissing) {
  for (int shard = 1; shard <= 5; shard++) {
    write("sub/model-0000" + std::to_string(shard) + "-of-00008.safetensors",
          weights("w" + std::to_string(shard)));
  }
  refuse(ErrorCode::not_found, "sub/model-00006-of-00008.safetensors is missing");
  EXPECT_EQ(scan_checkpoint(dir_.path(), {}, ScanScope::part).files.size(), 5U)
      << "other parts have the others";
  for (int shard = 6; shard <= 8; shard++) {
    write("sub/model-0000" + std::to_string(shard) + "-of-00008.safetensors",
          weights("w" + std::to_string(shard)));
  }
  EXPECT_EQ(scan().files.size(), 8U);
  stdfs::remove(dir_ / "sub/model-00001-of-00008.safetensors");
  refuse(ErrorCode::not_found, "sub/model-00001-of-00008.safetensors is missing");
}

/// Nobody knows whether its saver counts from 0.
TEST_F(CheckpointTest, WhereTheFirstOrTheLastShardIsMissingNamesBoth) {
  for (const char* number : {"1", "2", "3", "4"}) {
    write(std::string("m-0000") + number + "-of-00005.safetensors", weights(number));
  }
  refuse(ErrorCode::not_found,
         "m-00000-of-00005.safetensors or m-00005-of-00005.safetensors is missing");
  stdfs::remove(dir_ / "m-00004-of-00005.safetensors");
  refuse(ErrorCode::not_found, "m-00004-of-00005.safetensors is missing");
  write("m-00000-of-00005.safetensors", weights("0"));
  refuse(ErrorCode::not_found, "m-00004-of-00005.safetensors is missing");
  write("m-00004-of-00005.safetensors", weights("4"));
  EXPECT_EQ(scan().files.size(), 5U);
}

TEST_F(CheckpointTest, RefusesNewShardsBesideAnOldIndex) {
  write("model-00001-of-00002.safetensors", weights("x"));
  write("model-00002-of-00002.safetensors", weights("y"));
  write("model.safetensors.index.json", R"({"weight_map":{"x":"model-00001-of-00002.safetensors",
                                                          "y":"model-00002-of-00002.safetensors"}})");
  EXPECT_EQ(scan().files.size(), 3U);
  write("model-00001-of-00003.safetensors", weights("x"));
  refuse(ErrorCode::not_found, "model-00002-of-00003.safetensors is missing");
}

TEST_F(CheckpointTest, AcceptsShardsOfWhichAnIndexNeedsNoMore) {
  write("model-00001-of-00003.safetensors", weights("x"));
  write("model.safetensors.index.json",
        R"({"weight_map":{"x":"model-00001-of-00003.safetensors"}})");
  EXPECT_EQ(scan().files.size(), 2U);
}

TEST_F(CheckpointTest, AcceptsHoweverShardsAreNumbered) {
  for (const char* name :
       {"a-00001-of-00001", "b-1-of-2", "b-2-of-2", "c-00000-of-00002", "c-00001-of-00002",
        "d-00001-of-000002", "d-00002-of-000002", "e-00003-of-00002", "f-of-00002", "1-of-2",
        "g-0-of-0", "h-1-of-99999999999999999999", "i-x-of-00002", "j-1-of-x", "-of-",
        "k-1-of-2.fp16",
        // Of two ranks of torch's DCP.
        "sharded/shard-00001-model-00001-of-00002", "sharded/shard-00002-model-00002-of-00002"}) {
    write(std::string(name) + ".safetensors", weights());
  }
  EXPECT_EQ(scan().files.size(), 18U);
  for (const char* name : {"shard-00001-m-00001-of-00002", "shard-1-of-2", "shard-x-1-of-2",
                           "l-1-of-18446744073709551615"}) {
    const std::string path = "more/" + std::string(name) + ".safetensors";
    write(path, weights());
    refuse(ErrorCode::not_found, "is missing");
    stdfs::remove(dir_ / path);
  }
}

TEST_F(CheckpointTest, ChangesItsStampWhenAFileChanges) {
  write("a.json", "{}");
  const File file = File::open(dir_ / "a.json", O_RDWR);
  const FileStamp before = stamp_of(file.fd());
  EXPECT_EQ(before, stamp_of(file.fd()));
  write_at(file.fd(), 2, as_bytes(" "), "a.json");
  EXPECT_FALSE(before == stamp_of(file.fd()));
  EXPECT_THROW(stamp_of(-1), Error);
}

}  // namespace
}  // namespace weightfs
