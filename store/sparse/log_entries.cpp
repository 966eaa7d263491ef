#include "store/sparse/log_entries.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/block/ordered.hpp"
#include "kernels/dispatch/patch.hpp"
#include "store/base/bytes.hpp"

namespace weightfs {
namespace {

/// The changes of a chunk: positions in elements of the codec, and the old elements there.
/// Returns: false if the log is malformed.
template <typename Element>
bool read_changes(kernels::Kind kind, const kernels::ChangeLog& log,
                  std::span<const std::byte> chunk, OldValues wants_old, kernels::Scratch& scratch,
                  SparseEntries& entries) {
  using Bits = typename Element::Bits;
  kernels::ByteSpan left(log.bytes);
  std::uint32_t first = 0;  // element of the block
  for (const std::size_t length : log.lengths) {
    const std::size_t elements =
        std::min(kernels::kBlockElements, chunk.size() / sizeof(Bits) - first);
    if (length > left.size()) return false;
    const auto* const changes =
        kernels::changes_of_log(kind, elements, left.first(length), scratch);
    if (changes == nullptr) return false;
    left = left.subspan(length);
    const std::size_t before = entries.positions.size(), after = before + changes->count;
    entries.positions.resize(after);
    std::uint32_t* const positions = entries.positions.data() + before;
    for (std::size_t i = 0; i < changes->count; i++) positions[i] = first + changes->position[i];
    if (wants_old == OldValues::with) {
      entries.old.resize(after * sizeof(Bits));
      std::byte* const old = entries.old.data() + before * sizeof(Bits);
      for (std::size_t i = 0; i < changes->count; i++) {
        const auto back = 0U - static_cast<std::uint32_t>(changes->difference[i]);
        const Bits now = kernels::load<Bits>(chunk.data() + positions[i] * sizeof(Bits));
        kernels::store(old + i * sizeof(Bits), Element::moved(now, back));
      }
    }
    first += static_cast<std::uint32_t>(elements);
  }
  return left.empty();
}

/// Replaces the old values of changed bytes with those of the elements at `elements`.
/// `bytes`: the positions of the changed bytes.
void widen_old(std::size_t width, std::span<const std::byte> chunk,
               std::span<const std::uint32_t> bytes, std::span<const std::uint32_t> elements,
               Bytes& old) {
  Bytes wide(elements.size() * width);
  std::size_t next = 0;  // of `bytes`
  for (std::size_t i = 0; i < elements.size(); i++) {
    std::byte* const value = wide.data() + i * width;
    if (i > 0 && elements[i] == elements[i - 1]) {
      std::memcpy(value, value - width, width);
      continue;
    }
    std::memcpy(value, chunk.data() + elements[i] * width, width);
    for (; next < bytes.size() && bytes[next] / width == elements[i]; next++) {
      value[bytes[next] % width] = old[next];
    }
  }
  old.swap(wide);
}

}  // namespace

bool take_log_entries(kernels::Kind kind, const SparseElement& element,
                      const kernels::ChangeLog& log, std::span<const std::byte> chunk,
                      OldValues old, kernels::Scratch& scratch, SparseEntries& entries) {
  entries.positions.clear();
  entries.old.clear();
  if (log.lengths.size() != kernels::block_count(kind, chunk.size())) return false;
  const bool is_good = kernels::with_element(kind, [&]<typename Element>(Element) {
    return read_changes<Element>(kind, log, chunk, old, scratch, entries);
  });
  if (!is_good) return false;
  entries.changed = static_cast<std::uint32_t>(entries.positions.size());
  if (element.by_byte) {
    std::vector<std::uint32_t> bytes;
    if (old == OldValues::with) bytes = entries.positions;
    list_elements_of_bytes(element, chunk.size(), entries.positions);
    if (old == OldValues::with) {
      widen_old(element.width_bytes, chunk, bytes, entries.positions, entries.old);
    }
  }
  put_values(element.width_bytes, chunk, entries.positions, entries.values);
  return true;
}

}  // namespace weightfs
