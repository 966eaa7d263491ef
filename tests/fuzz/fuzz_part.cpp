// PartRecord: fuzz::check_record().
//
// Input: the record of a part.
#include "store/parts/part_record.hpp"
#include "tests/fuzz/fuzz_records.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  weightfs::fuzz::check_record<weightfs::PartRecord>(data, size);
  return 0;
}
