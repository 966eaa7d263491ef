#include "store/local/evictor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <map>
#include <mutex>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/os/lease.hpp"
#include "store/patches/plan_folds.hpp"

namespace weightfs {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kFreeBytesMinMax = 10ull << 30;

}  // namespace

// A demand for `bytes` more, within both limits.
struct Evictor::Demand {
  std::uint64_t bytes, store_limit, free_min;
  // Of patches, read once: the default limit has them too, and what is recorded between two
  // readings would cost a version.
  std::uint64_t patches_bytes;
  std::array<std::uint64_t, 2> spared{};  // versions that are not to go for this; 0: none
  std::uint64_t there_bytes = 0;          // of `bytes`: they have their room in the file system

  [[nodiscard]] bool spares(std::uint64_t version) const {
    return std::ranges::find(spared, version) != spared.end();
  }

  [[nodiscard]] bool is_met(std::uint64_t used, std::uint64_t free) const {
    return used + bytes <= store_limit && free + there_bytes >= free_min + bytes;
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
    if (free + there_bytes < free_min + bytes) {
      throw Error(
          ErrorCode::no_space,
          fmt::format(
              "no room for {} more in {}: its file system has, or can free, {}; {} must stay free "
              "(--min-free); {} more needed",
              human_bytes(bytes - std::min(bytes, there_bytes)), store.string(), human_bytes(free),
              human_bytes(free_min), human_bytes(free_min + bytes - there_bytes - free)));
    }
  }
};

Evictor::Evictor(fs::path store, StoreLimits limits, std::function<Space()> space, Eviction& rule,
                 ImageTable& images, DeltaTable& deltas, PatchTable& patches)
    : store_(std::move(store)),
      limits_(limits),
      space_(std::move(space)),
      rule_(rule),
      images_(images),
      deltas_(deltas),
      patches_(patches) {}

// ---- demands ----

void Evictor::evict_for_images(std::uint64_t bytes, std::uint64_t version_bytes,
                               std::uint64_t there_bytes) {
  Demand demand = demand_for(bytes, version_bytes);
  demand.there_bytes = there_bytes;
  evict_until_met(demand);
}

bool Evictor::has_room_for_images(std::uint64_t bytes, std::uint64_t there_bytes) const {
  Demand demand = demand_for(bytes, bytes);
  demand.there_bytes = there_bytes;
  const std::uint64_t used = images_.bytes_of(counted_versions()) + deltas_.total_bytes() +
                             demand.patches_bytes + going_bytes_;
  return demand.is_met(used, space_().free_bytes);
}

Evictor::Demand Evictor::demand_for(std::uint64_t bytes, std::uint64_t version_bytes) const {
  bytes = std::min(bytes, kSizeBytesMax);
  const std::uint64_t largest =
      std::max({bytes, std::min(version_bytes, kSizeBytesMax), images_.newest_bytes()});
  const std::uint64_t patches = patches_bytes();
  return {bytes, limit_for(3 * largest, largest, patches), free_min(space_()), patches};
}

// `default_bytes`: for images and deltas.
std::uint64_t Evictor::limit_for(std::uint64_t default_bytes, std::uint64_t version_bytes,
                                 std::uint64_t patches_bytes) const {
  const std::uint64_t patches = std::min(patches_bytes, version_bytes);
  return std::min(kSizeBytesMax, limits_.store_bytes.value_or(default_bytes + patches));
}

Evictor::Ahead Evictor::evict_ahead(std::uint64_t latest, std::uint64_t there_bytes) {
  const std::lock_guard one(demand_mutex_);
  const std::vector<std::uint64_t> complete = images_.versions_on_disk();
  const auto found = std::lower_bound(complete.begin(), complete.end(), latest);
  if (found == complete.end() || *found != latest || found == complete.begin()) return {};
  const std::uint64_t before = *std::prev(found);
  const std::uint64_t both_bytes = images_.bytes_of({before, latest});
  Demand demand = demand_for(both_bytes - std::min(both_bytes, images_.bytes_of({before})), 0);
  demand.spared = {before, latest};  // a newer one may have become `latest` meanwhile
  demand.there_bytes = there_bytes;
  std::vector<std::uint64_t> counted = counted_versions();
  const auto [used, free] = best_room(demand, counted);
  // What stood above the limit because it was in use has no other moment to go.
  const bool is_possible = demand.is_met(used, free);
  const bool is_later = !is_possible && may_be_met_later(demand, counted);
  if (!is_possible) {
    demand.bytes = demand.free_min = demand.there_bytes = 0;
  }
  Beside beside = without_deltas();
  beside.used += demand.patches_bytes;
  Ahead made = evict_versions(demand, beside, counted);
  made.is_met = made.is_met && is_possible;
  made.is_in_use = made.is_in_use || is_later;
  return made;
}

