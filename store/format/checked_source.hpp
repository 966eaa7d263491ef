// CheckedSource: a Source whose bytes are compared with hashes that were taken before.
//
// Bytes are uploaded some time after they were hashed, and perhaps read more than once.  Each piece
// is checked whenever it is read, before any byte of it is returned: so the bytes sent match the
// manifest, even if a process writes to the file meanwhile.
//
// Threads: all calls may run in parallel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "store/base/source.hpp"

namespace weightfs {

class CheckedSource final : public Source {
 public:
  /// Throws if these are not the bytes that were hashed.  `piece`: its number, in units of
  /// kPieceBytes (store/format/pack.hpp).  May be called by several threads.
  using Check = std::function<void(std::size_t piece, std::span<const std::byte> bytes)>;

  /// Keeps the reference.
  CheckedSource(const Source& source, Check check);

  [[nodiscard]] std::uint64_t size_bytes() const override { return source_.size_bytes(); }

  /// Throws Error: as `source`, and what `check` throws.
  /// Note: reading a part of a piece costs as much as reading all of it.
  void read(std::uint64_t offset_bytes, std::span<std::byte> into) const override;

 private:
  void read_piece(std::uint64_t piece, std::span<std::byte> into) const;

  const Source& source_;
  const Check check_;
};

}  // namespace weightfs
