// SparseLayout: the header of a sparse delta, and the offsets of everything in it, computed from
// the changed counts alone: so the size of the file is known before it is made.
// store/inspect/sparse_delta.hpp says what the file is.
//
// Threads: values.  Format: docs/FORMAT.md, "Sparse deltas".
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "store/base/version_pair.hpp"
#include "store/format/layout.hpp"
#include "store/format/tensor.hpp"

namespace weightfs {

/// Changed elements, as the codec counts them, by chunk number of the newer layout.
using ChangedCounts = std::vector<std::uint32_t>;

/// The element that indices count and values hold.
struct SparseElement {
  Dtype dtype{};  // of the values
  std::size_t width_bytes = 0;
  bool by_byte = false;  // an entry for each changed byte, not each changed element
};
SparseElement sparse_element_of(Dtype dtype) noexcept;

/// The number of entries of a chunk of `size_bytes` with `changed` changed elements (as the codec
/// counts them).
std::uint64_t entries_of(const SparseElement& element, std::uint64_t changed,
                         std::uint64_t size_bytes) noexcept;

/// If an element has several bytes that the codec counts: turns the positions of changed bytes in a
/// chunk of `size_bytes` into those of its entries.
void list_elements_of_bytes(const SparseElement& element, std::uint64_t size_bytes,
                            std::vector<std::uint32_t>& positions);

/// Whether a tensor is of an opaque file, and so not in sparse deltas.
bool is_opaque(const Layout& layout, const LayoutTensor& tensor);

/// For messages.
std::string tensor_place(const Layout& layout, const LayoutTensor& tensor);

/// For each tensor of `to`, the tensor of `from` with the same name, dtype and shape; none for
/// tensors of opaque files.
/// Throws Error: unsupported, saying what differs, if a tensor is in only one of them.
std::vector<std::optional<std::uint32_t>> match_tensors(const Layout& from, const Layout& to,
                                                        VersionPair versions);

/// Whether a sparse delta holds the old values beside the new ones.
enum class OldValues : bool { without, with };

/// Tensors with more elements have I64 indices.
inline constexpr std::uint64_t kNarrowElementsMax = 0x7FFFFFFF;

class SparseLayout {
 public:
  /// Requires: one count for each chunk of `to`.  `narrow_max`: differs from the default only in
  /// tests.
  /// Throws Error: unsupported (two tensors of the same name, one of which changed; a header that
  /// safetensors would reject); corrupt (a count above the elements of its chunk).
  SparseLayout(const Layout& to, std::span<const std::uint32_t> changed, VersionPair versions,
               OldValues old = OldValues::without, std::uint64_t narrow_max = kNarrowElementsMax);

  struct Tensor {
    std::uint32_t number = 0;  // in `to`
    SparseElement element;
    bool wide = false;  // indices are I64
    std::uint64_t entries = 0;
    std::uint64_t indices_offset_bytes = 0, values_offset_bytes = 0;  // in the file
    std::uint64_t old_offset_bytes = 0;                               // 0: without old values
  };
  [[nodiscard]] std::span<const Tensor> tensors() const noexcept { return tensors_; }  // ascending
  [[nodiscard]] const std::string& head() const noexcept { return head_; }
  [[nodiscard]] std::uint64_t size_bytes() const noexcept { return size_bytes_; }
  [[nodiscard]] std::uint64_t entries() const noexcept { return entries_; }  // of all tensors
  [[nodiscard]] OldValues old() const noexcept { return old_; }

 private:
  void add_tensors(const Layout& to, std::span<const std::uint32_t> changed, VersionPair versions,
                   std::uint64_t narrow_max);
  void place(const Layout& to, VersionPair versions);

  OldValues old_;
  std::vector<Tensor> tensors_;
  std::string head_;
  std::uint64_t size_bytes_ = 0, entries_ = 0, elements_ = 0;
};

}  // namespace weightfs
