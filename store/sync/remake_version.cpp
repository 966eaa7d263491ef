#include "store/sync/remake_version.hpp"

#include <fmt/format.h>

#include <exception>
#include <optional>

#include "store/base/log.hpp"
#include "store/local/eviction.hpp"
#include "store/materialize/materialize.hpp"
#include "store/materialize/patched_base.hpp"

namespace weightfs {
namespace {

bool remake(Store& store, History& history, std::uint64_t version, const RemakeOptions& options,
            const Context& context) {
  const auto remade = store.eviction().reserve(version, Eviction::Claim::stays, context);
  VersionWatch watch(version);
  const bool is_made = materialize_from_patches(store, history, version, context, options.progress,
                                                options.coder, options.only, &watch);
  if (!is_made) return false;
  log_info(fmt::format("version {} is made again of version {} and {} spans of patches", version,
                       watch.timing.base, watch.timing.patches));
  options.made(watch);
  return true;
}

}  // namespace

bool remake_newest(Store& store, History& history, const RemakeOptions& options,
                   const Context& context) {
  const std::uint64_t known = store.manifests().newest().version;
  try {
    if (remake(store, history, known, options, context)) return true;
    const auto older = find_sound_patched_base(store, history, known, {}, context);
    if (older && older->version->number() < known) {
      static_cast<void>(remake(store, history, older->version->number(), options, context));
    }
  } catch (const std::exception& error) {
    log_warning(fmt::format("version {} is not made of patches: {}", known, error.what()));
  }
  return false;
}

}  // namespace weightfs
