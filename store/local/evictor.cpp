#include "store/local/evictor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/os/lease.hpp"

namespace weightfs {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kFreeBytesMinMax = 10ull << 30;

}  // namespace

// `bytes` more, within both limits.
struct Evictor::Demand {
  std::uint64_t bytes, store_limit, free_min;

  [[nodiscard]] bool is_met(std::uint64_t used, std::uint64_t free) const {
    return used + bytes <= store_limit && free >= free_min + bytes;
  }
  void check(const fs::path& store, std::uint64_t used, std::uint64_t free) const {
    if (used + bytes > store_limit) {
      throw Error(
          ErrorCode::no_space,
          fmt::format(
              "no room for {} of images in {}: {} must stay, the limit is {} (--store-size); {} "
              "more needed",
              human_bytes(bytes), store.string(), human_bytes(used), human_bytes(store_limit),
              human_bytes(used + bytes - store_limit)));
    }
    if (free < free_min + bytes) {
      throw Error(
          ErrorCode::no_space,
          fmt::format(
              "no room for {} more in {}: its file system has, or can free, {}; {} must stay free "
              "(--min-free); {} more needed",
              human_bytes(bytes), store.string(), human_bytes(free), human_bytes(free_min),
              human_bytes(free_min + bytes - free)));
    }
  }
};

Evictor::Evictor(fs::path store, StoreLimits limits, std::function<Space()> space, Eviction& rule,
                 ImageTable& images, DeltaTable& deltas)
    : store_(std::move(store)),
      limits_(limits),
      space_(std::move(space)),
      rule_(rule),
      images_(images),
      deltas_(deltas) {}

// ---- what is wanted ----

void Evictor::evict_for_images(std::uint64_t bytes, std::uint64_t version_bytes) {
  bytes = std::min(bytes, kSizeBytesMax);
  const std::uint64_t largest =
      std::max({bytes, std::min(version_bytes, kSizeBytesMax), images_.newest_bytes()});
  const std::uint64_t limit = limits_.store_bytes.value_or(3 * largest);
  evict_until_met({bytes, std::min(kSizeBytesMax, limit), free_min(space_())});
}

void Evictor::evict_for_delta(std::uint64_t bytes) {
  bytes = std::min(bytes, kSizeBytesMax);
  const std::uint64_t known = images_.newest_bytes();
  const std::uint64_t newest = known > 0 ? known : bytes;
  // Three versions may fill the default: without more, none of their deltas would ever have room.
  const std::uint64_t limit =
      limits_.store_bytes.value_or(3 * newest + std::max(newest / 4, bytes));
  evict_until_met({bytes, std::min(kSizeBytesMax, limit), free_min(space_())});
}

void Evictor::evict_for_free_bytes(std::uint64_t bytes) {
  bytes = std::min(bytes, kSizeBytesMax);
  const Space space = space_();
  if (space.free_bytes >= free_min(space) + bytes) return;
  evict_until_met({bytes, 2 * kSizeBytesMax, free_min(space)});
}

std::uint64_t Evictor::free_min(const Space& space) const {
  const std::uint64_t wanted =
      limits_.free_bytes_min.value_or(std::min(space.total_bytes / 20, kFreeBytesMinMax));
  return std::clamp(wanted, kRecordsFloorBytes, kSizeBytesMax);
}

// ---- what goes ----

void Evictor::evict_until_met(const Demand& demand) {
  std::vector<std::uint64_t> counted = images_.partial_versions();
  const std::size_t partial_count = counted.size();
  const std::vector<std::uint64_t> complete = images_.complete_versions();
  counted.insert(counted.end(), complete.begin(), complete.end());
  if (demand.is_met(images_.bytes_of(counted) + deltas_.total_bytes(), space_().free_bytes)) return;

  check_worth(demand, counted);
  const std::uint64_t deltas = remove_deltas(demand, images_.bytes_of(counted));
  const std::vector<std::uint64_t> candidates = counted;
  for (std::size_t i = 0; i < candidates.size(); i++) {
    if (demand.is_met(images_.bytes_of(counted) + deltas, space_().free_bytes)) return;
    const std::uint64_t version = candidates[i];
    const bool is_gone = i < partial_count ? evict_partial(version) : evict(version);
    // Gone, or in use: then it does not count.
    if (is_gone || !rule_.stays(version)) std::erase(counted, version);
  }
  demand.check(store_, images_.bytes_of(counted) + deltas, space_().free_bytes);
}

// Nothing goes if all that may go would not be enough.
void Evictor::check_worth(const Demand& demand, const std::vector<std::uint64_t>& versions) const {
  std::vector<std::uint64_t> kept;
  std::copy_if(versions.begin(), versions.end(), std::back_inserter(kept),
               [&](std::uint64_t version) { return rule_.stays(version); });
  const std::uint64_t kept_bytes = images_.bytes_of(kept);
  std::uint64_t begun = 0, complete = 0;  // bytes of deltas
  for (const auto& [version, delta] : deltas_.list()) {
    (delta.is_complete ? complete : begun) += delta.bytes;
  }
  demand.check(store_, kept_bytes + begun,
               space_().free_bytes + images_.bytes_of(versions) - kept_bytes + complete);
}

// Removes deltas, oldest first, until the demand is met or none may go.
// Returns: the bytes of those that are left and count: one that is read does not.
std::uint64_t Evictor::remove_deltas(const Demand& demand, std::uint64_t image_bytes) {
  const std::map<std::uint64_t, DeltaTable::Delta> all = deltas_.list();
  std::uint64_t counted = 0;
  for (const auto& [version, delta] : all) counted += delta.bytes;
  for (const auto& [version, delta] : all) {
    if (demand.is_met(image_bytes + counted, space_().free_bytes)) break;
    if (!delta.is_complete) continue;
    deltas_.remove(version);
    counted -= delta.bytes;
  }
  return counted;
}

bool Evictor::evict_partial(std::uint64_t version) {
  const std::optional<Eviction::Files> files = images_.partial_files(version);
  return files && rule_.evict(version, *files);
}

bool Evictor::evict(std::uint64_t version) {
  const Eviction::Files files{
      .nobody_reads =
          [&] {
            return images_.is_complete(version) && nobody_reads(images_.image_directory(version));
          },
      .remove =
          [&] {
            log_info(fmt::format("removing the images of version {} to make room", version));
            images_.remove_images(version);
          }};
  return rule_.evict(version, files);
}

}  // namespace weightfs
