// Both operations process the elements in groups of 64 (kernels/simd/changes-inl.hpp).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/diff.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h includes this file once for each target, hence the order.
#include <hwy/highway.h>

#include <cassert>

#include "kernels/simd/changes-inl.hpp"
#include "kernels/simd/simd.hpp"

HWY_BEFORE_NAMESPACE();
namespace weightfs::kernels::simd::HWY_NAMESPACE {
namespace {

/// Adds the group to the summary of the preceding elements.
template <typename Element, typename V>
HWY_INLINE void add_group(const std::byte* before, const std::byte* after, std::uint64_t& changed,
                          V& largest) {
  const hn::DFromV<V> d;
  constexpr std::size_t kLanes = hn::MaxLanes(d);
#pragma GCC unroll 16
  for (std::size_t i = 0; i < kGroupElements; i += kLanes) {
    const std::size_t at = i * sizeof(hn::TFromV<V>);
    const V a = load_bytes(d, before + at);
    const V b = load_bytes(d, after + at);
    const V x = ordered<Element>(a);
    const V y = ordered<Element>(b);
    changed += hn::CountTrue(d, hn::Ne(a, b));
    largest = hn::Max(largest, hn::Sub(hn::Max(x, y), hn::Min(x, y)));
  }
}

template <typename V>
std::uint64_t largest_lane(V v) {
  const hn::DFromV<V> d;
  hn::TFromV<V> lanes[hn::MaxLanes(d)];
  hn::StoreU(v, d, lanes);
  std::uint64_t largest = 0;
  for (const auto lane : lanes) largest = lane > largest ? lane : largest;
  return largest;
}

DiffSummary summarize_diff(Kind kind, ByteSpan old_bytes, ByteSpan new_bytes) noexcept {
  assert(old_bytes.size() == new_bytes.size());
  assert(old_bytes.size() % width_bytes(kind) == 0);
  return with_element(kind, [&]<typename Element>(Element) HWY_ATTR {
    using Bits = typename Element::Bits;
    const std::byte* const before = old_bytes.data();
    const std::byte* const after = new_bytes.data();
    const std::size_t size = new_bytes.size();
    DiffSummary summary;
    auto largest = hn::Zero(hn::ScalableTag<Bits>());
    constexpr std::size_t kGroupBytes = kGroupElements * sizeof(Bits);
    std::size_t at = 0;
    for (; at + kGroupBytes <= size; at += kGroupBytes) {
      add_group<Element>(before + at, after + at, summary.changed, largest);
    }
    if (at < size) {
      add_group<Element>(PaddedGroup(before + at, size - at).data(),
                         PaddedGroup(after + at, size - at).data(), summary.changed, largest);
    }
    summary.largest_ulp = largest_lane(largest);
    return summary;
  });
}

void find_changes(Kind kind, ByteSpan old_block, ByteSpan new_block, Changes& changes) noexcept {
  assert(old_block.size() == new_block.size() && new_block.size() <= block_bytes(kind));
  assert(new_block.size() % width_bytes(kind) == 0);
  with_element(kind, [&]<typename Element>(Element) HWY_ATTR {
    collect_changes<Element>(old_block, new_block, changes, [](std::size_t) {});
  });
}

// HWY_EXPORT's table does not accept noexcept functions, so it contains these.
decltype(Variant::summarize_diff) get_summarize_diff() { return summarize_diff; }
decltype(Variant::find_changes) get_find_changes() { return find_changes; }

}  // namespace
}  // namespace weightfs::kernels::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weightfs::kernels::simd {

HWY_EXPORT(get_summarize_diff);
HWY_EXPORT(get_find_changes);

decltype(Variant::summarize_diff) summarize_diff() noexcept {
  return HWY_DYNAMIC_DISPATCH(get_summarize_diff)();
}
decltype(Variant::find_changes) find_changes() noexcept {
  return HWY_DYNAMIC_DISPATCH(get_find_changes)();
}

}  // namespace weightfs::kernels::simd
#endif  // HWY_ONCE
