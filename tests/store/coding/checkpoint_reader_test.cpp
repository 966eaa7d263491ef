#include "store/coding/checkpoint_reader.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "kernels/dispatch/hash.hpp"
#include "store/format/pack.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/support.hpp"

namespace weightfs {
namespace {

using test::code_of;
using test::make_safetensors;
using test::TempDir;
using test::TestTensor;
using test::write_text;

TestTensor random_bytes(std::string name, Dtype dtype, std::size_t elements, test::Random& rng) {
  Bytes data(elements * bits_of(dtype) / 8);
  for (std::size_t i = 0; i < data.size(); i += 61) data[i] = static_cast<std::byte>(rng());
  return {std::move(name), dtype, {elements}, std::move(data)};
}

struct Opened {
  explicit Opened(const std::filesystem::path& directory)
      : checkpoint(scan_checkpoint(directory, {})),
        layout(Layout::from_checkpoint(checkpoint)),
        reader(checkpoint, *layout) {}

  Checkpoint checkpoint;
  std::shared_ptr<const Layout> layout;
  CheckpointReader reader;
};

/// Chunks and pieces straddle each other, and batches end within pieces.
void write_files(const std::filesystem::path& directory, test::Random& rng) {
  std::vector<TestTensor> many;
  for (int i = 0; i < 300; i++) {
    many.push_back(random_bytes("t" + std::to_string(i), Dtype::bf16, rng() % 9'000, rng));
  }
  write_text(directory / "a.safetensors",
             make_safetensors({random_bytes("large", Dtype::f64, 5'000'001, rng),
                               random_bytes("empty", Dtype::f32, 0, rng),
                               random_bytes("bytes", Dtype::u8, 1'500'007, rng)}));
  write_text(directory / "b.safetensors", make_safetensors(many));
  write_text(directory / "c.safetensors", make_safetensors({}));
}

TEST(CheckpointReader, HashesChunksAndPiecesOfAllBytes) {
  TempDir dir;
  test::Random rng = test::make_rng();
  write_files(dir.path(), rng);
  const Opened opened(dir.path());
  std::mutex mutex;
  std::uint64_t most = 0, total_bytes = 0;
  const CheckpointHashes hashes =
      hash_checkpoint(opened.reader, {.with_pieces = true}, 3, {},
                      [&](std::string_view phase, std::uint64_t done, std::uint64_t total) {
                        const std::lock_guard lock(mutex);
                        EXPECT_EQ(phase, "hashing");
                        most = std::max(most, done);
                        total_bytes = total;
                      });
  EXPECT_EQ(total_bytes, opened.layout->size_bytes()) << "each byte counts once";
  EXPECT_EQ(most, total_bytes);

  for (std::size_t f = 0; f < opened.layout->files().size(); f++) {
    const LayoutFile& file = opened.layout->files()[f];
    const std::string bytes = test::read_text(dir.path() / file.path);
    ASSERT_EQ(hashes.pieces[f].size(), piece_count(bytes.size()));
    ASSERT_EQ(hashes.marks[f].size(), piece_count(bytes.size()));
    for (std::size_t p = 0; p < hashes.pieces[f].size(); p++) {
      const auto piece = std::string_view(bytes).substr(p * kPieceBytes, kPieceBytes);
      EXPECT_EQ(hashes.pieces[f][p], sha256(as_bytes(piece))) << file.path << " " << p;
      EXPECT_EQ(hashes.marks[f][p], kernels::hash_chunk(as_bytes(piece))) << file.path << " " << p;
    }
    for (const LayoutTensor& tensor : opened.layout->tensors_of(file)) {
      for (std::uint32_t c = 0; c < tensor.chunk_count; c++) {
        const auto chunk = std::string_view(bytes).substr(
            tensor.offset_bytes + tensor.chunk_offset_bytes(c), tensor.chunk_size_bytes(c));
        EXPECT_EQ(hashes.chunks[tensor.first_chunk + c], kernels::hash_chunk(as_bytes(chunk)))
            << tensor.name << " " << c;
      }
    }
  }
}

TEST(CheckpointReader, LeavesFilesOut) {
  TempDir dir;
  test::Random rng = test::make_rng();
  write_files(dir.path(), rng);
  const Opened opened(dir.path());
  const CheckpointHashes all = hash_checkpoint(opened.reader, {.with_pieces = true}, 2, {}, {});
  const CheckpointHashes rest = hash_checkpoint(
      opened.reader, {.without = {true, false, false}, .with_pieces = true}, 2, {}, {});
  EXPECT_EQ(rest.pieces[1], all.pieces[1]);
  EXPECT_EQ(rest.marks[1], all.marks[1]);
  EXPECT_EQ(rest.pieces[0], std::vector<Sha256>(all.pieces[0].size()));
  const std::uint64_t first =
      opened.layout->tensors()[opened.layout->files()[1].first_tensor].first_chunk;
  EXPECT_TRUE(std::equal(rest.chunks.begin() + static_cast<std::ptrdiff_t>(first),
                         rest.chunks.end(),
                         all.chunks.begin() + static_cast<std::ptrdiff_t>(first)));
}

/// A file of 2 MiB and a bit, and what reads it again.
class SnapshotSourceTest : public testing::Test {
 protected:
  SnapshotSourceTest() : dir_(), path_(dir_.path() / "a.safetensors") {
    test::Random rng = test::make_rng();
    write_text(path_, make_safetensors({random_bytes("t", Dtype::u8, 2'300'000, rng)}));
    opened_.emplace(dir_.path());
    hashes_ = hash_checkpoint(opened_->reader, {}, 1, {}, {});
  }

  [[nodiscard]] std::unique_ptr<SnapshotSource> source() const {
    return std::make_unique<SnapshotSource>(opened_->reader, *opened_->reader.weights().front(),
                                            hashes_.marks.front());
  }

  [[nodiscard]] std::vector<Sha256> expected() const {
    const std::string bytes = test::read_text(path_);
    std::vector<Sha256> pieces;
    for (std::size_t at = 0; at < bytes.size(); at += kPieceBytes) {
      pieces.push_back(sha256(as_bytes(std::string_view(bytes).substr(at, kPieceBytes))));
    }
    return pieces;
  }

  /// As a store through a mapping does it: no time of the file changes.
  void change_a_byte(std::size_t offset) {
    const auto before = std::filesystem::last_write_time(path_);
    const File file = File::open(path_, O_RDWR);
    void* const mapped =
        ::mmap(nullptr, offset + 1, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd(), 0);
    ASSERT_NE(mapped, MAP_FAILED);
    static_cast<char*>(mapped)[offset] ^= 1;
    ASSERT_EQ(::munmap(mapped, offset + 1), 0);
    std::filesystem::last_write_time(path_, before);
  }

  TempDir dir_;
  const std::filesystem::path path_;
  std::optional<Opened> opened_;
  CheckpointHashes hashes_;
};

TEST_F(SnapshotSourceTest, LearnsThePiecesOfWhatIsRead) {
  const auto read = source();
  std::string bytes(read->size_bytes(), '\0');
  read->read(0, std::as_writable_bytes(std::span(bytes)));
  EXPECT_EQ(bytes, test::read_text(path_));
  std::filesystem::resize_file(path_, 0);  // nothing is read any more
  const std::vector<Sha256> pieces = read->pieces();
  write_text(path_, bytes);
  EXPECT_EQ(pieces, expected());
}

TEST_F(SnapshotSourceTest, ReadsForThePiecesWhatNobodyRead) {
  const auto read = source();
  Bytes some(10);
  read->read(kPieceBytes + 7, some);
  EXPECT_EQ(read->pieces(), expected());
  EXPECT_EQ(source()->pieces(), expected());
}

TEST_F(SnapshotSourceTest, RefusesBytesThatWereNotHashed) {
  const auto read = source();
  change_a_byte(kPieceBytes + 7);
  Bytes piece(kPieceBytes);
  read->read(0, piece);
  EXPECT_EQ(code_of([&] { read->read(kPieceBytes, piece); }), ErrorCode::busy);
  EXPECT_EQ(code_of([&] { static_cast<void>(read->pieces()); }), ErrorCode::busy);
}

TEST(CheckpointReader, LeavesThePiecesToWhoReadsAgain) {
  TempDir dir;
  test::Random rng = test::make_rng();
  write_files(dir.path(), rng);
  const Opened opened(dir.path());
  EXPECT_TRUE(hash_checkpoint(opened.reader, {}, 2, {}, {}).pieces.empty());
}

}  // namespace
}  // namespace weightfs
