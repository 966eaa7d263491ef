// Hand-over status: what status, publish/ and waiting callers are told of a hand-over.
//
// Threads: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "store/staging/types.hpp"

namespace weightfs {

/// A hand-over, as shown in status and publish/.
struct HandOver {
  enum class State { queued, uploading, waiting, committing, conflict, failed };
  std::uint64_t order = 0;  // ascending; never reused
  StagingId directory = 0;
  std::string name;  // in publish/
  std::string tag;   // "" for none
  State state = State::queued;
  std::string phase;  // of uploading: "coding", "uploading" ...
  std::uint64_t done_bytes = 0, total_bytes = 0;
  std::uint64_t early_bytes = 0;  // of files coded early; known once it is used
  std::string error;              // waiting: for what; conflict and failed: why
  std::string error_code;
  std::int64_t time = 0;               // handed over, seconds since 1970
  std::uint64_t version = 0;           // committing: the number it will get
  unsigned parts = 0;                  // of the version, if this is a part of one; 0: it is whole
  std::vector<unsigned> missing = {};  // waiting: for these parts
};
std::string_view to_string(HandOver::State state) noexcept;

/// How a hand-over ended; the last kEndedMax are kept in memory for waiting callers.  One that
/// ended as conflict or failed stays in list(), and ends again when it is taken back.
struct HandOverEnd {
  enum class How { published, conflict, failed, taken_back };
  std::uint64_t order = 0;
  std::string name, tag;
  How how{};
  std::uint64_t version = 0;  // published
  std::string error;
  std::string
      left;  // published: where the unpublished rest is, below staging/; "" if there is none
  std::uint64_t bytes = 0, early_bytes = 0;  // published: of its files; of those coded early
  std::uint64_t newest = 0;                  // the newest version known here when it ended
};
inline constexpr std::size_t kEndedMax = 1024;

/// What a queue has published since it was created, how much of that was coded early, and what
/// failed.
struct PublishedTotals {
  std::uint64_t versions = 0, bytes = 0, early_bytes = 0;
  std::map<std::string, std::uint64_t> failures = {};  // tries that failed, by code
};

}  // namespace weightfs
