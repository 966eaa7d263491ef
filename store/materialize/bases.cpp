#include "store/materialize/bases.hpp"

#include <fmt/format.h>

#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/materialize/file_filter.hpp"

namespace weightfs {
namespace {

bool is_stop(const Error& error) {
  return error.code() == ErrorCode::cancelled || error.code() == ErrorCode::timed_out;
}

}  // namespace

Base base_of(Store& store, History& history, std::uint64_t version, const Context& context) {
  Base base;
  base.version = history.get(version, context);
  base.layout = history.layout(*base.version, context);
  base.directory = store.images().image_directory(version);
  base.hashes = store.images().chunk_hashes(version);
  base.absent = absent_files(store, *base.version, *base.layout);
  return base;
}

std::vector<Base> usable_bases(Store& store, History& history, std::uint64_t before,
                               const std::set<std::uint64_t>& distrusted, const Context& context) {
  constexpr std::size_t kBasesMax = 4;  // the newest bases need the fewest steps
  std::vector<Base> bases;
  const std::vector<std::uint64_t> here = store.images().complete_versions();
  for (auto at = here.rbegin(); at != here.rend() && bases.size() < kBasesMax; ++at) {
    const std::uint64_t number = *at;
    if (number >= before || distrusted.contains(number)) continue;
    try {
      bases.push_back(base_of(store, history, number, context));
    } catch (const Error& error) {
      if (is_stop(error)) throw;
      log_warning(
          fmt::format("version {} is here but cannot be used as a base: {}", number, error.what()));
    }
  }
  return bases;
}

std::optional<Eviction::Reservation> reserve_base(Store& store, const Plan& plan,
                                                  Eviction::Claim claim, const Context& context) {
  if (!plan.base) return Eviction::Reservation();
  return reserve_base(store, *plan.base, claim, context);
}

std::optional<Eviction::Reservation> reserve_base(Store& store, const Base& base,
                                                  Eviction::Claim claim, const Context& context) {
  const std::uint64_t number = base.images().number();
  auto reservation = store.eviction().reserve(number, claim, context);
  if (!store.images().is_complete(number)) return std::nullopt;
  // It may just have left the memory, and be on the disk only.
  if (store.images().image_directory(number) != base.directory) return std::nullopt;
  return reservation;
}

}  // namespace weightfs
