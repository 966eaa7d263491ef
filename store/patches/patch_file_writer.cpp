#include "store/patches/patch_file_writer.hpp"

#include <utility>

#include "store/patches/patch_records.hpp"

namespace weightfs {

PatchFileWriter::PatchFileWriter(Db& db, std::filesystem::path directory, PatchSpan span,
                                 std::uint64_t file_bytes_max)
    : db_(db), directory_(std::move(directory)), span_(span), file_bytes_max_(file_bytes_max) {}

bool PatchFileWriter::would_begin_file(const ChunkPatch& patch) const noexcept {
  constexpr std::uint64_t kBesidePatchesBytes = 512;  // header, key, place in the file's index
  return file_ &&
         file_->size_bytes() + patch.patches.size() + kBesidePatchesBytes > file_bytes_max_;
}

void PatchFileWriter::add(ChunkPlace place, const ChunkPatch& patch) {
  if (would_begin_file(patch)) finish_file();
  if (!file_) file_ = db_.make_sorted_file(directory_);
  const std::string key = patch_key(span_, place);
  file_->add(key, encode_chunk_patch(patch, span_.first, key));
  ++done_.chunk_count;
}

void PatchFileWriter::finish_file() {
  file_->finish();
  done_.size_bytes += file_->size_bytes();
  done_.files.push_back(std::move(*file_));
  file_.reset();
}

std::uint64_t PatchFileWriter::size_bytes() const noexcept {
  return done_.size_bytes + (file_ ? file_->size_bytes() : 0);
}

PatchFiles PatchFileWriter::take() {
  if (file_) finish_file();
  return std::exchange(done_, {});
}

}  // namespace weightfs
