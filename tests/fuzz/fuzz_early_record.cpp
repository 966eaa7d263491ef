// EarlyRecord: fuzz::check_record().
//
// Input: an early record.
#include "store/format/early_record.hpp"
#include "tests/fuzz/fuzz_records.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  weightfs::fuzz::check_record<weightfs::EarlyRecord>(data, size);
  return 0;
}
