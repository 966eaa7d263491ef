// PackSpool: the verified data of all packs of a plan, in one unlinked local file, or in memory if
// they are small.
//
// Every piece is checked against its SHA-256 before any of it is decoded.  Pieces that did not come
// with the plan are fetched on first use, or in advance by fetch_all(), which may run while others
// read.  No piece is fetched twice, however many threads need it.
//
// Threads: all calls may run in parallel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "store/materialize/plan.hpp"
#include "store/timing/build_meter.hpp"

namespace weightfs {

class PackSpool {
 public:
  /// Fetches nothing.  Keeps the references.  `meter`: of the fetches, and of the time that read()
  /// and fetch() wait for them; may be null.  Throws Error: no_space, io.
  PackSpool(const Plan& plan, Repository& repository, std::filesystem::path directory,
            const Context& context, BuildMeter* meter = nullptr);
  ~PackSpool();

  /// Fetches all pieces that are missing.  `needed`: of which packs of the first step; empty: all.
  /// Throws ObjectError (not_found, corrupt: names the pack); Error: no_space, unavailable,
  /// cancelled.
  void fetch_all(unsigned threads, const Progress& progress, const std::vector<bool>& needed = {});

  /// A chunk that step `step` of the plan lists at `place`.
  struct Wanted {
    std::size_t step = 0;
    PackEntry place;
  };

  /// Fetches the missing pieces of these chunks, several at a time; otherwise a chunk that many
  /// steps changed would wait for the bucket once per step.  Throws as fetch_all().
  void fetch(std::span<const Wanted> wanted) const;

  /// Whether all pieces have been fetched.
  [[nodiscard]] bool is_whole() const;

  /// Reads the coded bytes of a chunk that step `step` lists at `place`; fetches missing pieces.
  /// Requires: into.size() is that chunk's data_size_bytes.
  /// Throws as fetch_all(); the next call retries what could not be fetched.
  void read(std::size_t step, PackEntry place, std::span<std::byte> into) const;

  /// Bytes fetched from the bucket so far.
  [[nodiscard]] std::uint64_t fetched_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weightfs
