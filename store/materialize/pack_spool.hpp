// PackSpool: the data of all packs of a plan, verified, in one unlinked local file.
//
// Every piece is checked against its SHA-256 before anything of it is decoded.  A piece is fetched
// when it is first needed, or in advance by fetch_all(), so that a damaged pack stops a
// materialisation before it has written an image.  No piece is fetched twice, however many threads
// need it.
//
// Threads: all calls may run in parallel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "store/materialize/plan.hpp"

namespace weightfs {

class PackSpool {
 public:
  /// Fetches nothing.  Keeps the references.  Throws Error: no_space, io.
  PackSpool(const Plan& plan, Repository& repository, std::filesystem::path directory,
            const Context& context);
  ~PackSpool();

  /// Fetches what is not here yet.
  /// Throws ObjectError (not_found, corrupt: names the pack); Error: no_space, unavailable,
  /// cancelled.
  void fetch_all(unsigned threads, const Progress& progress);

  /// A chunk that step `step` of the plan lists at `place`.
  struct Wanted {
    std::size_t step = 0;
    PackEntry place;
  };

  /// Fetches the missing pieces of these chunks, several at a time; otherwise a chunk that many
  /// steps changed would wait for the bucket once per step.  Throws as fetch_all().
  void fetch(std::span<const Wanted> wanted) const;

  /// Whether nothing is left to be fetched.
  [[nodiscard]] bool is_whole() const;

  /// Reads the coded bytes of a chunk that step `step` lists at `place`; fetches what is not here.
  /// Requires: into.size() is that chunk's data_size_bytes.
  /// Throws as fetch_all(); what could not be fetched is tried again by the next call.
  void read(std::size_t step, PackEntry place, std::span<std::byte> into) const;

  /// So far, from the bucket.
  [[nodiscard]] std::uint64_t fetched_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weightfs
