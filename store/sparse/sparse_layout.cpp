#include "store/sparse/sparse_layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string_view>

#include "kernels/block/block.hpp"
#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/json.hpp"
#include "store/format/safetensors.hpp"

namespace weightfs {
namespace {

std::uint64_t sparse_elements(const LayoutTensor& tensor) {
  return tensor.size_bytes / sparse_element_of(tensor.dtype).width_bytes;
}

[[noreturn]] void refuse_delta(VersionPair versions, const std::string& why) {
  throw Error(
      ErrorCode::unsupported,
      fmt::format("the change from version {} to {} cannot be expressed as a sparse delta: {}",
                  versions.from, versions.to, why));
}

void append_header_entry(std::string& header, const std::string& name, Dtype dtype,
                         std::uint64_t count, std::uint64_t begin, std::uint64_t size) {
  header += fmt::format(R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                        Json(name).dump(), to_string(dtype), count, begin, begin + size);
}

}  // namespace

bool is_opaque(const Layout& layout, const LayoutTensor& tensor) {
  return layout.files()[tensor.file].kind == LayoutFile::Kind::opaque;
}

std::uint64_t entries_of(const SparseElement& element, std::uint64_t changed,
                         std::uint64_t size_bytes) noexcept {
  return element.by_byte ? std::min(changed, size_bytes / element.width_bytes) : changed;
}

void list_elements_of_bytes(const SparseElement& element, std::uint64_t size_bytes,
                            std::vector<std::uint32_t>& positions) {
  const std::uint64_t elements = size_bytes / element.width_bytes;
  if (positions.size() < elements) {
    for (std::uint32_t& at : positions) at /= static_cast<std::uint32_t>(element.width_bytes);
    return;
  }
  positions.resize(elements);
  std::iota(positions.begin(), positions.end(), 0U);
}

std::string tensor_place(const Layout& layout, const LayoutTensor& tensor) {
  return fmt::format("tensor '{}' in '{}'", tensor.name, layout.files()[tensor.file].path);
}

SparseElement sparse_element_of(Dtype dtype) noexcept {
  const unsigned bits = bits_of(dtype);
  if (bits < 8) return {Dtype::u8, 1, false};  // elements of F4 and F6 straddle bytes
  const std::size_t width = bits / 8;
  return {dtype, width, kind_of(dtype) == kernels::Kind::u8 && width > 1};
}

std::vector<std::optional<std::uint32_t>> match_tensors(const Layout& from, const Layout& to,
                                                        VersionPair versions) {
  auto older = counterparts(to, from);
  std::vector<bool> found(from.tensors().size());
  for (std::uint32_t i = 0; i < older.size(); i++) {
    const LayoutTensor& tensor = to.tensors()[i];
    if (is_opaque(to, tensor)) {
      older[i].reset();
      continue;
    }
    if (!older[i] || is_opaque(from, from.tensors()[*older[i]])) {
      refuse_delta(versions, fmt::format("{} of version {} has no tensor of the same name and "
                                         "dtype in version {}; export the whole version",
                                         tensor_place(to, tensor), versions.to, versions.from));
    }
    const LayoutTensor& other = from.tensors()[*older[i]];
    if (other.shape != tensor.shape) {
      refuse_delta(versions, fmt::format("{} has another shape in version {}; export the whole "
                                         "version",
                                         tensor_place(to, tensor), versions.from));
    }
    found[*older[i]] = true;
  }
  for (std::uint32_t i = 0; i < found.size(); i++) {
    const LayoutTensor& tensor = from.tensors()[i];
    if (found[i] || is_opaque(from, tensor)) continue;
    refuse_delta(versions, fmt::format("{} of version {} is not in version {}; export the whole "
                                       "version",
                                       tensor_place(from, tensor), versions.from, versions.to));
  }
  return older;
}

// ---- the layout ----

SparseLayout::SparseLayout(const Layout& to, std::span<const std::uint32_t> changed,
                           VersionPair versions, OldValues old, std::uint64_t narrow_max)
    : old_(old) {
  add_tensors(to, changed, versions, narrow_max);
  place(to, versions);
}

void SparseLayout::add_tensors(const Layout& to, std::span<const std::uint32_t> changed,
                               VersionPair versions, std::uint64_t narrow_max) {
  std::map<std::string_view, unsigned> names;
  for (std::uint32_t i = 0; i < to.tensors().size(); i++) {
    const LayoutTensor& tensor = to.tensors()[i];
    if (is_opaque(to, tensor)) continue;
    names[tensor.name]++;
    elements_ += sparse_elements(tensor);
    Tensor entry{i, sparse_element_of(tensor.dtype), sparse_elements(tensor) > narrow_max};
    for (std::uint32_t c = 0; c < tensor.chunk_count; c++) {
      const std::uint64_t size = tensor.chunk_size_bytes(c);
      const std::uint64_t count = changed[tensor.first_chunk + c];
      if (count > size / kernels::width_bytes(tensor.kind)) {
        throw Error(
            ErrorCode::corrupt,
            fmt::format("the packs or patches of version {} say that {} elements of chunk {} "
                        "of {} changed, which has {}",
                        versions.to, count, c, tensor_place(to, tensor),
                        size / kernels::width_bytes(tensor.kind)));
      }
      entry.entries += entries_of(entry.element, count, size);
    }
    if (entry.entries > 0) tensors_.push_back(entry);
  }
  for (const Tensor& entry : tensors_) {
    const LayoutTensor& tensor = to.tensors()[entry.number];
    if (names[tensor.name] == 1) continue;
    refuse_delta(versions, fmt::format("{} changed, and another file of version {} has a tensor "
                                       "of that name too, so '{}.values' would be ambiguous",
                                       tensor_place(to, tensor), versions.to, tensor.name));
  }
}

/// Widest elements first, as the safetensors package writes them, so that all are aligned.
void SparseLayout::place(const Layout& to, VersionPair versions) {
  std::string arrays;
  std::uint64_t at = 0;  // offset in the data
  for (const std::size_t width : {8U, 4U, 2U, 1U}) {
    for (Tensor& tensor : tensors_) {
      const std::string& name = to.tensors()[tensor.number].name;
      if (width == (tensor.wide ? 8U : 4U)) {
        append_header_entry(arrays, name + ".indices", tensor.wide ? Dtype::i64 : Dtype::i32,
                            tensor.entries, at, tensor.entries * width);
        tensor.indices_offset_bytes = at;
        at += tensor.entries * width;
      }
      if (width == tensor.element.width_bytes) {
        append_header_entry(arrays, name + ".values", tensor.element.dtype, tensor.entries, at,
                            tensor.entries * width);
        tensor.values_offset_bytes = at;
        at += tensor.entries * width;
        if (old_ == OldValues::without) continue;
        append_header_entry(arrays, name + ".old", tensor.element.dtype, tensor.entries, at,
                            tensor.entries * width);
        tensor.old_offset_bytes = at;
        at += tensor.entries * width;
      }
    }
  }
  Json names = Json::array();
  for (const Tensor& tensor : tensors_) {
    names.push_back(to.tensors()[tensor.number].name);
    entries_ += tensor.entries;
  }
  const double share =
      elements_ == 0 ? 0 : static_cast<double>(entries_) / static_cast<double>(elements_);
  const Json metadata{{"format", "sparse_weight_patch"},
                      {"version", "1"},
                      {"sparse", "True"},
                      {"model_version", std::to_string(versions.to)},
                      {"prev_model_version", std::to_string(versions.from)},
                      {"num_changed_params", std::to_string(tensors_.size())},
                      {"total_changed_elements", std::to_string(entries_)},
                      {"total_elements", std::to_string(elements_)},
                      {"sparsity", fmt::format("{}", 1 - share)},
                      {"changed_params", names.dump()}};
  std::string json = fmt::format(R"({{"__metadata__":{}{}}})", metadata.dump(), arrays);
  json.resize((json.size() + 7) / 8 * 8, ' ');
  if (json.size() > kSafetensorsHeaderBytesMax) {
    refuse_delta(versions, fmt::format("its header would have {} bytes, but safetensors allows {}",
                                       json.size(), kSafetensorsHeaderBytesMax));
  }
  append_le(head_, std::uint64_t{json.size()});
  head_ += json;
  for (Tensor& tensor : tensors_) {
    tensor.indices_offset_bytes += head_.size();
    tensor.values_offset_bytes += head_.size();
    if (old_ == OldValues::with) tensor.old_offset_bytes += head_.size();
  }
  size_bytes_ = head_.size() + at;
}

}  // namespace weightfs
