#include "kernels/dispatch/variant_table.hpp"

#include <algorithm>
#include <atomic>
#include <string>

#include "kernels/scalar/scalar.hpp"

#ifdef WEIGHTFS_SIMD
#include <hwy/highway.h>

#include "kernels/simd/simd.hpp"
#endif

namespace weightfs::kernels {
namespace {

constexpr Variant kScalar = {
    .name = "scalar",
    .summarize_diff = scalar::summarize_diff,
    .find_changes = kernels::find_changes,
    .encode_block = scalar::encode_block,
    .decode_block = scalar::decode_block,
    .decode_logged = scalar::decode_logged,
    .make_patch = scalar::make_patch,
    .apply_patch = scalar::apply_patch,
    .fold_patches = scalar::fold_patches,
    .invert_patch = scalar::invert_patch,
    .patch_of_log = scalar::patch_of_log,
    .hash_chunk = scalar::hash_chunk,
};

#ifdef WEIGHTFS_SIMD

/// Highway's "AVX3_DL" is "avx3_dl" here.
std::string name_of_target(std::int64_t target) {
  std::string name = hwy::TargetName(target);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return name;
}

/// Targets without vectors are left out: `scalar` takes their place.
constexpr std::int64_t kVectorTargets = HWY_TARGETS & ~(HWY_EMU128 | HWY_SCALAR);

/// Appends a variant for each target, worst first: a lower bit is a better target.
void append_simd(std::vector<Variant>& variants) {
  static std::vector<std::string> names(64);  // the table refers to these strings
  const std::int64_t here = hwy::SupportedTargets() & kVectorTargets;
  for (int bit = 62; bit >= 0; --bit) {
    const std::int64_t target = std::int64_t{1} << bit;
    if ((here & target) == 0) continue;
    hwy::GetChosenTarget().Update(target);
    Variant variant = kScalar;
    names[static_cast<std::size_t>(bit)] = name_of_target(target);
    variant.name = names[static_cast<std::size_t>(bit)];
    variant.summarize_diff = simd::summarize_diff();
    variant.find_changes = simd::find_changes();
    variant.encode_block = simd::encode_block();
    variant.decode_block = simd::decode_block();
    variant.decode_logged = simd::decode_logged();
    variant.make_patch = simd::make_patch();
    variant.apply_patch = simd::apply_patch();
    variant.fold_patches = simd::fold_patches();
    variant.invert_patch = simd::invert_patch();
    variant.patch_of_log = simd::patch_of_log();
    variant.hash_chunk = simd::hash_chunk;
    variants.push_back(variant);
  }
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

#else
void append_simd(std::vector<Variant>&) {}
#endif

const std::vector<Variant>& table() {
  static const std::vector<Variant> kTable = [] {
    std::vector<Variant> variants = {kScalar};
    append_simd(variants);
    return variants;
  }();
  return kTable;
}

std::atomic<const Variant*> chosen{nullptr};

}  // namespace

std::span<const Variant> variants() noexcept { return table(); }

const Variant& chosen_variant() noexcept {
  const Variant* const variant = chosen.load(std::memory_order_acquire);
  return variant != nullptr ? *variant : table().back();
}

bool choose_variant(std::string_view name) noexcept {
  for (const Variant& variant : table()) {
    if (variant.name != name && !(name == "simd" && &variant == &table().back())) continue;
    chosen.store(&variant, std::memory_order_release);
    return true;
  }
  return false;
}

}  // namespace weightfs::kernels
