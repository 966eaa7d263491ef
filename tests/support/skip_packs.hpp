// Skip packs: what a skip delta makes of a version, decoded chunk by chunk without a plan.
//
// Threads: one test's.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "kernels/block/scratch.hpp"
#include "kernels/dispatch/decode.hpp"
#include "kernels/dispatch/hash.hpp"
#include "store/base/bytes.hpp"
#include "store/format/skip_record.hpp"
#include "store/repository/skips.hpp"
#include "tests/support/repository_builder.hpp"

namespace weightfs::test {

/// The bytes of a tensor's chunk in a plain copy.
inline std::span<const std::byte> chunk_in(const Tree& tree, const Layout& layout,
                                           const LayoutTensor& tensor, std::uint32_t chunk) {
  const std::string& file = tree.at(layout.files()[tensor.file].path);
  return as_bytes(file).subspan(tensor.offset_bytes + tensor.chunk_offset_bytes(chunk),
                                tensor.chunk_size_bytes(chunk));
}

/// Decodes a skip's packs against the plain copy of `from`, and compares every chunk with that of
/// `to`.
inline void expect_skip_leads(const RepositoryBuilder& builder, const SkipRecord& record) {
  const auto repository = builder.open();
  const auto& [from, to] = record.versions;
  EXPECT_EQ(record.repository, repository->id());
  EXPECT_EQ(record.from_sha256, repository->find_version(from, {})->manifest_sha256);
  EXPECT_EQ(record.to_sha256, repository->find_version(to, {})->manifest_sha256);
  const Layout &before = builder.layout(from), &after = builder.layout(to);
  // By chunk number: all begin as those of `from`.
  std::vector<Bytes> chunks(after.chunk_count());
  for (std::size_t i = 0; i < after.tensors().size(); i++) {
    const LayoutTensor &old = before.tensors()[i], &tensor = after.tensors()[i];
    for (std::uint32_t chunk = 0; chunk < tensor.chunk_count; chunk++) {
      const auto bytes = chunk_in(builder.tree(from), before, old, chunk);
      chunks[tensor.first_chunk + chunk].assign(bytes.begin(), bytes.end());
    }
  }
  kernels::Scratch scratch;
  std::uint64_t changed = 0;
  for (const PackRef& pack : record.delta.packs) {
    const std::string key = keys::skip_pack(record.versions, pack.name);
    const auto object = builder.bucket()->find(key);
    ASSERT_TRUE(object) << key;
    ASSERT_EQ(object->size(), pack.size_bytes);
    const auto index = repository->get_pack_index(key, pack, after, {});
    const auto data = as_bytes(*object).subspan(index->data_offset_bytes());
    for (std::size_t k = 0; k < index->pieces().size(); k++) {
      const auto piece = data.subspan(k * kPieceBytes);
      EXPECT_EQ(sha256(piece.first(std::min<std::size_t>(piece.size(), kPieceBytes))),
                index->pieces()[k]);
    }
    for (const PackChunk& packed : index->chunks()) {
      const LayoutTensor& tensor = after.tensors()[packed.tensor];
      Bytes& bytes = chunks[tensor.first_chunk + packed.chunk];
      Bytes made(bytes.size());
      ASSERT_TRUE(kernels::decode_chunk(
          tensor.kind, bytes, index->block_lengths(packed),
          data.subspan(packed.data_offset_bytes, packed.data_size_bytes), made, scratch));
      EXPECT_EQ(kernels::hash_chunk(made), packed.hash);
      changed += packed.changed;
      bytes = std::move(made);
    }
  }
  EXPECT_EQ(changed, record.delta.changed_elements);
  for (const LayoutTensor& tensor : after.tensors()) {
    for (std::uint32_t chunk = 0; chunk < tensor.chunk_count; chunk++) {
      const auto plain = chunk_in(builder.tree(to), after, tensor, chunk);
      EXPECT_TRUE(std::ranges::equal(chunks[tensor.first_chunk + chunk], plain))
          << tensor.name << ", chunk " << chunk;
    }
  }
}

}  // namespace weightfs::test
