// Encodes in passes over a block that is in the cache after the first one:
//
//     old, new     --> changes; and, as they arrive from memory, the class index of old
//     positions    --> class and rank of each change, from the class index
//     ranks        --> sorted by class, with a counting sort
//
// The remaining work (z, the mode, the planes) depends only on the number of changes and is shared
// with the scalar encoder.
//
// ebase is guessed.  The class index shows whether the guess is right: at least 98 % of the
// elements are in or below the top class, but fewer than that are below it.  If it is wrong, the
// right ebase is searched for.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/encode.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h includes this file once for each target, hence the order.
#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>

#include "kernels/scalar/scalar.hpp"
#include "kernels/scalar/xr.hpp"
#include "kernels/simd/changes-inl.hpp"
#include "kernels/simd/class_index-inl.hpp"
#include "kernels/simd/dense_encode-inl.hpp"
#include "kernels/simd/simd.hpp"

HWY_BEFORE_NAMESPACE();
namespace weightfs::kernels::simd::HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR

decltype(Variant::encode_block) get_encode_block() { return scalar::encode_block; }

#else

static_assert(kSpanGroups == kSpan, "a span is the same in the changes and in the class index");

constexpr unsigned kTop = kClasses - 1;  // the top class

/// Counts the exponents that are larger than a limit.
class LargeExponents {
 public:
  explicit LargeExponents(unsigned limit)
      : limit_(hn::Set(Vectors<std::uint8_t>(), static_cast<std::uint8_t>(limit))) {}

  HWY_INLINE void operator()(hn::Vec<Vectors<std::uint8_t>> exponents) {
    count_ += hn::CountTrue(Vectors<std::uint8_t>(), hn::Gt(exponents, limit_));
  }

  [[nodiscard]] std::size_t count() const { return count_; }

 private:
  hn::Vec<Vectors<std::uint8_t>> limit_;
  std::size_t count_ = 0;
};

/// Builds a class index span by span, in order, and counts the elements above the top class.
template <Kind kKind>
class SpanIndexer {
 public:
  SpanIndexer(ByteSpan old_block, unsigned ebase, ClassIndex& index)
      : old_block_(old_block),
        ebase_(hn::Set(Vectors<std::uint8_t>(), static_cast<std::uint8_t>(ebase))),
        large_(ebase + kTop),
        index_(index) {
    index_.total = {};
  }

  HWY_INLINE void operator()(std::size_t span) {
    const std::size_t whole = old_block_.size() / kGroupBytes;
    const std::size_t end = (span + 1) * kSpan;
    std::size_t group = span * kSpan;
    for (; group < std::min(end, whole); ++group) {
      const auto* const from = reinterpret_cast<const std::uint8_t*>(old_block_.data());
      index_group<kKind>(from + group * kGroupBytes, group, ebase_, index_, large_);
    }
    if (group < end) index_end(group, end);
    count_span(index_, span, count_);
    for (unsigned c = 0; c < kClasses; ++c) sum_span(count_[c], c, span, index_);
  }

  void index_all() {
    for (std::size_t span = 0; span * kSpan * kGroupBytes < old_block_.size(); ++span) {
      (*this)(span);
    }
  }

  /// Elements above the top class.
  [[nodiscard]] std::size_t above() const { return large_.count(); }

 private:
  static constexpr std::size_t kGroupBytes = kGroup * width_bytes(kKind);

  void index_end(std::size_t group, std::size_t end) {
    if (const ByteSpan tail = old_block_.subspan(group * kGroupBytes); !tail.empty()) {
      index_tail<kKind>(tail, group++, ebase_, index_, large_);
    }
    for (auto& plane : index_.plane) std::fill(plane + group, plane + end, ~std::uint64_t{0});
  }

  ByteSpan old_block_;
  hn::Vec<Vectors<std::uint8_t>> ebase_;
  LargeExponents large_;
  ClassIndex& index_;
  alignas(64) std::uint16_t count_[kClasses][kSpan];
};

/// True if so few elements are above a limit that at least 98 % do not exceed it.
bool is_few(std::size_t above, std::size_t elements) {
  return 50 * (elements - above) >= 49 * elements;
}

/// The largest ebase that the encoder takes.
template <Kind kKind>
constexpr unsigned ebase_max() {
  constexpr unsigned kLargest = exponent_field(kKind).mask;
  return kLargest < kTop ? 0 : kLargest - kTop;
}

/// Counts the elements whose exponent is larger than a limit.
template <Kind kKind>
std::size_t count_large(ByteSpan old_block, unsigned limit) {
  constexpr std::size_t kVectorBytes = kLanes<std::uint8_t> * width_bytes(kKind);
  LargeExponents large(limit);
  const auto* const from = reinterpret_cast<const std::uint8_t*>(old_block.data());
  std::size_t at = 0;
  for (; at + kVectorBytes <= old_block.size(); at += kVectorBytes) {
    large(load_exponents<kKind>(from + at));
  }
  if (at < old_block.size()) {
    std::uint8_t last[kVectorBytes] = {};
    std::memcpy(last, from + at, old_block.size() - at);
    large(load_exponents<kKind>(last));
  }
  return large.count();
}

