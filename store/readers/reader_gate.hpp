// Reader gate: whether enough readers have a version, so that a trainer may go on.
//
// A reader counts if it is live, shows the version or a later one, has all bytes of it, and each of
// its engines has it too: an engine that is being told another version, or reports it, counts; one
// that has failed or cannot be reached does not, since nobody knows what it generates with.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "store/readers/reader_list.hpp"

namespace weightfs {

struct GateWish {
  std::uint64_t replicas = 1;
  std::uint64_t version = 0;  // not 0
  std::uint64_t max_lag = 0;  // so many versions before it will do

  /// The lowest version that counts.
  [[nodiscard]] std::uint64_t least() const noexcept {
    return version > max_lag ? version - max_lag : 1;
  }
};

struct GateCount {
  std::uint64_t ready = 0;
  std::vector<std::string> behind;  // live readers that do not count, and why: one line each
  std::uint64_t gone = 0, left = 0;
  std::vector<std::string> unreadable;  // ReaderList::unreadable

  [[nodiscard]] bool is_open(const GateWish& wish) const noexcept { return ready >= wish.replicas; }
};

/// Why a live reader does not count; empty: it counts.
std::string why_behind(const ReaderRecord& record, std::uint64_t least);

GateCount count_readers(const ReaderList& list, const GateWish& wish);

/// "2 of 3 readers have version 7: h1:/mnt/w shows version 6; 1 is gone", of at most 5 readers.
std::string gate_text(const GateCount& count, const GateWish& wish);

}  // namespace weightfs
