#include "fs/fuse/request_kinds.hpp"

#include <algorithm>
#include <cerrno>
#include <iterator>

namespace weightfs::fs {
namespace {

using std::chrono::hours;
using std::chrono::minutes;
using std::chrono::seconds;

constexpr seconds kReadTimeout{0};  // --read-timeout

// Work that changes something is `finish`: a write or a truncation that went on behind an answer of
// EINTR could undo what its caller did next.  A fill may wait until another version has been made.
// What waits for the disk ends when the disk is done: a trainer's fsync of 100 GB takes minutes.
constexpr RequestPolicy kPolicies[] = {
    {RequestKind::read, WaitClass::local, 4, seconds(30), ETIMEDOUT, OnGiveUp::abandon, true},
    {RequestKind::streamed, WaitClass::local, 4, kReadTimeout, EIO, OnGiveUp::abandon, true},
    {RequestKind::text, WaitClass::local, 2, seconds(30), ETIMEDOUT, OnGiveUp::abandon, true},
    {RequestKind::staged_read, WaitClass::local, 4, seconds(30), ETIMEDOUT},
    {RequestKind::name, WaitClass::bucket, 4, kReadTimeout, EIO, OnGiveUp::abandon, true},
    {RequestKind::fill, WaitClass::bucket, 4, hours(1), EIO, OnGiveUp::abandon, true},
    {RequestKind::size, WaitClass::bucket, 2, minutes(5), ETIMEDOUT, OnGiveUp::abandon, true, true},
    {RequestKind::build, WaitClass::bucket, 2, hours(1), ETIMEDOUT, OnGiveUp::abandon, true, true},
    {RequestKind::remote, WaitClass::bucket, 8, kReadTimeout, EIO, OnGiveUp::abandon, true},
    {RequestKind::change, WaitClass::disk, 8, hours(1), ETIMEDOUT, OnGiveUp::finish},
    {RequestKind::make, WaitClass::disk, 4, hours(1), ETIMEDOUT, OnGiveUp::finish},
    {RequestKind::sync, WaitClass::disk, 16, hours(1), ETIMEDOUT},
    {RequestKind::move, WaitClass::exclusive, 2, seconds(30), ETIMEDOUT, OnGiveUp::finish},
};

constexpr bool is_in_order() {
  for (std::size_t i = 0; i < std::size(kPolicies); i++) {
    if (static_cast<std::size_t>(kPolicies[i].kind) != i) return false;
  }
  return true;
}
static_assert(is_in_order(), "the table has a row for each kind, in the order of the enum");

}  // namespace

const RequestPolicy& policy_of(RequestKind kind) noexcept {
  return kPolicies[static_cast<std::size_t>(kind)];
}

std::vector<unsigned> shares_of(WaitClass waits_for) {
  std::vector<unsigned> shares;
  for (const RequestPolicy& policy : kPolicies) {
    if (policy.waits_for == waits_for) shares.push_back(policy.workers);
  }
  return shares;
}

std::size_t share_of(RequestKind kind) noexcept {
  const RequestPolicy& policy = policy_of(kind);
  return static_cast<std::size_t>(std::count_if(
      kPolicies, &policy,
      [&](const RequestPolicy& earlier) { return earlier.waits_for == policy.waits_for; }));
}

}  // namespace weightfs::fs
