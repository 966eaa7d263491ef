#include "store/format/safetensors.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <set>

#include "store/base/error.hpp"
#include "store/os/file.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/support.hpp"

namespace weightfs {
namespace {

namespace stdfs = std::filesystem;

std::string head_of(std::string_view json) {
  std::string head;
  append_le(head, std::uint64_t{json.size()});
  return head.append(json);
}

SafetensorsHeader parse(std::string_view json) {
  return parse_safetensors_header(head_of(json), "x.safetensors");
}

std::string read(const stdfs::path& path, SafetensorsHeader& header) {
  const File file = File::open(path, O_RDONLY);
  return read_safetensors_header(file.fd(), path.filename().string(), header);
}

/// The message of the rejection; empty if the file is accepted.
std::string refusal_of(const stdfs::path& path) {
  try {
    SafetensorsHeader header;
    read(path, header);
    return {};
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::corrupt) << error.what();
    return error.what();
  }
}

struct Bad {
  const char* file;
  const char* reason;  // part of the message
};

// Each file breaks only one rule.
constexpr Bad kBad[] = {
    {"empty", "0 bytes are too few"},
    {"short_length", "5 bytes are too few"},
    {"huge_length", "is larger than 100000000"},
    {"length_above_limit", "a header of 100000001 bytes is larger"},
    {"length_beyond_file", "does not fit the file of 10 bytes"},
    {"no_header", "does not begin with '{'"},
    {"leading_space", "does not begin with '{'"},
    {"array", "does not begin with '{'"},
    {"nul_padding", "a NUL at byte 2"},
    {"cut_json", "not valid JSON"},
    {"trailing_text", "not valid JSON"},
    {"invalid_utf8", "UTF-8"},
    {"lone_surrogate", "surrogate"},
    {"duplicate_name", "the name 'a' occurs twice"},
    {"duplicate_escaped_name", "the name 'a' occurs twice"},
    {"duplicate_metadata", "the name '__metadata__' occurs twice"},
    {"duplicate_metadata_key", "the key 'k' occurs twice"},
    {"duplicate_field", "the key 'shape' occurs twice"},
    {"duplicate_in_unknown", "the key 'k' occurs twice"},
    {"unknown_dtype", "tensor 'a': dtype: unknown dtype 'F4_NEW'; if it is new, a newer weightfs"},
    {"dtype_number", "tensor 'a': dtype must be the name of a dtype, but is a number"},
    {"dtype_object", "tensor 'a': dtype must be the name of a dtype, but is an object"},
    {"shape_string", "tensor 'a': shape must be an array of numbers, but is a string"},
    {"shape_nested", "tensor 'a': shape must be an integer"},
    {"extent_negative", "but is a negative number"},
    {"extent_fraction", "but is the number 1.0"},
    {"extent_exponent", "but is the number 1e0"},
    {"extent_minus_zero", "tensor 'a': shape must be an integer"},
    {"extent_too_large", "but is the number 18446744073709551616"},
    {"extent_string", "but is a string"},
    {"extent_null", "but is null"},
    {"extent_true", "but is a boolean"},
    {"offset_negative", "tensor 'a': data_offsets must be an integer"},
    {"offset_too_large", "but is the number 18446744073709551616"},
    {"offsets_three", "has more than two numbers"},
    {"offsets_one", "must have a dtype, a shape and two data_offsets"},
    {"offsets_null", "data_offsets must be an array of two numbers, but is null"},
    {"no_dtype", "tensor 'a' must have a dtype"},
    {"no_shape", "tensor 'a' must have a dtype, a shape"},
    {"no_offsets", "tensor 'a' must have a dtype, a shape and two data_offsets"},
    {"tensor_array", "tensor 'a' must be an object, but is an array"},
    {"tensor_null", "tensor 'a' must be an object, but is null"},
    {"tensor_string", "tensor 'a' must be an object, but is a string"},
    {"metadata_number", "__metadata__: k must be a string, but is a number"},
    {"metadata_array", "__metadata__ must be an object of strings, but is an array"},
    {"metadata_nested", "__metadata__: k must be a string, but is an object"},
    {"begin_after_end", "tensor 'a': begins at 1, after its end at 0"},
    {"hole", "tensor 'b' begins at 2, but the tensor before it ends at 1: a hole"},
    {"hole_at_start", "tensor 'a' begins at 1, but the tensor before it ends at 0: a hole"},
    {"overlap", "tensor 'b' begins at 1, but the tensor before it ends at 2: they overlap"},
    {"same_bytes_twice",
     "tensor 'b' begins at 0, but the tensor before it ends at 1: they overlap"},
    {"empty_inside", "tensor 'b' begins at 1, but the tensor before it ends at 2: they overlap"},
    {"size_mismatch", "tensor 'a': shape [2] of U8 takes 2 bytes, but its data_offsets span 1"},
    {"shape_wraps_to_zero", "shape [4294967296, 4294967296] of U8 overflows"},
    {"shape_overflows_before_zero", "shape [4294967296, 4294967296, 0] of U8 overflows"},
    {"bits_overflow", "shape [288230376151711744] of U64 overflows"},
    {"half_bytes", "shape [3] of F4 overflows 64 bits or is not a whole number of bytes"},
    {"truncated",
     "the tensors end 2 bytes after the header, the file 1 bytes after it; it is trunc"},
    {"too_long", "something follows the tensors"},
    {"data_without_tensors", "something follows the tensors"},
    {"too_deep", "nested deeper than 32 levels"},
};

TEST(Safetensors, RefusesEveryBadFileForItsOwnReason) {
  const stdfs::path directory = stdfs::path(WEIGHTFS_TEST_DATA) / "bad/safetensors";
  std::set<std::string> tried;
  for (const Bad& bad : kBad) {
    const std::string file = std::string(bad.file) + ".safetensors";
    const std::string message = refusal_of(directory / file);
    EXPECT_EQ(message.rfind(file + ":", 0), 0U) << "names the file: " << message;
    EXPECT_NE(message.find(bad.reason), std::string::npos) << file << ": " << message;
    tried.insert(file);
  }
  for (const auto& entry : stdfs::directory_iterator(directory)) {
    EXPECT_TRUE(tried.contains(entry.path().filename().string())) << entry.path();
  }
}

TEST(Safetensors, ReadsTensorsInTheOrderOfTheirBytes) {
  const test::TempDir dir;
  const Bytes four(4);
  const std::string file = test::make_safetensors({{"second name", Dtype::f32, {1}, four},
                                                   {"a", Dtype::bf16, {1, 2}, four},
                                                   {"", Dtype::u8, {4}, four}},
                                                  {{"format", "pt"}});
  test::write_text(dir / "x.safetensors", file);
  SafetensorsHeader header;
  const std::string head = read(dir / "x.safetensors", header);
  EXPECT_EQ(head, file.substr(0, file.size() - 12));
  ASSERT_EQ(header.tensors.size(), 3U);
  EXPECT_EQ(header.tensors[0].name, "second name");
  EXPECT_EQ(header.tensors[1].name, "a");
  EXPECT_EQ(header.tensors[1].dtype, Dtype::bf16);
  EXPECT_EQ(header.tensors[1].shape, (std::vector<std::uint64_t>{1, 2}));
  EXPECT_EQ(header.tensors[1].begin_bytes, 4U);
  EXPECT_EQ(header.tensors[1].end_bytes, 8U);
  EXPECT_EQ(header.tensors[2].name, "");
  EXPECT_EQ(header.data_size_bytes, 12U);
  EXPECT_EQ(header.metadata, (std::map<std::string, std::string>{{"format", "pt"}}));
}

TEST(Safetensors, AcceptsWhatTheReferenceAccepts) {
  const std::string tensor = R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  EXPECT_EQ(parse("{}").tensors.size(), 0U);
  for (const char* padding : {" ", "   ", "\n", "\t", "\r\n"}) {
    EXPECT_EQ(parse("{" + tensor + "}" + padding).tensors.size(), 1U);
  }
  EXPECT_EQ(parse(R"({"__metadata__":null,)" + tensor + "}").tensors.size(), 1U);
  EXPECT_EQ(parse(R"({"__metadata__":{},)" + tensor + "}").tensors.size(), 1U);
  EXPECT_EQ(parse(R"({"a":{"dtype":"U8","note":[{"x":[1.5,-2,null]}],"shape":[],)"
                  R"("data_offsets":[0,1]}})")
                .tensors[0]
                .shape.size(),
            0U);
  EXPECT_EQ(
      parse(R"({"\u0000\"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})").tensors[0].name,
      std::string("\0\"", 2));
}

TEST(Safetensors, LetsTensorsOfNoBytesShareAnOffset) {
  const SafetensorsHeader header =
      parse(R"({"z":{"dtype":"U8","shape":[0],"data_offsets":[1,1]},)"
            R"("y":{"dtype":"F32","shape":[0,4294967296,4294967296],"data_offsets":[1,1]},)"
            R"("x":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},)"
            R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})");
  ASSERT_EQ(header.tensors.size(), 4U);
  EXPECT_EQ(header.tensors[0].name, "x");
  EXPECT_EQ(header.tensors[1].name, "a");
  EXPECT_EQ(header.tensors[2].name, "y");
  EXPECT_EQ(header.tensors[3].name, "z");
}

