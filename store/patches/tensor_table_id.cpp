#include "store/patches/tensor_table_id.hpp"

#include <cstdint>
#include <string>
#include <string_view>

#include "store/base/bytes.hpp"

namespace weightfs {
namespace {

void append_named(std::string& to, std::string_view text) {
  append_le(to, static_cast<std::uint32_t>(text.size()));
  to += text;
}

void append_tensor(std::string& to, const LayoutTensor& tensor) {
  append_named(to, tensor.name);
  append_named(to, to_string(tensor.dtype));
  append_le(to, static_cast<std::uint32_t>(tensor.shape.size()));
  for (const std::uint64_t extent : tensor.shape) append_le(to, extent);
}

}  // namespace

TensorTableId tensor_table_id(const Layout& layout) {
  Sha256Stream hash;
  std::string text;  // of one file: a version may have a million tensors
  for (const LayoutFile& file : layout.files()) {
    text.clear();
    append_named(text, file.path);
    append_le(text, file.tensor_count);
    for (const LayoutTensor& tensor : layout.tensors_of(file)) append_tensor(text, tensor);
    hash.update(as_bytes(text));
  }
  return hash.finish();
}

}  // namespace weightfs
