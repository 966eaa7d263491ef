// decode_block: any bytes give a block or a refusal, the same as scalar's.
//
// Input: a block (the old one), how its coded form is made (0: the rest of the input; 1: coded from
// changes, then damaged), and that.
#include "kernels/dispatch/decode.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace weightfs::fuzz {
namespace {

Bytes take_coded(Input& input, const Block& block) {
  if (input.u8() % 2 == 0) return input.rest();
  Bytes coded;
  scalar().encode_block(block.kind, block.bytes, take_changed(input, block), scratch(), coded);
  take_damage(input, coded);
  return coded;
}

void run(Input input) {
  const Block block = take_block(input);
  const Bytes coded = take_coded(input, block);
  Bytes expected(block.bytes.size());
  Bytes decoded(block.bytes.size());
  const bool is_expected =
      scalar().decode_block(block.kind, block.bytes, coded, expected, scratch());
  const bool is_decoded = kernels::decode_block(block.kind, block.bytes, coded, decoded, scratch());
  require(is_decoded == is_expected, "decode_block: another verdict than scalar's");
  require(!is_decoded || decoded == expected, "decode_block: other bytes than scalar's");
  Bytes in_place = block.bytes;
  require(kernels::decode_block(block.kind, in_place, coded, in_place, scratch()) == is_expected,
          "decode_block: another verdict in place");
  require(!is_decoded || in_place == expected, "decode_block: other bytes in place");
}

}  // namespace
}  // namespace weightfs::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  weightfs::fuzz::run({data, size});
  return 0;
}
