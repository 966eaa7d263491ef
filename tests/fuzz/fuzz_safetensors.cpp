// parse_safetensors_header: what it accepts covers the data without hole or overlap.
//
// Input: the JSON of a header; its length is put in front.
#include "store/base/bytes.hpp"
#include "store/format/safetensors.hpp"
#include "tests/fuzz/fuzz_records.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weightfs;
  std::string head;
  append_le(head, std::uint64_t{size});
  head += fuzz::text_of(data, size);
  fuzz::try_to([&] {
    const SafetensorsHeader header = parse_safetensors_header(head, "input");
    std::uint64_t end = 0;
    for (const SafetensorsTensor& tensor : header.tensors) {
      fuzz::require(tensor.begin_bytes == end && tensor.end_bytes >= end, "a hole, or an overlap");
      end = tensor.end_bytes;
    }
    fuzz::require(end == header.data_size_bytes, "the tensors do not make the data");
  });
  return 0;
}
