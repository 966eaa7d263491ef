#include "store/materialize/whole_version.hpp"

#include <algorithm>

#include "store/materialize/plan.hpp"

namespace weightfs {
namespace {

constexpr std::uint64_t kVersionsAsked = 64;

bool needs(const Plan& plan, const std::string& key) {
  for (const Step& step : plan.steps) {
    for (std::size_t pack = 0; pack < step.packs.size(); pack++) {
      if (step.pack_key(pack) == key) return true;
    }
  }
  if (!plan.snapshot) return false;
  const Version& start = *plan.snapshot->version;
  const auto& files = plan.snapshot->layout->files();
  return std::any_of(files.begin(), files.end(),
                     [&](const LayoutFile& file) { return snapshot_key(start, file.path) == key; });
}

bool can_be_made(History& history, std::uint64_t number, const std::string& damaged,
                 const Context& context) {
  try {
    const Plan plan = make_plan(history, history.get(number, context), {}, context);
    if (needs(plan, damaged)) return false;
    for (const BlobRef& blob : plan.version->manifest.blobs) {
      static_cast<void>(history.repository().get_blob(blob, context));
    }
    return true;
  } catch (const Error& error) {
    if (!is_about_objects(error.code())) throw;
    return false;
  }
}

}  // namespace

bool is_about_objects(ErrorCode code) noexcept {
  return code == ErrorCode::corrupt || code == ErrorCode::not_found ||
         code == ErrorCode::unsupported;
}

std::uint64_t find_whole_version(History& history, const std::string& damaged,
                                 const Context& context) {
  const std::uint64_t newest = history.repository().newest_version(0, context);
  const std::uint64_t least = newest - std::min(newest, kVersionsAsked);
  for (std::uint64_t number = newest; number > least; number--) {
    if (can_be_made(history, number, damaged, context)) return number;
  }
  return least > 0 && can_be_made(history, 1, damaged, context) ? 1 : 0;
}

}  // namespace weightfs