/// The ebase of the encoder's rule: the smallest one with few elements above the top class.
template <Kind kKind>
unsigned search_ebase(ByteSpan old_block) {
  const std::size_t elements = old_block.size() / width_bytes(kKind);
  unsigned low = 0;
  unsigned high = ebase_max<kKind>();
  while (low < high) {
    const unsigned middle = (low + high) / 2;
    if (is_few(count_large<kKind>(old_block, middle + kTop), elements)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

/// Class and rank of a change, in the order of positions.
struct Ranked {
  std::uint16_t rank;
  std::uint16_t cls;
};

/// The class of each exponent field.  The classes of changes are random: branches would be
/// mispredicted.
using ClassTable = std::array<std::uint8_t, 256>;

HWY_INLINE ClassTable make_class_table(unsigned ebase) {
  const Vectors<std::uint8_t> d;
  ClassTable table;
  for (std::size_t first = 0; first < table.size(); first += kLanes<std::uint8_t>) {
    const auto exponents = hn::Iota(d, static_cast<std::uint8_t>(first));
    const auto base = hn::Set(d, static_cast<std::uint8_t>(ebase));
    const auto top = hn::Set(d, static_cast<std::uint8_t>(kTop));
    hn::StoreU(hn::Min(hn::SaturatedSub(exponents, base), top), d, table.data() + first);
  }
  return table;
}

/// What the planes are combined with to find the members of a class: see Members.
struct Flips {
  std::uint64_t of[kClasses][kPlanes];
};
constexpr Flips kFlips = [] {
  Flips flips{};
  for (unsigned c = 0; c < kClasses; ++c) {
    for (unsigned p = 0; p < kPlanes; ++p) flips.of[c][p] = std::uint64_t{c >> p & 1} - 1;
  }
  return flips;
}();

/// Looks up the class and rank of each change.
///
/// Returns: the number of changes in each class.
template <Kind kKind>
HWY_INLINE ClassCounts rank_changes(ByteSpan old_block, const Changes& changes, unsigned ebase,
                                    const ClassIndex& index, Ranked* HWY_RESTRICT ranked) {
  using Bits = typename ElementOf<kKind>::Bits;
  constexpr ExponentField kField = exponent_field(kKind);
  const ClassTable classes = make_class_table(ebase);
  ClassCounts counts{};
  for (std::size_t i = 0; i < changes.count; ++i) {
    const std::size_t position = changes.position[i];
    const unsigned exponent = kField.of(load<Bits>(old_block.data() + position * sizeof(Bits)));
    const std::size_t cls = classes[exponent];
    const std::size_t group = position / kGroupElements;
    const std::uint64_t below = (std::uint64_t{1} << (position % kGroupElements)) - 1;
    const auto agreeing = [&](unsigned p)
                              HWY_ATTR { return index.plane[p][group] ^ kFlips.of[cls][p]; };
    const int before = std::popcount(agreeing(0) & agreeing(1) & agreeing(2) & agreeing(3) & below);
    ranked[i] = {static_cast<std::uint16_t>(index.before[cls][group] + before),
                 static_cast<std::uint16_t>(cls)};
    ++counts[cls];
  }
  return counts;
}

template <Kind kKind>
HWY_INLINE ClassedChanges classify_changes(ByteSpan old_block, const Changes& changes,
                                           unsigned ebase, const ClassIndex& index,
                                           Scratch& scratch) {
  auto* const ranked = scratch.take<Ranked>(changes.count);
  auto* const rank = scratch.take<std::uint16_t>(changes.count);
  auto* const difference = scratch.take<std::int32_t>(changes.count + kGroupElements);
  auto* const exception = scratch.take<std::uint16_t>(changes.count + kGroupElements);
  const ClassCounts counts = rank_changes<kKind>(old_block, changes, ebase, index, ranked);
  ClassCounts next{};
  std::exclusive_scan(counts.begin(), counts.end(), next.begin(), 0U);
  for (std::size_t i = 0; i < changes.count; ++i) {
    const std::uint32_t at = next[ranked[i].cls]++;
    rank[at] = ranked[i].rank;
    difference[at] = changes.difference[i];
  }
  const std::size_t exceptions = list_exceptions(difference, changes.count, exception);
  return {index.total,
          counts,
          {rank, changes.count},
          {difference, changes.count},
          {exception, exceptions}};
}

/// The ebase of the encoder's rule.  Makes the index that of this ebase if that of `guessed` is
/// not.
template <Kind kKind>
HWY_INLINE unsigned settle_ebase(ByteSpan old_block, unsigned ebase, std::size_t above,
                                 ClassIndex& index) {
  const std::size_t elements = old_block.size() / width_bytes(kKind);
  const bool is_right =
      is_few(above, elements) && (ebase == 0 || !is_few(index.total[kTop], elements));
  if (is_right) return ebase;
  ebase = search_ebase<kKind>(old_block);
  SpanIndexer<kKind>(old_block, ebase, index).index_all();
  return ebase;
}

/// Encodes a block in the way for sparse ones, which any block may take.
template <Kind kKind>
HWY_NOINLINE void encode_sparse(ByteSpan old_block, ByteSpan new_block, unsigned ebase,
                                const Changes& changes, const ClassIndex& index, Scratch& scratch,
                                std::vector<std::byte>& coded) {
  const ClassedChanges classed = classify_changes<kKind>(old_block, changes, ebase, index, scratch);
  encode_best(kKind, new_block, ebase, changes, classed, coded);
}

#if WEIGHTFS_DENSE_TARGET

/// Encodes a block of which it is guessed that many elements change, as in the block before.
template <Kind kKind>
HWY_NOINLINE std::size_t encode_guessed_dense(ByteSpan old_block, ByteSpan new_block,
                                              Scratch& scratch, std::vector<std::byte>& coded) {
  using Element = ElementOf<kKind>;
  ClassIndex& index = *scratch.take<ClassIndex>(1);
  unsigned ebase = std::min(scratch.ebase_guess(), ebase_max<kKind>());
  SpanIndexer<kKind> guessed(old_block, ebase, index);
  MarkedChanges<Element> marked(scratch);
  mark_changes(old_block, new_block, marked, guessed);
  scratch.dense_guess() = marked.count >= kDenseChanges;
  if (marked.count == 0) return 0;
  ebase = settle_ebase<kKind>(old_block, ebase, guessed.above(), index);
  scratch.ebase_guess() = ebase;
  if (scratch.dense_guess() &&
      encode_dense<kKind>(index, ebase, old_block, new_block, marked, scratch, coded)) {
    ++scratch.dense_blocks();
    return marked.count;
  }
  scratch.reset();  // the index stays where it is: it was taken first
  ClassIndex& same_index = *scratch.take<ClassIndex>(1);
  Changes& changes = scratch.take_changes();
  collect_changes<Element>(old_block, new_block, changes, [](std::size_t) {});
  encode_sparse<kKind>(old_block, new_block, ebase, changes, same_index, scratch, coded);
  return changes.count;
}

#endif

template <Kind kKind>
HWY_INLINE std::size_t encode_block(ByteSpan old_block, ByteSpan new_block, Scratch& scratch,
                                    std::vector<std::byte>& coded) {
#if WEIGHTFS_DENSE_TARGET
  if (scratch.dense_guess()) {
    return encode_guessed_dense<kKind>(old_block, new_block, scratch, coded);
  }
#endif
  ClassIndex& index = *scratch.take<ClassIndex>(1);
  Changes& changes = scratch.take_changes();
  unsigned ebase = std::min(scratch.ebase_guess(), ebase_max<kKind>());
  SpanIndexer<kKind> guessed(old_block, ebase, index);
  collect_changes<ElementOf<kKind>>(old_block, new_block, changes, guessed);
  if (changes.count == 0) return 0;
#if WEIGHTFS_DENSE_TARGET
  if (changes.count >= kDenseChanges) {
    scratch.reset();
    return encode_guessed_dense<kKind>(old_block, new_block, scratch, coded);
  }
#endif
  ebase = settle_ebase<kKind>(old_block, ebase, guessed.above(), index);
  scratch.ebase_guess() = ebase;
  encode_sparse<kKind>(old_block, new_block, ebase, changes, index, scratch, coded);
  return changes.count;
}

std::size_t encode_block(Kind kind, ByteSpan old_block, ByteSpan new_block, Scratch& scratch,
                         std::vector<std::byte>& coded) {
  assert(old_block.size() == new_block.size() && new_block.size() <= block_bytes(kind));
  assert(new_block.size() % width_bytes(kind) == 0);
  scratch.reset();
  return with_kind(kind, [&]<Kind kKind>() HWY_ATTR {
    return encode_block<kKind>(old_block, new_block, scratch, coded);
  });
}

decltype(Variant::encode_block) get_encode_block() { return encode_block; }

#endif  // HWY_SCALAR

}  // namespace
}  // namespace weightfs::kernels::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weightfs::kernels::simd {

HWY_EXPORT(get_encode_block);

decltype(Variant::encode_block) encode_block() noexcept {
  return HWY_DYNAMIC_DISPATCH(get_encode_block)();
}

}  // namespace weightfs::kernels::simd
#endif  // HWY_ONCE
