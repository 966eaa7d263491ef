// Layout::parse: what it accepts has these bytes, and tensors that are their own counterparts.
//
// Input: a layout.
#include "store/format/layout.hpp"
#include "tests/fuzz/fuzz_records.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weightfs;
  fuzz::try_to([&] {
    const auto layout = Layout::parse(fuzz::text_of(data, size), "input");
    fuzz::require(layout->serialize() == fuzz::text_of(data, size), "a layout is not what it was");
    std::uint64_t chunks = 0;
    for (const LayoutTensor& tensor : layout->tensors()) {
      fuzz::require(tensor.first_chunk == chunks, "the chunks do not follow each other");
      chunks += tensor.chunk_count;
    }
    fuzz::require(chunks == layout->chunk_count(), "the chunks are not as many as it says");
    fuzz::require(counterparts(*layout, *layout).size() == layout->tensors().size(),
                  "a tensor has no word about its counterpart");
  });
  return 0;
}
