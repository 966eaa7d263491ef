// The basics: bytes, hashes, compression, JSON, files, deadlines.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <numeric>

#include "store/base/bytes.hpp"
#include "store/base/compress.hpp"
#include "store/base/context.hpp"
#include "store/base/error.hpp"
#include "store/base/json.hpp"
#include "store/base/sha256.hpp"
#include "store/os/file.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/support.hpp"

namespace weightfs {
namespace {

using test::code_of;

TEST(Bytes, HexRoundTripsAndRefusesAnythingElse) {
  const Sha256 hash = sha256(as_bytes("abc"));
  EXPECT_EQ(to_hex(hash), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Sha256 back{};
  EXPECT_TRUE(from_hex(to_hex(hash), back));
  EXPECT_EQ(back, hash);
  EXPECT_FALSE(from_hex("BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD", back));
  EXPECT_FALSE(from_hex(to_hex(hash).substr(1), back));
}

TEST(Bytes, BigEndianKeysSortLikeNumbers) {
  std::string a, b;
  append_be64(a, 255);
  append_be64(b, 256);
  EXPECT_LT(a, b);
  EXPECT_EQ(load_be(b), 256u);
}

TEST(Bytes, LittleEndianRoundTrips) {
  std::string text;
  append_le<std::uint32_t>(text, 0x01020304u);
  EXPECT_EQ(text, std::string("\x04\x03\x02\x01"));
  EXPECT_EQ(load_le<std::uint32_t>(as_bytes(text).data()), 0x01020304u);
}

TEST(Bytes, HumanBytesUsesBinaryUnits) {
  EXPECT_EQ(human_bytes(17), "17 B");
  EXPECT_EQ(count_text(0, "pin") + ", " + count_text(1, "pin") + ", " + count_text(2, "pin"),
            "0 pins, 1 pin, 2 pins");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_bytes(std::uint64_t{3} << 30), "3.0 GiB");
}

TEST(Sha256Stream, GivesTheHashOfThePiecesTogether) {
  Sha256Stream stream;
  stream.update(as_bytes("a"));
  stream.update(as_bytes("bc"));
  EXPECT_EQ(stream.finish(), sha256(as_bytes("abc")));
}

TEST(Compress, RoundTripsTextOfAnyLength) {
  for (const std::size_t size : {0u, 1u, 1000u, 2'000'000u}) {
    std::string text(size, 'x');
    std::iota(text.begin(), text.end(), '\0');
    EXPECT_EQ(decompress(compress(text), size, "text"), text);
  }
}

TEST(Compress, RefusesWhatDoesNotHoldExactlyTheSize) {
  const std::string frame = compress(std::string(5000, 'x'));
  EXPECT_EQ(code_of([&] { decompress(frame, 4999, "object"); }), ErrorCode::corrupt);
  EXPECT_EQ(code_of([&] { decompress(frame + "x", 5000, "object"); }), ErrorCode::corrupt);
  EXPECT_EQ(code_of([&] { decompress("hello", 5, "object"); }), ErrorCode::corrupt);
  EXPECT_EQ(code_of([&] { decompress("", 0, "object"); }), ErrorCode::corrupt);
  for (std::size_t cut = 0; cut < frame.size(); cut++) {
    EXPECT_EQ(code_of([&] { decompress(frame.substr(0, cut), 5000, "object"); }),
              ErrorCode::corrupt);
  }
}

TEST(Json, RefusesDuplicateKeysAtAnyDepth) {
  EXPECT_EQ(code_of([] { parse_json(R"({"a":1,"a":1})", "text"); }), ErrorCode::corrupt);
  EXPECT_EQ(code_of([] { parse_json(R"({"x":[{"a":1,"b":2,"a":3}]})", "text"); }),
            ErrorCode::corrupt);
  EXPECT_NO_THROW(parse_json(R"({"x":{"a":1},"y":{"a":1}})", "text"));
}

TEST(Json, RefusesDeepNestingTrailingBytesAndBadUtf8) {
  EXPECT_EQ(code_of([] { parse_json(std::string(100'000, '['), "text"); }), ErrorCode::corrupt);
  EXPECT_EQ(code_of([] { parse_json("{} {}", "text"); }), ErrorCode::corrupt);
  EXPECT_EQ(code_of([] { parse_json("{\"\xff\":1}", "text"); }), ErrorCode::corrupt);
}

TEST(Json, RefusesANulAndAByteOrderMark) {
  using std::string_literals::operator""s;
  EXPECT_EQ(code_of([] { parse_json("{\"a\":1}\0garbage"s, "text"); }), ErrorCode::corrupt);
  EXPECT_EQ(code_of([] { parse_json("\xEF\xBB\xBF{}", "text"); }), ErrorCode::corrupt);
}

TEST(Json, MessagesAreTextWhateverTheInputIs) {
  try {
    parse_json("{\"\xff\xfe\":1}", "text");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NO_THROW(static_cast<void>(Json(error.what()).dump()));
  }
}

TEST(Json, IntegersMustBeExact) {
  const Json json = parse_json(R"({"a":18446744073709551615,"b":1.0,"c":-1,"d":"1"})", "text");
  EXPECT_EQ(json_uint(json, "a", "text"), ~std::uint64_t{0});
  for (const char* name : {"b", "c", "d", "e"}) {
    EXPECT_EQ(code_of([&] { json_uint(json, name, "text"); }), ErrorCode::corrupt) << name;
  }
}

TEST(File, WriteFileLeavesNothingBesideTheFile) {
  const test::TempDir dir;
  write_file(dir / "a", "one");
  write_file(dir / "a", "two");
  EXPECT_EQ(read_file(dir / "a", 3), "two");
  EXPECT_EQ(test::read_tree(dir.path()).size(), 1u);
  EXPECT_EQ(code_of([&] { read_file(dir / "a", 2); }), ErrorCode::corrupt);
  EXPECT_EQ(code_of([&] { read_file(dir / "b", 2); }), ErrorCode::not_found);
}

/// Who stops a daemon does not wait until 100 GB are on the disk.
TEST(File, ASyncInSlicesEndsBetweenTwoOfThem) {
  const test::TempDir dir;
  const File file = File::open(dir / "a", O_RDWR | O_CREAT);
  ASSERT_EQ(::ftruncate(file.fd(), 40 << 20), 0);
  int asked = 0;
  EXPECT_FALSE(sync_in_slices(file.fd(), dir / "a", [&] { return ++asked < 3; }));
  EXPECT_EQ(asked, 3);
  EXPECT_TRUE(sync_in_slices(file.fd(), dir / "a", [&] { return ++asked > 0; }));
}

TEST(File, ReadAtTellsWhenTheFileEnds) {
  const test::TempDir dir;
  test::write_text(dir / "a", "12345");
  const File file = File::open(dir / "a", O_RDONLY);
  std::array<std::byte, 3> three{};
  EXPECT_TRUE(read_at(file.fd(), 2, three, dir / "a"));
  EXPECT_EQ(as_text(three), "345");
  EXPECT_FALSE(read_at(file.fd(), 3, three, dir / "a"));
}

TEST(File, TemporaryFilesHaveNoName) {
  const test::TempDir dir;
  const File file = File::temporary(dir.path());
  write_at(file.fd(), 10, as_bytes("x"), "spool");
  EXPECT_TRUE(test::read_tree(dir.path()).empty());
}

TEST(File, MakeDirectoriesTakesWhatIsThereAndRefusesFiles) {
  const test::TempDir dir;
  make_directories(dir / "a" / "b" / "c");
  make_directories(dir / "a" / "b" / "c");
  EXPECT_TRUE(std::filesystem::is_directory(dir / "a" / "b" / "c"));
  test::write_text(dir / "f", "");
  EXPECT_EQ(code_of([&] { make_directories(dir / "f"); }), ErrorCode::exists);
  EXPECT_EQ(code_of([&] { make_directories(dir / "f" / "g"); }), ErrorCode::not_found);
}

TEST(File, MakeDirectoriesEndsWhereTheSystemAlwaysSaysENOENT) {
  EXPECT_EQ(code_of([&] { make_directories("/proc/weightfs/x"); }), ErrorCode::not_found);
}

TEST(File, EveryErrorOfADiskIsALossOfBytes) {
  // Of a medium, a target, a link, a disk that is gone, a check sum, a full pool, ...
  for (const int error : {EIO, ENOSPC, EDQUOT, ENODATA, EREMOTEIO, ENOLINK, ETIMEDOUT, EILSEQ,
                          ENODEV, EBADE, EUCLEAN, EROFS, ESTALE, 523}) {
    EXPECT_TRUE(is_lost_write(error)) << error;
  }
  for (const int refused :
       {EAGAIN, EBADF, EINTR, EINVAL, ENOMEM, ENOSYS, EOPNOTSUPP, EPERM, ESPIPE}) {
    EXPECT_FALSE(is_lost_write(refused)) << refused;
  }
}

TEST(Error, CodesFollowErrno) {
  EXPECT_EQ(code_of([] { throw_errno(ENOSPC, "write /x"); }), ErrorCode::no_space);
  EXPECT_EQ(code_of([] { throw_errno(EROFS, "write /x"); }), ErrorCode::read_only);
  try {
    throw_errno(ENOENT, "open /x/y");
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "cannot open /x/y: No such file or directory");
    EXPECT_STREQ(error.within("version 3").what(),
                 "version 3: cannot open /x/y: No such file or directory");
  }
}

TEST(Context, DeadlineIsTheEarlierOfBoth) {
  const Context context = Context{}.within(std::chrono::hours(1)).within(std::chrono::hours(2));
  EXPECT_LT(context.deadline, Clock::now() + std::chrono::minutes(61));
  EXPECT_EQ(code_of([] { Context{}.within(Clock::duration(-1)).check("waiting"); }),
            ErrorCode::timed_out);
}

}  // namespace
}  // namespace weightfs
