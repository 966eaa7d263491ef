#include "store/os/memory_budget.hpp"

#include <fmt/format.h>

#include <limits>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/os/memory_room.hpp"

namespace weightfs {
namespace {

constexpr std::uint64_t kMemoryShare = 4;  // a quarter

const MemoryLimit& limit_of_this_process() {
  static const MemoryLimit limit = find_memory_limit().value_or(
      MemoryLimit{std::numeric_limits<std::uint64_t>::max(), "the host's memory"});
  return limit;
}

}  // namespace

MemoryBudget::MemoryBudget()
    : MemoryBudget(limit_of_this_process().bytes / kMemoryShare, limit_of_this_process().text) {}

MemoryBudget::MemoryBudget(std::uint64_t bytes, std::string whose)
    : bytes_(bytes), whose_(std::move(whose)) {}

void MemoryBudget::check(std::uint64_t bytes, std::string_view what) const {
  if (bytes > bytes_ - taken_) refuse(bytes, what);
}

void MemoryBudget::take(std::uint64_t bytes, std::string_view what) {
  std::uint64_t taken = taken_;
  do {
    if (bytes > bytes_ - taken) refuse(bytes, what);
  } while (!taken_.compare_exchange_weak(taken, taken + bytes));
}

void MemoryBudget::refuse(std::uint64_t bytes, std::string_view what) const {
  throw Error(
      ErrorCode::unsupported,
      fmt::format(
          "{}: reading it would need {} of memory, but the records of one version may use only "
          "{} here, {} of it already in use (a share of {}).  If the version is really that "
          "large, give weightfs more memory",
          what, human_bytes(bytes), human_bytes(bytes_), human_bytes(taken_), whose_));
}

}  // namespace weightfs
