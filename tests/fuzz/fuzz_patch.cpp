// apply_patch, fold_patches, invert_patch: any bytes give scalar's result or a refusal, and what
// is not refused keeps the laws of kernels/dispatch/patch.hpp.
//
// Input: a block, the number of patches, and for each how it is made (0: a length and bytes of the
// input; 1: made from changes of the block, then damaged), and that.
#include <algorithm>
#include <optional>

#include "kernels/dispatch/patch.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace weightfs::fuzz {
namespace {

Bytes take_patch(Input& input, const Block& block) {
  if (input.u8() % 2 == 0) return input.bytes(input.u16());
  Bytes patch;
  scalar().make_patch(block.kind, block.bytes, take_changed(input, block), scratch(), patch);
  take_damage(input, patch);
  return patch;
}

std::optional<Bytes> apply(const Block& block, const Bytes& before, const Bytes& patch) {
  Bytes expected = before;
  Bytes result = before;
  const bool is_expected = scalar().apply_patch(block.kind, patch, expected, scratch());
  const bool is_applied = kernels::apply_patch(block.kind, patch, result, scratch());
  require(is_applied == is_expected, "apply_patch: another verdict than scalar's");
  if (!is_applied) return std::nullopt;
  require(result == expected, "apply_patch: other bytes than scalar's");
  return result;
}

std::optional<Bytes> invert(const Block& block, const Bytes& patch) {
  Bytes expected;
  Bytes inverse;
  const bool is_expected =
      scalar().invert_patch(block.kind, block.elements, patch, scratch(), expected);
  const bool is_inverted =
      kernels::invert_patch(block.kind, block.elements, patch, scratch(), inverse);
  require(is_inverted == is_expected, "invert_patch: another verdict than scalar's");
  require(inverse == expected, "invert_patch: other bytes than scalar's");
  if (!is_inverted) return std::nullopt;
  inverse.shrink_to_fit();
  return inverse;
}

std::optional<Bytes> fold(const Block& block, const std::vector<Bytes>& patches) {
  const std::vector<kernels::ByteSpan> spans(patches.begin(), patches.end());
  Bytes expected;
  Bytes folded;
  const bool is_expected =
      scalar().fold_patches(block.kind, block.elements, spans, scratch(), expected);
  const bool is_folded =
      kernels::fold_patches(block.kind, block.elements, spans, scratch(), folded);
  require(is_folded == is_expected, "fold_patches: another verdict than scalar's");
  require(folded == expected, "fold_patches: other bytes than scalar's");
  if (!is_folded) return std::nullopt;
  folded.shrink_to_fit();
  return folded;
}

void run(Input input) {
  const Block block = take_block(input);
  std::vector<Bytes> patches(input.u8() % 5);
  for (Bytes& patch : patches) patch = take_patch(input, block);

  Bytes after = block.bytes;
  bool are_all_good = true;
  for (const Bytes& patch : patches) {
    const std::optional<Bytes> applied = apply(block, after, patch);
    require(invert(block, patch).has_value() == applied.has_value(),
            "invert_patch: another verdict than apply_patch's");
    are_all_good = are_all_good && applied.has_value();
    if (applied) after = *applied;
  }
  const std::optional<Bytes> folded = fold(block, patches);
  require(folded.has_value() == are_all_good, "fold_patches: another verdict than apply_patch's");
  if (!folded) return;
  require(apply(block, block.bytes, *folded) == after, "fold_patches: not the sum");
  const std::optional<Bytes> inverse = invert(block, *folded);
  require(inverse.has_value() && apply(block, after, *inverse) == block.bytes,
          "invert_patch: does not undo");
  require(invert(block, *inverse) == folded, "invert_patch: twice is not the patch");
}

}  // namespace
}  // namespace weightfs::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  weightfs::fuzz::run({data, size});
  return 0;
}
