#include "store/seed/snapshot_pieces.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "store/base/bytes.hpp"
#include "store/base/sha256.hpp"

namespace weightfs {

SnapshotPieces::SnapshotPieces(const StoredSnapshot& snapshot, BucketReader& bucket,
                               const Context& context, BuildMeter* meter)
    : snapshot_(snapshot), bucket_(bucket), context_(context), meter_(meter) {}

void SnapshotPieces::read(std::uint32_t file, std::uint64_t first, std::span<std::byte> into) {
  const LayoutFile& entry = snapshot_.layout->files()[file];
  const PieceRun run{snapshot_key(*snapshot_.version, entry.path), 0, entry.size_bytes,
                     snapshot_.hashes.pieces[file]};
  if (!snapshot_.seed) return fetch(run, first, into);
  // What is missing between two pieces of the seed is one request.
  std::span<std::byte> missing = into.first(0);
  std::uint64_t missing_first = first;
  for (std::uint64_t piece = first; !into.empty(); piece++) {
    const auto size = static_cast<std::size_t>(run.bytes_of(piece, 1));
    if (take(file, piece, into.first(size))) {
      if (!missing.empty()) fetch(run, missing_first, missing);
      missing = into.subspan(size, 0);
      missing_first = piece + 1;
    } else {
      missing = {missing.data(), missing.size() + size};
    }
    into = into.subspan(size);
  }
  if (!missing.empty()) fetch(run, missing_first, missing);
}

void SnapshotPieces::fetch(const PieceRun& run, std::uint64_t first, std::span<std::byte> into) {
  const Clock::time_point begin = Clock::now();
  fetch_pieces(bucket_, run, first, into, context_);
  if (snapshot_.seed) snapshot_.seed->add_fetched(into.size());
  if (meter_ == nullptr) return;
  meter_->add_fetch(begin, into.size());
  meter_->add_stalled(Clock::now() - begin);
}

/// Returns: whether `into` has the bytes of the piece.
bool SnapshotPieces::take(std::uint32_t file, std::uint64_t piece, std::span<std::byte> into) {
  context_.check("copying from the seed");
  if (!find_parts(snapshot_.layout->files()[file], piece * kPieceBytes, into)) return false;
  std::size_t turns = 1;
  for (const Part& part : parts_) {
    turns = std::max(turns, snapshot_.seed->places(part.tensor).size());
  }
  for (std::size_t turn = 0; turn < turns; turn++) {
    if (!copy_parts(turn) || sha256(into) != snapshot_.hashes.pieces[file][piece]) continue;
    snapshot_.seed->add_taken(into.size());
    if (meter_ != nullptr) meter_->add_seeded(into.size());
    return true;
  }
  for (const Part& part : parts_) snapshot_.seed->note_wrong(part.tensor);
  return false;
}

/// Copies what the layout has of the piece, and lists the rest.  Returns: false if the seed lacks
/// some of that.
bool SnapshotPieces::find_parts(const LayoutFile& file, std::uint64_t begin,
                                std::span<std::byte> into) {
  parts_.clear();
  const std::uint64_t end = begin + into.size();
  if (begin < file.head.size()) {
    const auto head = as_bytes(file.head).subspan(static_cast<std::size_t>(begin));
    std::copy_n(head.begin(), std::min(head.size(), into.size()), into.begin());
  }
  const auto tensors = snapshot_.layout->tensors_of(file);
  auto tensor = std::partition_point(tensors.begin(), tensors.end(), [&](const LayoutTensor& one) {
    return one.offset_bytes + one.size_bytes <= begin;
  });
  for (; tensor != tensors.end() && tensor->offset_bytes < end; ++tensor) {
    if (tensor->size_bytes == 0) continue;
    const auto number = file.first_tensor + static_cast<std::uint32_t>(tensor - tensors.begin());
    if (snapshot_.seed->places(number).empty()) return false;
    const std::uint64_t from = std::max(begin, tensor->offset_bytes);
    const std::uint64_t to = std::min(end, tensor->offset_bytes + tensor->size_bytes);
    parts_.push_back({number, from - tensor->offset_bytes,
                      into.subspan(static_cast<std::size_t>(from - begin),
                                   static_cast<std::size_t>(to - from))});
  }
  return true;
}

/// Where there are several tensors of one name, each turn takes another.
bool SnapshotPieces::copy_parts(std::size_t turn) {
  return std::all_of(parts_.begin(), parts_.end(), [&](const Part& part) {
    const auto places = snapshot_.seed->places(part.tensor);
    return !places.empty() && copy(places[std::min(turn, places.size() - 1)], part);
  });
}

bool SnapshotPieces::copy(const SeedDirectory::Place& place, const Part& part) {
  const SeedDirectory& seed = snapshot_.seed->directory();
  const std::filesystem::path& path = seed.path_of(place.file);
  try {
    if (number_ != place.file) {
      number_ = kNoFile;
      open_ = seed.open_file(place.file);
      number_ = place.file;
    }
    if (read_at(open_.fd(), place.offset_bytes + part.offset_bytes, part.into, path)) return true;
    seed.complain(place.file, fmt::format("{} is too short", path.string()));
  } catch (const Error& error) {
    seed.complain(place.file, error.what());
  }
  return false;
}

}  // namespace weightfs