TEST(Safetensors, RefusesAHeaderThatIsNotExactlyTheHead) {
  const std::string head = head_of("{}");
  EXPECT_THROW(parse_safetensors_header(head + " ", "x"), Error);
  for (std::size_t size = 0; size < head.size(); size++) {
    EXPECT_THROW(parse_safetensors_header(std::string_view(head).substr(0, size), "x"), Error);
  }
}

TEST(Safetensors, KeepsHostileNamesOutOfItsMessages) {
  const std::string name = R"(\u001b[2J)" + std::string(5000, 'n');
  try {
    parse("{\"" + name + R"(":{"dtype":"?","shape":[1],"data_offsets":[0,1]}})");
    FAIL() << "accepted";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_LT(message.size(), 2000U);
    EXPECT_EQ(message.find('\x1b'), std::string::npos);
    EXPECT_NE(message.find("\\x1b[2J"), std::string::npos);
  }
}

std::string header_of_many(std::size_t tensors) {
  std::string json = "{";
  for (std::size_t i = 0; i < tensors; i++) {
    if (i != 0) json += ",";
    json += "\"t" + std::to_string(i) + R"(":{"dtype":"U8","shape":[1],"data_offsets":[)" +
            std::to_string(i) + "," + std::to_string(i + 1) + "]}";
  }
  return json + "}";
}

TEST(Safetensors, ReadsAHundredThousandTensors) {
  const SafetensorsHeader header = parse(header_of_many(100'000));
  EXPECT_EQ(header.tensors.size(), 100'000U);
  EXPECT_EQ(header.tensors[99'999].name, "t99999");
  EXPECT_EQ(header.data_size_bytes, 100'000U);
}

TEST(Safetensors, RefusesMoreThanAMillionTensors) {
  if (test::kSanitized) GTEST_SKIP() << "takes minutes under a sanitizer";
  try {
    parse(header_of_many(kSafetensorsTensorsMax + 1));
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("more than 1000000 tensors"), std::string::npos);
  }
}

TEST(Safetensors, NeverCrashesOnFlippedBits) {
  auto rng = test::make_rng();
  const std::string good = head_of(
      R"({"__metadata__":{"k":"v"},"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},)"
      R"("b\n":{"dtype":"F4","shape":[2],"data_offsets":[12,13]}})");
  for (int round = 0; round < 20'000; round++) {
    std::string bad = good;
    for (std::uint64_t flips = 1 + rng() % 3; flips > 0; flips--) {
      bad[rng() % bad.size()] ^= static_cast<char>(1 << rng() % 8);
    }
    try {
      const SafetensorsHeader header = parse_safetensors_header(bad, "x");
      for (const SafetensorsTensor& tensor : header.tensors) {
        EXPECT_LE(tensor.end_bytes, header.data_size_bytes);
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::corrupt);
    }
  }
}

TEST(Tensor, KnowsEveryDtypeByName) {
  constexpr struct {
    const char* name;
    unsigned bits;
    kernels::Kind kind;
  } kExpected[] = {{"BOOL", 8, kernels::Kind::u8},         {"F4", 4, kernels::Kind::u8},
                   {"F6_E2M3", 6, kernels::Kind::u8},      {"F6_E3M2", 6, kernels::Kind::u8},
                   {"U8", 8, kernels::Kind::u8},           {"I8", 8, kernels::Kind::u8},
                   {"F8_E5M2", 8, kernels::Kind::f8_e5m2}, {"F8_E4M3", 8, kernels::Kind::f8_e4m3},
                   {"F8_E8M0", 8, kernels::Kind::u8},      {"F8_E4M3FNUZ", 8, kernels::Kind::u8},
                   {"F8_E5M2FNUZ", 8, kernels::Kind::u8},  {"I16", 16, kernels::Kind::u8},
                   {"U16", 16, kernels::Kind::u8},         {"F16", 16, kernels::Kind::f16},
                   {"BF16", 16, kernels::Kind::bf16},      {"I32", 32, kernels::Kind::u8},
                   {"U32", 32, kernels::Kind::u8},         {"F32", 32, kernels::Kind::f32},
                   {"C64", 64, kernels::Kind::u8},         {"F64", 64, kernels::Kind::u8},
                   {"I64", 64, kernels::Kind::u8},         {"U64", 64, kernels::Kind::u8}};
  for (const auto& expected : kExpected) {
    const auto dtype = find_dtype(expected.name);
    ASSERT_TRUE(dtype) << expected.name;
    EXPECT_EQ(to_string(*dtype), expected.name);
    EXPECT_EQ(bits_of(*dtype), expected.bits) << expected.name;
    EXPECT_EQ(kind_of(*dtype), expected.kind) << expected.name;
  }
  EXPECT_FALSE(find_dtype("bf16"));
  EXPECT_FALSE(find_dtype(""));
}

TEST(Tensor, ComputesSizesWithoutOverflow) {
  using Shape = std::vector<std::uint64_t>;
  constexpr std::uint64_t kHuge = std::uint64_t{1} << 40;
  EXPECT_EQ(size_bytes_of(Dtype::f32, Shape{}), 4U);
  EXPECT_EQ(size_bytes_of(Dtype::bf16, Shape{3, 5}), 30U);
  EXPECT_EQ(size_bytes_of(Dtype::f6_e2m3, Shape{4}), 3U);
  EXPECT_EQ(size_bytes_of(Dtype::f6_e2m3, Shape{3}), std::nullopt);
  EXPECT_EQ(size_bytes_of(Dtype::f4, Shape{1}), std::nullopt);
  EXPECT_EQ(size_bytes_of(Dtype::u8, Shape{0, kHuge, kHuge}), 0U);
  EXPECT_EQ(size_bytes_of(Dtype::u8, Shape{kHuge, kHuge, 0}), std::nullopt);
  EXPECT_EQ(size_bytes_of(Dtype::u64, Shape{std::uint64_t{1} << 58}), std::nullopt);
}

}  // namespace
}  // namespace weightfs
