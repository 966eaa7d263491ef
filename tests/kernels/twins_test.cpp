// Twins: every variant gives the same results and the same bytes as scalar, operation by operation.
//
// Blocks, coded blocks and results lie in allocations of exactly their size, so AddressSanitizer
// sees each byte read or written beside them.
#include <gtest/gtest.h>

#include <initializer_list>
#include <memory>

#include "kernels/dispatch/variant_table.hpp"
#include "tests/kernels/coded_blocks.hpp"
#include "tests/support/random.hpp"

namespace weightfs::kernels {
namespace {

using test::damaged;
using test::random_elements;
using test::Step;

constexpr std::array kSteps = {Step::unit, Step::few, Step::any};

/// Bytes at an odd distance from an alignment, with nothing behind them.
class Placed {
 public:
  Placed(ByteSpan bytes, std::size_t shift)
      : memory_(new std::byte[shift + bytes.size()]), size_(bytes.size()), shift_(shift) {
    std::copy(bytes.begin(), bytes.end(), memory_.get() + shift);
  }
  [[nodiscard]] std::span<std::byte> span() const { return {memory_.get() + shift_, size_}; }

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::size_t size_;
  std::size_t shift_;
};

Bytes copy_of(ByteSpan bytes) { return {bytes.begin(), bytes.end()}; }

const Variant& scalar_variant() { return variants().front(); }

/// A pair of blocks in memory.
struct Pair {
  Kind kind;
  Placed before, after;
};

class Twins : public test::KindTest {
 protected:
  /// Calls visit(variant) for each but scalar, and says which.
  template <typename Visit>
  static void for_each_twin(Visit&& visit) {
    for (const Variant& variant : variants().subspan(1)) {
      SCOPED_TRACE(variant.name);
      visit(variant);
      if (HasFatalFailure()) return;
    }
  }

  /// Calls visit(pair) for blocks of sizes around those of vectors and of a block, at every
  /// density.
  template <typename Visit>
  void for_each_pair(Visit&& visit) {
    for (const std::size_t elements : std::initializer_list<std::size_t>{
             0,  1,  2,   7,   15,  16,  17,  31,   32,   33,    63,
             64, 65, 127, 128, 129, 255, 257, 1000, 4095, 65535, 65536}) {
      const bool is_large = elements > 10'000;
      for (const double share : {0.0, 0.0003, 0.012, 0.1, 0.5, 0.97, 1.0}) {
        const Step how = kSteps.at(rng_() % 3);
        if (is_large && how == Step::any && share > 0.2) continue;
        const Bytes before = rng_() % 2 == 0 ? random(elements) : narrow(elements);
        const Bytes after = changed(before, share, how);
        SCOPED_TRACE(testing::Message() << elements << " elements, share " << share);
        visit(Pair{GetParam(), Placed(before, rng_() % 4), Placed(after, rng_() % 4)});
        if (HasFatalFailure()) return;
      }
    }
  }