// Once nothing is built on what is here, and the deltas that are being written are whole.
bool Evictor::may_be_met_later(const Demand& demand,
                               const std::vector<std::uint64_t>& versions) const {
  std::vector<std::uint64_t> kept;
  std::copy_if(versions.begin(), versions.end(), std::back_inserter(kept),
               [&](std::uint64_t version) { return is_spared(version, demand); });
  const std::uint64_t kept_bytes = images_.bytes_of(kept);
  const Beside deltas = without_deltas();
  return demand.is_met(kept_bytes, space_().free_bytes + images_.bytes_of(versions) - kept_bytes +
                                       deltas.free + deltas.used + demand.patches_bytes);
}

bool Evictor::has_room_beside(std::uint64_t version, std::uint64_t bytes) {
  if (images_.home_of(version) == ImagesHome::memory) return true;
  const std::lock_guard one(demand_mutex_);
  Demand demand = demand_for(bytes, bytes);
  if (must_stay(version, demand)) return true;
  demand.spared = {version};
  const auto [used, free] = best_room(demand, counted_versions());
  return demand.is_met(used, free);
}

void Evictor::evict_for_delta(std::uint64_t bytes, std::uint64_t coming_bytes) {
  bytes = std::min(bytes, kSizeBytesMax);
  const std::uint64_t known = std::max(images_.newest_bytes(), coming_bytes);
  const std::uint64_t newest = known > 0 ? known : bytes;
  const std::uint64_t patches = patches_bytes();
  // Three versions may fill the default limit: without an allowance their deltas would never fit.
  const std::uint64_t limit = limit_for(3 * newest + std::max(newest / 4, bytes), newest, patches);
  const std::uint64_t wanted = bytes + std::min(coming_bytes, kSizeBytesMax);
  evict_until_met({wanted, limit, free_min(space_()), patches});
}

void Evictor::evict_for_free_bytes(std::uint64_t bytes) {
  bytes = std::min(bytes, kSizeBytesMax);
  if (has_free_bytes(bytes)) return;
  evict_until_met({bytes, 2 * kSizeBytesMax, free_min(space_()), patches_bytes()});
}

bool Evictor::has_free_bytes(std::uint64_t bytes) const {
  const Space space = space_();
  return space.free_bytes >= free_min(space) + std::min(bytes, kSizeBytesMax);
}

std::uint64_t Evictor::spare_bytes() const {
  const Space space = space_();
  return space.free_bytes - std::min(space.free_bytes, free_min(space));
}

std::uint64_t Evictor::patches_max() const {
  const std::uint64_t newest = images_.newest_bytes();
  const std::uint64_t limit = limits_.store_bytes.value_or(3 * newest);
  return limit - std::min(limit, 2 * newest);
}

std::uint64_t Evictor::free_min(const Space& space) const {
  const std::uint64_t wanted =
      limits_.free_bytes_min.value_or(std::min(space.total_bytes / 20, kFreeBytesMinMax));
  return std::clamp(wanted, kRecordsFloorBytes, kSizeBytesMax);
}

// ---- victims ----

// In the order in which they go: partial ones as they were begun, then complete ones, ascending.
std::vector<std::uint64_t> Evictor::counted_versions() const {
  std::vector<std::uint64_t> counted = images_.partial_versions();
  const std::vector<std::uint64_t> complete = images_.versions_on_disk();
  counted.insert(counted.end(), complete.begin(), complete.end());
  return counted;
}

void Evictor::evict_until_met(const Demand& demand) {
  const auto is_met = [&](std::uint64_t used) {
    return demand.is_met(used + deltas_.total_bytes() + demand.patches_bytes, space_().free_bytes);
  };
  // What is there is read first: a version that leaves in between counts twice, and never not.
  const std::uint64_t used = images_.bytes_of(counted_versions());
  if (is_met(used + going_bytes_)) return;
  const bool has_dropped = early_ != nullptr && early_->drop();
  if (has_dropped && is_met(used + going_bytes_)) return;

  const std::lock_guard one(demand_mutex_);
  std::vector<std::uint64_t> counted = counted_versions();
  if (is_met(images_.bytes_of(counted))) return;
  const auto [least_used, most_free] = best_room(demand, counted);
  demand.check(store_, least_used, most_free);
  const std::uint64_t patches = demand.patches_bytes;
  const std::uint64_t deltas = remove_deltas(demand, images_.bytes_of(counted) + patches);
  if (evict_versions(demand, {deltas + patches, 0}, counted).is_met) return;
  const std::uint64_t others = images_.bytes_of(counted) + deltas;
  // Versions that a guard keeps, or that are read, have stayed: patches are not given up in vain.
  demand.check(store_, others, space_().free_bytes + patches_bytes());
  remove_patches(demand, others);
  demand.check(store_, others + patches_bytes(), space_().free_bytes);
}

