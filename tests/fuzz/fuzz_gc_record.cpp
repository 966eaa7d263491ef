// GcRecord: fuzz::check_record().
//
// Input: a record of the log of retired objects.
#include "store/repository/gc_record.hpp"
#include "tests/fuzz/fuzz_records.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  weightfs::fuzz::check_record<weightfs::GcRecord>(data, size);
  return 0;
}
