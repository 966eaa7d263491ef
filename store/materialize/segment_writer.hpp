// SegmentWriter: builds and writes a range of a file of a plan's version.  write_version() uses it
// for whole versions, PartialVersion for requested ranges.
//
//     header of the file      from the layout
//     chunks of its tensors   ChunkMaker: old bytes, steps, hashes compared
//
// A chunk that straddles two ranges is made by the writers of both.
//
// Memory: a window of kWindowBytes, a batch of chunks, and read-ahead of the old bytes: 4 MiB of a
// snapshot, or 9 MiB, fetched with one request, for a segment of a single window.
//
// Threads: belongs to one thread at a time; make one for each worker.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "kernels/block/chunk_coder.hpp"
#include "store/materialize/chunk_maker.hpp"
#include "store/materialize/pack_spool.hpp"
#include "store/materialize/plan.hpp"
#include "store/materialize/window_writer.hpp"
#include "store/timing/build_meter.hpp"

namespace weightfs {

class SegmentWriter {
 public:
  /// Keeps the references.  `meter` may be null; `noted`: as ChunkMaker().
  SegmentWriter(const Plan& plan, const PackSpool& spool, Repository& repository,
                kernels::ChunkCoder& coder, const Context& context, BuildMeter* meter = nullptr,
                const NotedChanges& noted = {});

  /// Writes the bytes [begin, end) of `file`, verified, to `fd`, the file at `path`.
  /// Requires: `begin` is a multiple of kWindowBytes; `file` is one of the plan's layout; the file
  /// on disk is open for writing and has room.
  /// Throws BaseDamaged, ObjectError; Error: no_space, io, cancelled, unavailable.
  void write(const LayoutFile& file, int fd, const std::filesystem::path& path, std::uint64_t begin,
             std::uint64_t end);

 private:
  [[nodiscard]] std::uint64_t part_bytes(std::uint64_t segment_bytes) const;
  void expect(const LayoutFile& file, std::uint64_t end);
  void place_head(const LayoutFile& file, std::uint64_t begin, std::uint64_t end);
  void place_tensors(const LayoutFile& file, std::uint64_t begin, std::uint64_t end);
  void place_tensor(const LayoutTensor& tensor, std::uint32_t number, std::uint64_t begin,
                    std::uint64_t end);
  void place(std::uint32_t tensor, std::uint32_t chunk, std::uint64_t offset_bytes,
             std::size_t size_bytes);
  void make_placed();

  const Plan& plan_;
  const Context& context_;
  const kernels::ChunkCoder& coder_;
  BuildMeter* const meter_;
  ChunkMaker maker_;
  WindowWriter writer_;
  std::vector<WantedChunk> wanted_;
};

}  // namespace weightfs