// Until the demand is met.  `other_bytes`: that count besides.
void Evictor::remove_patches(const Demand& demand, std::uint64_t other_bytes) {
  if (patches_bytes() == 0) return;
  try {
    for (const SpanInfo& span : oldest_first(patches_.list())) {
      if (demand.is_met(other_bytes + patches_.size_bytes(), space_().free_bytes)) return;
      log_info(fmt::format("removing the patches from versions {} to make room",
                           to_string(span.span())));
      static_cast<void>(patches_.remove_if_unheld(span.span()));
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::no_space) throw;  // the demand says what is missing
  }
}

// That count, and may be removed.
std::uint64_t Evictor::patches_bytes() const {
  return images_.memory() != nullptr ? 0 : patches_.size_bytes();
}

// Stops when the demand is met.  What goes, or stays only because it is in use, leaves `counted`.
Evictor::Ahead Evictor::evict_versions(const Demand& demand, const Beside& beside,
                                       std::vector<std::uint64_t>& counted) {
  Ahead evicted;
  const auto is_met = [&] {
    return demand.is_met(images_.bytes_of(counted) + beside.used,
                         space_().free_bytes + beside.free);
  };
  for (const std::uint64_t version : std::vector<std::uint64_t>(counted)) {
    if (is_met()) break;
    if (is_spared(version, demand)) continue;
    if (evict_one(version)) {
      evicted.versions++;
      evicted.last = version;
    } else if (rule_.stays(version)) {
      continue;
    } else {
      evicted.is_in_use = true;
    }
    std::erase(counted, version);
  }
  evicted.is_met = is_met();
  return evicted;
}

// Returns: whether it is gone, from the disk alone if it is in memory too.
bool Evictor::evict_one(std::uint64_t version) {
  if (images_.is_partial(version)) return evict_partial(version);
  if (images_.home_of(version) != ImagesHome::memory) return evict(version);
  images_.remove_copy(version);
  return true;
}

std::map<DeltaId, DeltaTable::Delta> Evictor::deltas_on_disk() const {
  std::map<DeltaId, DeltaTable::Delta> deltas = deltas_.list();
  std::erase_if(deltas, [](const auto& it) { return it.second.home != DeltaTable::Home::disk; });
  return deltas;
}

// As if all complete deltas were gone.
Evictor::Beside Evictor::without_deltas() const {
  Beside beside;
  for (const auto& [id, delta] : deltas_on_disk()) {
    (delta.is_complete ? beside.free : beside.used) += delta.bytes;
  }
  return beside;
}

// The bytes that would count, and be free, if everything went that may.  If that is not enough,
// nothing is evicted.
std::pair<std::uint64_t, std::uint64_t> Evictor::best_room(
    const Demand& demand, const std::vector<std::uint64_t>& versions) const {
  std::vector<std::uint64_t> kept;
  std::copy_if(versions.begin(), versions.end(), std::back_inserter(kept),
               [&](std::uint64_t version) { return must_stay(version, demand); });
  const std::uint64_t kept_bytes = images_.bytes_of(kept);
  const Beside beside = without_deltas();
  return {kept_bytes + beside.used, space_().free_bytes + images_.bytes_of(versions) - kept_bytes +
                                        beside.free + patches_bytes()};
}

bool Evictor::must_stay(std::uint64_t version, const Demand& demand) const {
  return rule_.stays(version) || is_spared(version, demand);
}

bool Evictor::is_spared(std::uint64_t version, const Demand& demand) const {
  return version == images_.base_version() || demand.spares(version);
}

// Removes deltas, oldest first, until the demand is met or none may go.
// Returns: the bytes of the remaining deltas that count; one that is being read does not.
std::uint64_t Evictor::remove_deltas(const Demand& demand, std::uint64_t image_bytes) {
  const std::map<DeltaId, DeltaTable::Delta> all = deltas_on_disk();
  std::uint64_t counted = 0;
  for (const auto& [id, delta] : all) counted += delta.bytes;
  for (const auto& [id, delta] : all) {
    if (demand.is_met(image_bytes + counted, space_().free_bytes)) break;
    if (!delta.is_complete) continue;
    deltas_.remove(id, rule_.refused_leases());
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
            return images_.is_complete(version) &&
                   nobody_reads(images_.image_directory(version), &rule_.refused_leases());
          },
      .remove =
          [&] {
            log_info(fmt::format("removing the images of version {} to make room", version));
            if (images_.home_of(version) == ImagesHome::disk)
              going_bytes_ = images_.bytes_of({version});
            try {
              images_.remove_images(version);
            } catch (...) {
              going_bytes_ = 0;
              throw;
            }
            going_bytes_ = 0;
          }};
  return rule_.evict(version, files);
}

