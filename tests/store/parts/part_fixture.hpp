// Parts as tests make them: a FoundPart of files in memory.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "store/format/checkpoint.hpp"
#include "store/parts/part_hashes.hpp"
#include "store/parts/part_objects.hpp"
#include "tests/support/support.hpp"

namespace weightfs::test {

using Tensors = std::vector<TestTensor>;

inline TestTensor small_tensor(std::string name, std::size_t elements = 4) {
  return {std::move(name), Dtype::bf16, {elements}, Bytes(2 * elements)};
}

inline std::shared_ptr<const Layout> layout_of(const std::map<std::string, Tensors>& files) {
  const TempDir directory;
  for (const auto& [path, tensors] : files) {
    write_text(directory.path() / path, make_safetensors(tensors));
  }
  write_text(directory.path() / "none.txt", "");  // a directory has something to publish
  return Layout::from_checkpoint(scan_checkpoint(directory.path(), {}, ScanScope::part));
}

/// The layout of one file that is too large to be a small one, and has no tensors.
inline std::shared_ptr<const Layout> layout_of_large(const std::string& path) {
  const TempDir directory;
  write_text(directory.path() / path, std::string(kBlobBytesMax + 1, ' '));
  return Layout::from_checkpoint(scan_checkpoint(directory.path(), {path}, ScanScope::part));
}

/// Part `number` of `count` of version 2, with a delta without packs.
inline FoundPart part_with(unsigned number, unsigned count, std::shared_ptr<const Layout> layout) {
  FoundPart part;
  part.layout = std::move(layout);
  PartRecord& record = part.record;
  record.repository = std::string(32, '0');
  record.set = std::string(32, 'a');
  record.version = 2;
  record.part = number;
  record.parts = count;
  record.tag = "step-2";
  record.delta.emplace();
  record.layout = {part.layout->serialize().size(), part.layout->id()};
  for (std::uint64_t i = 0; i < part.layout->chunk_count(); i++) {
    part.hashes.chunks.push_back(1000 * number + i);
  }
  for (const LayoutFile& file : part.layout->files()) {
    part.hashes.pieces.emplace_back(piece_count(file.size_bytes));
  }
  const std::string hashes = serialize_part_hashes(part.hashes, false);
  record.hashes = {hashes.size(), sha256(as_bytes(hashes))};
  return part;
}

inline FoundPart part_of(unsigned number, unsigned count,
                         const std::map<std::string, Tensors>& files) {
  return part_with(number, count, layout_of(files));
}

}  // namespace weightfs::test
