// CheckedSource: a Source that compares its bytes with hashes that were taken before.
//
// Bytes are uploaded some time after they were hashed, and perhaps read more than once.  Each piece
// is compared with its SHA-256 whenever it is read, before any byte of it is returned: so the bytes
// sent match the manifest, even if a process writes to the file meanwhile.
//
// Threads: all calls may run in parallel.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "store/base/sha256.hpp"
#include "store/base/source.hpp"

namespace weightfs {

class CheckedSource final : public Source {
 public:
  /// Keeps the references.  `pieces`: the hash of each kPieceBytes of `source`
  /// (store/format/pack.hpp). `refuse`: throws the error for a piece with another hash.
  CheckedSource(const Source& source, std::span<const Sha256> pieces, std::function<void()> refuse);

  [[nodiscard]] std::uint64_t size_bytes() const override { return source_.size_bytes(); }

  /// Throws Error: as `source`, and what `refuse` throws.
  /// Note: reading a part of a piece costs as much as reading all of it.
  void read(std::uint64_t offset_bytes, std::span<std::byte> into) const override;

 private:
  void read_piece(std::uint64_t piece, std::span<std::byte> into) const;

  const Source& source_;
  const std::span<const Sha256> pieces_;
  const std::function<void()> refuse_;
};

}  // namespace weightfs