  /// Elements of a few exponents, as those of weights.
  [[nodiscard]] Bytes narrow(std::size_t elements) {
    const ExponentField field = exponent_field(GetParam());
    Bytes bytes = random(elements);
    for (std::size_t i = 0; i < elements; ++i) {
      const std::uint32_t bits = test::get_element(GetParam(), bytes, i);
      const std::uint32_t exponent =
          field.mask / 2 - static_cast<std::uint32_t>(rng_() % 16 & rng_()) % (field.mask / 2 + 1);
      test::set_element(GetParam(), bytes, i,
                        (bits & ~(field.mask << field.shift)) | exponent << field.shift);
    }
    return bytes;
  }
};
INSTANTIATE_TEST_SUITE_P(Kinds, Twins, testing::ValuesIn(test::kKinds), test::kind_name);

void expect_same_changes(const Changes& a, const Changes& b) {
  ASSERT_EQ(a.count, b.count);
  ASSERT_EQ(a.exception_count, b.exception_count);
  for (std::size_t i = 0; i < a.count; ++i) {
    ASSERT_EQ(a.position[i], b.position[i]) << i;
    ASSERT_EQ(a.difference[i], b.difference[i]) << i;
  }
  for (std::size_t i = 0; i < a.exception_count; ++i) ASSERT_EQ(a.exception[i], b.exception[i]);
}

TEST_P(Twins, FindTheSameChanges) {
  const auto expected = std::make_unique<Changes>();
  const auto found = std::make_unique<Changes>();
  for_each_pair([&](const Pair& pair) {
    scalar_variant().find_changes(pair.kind, pair.before.span(), pair.after.span(), *expected);
    const DiffSummary summary =
        scalar_variant().summarize_diff(pair.kind, pair.before.span(), pair.after.span());
    for_each_twin([&](const Variant& variant) {
      variant.find_changes(pair.kind, pair.before.span(), pair.after.span(), *found);
      expect_same_changes(*found, *expected);
      const DiffSummary again =
          variant.summarize_diff(pair.kind, pair.before.span(), pair.after.span());
      ASSERT_EQ(again.changed, summary.changed);
      ASSERT_EQ(again.largest_ulp, summary.largest_ulp);
    });
  });
}

Bytes encode_with(const Variant& variant, const Pair& pair, std::size_t& changed) {
  Bytes coded = {std::byte{9}};
  changed = variant.encode_block(pair.kind, pair.before.span(), pair.after.span(), test::scratch(),
                                 coded);
  return coded;
}

TEST_P(Twins, EncodeToTheSameBytes) {
  for_each_pair([&](const Pair& pair) {
    std::size_t expected_changed = 0;
    const Bytes expected = encode_with(scalar_variant(), pair, expected_changed);
    for_each_twin([&](const Variant& variant) {
      std::size_t changed = 0;
      ASSERT_TRUE(encode_with(variant, pair, changed) == expected);
      ASSERT_EQ(changed, expected_changed);
    });
  });
}

/// Decodes with every variant, apart and in place: the same block, or the same refusal.
void expect_same_decoding(Kind kind, ByteSpan old_block, ByteSpan coded) {
  const Placed old_placed(old_block, 1);
  const Placed coded_placed(coded, 3);
  const Placed expected(old_block, 0);
  const bool is_accepted = scalar_variant().decode_block(
      kind, old_placed.span(), coded_placed.span(), expected.span(), test::scratch());
  for (const Variant& variant : variants()) {
    const Placed in_place(old_block, 2);
    ASSERT_EQ(variant.decode_block(kind, in_place.span(), coded_placed.span(), in_place.span(),
                                   test::scratch()),
              is_accepted)
        << variant.name;
    if (!is_accepted) continue;
    ASSERT_TRUE(copy_of(in_place.span()) == copy_of(expected.span())) << variant.name;
  }
  for (const Variant& variant : variants().subspan(1)) {
    const Placed decoded(Bytes(old_block.size(), std::byte{0xA5}), 2);
    ASSERT_EQ(variant.decode_block(kind, old_placed.span(), coded_placed.span(), decoded.span(),
                                   test::scratch()),
              is_accepted)
        << variant.name;
    if (!is_accepted) continue;
    ASSERT_TRUE(copy_of(decoded.span()) == copy_of(expected.span())) << variant.name;
  }
}

/// The block in every mode that can express it, XR and XS with several parameters.
std::vector<Bytes> forms(Kind kind, const Bytes& before, const Bytes& after, test::Random& rng) {
  std::vector<Bytes> blocks = {
      {}, {static_cast<std::byte>(Mode::same)}, test::encode_as_raw(after)};
  if (before == after) return blocks;
  const auto add = [&](const std::optional<Bytes>& coded) {
    if (coded && coded->size() <= 1 + after.size()) blocks.push_back(*coded);
  };
  add(test::encode_as_ef(kind, before, after));
  for (const Mode mode : {Mode::xr, Mode::xs}) {
    add(test::encode_as(mode, kind, before, after));
    const test::FoundChanges found =
        test::find(kind, before, after, static_cast<unsigned>(rng() % 256));
    add(test::encode_as(mode, kind, found, static_cast<unsigned>(rng() % (kZMax + 1))));
  }
  return blocks;
}

TEST_P(Twins, DecodeEveryFormToTheSameBlock) {
  for_each_pair([&](const Pair& pair) {
    const Bytes before = copy_of(pair.before.span());
    for (const Bytes& coded : forms(pair.kind, before, copy_of(pair.after.span()), rng_)) {
      expect_same_decoding(pair.kind, before, coded);
    }
  });
}

TEST_P(Twins, RefuseTheSameDamagedBlocks) {
  for (const std::size_t elements : {40u, 257u, 1537u}) {
    for (const double share : {0.0, 0.02, 0.3, 0.8, 1.0}) {
      for (const Step how : kSteps) {
        const Bytes before = rng_() % 2 == 0 ? random(elements) : narrow(elements);
        const Bytes after = changed(before, share, how);
        for (const Bytes& coded : forms(GetParam(), before, after, rng_)) {
          for (int i = 0; i < 40; ++i) {
            expect_same_decoding(GetParam(), before, damaged(coded, rng_));
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST_P(Twins, RefuseTheSameBlocksOnAWrongBase) {
  for (int i = 0; i < 40; ++i) {
    const Bytes before = narrow(2000);
    const Bytes other = changed(before, 0.005, Step::any);
    for (const Bytes& coded : forms(GetParam(), before, changed(before, 0.1, Step::few), rng_)) {
      expect_same_decoding(GetParam(), other, coded);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(Twins, GiveTheSameHash) {
  for (const std::size_t size : {0u, 1u, 16u, 240u, 241u, 1024u, 65537u}) {
    const Bytes bytes = random_elements(Kind::u8, size, rng_);
    const Placed placed(bytes, rng_() % 8);
    for_each_twin([&](const Variant& variant) {
      ASSERT_EQ(variant.hash_chunk(placed.span()), scalar_variant().hash_chunk(placed.span()));
    });
  }
}

/// What an operation on patches gave.
struct Given {
  bool is_accepted = false;
  Bytes bytes;
  bool operator==(const Given&) const = default;
};

/// Makes patches of a chain of blocks, folds, inverts and applies them, whole and damaged.
TEST_P(Twins, DoTheSameWithPatches) {
  for_each_pair([&](const Pair& pair) {
    const Bytes third = changed(copy_of(pair.after.span()), 0.05, Step::unit);
    const std::size_t elements = third.size() / width_bytes(pair.kind);
    std::vector<Bytes> patches(2);
    scalar_variant().make_patch(pair.kind, pair.before.span(), pair.after.span(), test::scratch(),
                                patches[0]);
    scalar_variant().make_patch(pair.kind, pair.after.span(), third, test::scratch(), patches[1]);
    for (unsigned i = 0; i < 4; ++i) patches.push_back(damaged(patches[i % 2], rng_));
    const auto apply = [&](const Variant& variant, const Bytes& patch) {
      const Placed placed(patch, 1);
      const Placed block(pair.before.span(), 3);
      const bool is_good =
          variant.apply_patch(pair.kind, placed.span(), block.span(), test::scratch());
      return Given{is_good, is_good ? copy_of(block.span()) : Bytes{}};
    };
    const auto fold = [&](const Variant& variant, const Bytes& a, const Bytes& b) {
      const Placed first(a, 1);
      const Placed second(b, 2);
      const std::array<ByteSpan, 2> both = {first.span(), second.span()};
      Given given;
      given.is_accepted =
          variant.fold_patches(pair.kind, elements, both, test::scratch(), given.bytes);
      return given;
    };
    const auto invert = [&](const Variant& variant, const Bytes& patch) {
      const Placed placed(patch, 1);
      Given given;
      given.is_accepted =
          variant.invert_patch(pair.kind, elements, placed.span(), test::scratch(), given.bytes);
      return given;
    };
    for_each_twin([&](const Variant& variant) {
      Bytes patch;
      variant.make_patch(pair.kind, pair.before.span(), pair.after.span(), test::scratch(), patch);
      ASSERT_TRUE(patch == patches[0]);
      for (const Bytes& each : patches) {
        ASSERT_TRUE(apply(variant, each) == apply(scalar_variant(), each));
        ASSERT_TRUE(invert(variant, each) == invert(scalar_variant(), each));
        ASSERT_TRUE(fold(variant, patches[0], each) == fold(scalar_variant(), patches[0], each));
      }
    });
  });
}

/// Decodes two steps in place and notes what they change: the bytes are those of decode_block(),
/// and the patch of the log is that of the two blocks.  Scalar too.
TEST_P(Twins, NoteWhatDecodingChanges) {
  for_each_pair([&](const Pair& pair) {
    const Bytes third = changed(copy_of(pair.after.span()), 0.02, Step::few);
    const std::size_t elements = third.size() / width_bytes(pair.kind);
    std::vector<Bytes> steps(2), expected(2);
    scalar_variant().encode_block(pair.kind, pair.before.span(), pair.after.span(), test::scratch(),
                                  steps[0]);
    scalar_variant().encode_block(pair.kind, pair.after.span(), third, test::scratch(), steps[1]);
    scalar_variant().make_patch(pair.kind, pair.before.span(), pair.after.span(), test::scratch(),
                                expected[0]);
    scalar_variant().make_patch(pair.kind, pair.before.span(), third, test::scratch(), expected[1]);
    for (const Variant& variant : variants()) {
      SCOPED_TRACE(variant.name);
      const Placed block(pair.before.span(), 3);
      Bytes log;
      for (std::size_t i = 0; i < steps.size(); ++i) {
        const Placed coded(steps[i], 1);
        ASSERT_TRUE(variant.decode_logged(pair.kind, block.span(), coded.span(), block.span(),
                                          test::scratch(), log));
        ASSERT_TRUE(copy_of(block.span()) == (i == 0 ? copy_of(pair.after.span()) : third));
        const Placed placed(log, 1);
        Bytes patch;
        ASSERT_TRUE(
            variant.patch_of_log(pair.kind, elements, placed.span(), test::scratch(), patch));
        ASSERT_TRUE(patch == expected[i]);
      }
      for (unsigned i = 0; i < 4; ++i) {
        const Bytes coded = damaged(steps[i % 2], rng_), damaged_log = damaged(log, rng_);
        const Placed apart(pair.before.span(), 1), again(pair.before.span(), 2);
        Bytes unused, patch, scalar_patch;
        const bool is_good = variant.decode_logged(pair.kind, apart.span(), coded, apart.span(),
                                                   test::scratch(), unused);
        ASSERT_EQ(is_good, scalar_variant().decode_block(pair.kind, again.span(), coded,
                                                         again.span(), test::scratch()));
        ASSERT_TRUE(!is_good || copy_of(apart.span()) == copy_of(again.span()));
        ASSERT_EQ(variant.patch_of_log(pair.kind, elements, damaged_log, test::scratch(), patch),
                  scalar_variant().patch_of_log(pair.kind, elements, damaged_log, test::scratch(),
                                                scalar_patch));
        ASSERT_TRUE(patch == scalar_patch);
      }
    }
  });
}

}  // namespace
}  // namespace weightfs::kernels
