// GcRecord::parse: what it accepts it writes again, and reads again.
//
// Input: a record of the log of retired objects.  Its own hash is made right first, so every field
// can be reached.
#include "store/base/bytes.hpp"
#include "store/base/json.hpp"
#include "store/format/record_reader.hpp"
#include "store/repository/gc_record.hpp"
#include "tests/fuzz/fuzz_records.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weightfs;
  fuzz::try_to([&] {
    Json json = parse_json(fuzz::text_of(data, size), "input");
    if (!json.is_object()) return;
    json[kRecordHash] = to_hex(hash_of_record(json));
    const GcRecord record = GcRecord::parse(json.dump(), "input");
    const std::string again = record.serialize();
    fuzz::require(GcRecord::parse(again, "again").serialize() == again,
                  "a record is not what it was");
  });
  return 0;
}
