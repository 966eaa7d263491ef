#include "store/repository/pieces.hpp"

#include <fmt/format.h>

#include "store/base/bytes.hpp"

namespace weightfs {
namespace {

void fetch(BucketReader& bucket, const PieceRun& run, std::uint64_t first,
           std::span<std::byte> into, const Context& context) {
  try {
    get_exact(bucket, run.key, run.offset_bytes + first * kPieceBytes, into, context);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::not_found && error.code() != ErrorCode::corrupt) throw;
    throw ObjectError(error.code(), run.key, error.what());
  }
}

bool is_right(const PieceRun& run, std::uint64_t piece, std::span<const std::byte> bytes) {
  return sha256(bytes) == run.hashes[piece];
}

[[noreturn]] void throw_damaged(const BucketReader& bucket, const PieceRun& run,
                                std::uint64_t piece, std::span<const std::byte> bytes) {
  const Sha256 found = sha256(bytes);
  const Sha256& expected = run.hashes[piece];
  const std::uint64_t begin = run.offset_bytes + piece * kPieceBytes;
  throw ObjectError(
      ErrorCode::corrupt, run.key,
      fmt::format("{}: bytes {} to {} have the SHA-256 {}, expected {}; {}", run.key, begin,
                  begin + bytes.size(), to_hex(found), to_hex(expected), bucket.remedy()));
}

}  // namespace

bool are_right(const PieceRun& run, std::uint64_t first, std::span<const std::byte> bytes) {
  for (std::uint64_t piece = first; !bytes.empty(); piece++) {
    const auto size = static_cast<std::size_t>(run.bytes_of(piece, 1));
    if (!is_right(run, piece, bytes.first(size))) return false;
    bytes = bytes.subspan(size);
  }
  return true;
}

void fetch_pieces(BucketReader& bucket, const PieceRun& run, std::uint64_t first,
                  std::span<std::byte> into, const Context& context) {
  fetch(bucket, run, first, into, context);
  for (std::uint64_t piece = first; !into.empty(); piece++) {
    const auto bytes = into.first(static_cast<std::size_t>(run.bytes_of(piece, 1)));
    if (!is_right(run, piece, bytes)) {
      fetch(bucket, run, piece, bytes, context);  // it may have been damaged in transit
      if (!is_right(run, piece, bytes)) throw_damaged(bucket, run, piece, bytes);
    }
    into = into.subspan(bytes.size());
  }
}

}  // namespace weightfs
