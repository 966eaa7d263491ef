// NewChunks: the bytes that a version is made of, chunk by chunk, for who codes them: the files of
// a checkpoint, or an older version that is published again (store/publish/old_version.hpp).
//
// Threads: NewChunks is immutable; a Reader belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "store/coding/checkpoint_reader.hpp"
#include "store/format/chunk_place.hpp"
#include "store/format/layout.hpp"

namespace weightfs {

class NewChunks {
 public:
  class Reader {
   public:
    virtual ~Reader() = default;
    /// Fills `into` with the chunk.  `old_chunk`: the parent's chunk of this tensor and number,
    /// whose hash is not compared yet; empty if the parent has none of this size.
    virtual void read(ChunkPlace place, std::span<const std::byte> old_chunk,
                      std::span<std::byte> into) = 0;
  };

  virtual ~NewChunks() = default;
  [[nodiscard]] virtual const Layout& layout() const = 0;
  /// The hash of every chunk, if they are known: then a chunk that has the parent's hash is not
  /// read. Else empty.
  [[nodiscard]] virtual std::span<const std::uint64_t> hashes() const = 0;
  [[nodiscard]] virtual std::unique_ptr<Reader> open() const = 0;
};

/// Of files.  Readers throw Error: busy (a file was written to), io.
class CheckpointChunks final : public NewChunks {
 public:
  /// Keeps the reference.
  explicit CheckpointChunks(const CheckpointReader& reader) : reader_(reader) {}
  [[nodiscard]] const Layout& layout() const override { return reader_.layout(); }
  [[nodiscard]] std::span<const std::uint64_t> hashes() const override { return {}; }
  [[nodiscard]] std::unique_ptr<Reader> open() const override;

 private:
  class FileReader;
  const CheckpointReader& reader_;
};

}  // namespace weightfs
