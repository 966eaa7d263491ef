#include "fs/places.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "store/log.hpp"
#include "store/store.hpp"

namespace weightfs::fs {
namespace {

std::optional<Places> find_remembered(const PlacesWanted& wanted) {
  const auto store =
      wanted.store.empty() ? Store::find_default_by_url(wanted.url) : std::optional(wanted.store);
  if (!store) return std::nullopt;
  const auto identity = Store::find_identity(*store);
  if (!identity || identity->url != wanted.url) return std::nullopt;
  return Places{Repository::assume(wanted.url, identity->repository, wanted.bucket), *store};
}

}  // namespace

bool is_out_of_reach(ErrorCode code) {
  return code == ErrorCode::unavailable || code == ErrorCode::not_found ||
         code == ErrorCode::timed_out || code == ErrorCode::io;
}

Places find_places(const PlacesWanted& wanted, const Context& context) {
  try {
    auto repository = Repository::open(wanted.url, context.within(kOpenTimeout), wanted.bucket);
    const auto store = wanted.store.empty() ? Store::default_path(repository->id()) : wanted.store;
    return {std::move(repository), store};
  } catch (const Error& error) {
    if (!is_out_of_reach(error.code())) throw;
    auto remembered = find_remembered(wanted);
    if (!remembered) throw;
    log_warning(
        fmt::format("starting from the store {}: {}", remembered->store.string(), error.what()));
    return std::move(*remembered);
  }
}

bool is_inside(const std::filesystem::path& path, const std::filesystem::path& directory) {
  const auto inner = std::filesystem::weakly_canonical(path);
  const auto outer = std::filesystem::weakly_canonical(directory);
  const auto [end, ignored] = std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end());
  return end == outer.end();
}

}  // namespace weightfs::fs
