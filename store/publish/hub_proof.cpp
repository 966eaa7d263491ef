#include "store/publish/hub_proof.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/format/pack.hpp"
#include "store/threads/parallel.hpp"
#include "store/threads/progress_counter.hpp"

namespace weightfs {

HubProof::HubProof(Repository& repository, HubBase base, const CheckpointReader& reader,
                   unsigned threads)
    : hub_(repository.hub()), base_(std::move(base)), reader_(reader), threads_(threads) {}

void HubProof::ask(const Context& context) {
  const auto files = reader_.weights();
  there_.assign(files.size(), {});
  parallel_for(files.size(), request_threads(hub_, threads_), context, [&](std::size_t i) {
    const CheckpointFile& file = *files[i];
    try {
      there_[i] = hub_.describe(base_.key(file.path), context);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::not_found) throw;
      refuse(file, error.what());
    }
    const auto& size = there_[i].size_bytes;
    if (size && *size != file.stamp.size_bytes) {
      refuse(file, fmt::format("it has {} bytes, and {} on the Hub", file.stamp.size_bytes, *size));
    }
  });
}

std::vector<std::vector<Sha256>> HubProof::compare(
    const std::vector<std::vector<std::uint64_t>>& marks, const Context& context,
    const Progress& progress) {
  const auto files = reader_.weights();
  std::vector<std::vector<Sha256>> pieces(files.size());
  ProgressCounter counter(progress, "comparing", reader_.layout().size_bytes());
  parallel_for(files.size(), threads_, context, [&](std::size_t i) {
    const SnapshotSource source(reader_, *files[i], marks[i]);
    const bool has_hash = there_[i].sha256.has_value();
    if (has_hash) compare_hash(*files[i], *there_[i].sha256, source);
    pieces[i] = source.pieces();
    compare_bytes(*files[i], has_hash ? pieces[i].size() - 1 : 0, pieces[i], context);
    if (!there_[i].size_bytes) check_end(*files[i], context);
    counter.add(files[i]->stamp.size_bytes);
  });
  return pieces;
}

void HubProof::compare_hash(const CheckpointFile& file, const Sha256& expected,
                            const SnapshotSource& source) const {
  const auto buffer = std::make_unique_for_overwrite<std::byte[]>(kPieceBytes);
  Sha256Stream stream;
  for (std::uint64_t at = 0; at < source.size_bytes(); at += kPieceBytes) {
    const auto size =
        static_cast<std::size_t>(std::min<std::uint64_t>(kPieceBytes, source.size_bytes() - at));
    source.read(at, {buffer.get(), size});
    stream.update({buffer.get(), size});
  }
  const Sha256 found = stream.finish();
  if (found == expected) return;
  refuse(file,
         fmt::format("it has the SHA-256 {}, and {} on the Hub", to_hex(found), to_hex(expected)));
}

/// Of the pieces from `first` on.
void HubProof::compare_bytes(const CheckpointFile& file, std::uint64_t first,
                             std::span<const Sha256> pieces, const Context& context) {
  const std::uint64_t size_bytes = file.stamp.size_bytes;
  const auto buffer = std::make_unique_for_overwrite<std::byte[]>(kPieceBytes);
  for (std::uint64_t piece = first; piece < pieces.size(); piece++) {
    const std::uint64_t begin = piece * kPieceBytes;
    const auto size = static_cast<std::size_t>(std::min(kPieceBytes, size_bytes - begin));
    if (read_there(file, begin, {buffer.get(), size}, context) < size) {
      refuse(file, fmt::format("it has {} bytes, and fewer on the Hub", size_bytes));
    }
    const Sha256 found = sha256({buffer.get(), size});
    if (found == pieces[piece]) continue;
    refuse(file, fmt::format("bytes {} to {} have the SHA-256 {}, and {} on the Hub", begin,
                             begin + size, to_hex(pieces[piece]), to_hex(found)));
  }
}

void HubProof::check_end(const CheckpointFile& file, const Context& context) {
  std::array<std::byte, 1> byte{};
  if (read_there(file, file.stamp.size_bytes, byte, context) == 0) return;
  refuse(file, fmt::format("it has {} bytes, and more on the Hub", file.stamp.size_bytes));
}

/// As HubReader::get().
std::size_t HubProof::read_there(const CheckpointFile& file, std::uint64_t offset_bytes,
                                 std::span<std::byte> into, const Context& context) {
  try {
    return hub_.get(base_.key(file.path), offset_bytes, into, context);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::not_found) throw;
    refuse(file, error.what());
  }
}

void HubProof::refuse(const CheckpointFile& file, const std::string& why) const {
  throw Error(ErrorCode::invalid,
              fmt::format("{} is not the file of {}: {}.  Download that commit, or publish without "
                          "--base",
                          reader_.path_of(file).string(), base_.text(), why));
}

}  // namespace weightfs
