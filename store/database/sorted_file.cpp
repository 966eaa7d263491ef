#include "store/database/sorted_file.hpp"

#include <fmt/format.h>
#include <rocksdb/options.h>
#include <rocksdb/sst_file_writer.h>

#include <cassert>
#include <utility>

#include "store/base/error.hpp"
#include "store/base/sha256.hpp"

namespace weightfs {
namespace {

namespace fs = std::filesystem;

// Values are large and dense: blocks of one value or a few, and nothing to compress.
rocksdb::Options sorted_file_options() {
  rocksdb::Options options;
  options.compression = rocksdb::kNoCompression;
  return options;
}

rocksdb::Slice sorted_slice(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

struct SortedFile::State {
  explicit State(fs::path where)
      : path(std::move(where)), writer(rocksdb::EnvOptions(), sorted_file_options()) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    std::error_code ignored;  // after ingestion it has another name
    fs::remove(path, ignored);
  }

  void check(const rocksdb::Status& status) const {
    if (status.ok()) return;
    throw Error(status.IsNoSpace() ? ErrorCode::no_space : ErrorCode::io,
                fmt::format("cannot write {}: {}", path.string(), status.ToString()));
  }

  fs::path path;
  rocksdb::SstFileWriter writer;
  std::uint64_t count = 0;
  std::uint64_t pair_bytes = 0;      // of keys and values
  std::uint64_t finished_bytes = 0;  // 0: not finished
};

SortedFile::SortedFile(const fs::path& directory)
    : state_(std::make_unique<State>(directory / fmt::format("sorted-{}.sst", random_hex(8)))) {
  state_->check(state_->writer.Open(state_->path.string()));
}

SortedFile::~SortedFile() = default;
SortedFile::SortedFile(SortedFile&&) noexcept = default;
SortedFile& SortedFile::operator=(SortedFile&&) noexcept = default;

void SortedFile::add(std::string_view key, std::string_view value) {
  assert(state_->finished_bytes == 0);
  state_->check(state_->writer.Put(sorted_slice(key), sorted_slice(value)));
  ++state_->count;
  state_->pair_bytes += key.size() + value.size();
}

std::uint64_t SortedFile::size_bytes() const noexcept {
  constexpr std::uint64_t kFixedBytes = 4096;  // properties, footer
  constexpr std::uint64_t kOfPairBytes = 96;   // its place in the index, lengths, checksum
  if (state_->finished_bytes != 0) return state_->finished_bytes;
  return kFixedBytes + state_->count * kOfPairBytes + state_->pair_bytes;
}

bool SortedFile::is_empty() const noexcept { return state_->count == 0; }

void SortedFile::finish() {
  assert(!is_empty());
  rocksdb::ExternalSstFileInfo info;
  state_->check(state_->writer.Finish(&info));
  state_->finished_bytes = info.file_size;
}

const fs::path& SortedFile::path() const noexcept { return state_->path; }

}  // namespace weightfs
