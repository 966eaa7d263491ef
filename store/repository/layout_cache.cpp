#include "store/repository/layout_cache.hpp"

namespace weightfs {
namespace {

/// Approximate heap memory of a string.
std::size_t outside(const std::string& text) {
  constexpr std::size_t kInside = 15;  // a shorter string lies inside the object
  return text.capacity() > kInside ? text.capacity() + 1 : 0;
}

std::size_t bytes_of(const TensorTable& table) {
  std::size_t bytes = table.capacity() * sizeof(LayoutTensor);
  for (const LayoutTensor& tensor : table) {
    bytes += outside(tensor.name) + tensor.shape.capacity() * sizeof(std::uint64_t);
  }
  return bytes;
}

std::size_t bytes_of_files(const Layout& layout) {
  std::size_t bytes = sizeof(Layout) + layout.files().size_bytes();
  for (const LayoutFile& file : layout.files()) bytes += outside(file.path) + outside(file.head);
  return bytes;
}

}  // namespace

std::shared_ptr<const Layout> LayoutCache::put(const std::shared_ptr<const Layout>& layout) {
  if (auto known = layouts_.find(layout->id())) return known;
  for (const auto& [table, count] : layouts_.cost().tables) {
    if (table == layout->tensor_table()) break;
    if (*table == *layout->tensor_table()) return layouts_.put(layout->id(), layout->with(table));
  }
  return layouts_.put(layout->id(), layout);
}

std::size_t LayoutCache::Cost::enter(const Layout& layout) {
  const bool is_first = tables[layout.tensor_table()]++ == 0;
  return bytes_of_files(layout) + (is_first ? bytes_of(*layout.tensor_table()) : 0);
}

std::size_t LayoutCache::Cost::leave(const Layout& layout) {
  const auto table = tables.find(layout.tensor_table());
  const bool is_last = --table->second == 0;
  if (is_last) tables.erase(table);
  return bytes_of_files(layout) + (is_last ? bytes_of(*layout.tensor_table()) : 0);
}

}  // namespace weightfs