bool Evictor::discard_damaged(std::uint64_t version) {
  if (evict(version)) return true;
  if (images_.home_of(version) == ImagesHome::memory) return false;
  if (!images_.forget_images(version, images_.generation(version))) return false;
  log_warning(
      fmt::format("version {} is damaged and in use: it is hidden, and made again", version));
  rule_.tell_changed();
  return true;
}

// ---- images in memory ----

void Evictor::evict_for_memory(std::uint64_t bytes, std::uint64_t version_bytes,
                               std::uint64_t there_bytes) {
  // What a version did not take would lie beside it, in its room.
  if (early_ != nullptr) early_->drop();
  bytes = std::min(bytes, kSizeBytesMax);
  const std::uint64_t largest =
      std::max({bytes, std::min(version_bytes, kSizeBytesMax), images_.newest_bytes()});
  std::vector<std::uint64_t> counted = images_.versions_in_memory();
  for (const std::uint64_t version : std::vector<std::uint64_t>(counted)) {
    if (images_.bytes_of(counted, ImagesHome::memory) + bytes <= 2 * largest) break;
    const bool is_gone = evict(version);
    if (is_gone || !rule_.stays(version)) std::erase(counted, version);
  }
  const std::vector<std::uint64_t> here = images_.complete_versions();
  remove_deltas_in_memory(here.empty() ? 0 : here.back());
  auto room = find_room_ ? find_room_() : std::nullopt;
  const std::uint64_t missing = bytes - std::min(bytes, there_bytes);
  if (room && missing > room->bytes) {
    remove_deltas_in_memory(std::numeric_limits<std::uint64_t>::max());
    room = find_room_();
  }
  if (room && missing > room->bytes) {
    throw Error(ErrorCode::no_space,
                fmt::format("no room for {} of images in memory, beside the {} of images there: "
                            "{}, leaves {}; free memory, raise that limit, or mount without "
                            "--images memory",
                            human_bytes(bytes), human_bytes(images_.memory_bytes()),
                            room->limit_text(), human_bytes(room->bytes)));
  }
  set_memory_limit(bytes);
}

void Evictor::set_memory_limit(std::uint64_t more_bytes) const {
  const std::uint64_t early_bytes = early_ != nullptr ? early_->size_bytes() : 0;
  images_.memory()->set_limit(images_.memory_bytes() +
                              deltas_.total_bytes(DeltaTable::Home::memory) + early_bytes +
                              more_bytes);
}

void Evictor::admit_delta_to_memory(std::uint64_t bytes, std::uint64_t coming_bytes) {
  const std::uint64_t wanted = std::min(bytes, kSizeBytesMax) + coming_bytes;
  auto room = find_room_ ? find_room_() : std::nullopt;
  if (room && wanted > room->bytes && early_ != nullptr && early_->drop()) room = find_room_();
  if (room && wanted > room->bytes) {
    throw Error(ErrorCode::no_space,
                fmt::format("no room for {} of a delta in memory: {}, leaves {}",
                            human_bytes(bytes), room->limit_text(), human_bytes(room->bytes)));
  }
  set_memory_limit(wanted);
}

// Those that lead to older versions than `version`, unless they are read.
void Evictor::remove_deltas_in_memory(std::uint64_t version) {
  for (const auto& [id, delta] : deltas_.list()) {
    const bool may_go = delta.home == DeltaTable::Home::memory && delta.is_complete;
    if (!may_go || id.versions.to >= version) continue;
    static_cast<void>(deltas_.remove(id, rule_.refused_leases()));
  }
}

void Evictor::require_memory() const {
  const std::uint64_t version = images_.newest_bytes();
  const std::uint64_t needed = 2 * std::min(version, kSizeBytesMax);
  const std::uint64_t there = images_.memory_bytes();
  const auto room = find_room_ ? find_room_() : std::nullopt;
  if (!room || needed <= there + room->bytes) return;
  throw Error(
      ErrorCode::no_memory,
      fmt::format("--images memory needs {} for two versions of {}, but {}, leaves {}; free "
                  "memory, raise that limit, or leave out --images, which keeps images in "
                  "{}",
                  human_bytes(needed), human_bytes(version), room->limit_text(),
                  human_bytes(there + room->bytes), (store_ / "images").string()));
}

}  // namespace weightfs
