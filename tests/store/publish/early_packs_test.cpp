#include "store/publish/early_packs.hpp"

#include <gtest/gtest.h>

#include "store/format/checkpoint.hpp"
#include "store/publish/upload_names.hpp"
#include "tests/support/few_threads.hpp"
#include "tests/support/hosts.hpp"
#include "tests/support/random.hpp"

namespace weightfs::test {
namespace {

constexpr std::uint64_t kGiB = 1u << 30;

TEST(EarlyPacks, PiecesAreAnEighthOfALargeFileAndNeverTiny) {
  EXPECT_EQ(early_piece_bytes(4 * kGiB, 1), kGiB / 2);
  EXPECT_EQ(early_piece_bytes(4 * kGiB, 256), kGiB / 2);
  EXPECT_EQ(early_piece_bytes(kEarlyPieceBytes, 1), kEarlyPieceBytes);
  EXPECT_EQ(early_piece_bytes(0, 0), kEarlyPieceBytes);
}

// A manifest has room for some 5,000 packs.
TEST(EarlyPacks, OfManyFilesThereAreFewerPieces) {
  for (const std::size_t files : {300u, 1000u, 2048u, 100'000u}) {
    const std::uint64_t pieces = 4 * kGiB / early_piece_bytes(4 * kGiB, files);
    EXPECT_GE(pieces, 1u);
    EXPECT_LE((pieces - 1) * files, 2048u) << files;
  }
  EXPECT_EQ(early_piece_bytes(4 * kGiB, 1000), 2 * kGiB);
  EXPECT_EQ(early_piece_bytes(4 * kGiB, 2048), 4 * kGiB) << "none before the end";
}

/// A directory with one file of `chunks` random chunks, and everything derived from it.
struct RandomCheckpoint {
  RandomCheckpoint(std::filesystem::path where, std::size_t chunks, unsigned seed)
      : directory(std::move(where)) {
    const std::size_t size = chunks * kernels::chunk_bytes(kernels::Kind::u8);
    TestTensor tensor{"a", Dtype::u8, {size}, Bytes(size)};
    Random rng(seed);
    for (std::byte& byte : tensor.data) byte = static_cast<std::byte>(rng());
    write_text(directory / "m.safetensors", make_safetensors({tensor}));
    checkpoint = scan_checkpoint(directory, {});
    layout = Layout::from_checkpoint(checkpoint);
    reader.emplace(checkpoint, *layout);
  }

  std::filesystem::path directory;
  Checkpoint checkpoint;
  std::shared_ptr<const Layout> layout;
  std::optional<CheckpointReader> reader;
};

// Where a thread was refused and the next one was not, the second pack was to be taken for the
// first.
TEST(EarlyPacks, AreUploadedInTheEndWhereTheSystemRefusesAThread) {
  const TempDir dir;
  constexpr std::size_t kChunks = 4;
  const RandomCheckpoint before(dir / "before", kChunks, 1), after(dir / "after", kChunks, 2);
  auto version = std::make_shared<Version>();
  version->manifest.version = 1;
  const Base base{version, before.layout, before.directory,
                  hash_checkpoint(*before.reader, {}, 0, {}, {}).chunks};
  CodeOptions options;
  options.spool = dir.path();
  options.pack_bytes = 1;  // each chunk fills one
  const CodedDelta delta = code_delta(*after.reader, base, options, {}, {});
  ASSERT_EQ(delta.packs.size(), kChunks);

  const auto bucket = make_memory_repository();
  const auto repository = Repository::open(std::make_unique<BucketView>(bucket), {});
  EarlyPacks packs(*repository, {2, "nonce", 0}, {});
  {
    const FewThreads few(0);
    if (!few.works()) GTEST_SKIP() << "needs to become another user";
    packs.add(delta.packs[0], {});
  }
  packs.add(delta.packs[1], {});
  packs.add_rest(delta.packs, {});
  const std::vector<PackRef> refs = packs.finish(delta.packs);
  ASSERT_EQ(refs.size(), kChunks);
  for (std::size_t k = 0; k < kChunks; k++) {
    EXPECT_EQ(refs[k].name, "nonce-" + std::to_string(k));
    const auto object = bucket->find(keys::pack(2, refs[k].name));
    ASSERT_TRUE(object);
    const std::string head = delta.packs[k]->writer.head(0);
    EXPECT_TRUE(object->starts_with(head)) << k;
  }
}

}  // namespace
}  // namespace weightfs::test
