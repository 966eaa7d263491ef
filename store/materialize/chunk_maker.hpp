// ChunkMaker: builds chunks of a plan's version in batches: reads the old bytes, applies all steps
// in order, and compares the hashes.
//
//     unchanged         read into place --> hash
//     constant size     read into place, coded steps --> ChunkCoder, in place --> hash
//     size changed      cut or extended before each step, one chunk after another --> hash
//
// Chunks go to the coder as soon as they make a batch, so that the CPU reads, decodes and hashes a
// chunk while it is in the cache.
//
// Normally only the last hash is compared. If it is wrong, the chunk is rebuilt on the CPU with
// every hash compared, to find the damaged input. If there is none, it was the coder; a GPU's work
// is then done by the CPU.
//
// Memory: at most kCodedBytesMax of coded bytes.
//
// Threads: a ChunkMaker belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/block/chunk_coder.hpp"
#include "kernels/block/scratch.hpp"
#include "store/materialize/base_reader.hpp"
#include "store/materialize/pack_spool.hpp"
#include "store/materialize/plan.hpp"
#include "store/patches/fresh_patches.hpp"
#include "store/sparse/ahead_deltas.hpp"

namespace weightfs {

/// Coded bytes queued for the coder; a chunk that needs more is built step by step.
inline constexpr std::size_t kCodedBytesMax = 32u << 20;

/// A chunk of the plan's layout, and the destination of its bytes.
struct WantedChunk {
  std::uint32_t tensor = 0;
  std::uint32_t chunk = 0;
  std::span<std::byte> into;  // has the chunk's size
};

/// Who gets what changes from a plan's base to its version; each may be null.
struct NotedChanges {
  FreshChunks* fresh = nullptr;
  AheadDeltas* ahead = nullptr;
};

class ChunkMaker {
 public:
  /// Keeps the references.  Requires: if somebody gets changes, the plan has a base, and the coder
  /// writes logs.
  ChunkMaker(const Plan& plan, const PackSpool& spool, std::unique_ptr<BaseReader> old,
             kernels::ChunkCoder& coder, const NotedChanges& noted = {});

  /// Fills each chunk with its verified bytes.
  /// Throws BaseDamaged, ObjectError (names pack or snapshot, tensor and chunk), Error: io.
  void make(std::span<const WantedChunk> wanted);

  /// As BaseReader::expect().
  void expect(std::uint32_t file, std::uint64_t end_bytes) { source_->expect(file, end_bytes); }

 private:
  enum class Check { nothing, every_hash };

  /// Where the current chunk comes from: tensors[i] is its tensor after step first_step + i.
  struct Trail {
    std::vector<std::uint32_t> tensors;
    std::size_t first_step = 0;
    bool from_start = false;  // else it starts as zeros
    std::uint32_t start_tensor = 0;
  };

  /// A chunk queued for the coder; its coded steps are a part of steps_.
  struct Job {
    const WantedChunk* wanted = nullptr;
    std::size_t first_step = 0, step_count = 0;
  };
  struct CodedStep {
    std::span<const std::uint32_t> lengths;
    std::size_t at = 0, size = 0;  // in coded_
  };

  void fetch_ahead(std::span<const WantedChunk> wanted);
  void trace(std::uint32_t tensor, std::uint32_t chunk);
  void add(const WantedChunk& wanted);
  [[nodiscard]] bool is_of_one_size(const WantedChunk& wanted) const;
  [[nodiscard]] PackEntry listed(std::size_t trail_index, std::uint32_t chunk) const;
  [[nodiscard]] std::size_t coded_size(std::uint32_t chunk) const;
  void add_job(const WantedChunk& wanted);
  void add_step(std::size_t trail_index, std::uint32_t chunk);
  void run_jobs();
  void clear_jobs();
  void make_alone(const WantedChunk& wanted);
  [[nodiscard]] bool notes_changes() const noexcept;
  void note(const WantedChunk& wanted, const kernels::DecodeJob& job);
  void give_up_notes(std::string_view why);
  void make_again(const WantedChunk& wanted, const kernels::DecodeJob& job);
  [[nodiscard]] std::string describe(const WantedChunk& wanted) const;
  [[nodiscard]] std::uint64_t hash_of(const WantedChunk& wanted) const;
  void check(const WantedChunk& wanted, std::uint64_t found);
  std::span<const std::byte> rebuild(const WantedChunk& wanted);
  [[noreturn]] void blame_host(const WantedChunk& wanted) const;

  std::span<const std::byte> run(std::uint32_t chunk, Check check);
  void read_start(std::uint32_t chunk, std::span<std::byte> into);
  void apply(std::size_t trail_index, std::uint32_t chunk, Check check);
  void resize(std::size_t size_bytes);
  void check_start(std::uint32_t chunk) const;

  const Plan& plan_;
  const PackSpool& spool_;
  std::unique_ptr<BaseReader> source_;
  kernels::ChunkCoder& coder_;
  const NotedChanges noted_;

  Trail trail_;

  // The current batch.
  std::vector<Job> jobs_;
  std::vector<CodedStep> steps_;
  std::size_t job_bytes_ = 0;
  std::vector<std::byte> coded_;
  std::vector<kernels::CodedChunk> coder_steps_;  // steps_ and jobs_ in the coder's types
  std::vector<kernels::DecodeJob> coder_jobs_;
  std::vector<kernels::ChangeLog> logs_;               // of the jobs; kept for their memory
  std::unique_ptr<AheadDeltas::Worker> ahead_worker_;  // created on first use

  // State for a chunk that is built step by step.
  struct Alone {
    std::unique_ptr<std::byte[]> old_bytes, new_bytes;
    std::size_t size = 0;  // bytes used in old_bytes
    std::vector<std::byte> coded;
    kernels::Scratch scratch;
  };
  std::unique_ptr<Alone> alone_;  // created on first use
};

}  // namespace weightfs
