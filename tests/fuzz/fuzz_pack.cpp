// PackIndex::parse, of a pack of a layout with a small and a large tensor.
//
// Input: u8, which is 0 for a whole head, else for the bytes of an index (uncompressed) of a pack
// with u16 bytes of data; then that.
#include <fmt/format.h>

#include <optional>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/base/compress.hpp"
#include "store/format/pack.hpp"
#include "tests/fuzz/fuzz_records.hpp"

namespace weightfs::fuzz {
namespace {

const Layout& layout() {
  static const auto layout = [] {
    std::string bytes = "WFLAYOUT";
    append_le(bytes, std::uint32_t{1});
    append_le(bytes, std::uint32_t{2});
    for (const auto& [path, size] :
         {std::pair("a", std::uint64_t{100}), std::pair("b", std::uint64_t{3} << 20)}) {
      append_le(bytes, std::uint8_t{1});
      append_le(bytes, std::uint16_t{1});
      bytes += path;
      append_le(bytes, std::uint64_t{0});
      append_le(bytes, size);
    }
    return Layout::parse(bytes, "the layout");
  }();
  return *layout;
}

std::string head_around(std::string_view index, std::uint64_t data_size) {
  const std::string frame = compress(index);
  std::string json = fmt::format(
      R"({{"__metadata__":{{"format":"weightfs pack","index_size":"{}"}},)"
      R"("index":{{"dtype":"U8","shape":[{}],"data_offsets":[0,{}]}},)"
      R"("data":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}}}})",
      index.size(), frame.size(), frame.size(), data_size, frame.size(), frame.size() + data_size);
  std::string head;
  append_le(head, std::uint64_t{json.size()});
  return head + json + frame;
}

void run(std::string_view head, std::uint64_t data_size) {
  const auto index = PackIndex::parse(head, head.size() + data_size, layout(), "input");
  std::uint64_t end = 0;
  std::optional<std::pair<std::uint32_t, std::uint32_t>> last;
  for (const PackChunk& chunk : index->chunks()) {
    const std::pair number{chunk.tensor, chunk.chunk};
    require(!last || *last < number, "the chunks are not in order");
    last = number;
    require(chunk.data_offset_bytes == end, "the chunks do not follow each other");
    std::uint64_t size = 0;
    for (const std::uint32_t length : index->block_lengths(chunk)) size += length;
    require(size == chunk.data_size_bytes, "the blocks do not make the chunk");
    end += size;
  }
  require(end == index->data_size_bytes(), "the chunks do not make the data");
}

}  // namespace
}  // namespace weightfs::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weightfs::fuzz;
  Input input(data, size);
  const bool is_head = input.u8() == 0;
  const std::uint64_t data_size = input.u16();
  const Bytes rest = input.rest();
  const std::string_view text(reinterpret_cast<const char*>(rest.data()), rest.size());
  try_to([&] { run(is_head ? std::string(text) : head_around(text, data_size), data_size); });
  return 0;
}
