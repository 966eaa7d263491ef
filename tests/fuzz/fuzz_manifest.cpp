// Manifest::parse: what it accepts it writes again, and reads again.
//
// Input: a manifest.  One without a hash of its own is read too, so every field can be reached.
#include "store/format/manifest.hpp"
#include "tests/fuzz/fuzz_records.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weightfs;
  fuzz::try_to([&] {
    const Manifest manifest = Manifest::parse(fuzz::text_of(data, size), "input");
    const std::string again = manifest.serialize();
    fuzz::require(Manifest::parse(again, "again").serialize() == again,
                  "a manifest is not what it was");
  });
  return 0;
}
