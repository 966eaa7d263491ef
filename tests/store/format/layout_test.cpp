#include "store/format/layout.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "store/base/error.hpp"
#include "tests/support/support.hpp"

namespace weightfs {
namespace {

using Kind = LayoutFile::Kind;

/// The verbatim header of a file with these tensors; their data are not needed.
std::string header_of(const std::vector<test::TestTensor>& tensors) {
  std::uint64_t data = 0;
  std::vector<test::TestTensor> sized = tensors;
  for (test::TestTensor& tensor : sized) {
    tensor.data.resize(*size_bytes_of(tensor.dtype, tensor.shape));
    data += tensor.data.size();
  }
  std::string file = test::make_safetensors(sized);
  file.resize(file.size() - data);
  return file;
}

CheckpointFile safetensors(const std::string& path, const std::vector<test::TestTensor>& tensors) {
  CheckpointFile file;
  file.path = path;
  file.kind = CheckpointFile::Kind::safetensors;
  file.head = header_of(tensors);
  file.header = parse_safetensors_header(file.head, path);
  file.stamp.size_bytes = file.head.size() + file.header.data_size_bytes;
  return file;
}

CheckpointFile opaque(const std::string& path, std::uint64_t size_bytes) {
  CheckpointFile file;
  file.path = path;
  file.kind = CheckpointFile::Kind::opaque;
  file.stamp.size_bytes = size_bytes;
  return file;
}

std::shared_ptr<const Layout> layout_of_files(std::vector<CheckpointFile> files) {
  Checkpoint checkpoint;
  checkpoint.files = std::move(files);
  return Layout::from_checkpoint(checkpoint);
}

/// One file in the stored form.
std::string record(std::uint8_t kind, const std::string& path, const std::string& head,
                   std::uint64_t size_bytes) {
  std::string bytes;
  append_le(bytes, kind);
  append_le(bytes, static_cast<std::uint16_t>(path.size()));
  bytes += path;
  append_le(bytes, std::uint64_t{head.size()});
  bytes += head;
  append_le(bytes, size_bytes);
  return bytes;
}

std::string stored(std::uint32_t count, const std::string& records) {
  std::string bytes = "WFLAYOUT";
  append_le(bytes, std::uint32_t{1});
  append_le(bytes, count);
  return bytes + records;
}

void expect_layout_refused(const std::string& bytes, const std::string& reason) {
  try {
    Layout::parse(bytes, "layouts/abc");
    ADD_FAILURE() << "accepted; expected: " << reason;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::corrupt) << error.what();
    EXPECT_TRUE(std::string(error.what()).starts_with("layouts/abc")) << error.what();
    EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
  }
}

std::shared_ptr<const Layout> small_layout() {
  return layout_of_files({safetensors("a.safetensors", {{"w", Dtype::bf16, {3, 700'000}, {}},
                                                        {"empty", Dtype::f32, {0, 5}, {}},
                                                        {"q", Dtype::f4, {6}, {}}}),
                          opaque("b/large.txt", 20'000'001), safetensors("c.safetensors", {}),
                          safetensors("d.safetensors", {{"v", Dtype::f32, {}, {}}})});
}

TEST(Layout, NumbersFilesTensorsAndChunks) {
  const auto layout = small_layout();
  ASSERT_EQ(layout->files().size(), 4U);
  ASSERT_EQ(layout->tensors().size(), 5U);
  const LayoutTensor& w = layout->tensors()[0];
  EXPECT_EQ(w.name, "w");
  EXPECT_EQ(w.kind, kernels::Kind::bf16);
  EXPECT_EQ(w.offset_bytes, layout->files()[0].head.size());
  EXPECT_EQ(w.size_bytes, 4'200'000U);
  EXPECT_EQ(w.chunk_count, 3U);
  EXPECT_EQ(w.chunk_offset_bytes(2), 4U << 20);
  EXPECT_EQ(w.chunk_size_bytes(0), 2U << 20);
  EXPECT_EQ(w.chunk_size_bytes(2), 4'200'000U - (4U << 20));
  EXPECT_EQ(layout->tensors()[1].name, "empty");
  EXPECT_EQ(layout->tensors()[1].chunk_count, 0U);
  EXPECT_EQ(layout->tensors()[2].first_chunk, 3U);
  const LayoutTensor& large = layout->tensors()[3];
  EXPECT_EQ(large.name, "");
  EXPECT_EQ(large.dtype, Dtype::u8);
  EXPECT_EQ(large.shape, (std::vector<std::uint64_t>{20'000'001}));
  EXPECT_EQ(large.offset_bytes, 0U);
  EXPECT_EQ(large.first_chunk, 4U);
  EXPECT_EQ(large.chunk_count, 20U);
  EXPECT_EQ(layout->tensors()[4].file, 3U);
  EXPECT_EQ(layout->tensors()[4].first_chunk, 24U);
  EXPECT_EQ(layout->chunk_count(), 25U);
  EXPECT_EQ(layout->element_count(), 2'100'000U + 3 + 20'000'001 + 1);
  EXPECT_EQ(layout->tensors_of(layout->files()[0]).size(), 3U);
  EXPECT_EQ(layout->tensors_of(layout->files()[2]).size(), 0U);
  EXPECT_EQ(layout->tensors_of(layout->files()[3])[0].name, "v");
  std::uint64_t size = 0;
  for (const LayoutFile& file : layout->files()) size += file.size_bytes;
  EXPECT_EQ(layout->size_bytes(), size);
}

TEST(Layout, LeavesBlobsOut) {
  CheckpointFile blob;
  blob.path = "config.json";
  blob.kind = CheckpointFile::Kind::blob;
  const auto layout = layout_of_files({blob, safetensors("m.safetensors", {})});
  EXPECT_EQ(layout->files().size(), 1U);
}

TEST(Layout, FindsFilesByPath) {
  const auto layout = small_layout();
  for (const LayoutFile& file : layout->files()) EXPECT_EQ(layout->find_file(file.path), &file);
  for (const char* path : {"", "a", "a.safetensorsx", "b", "e", "zzz"}) {
    EXPECT_EQ(layout->find_file(path), nullptr) << path;
  }
}

TEST(Layout, ComesBackFromItsStoredForm) {
  const auto layout = small_layout();
  const std::string bytes = layout->serialize();
  const auto again = Layout::parse(bytes, "layouts/abc");
  EXPECT_EQ(again->serialize(), bytes);
  EXPECT_EQ(again->id(), layout->id());
  EXPECT_EQ(again->id(), sha256(as_bytes(bytes)));
  EXPECT_EQ(again->chunk_count(), layout->chunk_count());
  EXPECT_EQ(again->element_count(), layout->element_count());
  EXPECT_EQ(again->size_bytes(), layout->size_bytes());
  ASSERT_EQ(again->tensors().size(), layout->tensors().size());
  for (std::size_t i = 0; i < again->tensors().size(); i++) {
    const LayoutTensor &a = again->tensors()[i], &b = layout->tensors()[i];
    EXPECT_EQ(a.name, b.name);
    EXPECT_EQ(a.dtype, b.dtype);
    EXPECT_EQ(a.shape, b.shape);
    EXPECT_EQ(a.file, b.file);
    EXPECT_EQ(a.offset_bytes, b.offset_bytes);
    EXPECT_EQ(a.first_chunk, b.first_chunk);
  }
  EXPECT_EQ(Layout::parse(stored(0, ""), "empty")->files().size(), 0U);
}

std::shared_ptr<const Layout> random_layout(test::Random& rng) {
  std::vector<CheckpointFile> files;
  for (std::uint64_t i = 0, count = 1 + rng() % 5; i < count; i++) {
    const std::string path = std::string(rng() % 2 ? "dir/" : "") + "f" + std::to_string(i);
    if (rng() % 4 == 0) {
      files.push_back(opaque(path, rng() % (3u << 20)));
      continue;
    }
    std::vector<test::TestTensor> tensors;
    for (std::uint64_t k = 0, tensor_count = rng() % 6; k < tensor_count; k++) {
      const auto dtype = static_cast<Dtype>(rng() % 22);
      tensors.push_back({"t" + std::to_string(rng() % 4) + "." + std::to_string(k),
                         dtype,
                         {4 * (rng() % 50), rng() % 100},
                         {}});
    }
    files.push_back(safetensors(path, tensors));
  }
  std::sort(files.begin(), files.end(),
            [](const auto& a, const auto& b) { return a.path < b.path; });
  return layout_of_files(std::move(files));
}

TEST(Layout, CoversEveryByteOfEveryFileOnce) {
  auto rng = test::make_rng();
  for (int round = 0; round < 50; round++) {
    const auto layout = random_layout(rng);
    EXPECT_EQ(Layout::parse(layout->serialize(), "x")->id(), layout->id());
    std::uint64_t chunk = 0;
    for (const LayoutFile& file : layout->files()) {
      std::uint64_t end = file.head.size();
      for (const LayoutTensor& tensor : layout->tensors_of(file)) {
        EXPECT_EQ(tensor.offset_bytes, end);
        EXPECT_EQ(tensor.first_chunk, chunk);
        end += tensor.size_bytes;
        std::uint64_t in_chunks = 0;
        for (std::uint32_t i = 0; i < tensor.chunk_count; i++) {
          EXPECT_EQ(tensor.chunk_offset_bytes(i), in_chunks);
          in_chunks += tensor.chunk_size_bytes(i);
        }
        EXPECT_EQ(in_chunks, tensor.size_bytes);
        chunk += tensor.chunk_count;
      }
      EXPECT_EQ(end, file.size_bytes);
    }
    EXPECT_EQ(chunk, layout->chunk_count());
  }
}

TEST(Layout, RefusesTruncationAtEveryByte) {
  const std::string bytes = small_layout()->serialize();
  for (std::size_t size = 0; size < bytes.size(); size++) {
    EXPECT_THROW(Layout::parse(std::string_view(bytes).substr(0, size), "x"), Error) << size;
  }
  expect_layout_refused(bytes + '\0', "1 bytes after the end");
}

TEST(Layout, RefusesHostileBytes) {
  const std::string empty = record(0, "a", header_of({}), header_of({}).size());
  std::string magic = stored(0, "");
  magic[0] = 'X';
  expect_layout_refused(magic, "not a layout");
  std::string format = stored(0, "");
  format[8] = 2;
  expect_layout_refused(format, "unknown layout format 2");
  expect_layout_refused(stored(2, empty), "truncated");
  expect_layout_refused(stored(100'000, empty), "truncated");
  expect_layout_refused(stored(100'001, empty), "too many files: 100001");
  expect_layout_refused(stored(0xFFFFFFFF, empty), "too many files");
  expect_layout_refused(stored(1, record(2, "a", "", 0)), "unknown kind of file: 2");
  expect_layout_refused(stored(1, record(1, "a", "x", 1)), "opaque file 'a' has a header");
  expect_layout_refused(stored(1, record(0, "a", "", 0)), "a: not a safetensors file");
  expect_layout_refused(stored(1, record(0, "a", header_of({}), 0)), "but the file has 0");
  expect_layout_refused(stored(1, record(0, "a", header_of({}), 1000)), "but the file has 1000");
  expect_layout_refused(stored(1, record(1, "../a", "", 1)),
                        "the path '../a' has a component '..'");
  expect_layout_refused(stored(1, record(1, "/a", "", 1)), "empty component");
  expect_layout_refused(stored(1, record(1, "", "", 1)), "is empty");
  expect_layout_refused(stored(1, record(1, ".a", "", 1)), "hidden");
  std::string huge_head = stored(1, record(1, "a", "", 1));
  std::fill_n(huge_head.begin() + 16 + 1 + 2 + 1, 8, '\xFF');
  expect_layout_refused(huge_head, "truncated");
}

TEST(Layout, RefusesTwoFilesOfOneName) {
  const std::string a = record(1, "a", "", 1), b = record(1, "b", "", 1);
  EXPECT_EQ(Layout::parse(stored(2, a + b), "x")->files().size(), 2U);
  expect_layout_refused(stored(2, a + a), "the path 'a' does not come after 'a'");
  expect_layout_refused(stored(2, b + a), "the path 'a' does not come after 'b'");
  const std::string inside = record(1, "a/c", "", 1), between = record(1, "a-b", "", 1);
  expect_layout_refused(stored(2, a + inside), "'a' is both a file and a directory of 'a/c'");
  expect_layout_refused(stored(3, a + between + inside),
                        "'a' is both a file and a directory of 'a/c'");
}

TEST(Layout, RefusesMoreBytesThanAVersionHolds) {
  const std::string most = record(1, "a", "", kVersionBytesMax);
  EXPECT_EQ(Layout::parse(stored(1, most), "x")->chunk_count(), kVersionBytesMax >> 20);
  expect_layout_refused(stored(1, record(1, "a", "", kVersionBytesMax + 1)),
                        "above 70368744177664 bytes");
  expect_layout_refused(stored(2, most + record(1, "b", "", 1)), "'b' takes the version above");
  expect_layout_refused(stored(2, most + record(1, "b", "", UINT64_MAX)),
                        "'b' takes the version above");
  const std::string json =
      R"({"a":{"dtype":"U8","shape":[2305843009213693951],"data_offsets":[0,2305843009213693951]}})";
  std::string head;
  append_le(head, std::uint64_t{json.size()});
  expect_layout_refused(stored(1, record(0, "a", head + json, (std::uint64_t{1} << 61) - 1)),
                        "above");
}

TEST(Layout, NeverCrashesOnFlippedBits) {
  auto rng = test::make_rng();
  const std::string good = small_layout()->serialize();
  for (int round = 0; round < 5000; round++) {
    std::string bad = good;
    for (std::uint64_t flips = 1 + rng() % 3; flips > 0; flips--) {
      bad[rng() % bad.size()] ^= static_cast<char>(1 << rng() % 8);
    }
    try {
      const auto layout = Layout::parse(bad, "x");
      EXPECT_EQ(layout->serialize(), bad);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::corrupt);
    }
  }
}

TEST(Layout, ReadsFormat1AsItWasWritten) {
  const std::string bytes =
      test::read_text(std::filesystem::path(WEIGHTFS_TEST_DATA) / "format-1/layout.bin");
  const auto layout = Layout::parse(bytes, "format-1/layout.bin");
  EXPECT_EQ(layout->serialize(), bytes);
  EXPECT_EQ(to_hex(layout->id()),
            "f19974ed7d912d34bc1f74cb0c6c458744487e5d3f8f6c6faf09eb386130c588");
  EXPECT_EQ(layout->files().size(), 3U);
  EXPECT_EQ(layout->tensors().size(), 4U);
  EXPECT_EQ(layout->chunk_count(), 6U);
}

TEST(Counterparts, AreFoundByNameAndDtypeWhereverTheyMoved) {
  const auto older = layout_of_files(
      {safetensors("a", {{"x", Dtype::bf16, {4}, {}},
                         {"y", Dtype::bf16, {4}, {}},
                         {"both", Dtype::u8, {4}, {}}}),
       safetensors("b", {{"both", Dtype::u8, {4}, {}}, {"kept", Dtype::u8, {4}, {}}}),
       safetensors("dir/a", {{"elsewhere", Dtype::u8, {4}, {}}}), opaque("o1", 100),
       opaque("o2", 100)});
  const auto newer =
      layout_of_files({safetensors("b", {{"x", Dtype::bf16, {9}, {}},        // moved
                                         {"y", Dtype::f16, {4}, {}},         // retyped
                                         {"both", Dtype::u8, {4}, {}},       // same file
                                         {"elsewhere", Dtype::u8, {4}, {}},  // other dir
                                         {"new", Dtype::u8, {4}, {}}}),
                       safetensors("c", {{"both", Dtype::u8, {4}, {}}}),  // lowest
                       safetensors("dir/z", {{"elsewhere", Dtype::u8, {4}, {}}}), opaque("o2", 5),
                       opaque("o3", 5)});
  using Numbers = std::vector<std::optional<std::uint32_t>>;
  EXPECT_EQ(counterparts(*newer, *older),
            (Numbers{0, std::nullopt, 3, std::nullopt, std::nullopt, 2, 5, 7, 6}));
}

/// A direct implementation of the rule.
std::optional<std::uint32_t> counterpart_of(const LayoutTensor& tensor, const Layout& newer,
                                            const Layout& older) {
  const std::filesystem::path path = newer.files()[tensor.file].path;
  std::optional<std::uint32_t> lowest;
  for (std::uint32_t i = 0; i < older.tensors().size(); i++) {
    const LayoutTensor& old = older.tensors()[i];
    const std::filesystem::path old_path = older.files()[old.file].path;
    if (old.name != tensor.name || old.dtype != tensor.dtype) continue;
    if (old_path == path) return i;
    if (!lowest && old_path.parent_path() == path.parent_path()) lowest = i;
  }
  return lowest;
}

TEST(Counterparts, FollowTheRuleOnRandomLayouts) {
  auto rng = test::make_rng();
  for (int round = 0; round < 100; round++) {
    const auto newer = random_layout(rng), older = random_layout(rng);
    const auto found = counterparts(*newer, *older);
    ASSERT_EQ(found.size(), newer->tensors().size());
    for (std::size_t i = 0; i < found.size(); i++) {
      EXPECT_EQ(found[i], counterpart_of(newer->tensors()[i], *newer, *older));
    }
  }
}

TEST(Counterparts, OfALayoutAreItsOwnTensors) {
  const auto layout = small_layout();
  const auto found = counterparts(*layout, *layout);
  for (std::uint32_t i = 0; i < found.size(); i++) EXPECT_EQ(found[i], i);
}

}  // namespace
}  // namespace weightfs
