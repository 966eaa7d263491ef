#include "tests/support/repository_builder.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/dispatch/encode.hpp"
#include "kernels/dispatch/hash.hpp"
#include "store/format/checkpoint.hpp"
#include "store/format/pack.hpp"
#include "tests/support/random.hpp"

namespace weightfs::test {
namespace {

constexpr std::int64_t kTime = 1'800'000'000;

std::shared_ptr<const Layout> layout_of(const Tree& tree, std::vector<std::string>& blobs) {
  const TempDir directory;
  for (const auto& [path, bytes] : tree) write_text(directory / path, bytes);
  const Checkpoint checkpoint = scan_checkpoint(directory.path(), {"*"});
  for (const CheckpointFile& file : checkpoint.files) {
    if (file.kind == CheckpointFile::Kind::blob) blobs.push_back(file.path);
  }
  return Layout::from_checkpoint(checkpoint);
}

std::span<const std::byte> chunk_of(const Layout& layout, const Tree& tree,
                                    const LayoutTensor& tensor, std::uint32_t chunk) {
  const std::string& bytes = tree.at(layout.files()[tensor.file].path);
  return as_bytes(bytes).subspan(tensor.offset_bytes + tensor.chunk_offset_bytes(chunk),
                                 tensor.chunk_size_bytes(chunk));
}

std::vector<std::uint64_t> hashes_of(const Layout& layout, const Tree& tree) {
  std::vector<std::uint64_t> hashes;
  for (const LayoutTensor& tensor : layout.tensors()) {
    for (std::uint32_t c = 0; c < tensor.chunk_count; c++) {
      hashes.push_back(kernels::hash_chunk(chunk_of(layout, tree, tensor, c)));
    }
  }
  return hashes;
}

/// The pack that is currently being filled.
struct OpenPack {
  explicit OpenPack(const Layout& layout) : writer(std::make_unique<PackWriter>(layout)) {}
  std::unique_ptr<PackWriter> writer;
  std::string data;
  std::size_t chunks = 0;
};

void put_object(MemoryBucket& bucket, const std::string& key, const std::string& bytes) {
  bucket.put(key, TextSource(bytes), {});
}

}  // namespace

RepositoryBuilder::RepositoryBuilder() : bucket_(make_memory_repository()), repository_(open()) {}

std::unique_ptr<Repository> RepositoryBuilder::open() const {
  return Repository::open(std::make_unique<BucketView>(bucket_), {});
}

std::uint64_t RepositoryBuilder::add(Tree tree, const BuildOptions& options) {
  std::vector<std::string> blobs;
  const auto layout = layout_of(tree, blobs);
  auto hashes = hashes_of(*layout, tree);
  Manifest manifest;
  manifest.repository = repository_->id();
  manifest.version = newest() + 1;
  manifest.parent = newest();
  if (newest() > 0) manifest.parent_sha256 = manifests_.back();
  manifest.time = kTime + static_cast<std::int64_t>(manifest.version);
  manifest.nonce = random_hex(16);
  for (const std::string& path : blobs) {
    manifest.blobs.push_back(repository_->put_blob(path, tree.at(path), {}));
  }
  manifest.layout = repository_->put_layout(*layout, {});
  if (manifest.version > 1 && options.delta) {
    manifest.delta = add_packs(step_to(manifest.version), *layout, tree, options, hashes);
  }
  if (manifest.version == 1 || options.snapshot) {
    add_snapshot(manifest, *layout, options.snapshot_tree.value_or(tree), hashes);
  }
  manifest.root = root_of(hashes);
  if (options.names_snapshot) manifest.snapshot_before = newest_snapshot_;
  if (options.edit) options.edit(manifest);
  manifests_.push_back(repository_->commit(manifest, {}).manifest_sha256);
  if (manifest.snapshot) newest_snapshot_ = manifest.version;
  trees_.push_back(std::move(tree));
  layouts_.push_back(layout);
  hashes_.push_back(std::move(hashes));
  return newest();
}

SkipRecord RepositoryBuilder::put_skip_packs(const VersionPair& versions,
                                             const SkipBuildOptions& options) const {
  BuildOptions coding;
  coding.wrong_hash = options.wrong_hash;
  coding.left_out = options.left_out;
  SkipRecord record;
  record.repository = repository_->id();
  record.versions = versions;
  record.from_sha256 = manifests_[versions.from - 1];
  record.to_sha256 = manifests_[versions.to - 1];
  auto hashes = hashes_[versions.to - 1];
  record.delta = add_packs(versions, layout(versions.to), tree(versions.to), coding, hashes);
  record.nonce = random_hex(16);
  if (options.edit) options.edit(record);
  return record;
}

SkipRecord RepositoryBuilder::add_skip(const VersionPair& versions,
                                       const SkipBuildOptions& options) const {
  return put_skip(*open(), put_skip_packs(versions, options), {});
}

void RepositoryBuilder::add_snapshot(Manifest& manifest, const Layout& layout, const Tree& tree,
                                     const std::vector<std::uint64_t>& hashes) {
  SnapshotRef ref;
  ref.nonce = manifest.nonce;
  SnapshotHashes snapshot;
  snapshot.chunks = hashes;
  for (const LayoutFile& file : layout.files()) {
    const std::string& bytes = tree.at(file.path);
    put_object(*bucket_, keys::snapshot_file(manifest.version, ref.nonce, file.path), bytes);
    auto& pieces = snapshot.pieces.emplace_back();
    for (std::size_t at = 0; at < bytes.size(); at += kPieceBytes) {
      pieces.push_back(sha256(as_bytes(std::string_view(bytes).substr(at, kPieceBytes))));
    }
  }
  ref.hashes = repository_->put_snapshot_hashes(manifest.version, ref.nonce, snapshot, {});
  manifest.snapshot = ref;
}

DeltaRef RepositoryBuilder::add_packs(const VersionPair& versions, const Layout& layout,
                                      const Tree& tree, const BuildOptions& options,
                                      std::vector<std::uint64_t>& hashes) const {
  const Layout& before = *layouts_[versions.from - 1];
  const Tree& old_tree = trees_[versions.from - 1];
  const std::vector<std::uint64_t>& old_hashes = hashes_[versions.from - 1];
  const auto old_tensors = counterparts(layout, before);
  std::vector<std::string> nonces;
  for (unsigned i = 0; i < options.uploaders; i++) nonces.push_back(random_hex(16));
  DeltaRef delta;
  OpenPack pack(layout);
  const auto finish = [&] {
    if (pack.chunks == 0) return;
    const std::string head = pack.writer->finish();
    const std::size_t number = delta.packs.size();
    PackRef ref;
    ref.name = fmt::format("{}-{}", nonces[number % nonces.size()], number / nonces.size());
    ref.size_bytes = head.size() + pack.data.size();
    ref.head_bytes = head.size();
    ref.head_sha256 = sha256(as_bytes(head));
    const std::string key = versions.is_step() ? keys::pack(versions.to, ref.name)
                                               : keys::skip_pack(versions, ref.name);
    put_object(*bucket_, key, head + pack.data);
    delta.packs.push_back(std::move(ref));
    pack = OpenPack(layout);
  };

  for (std::uint32_t t = 0; t < layout.tensors().size(); t++) {
    const LayoutTensor& tensor = layout.tensors()[t];
    for (std::uint32_t c = 0; c < tensor.chunk_count; c++) {
      const std::pair place(t, c);
      const auto bytes = chunk_of(layout, tree, tensor, c);
      Bytes old;
      bool inheritable = false;
      if (old_tensors[t]) {
        const LayoutTensor& old_tensor = before.tensors()[*old_tensors[t]];
        if (c < old_tensor.chunk_count) {
          const auto old_bytes = chunk_of(before, old_tree, old_tensor, c);
          old.assign(old_bytes.begin(), old_bytes.end());
          inheritable = old.size() == bytes.size();
        }
      }
      old.resize(bytes.size());
      kernels::Scratch scratch;
      std::vector<std::uint32_t> lengths;
      std::vector<std::byte> coded;
      const auto changed = kernels::encode_chunk(tensor.kind, old, bytes, scratch, lengths, coded);
      std::uint64_t& hash = hashes[tensor.first_chunk + c];
      if (changed == 0 && inheritable && !options.all_chunks) {
        hash = old_hashes[before.tensors()[*old_tensors[t]].first_chunk + c];
        continue;
      }
      if (options.left_out == place) continue;
      if (options.wrong_hash == place) hash ^= 1;
      for (int copy = 0; copy < (options.doubled == place ? 2 : 1); copy++) {
        if (copy > 0 || pack.chunks == options.chunks_per_pack) finish();
        pack.writer->add(t, c, lengths, hash, static_cast<std::uint32_t>(changed), coded);
        pack.data += as_text(coded);
        pack.chunks++;
        delta.changed_elements += changed;
      }
    }
  }
  finish();
  return delta;
}

std::string RepositoryBuilder::key(std::string_view prefix, std::string_view suffix) const {
  std::string found;
  for (const auto& [name, bytes] : bucket_->objects()) {
    if (!name.starts_with(prefix) || !name.ends_with(suffix)) continue;
    EXPECT_TRUE(found.empty()) << "both " << found << " and " << name;
    found = name;
  }
  EXPECT_FALSE(found.empty()) << "no object " << prefix << "..." << suffix;
  return found;
}

void RepositoryBuilder::flip(const std::string& key, std::int64_t offset) const {
  std::string bytes = bucket_->find(key).value();
  const auto size = static_cast<std::int64_t>(bytes.size());
  char& byte = bytes.at(static_cast<std::size_t>(offset < 0 ? size + offset : offset));
  byte = static_cast<char>(~byte);
  bucket_->replace(key, std::move(bytes));
}

void RepositoryBuilder::cut(const std::string& key, std::size_t count) const {
  std::string bytes = bucket_->find(key).value();
  bytes.resize(bytes.size() - count);
  bucket_->replace(key, std::move(bytes));
}

TestTensor random_tensor(std::string name, Dtype dtype, std::vector<std::uint64_t> shape,
                         Random& rng) {
  const std::size_t size = size_bytes_of(dtype, shape).value();
  Bytes data(size);
  if (dtype == Dtype::bf16) {
    data = random_bf16(size / 2, rng);
  } else {
    std::generate(data.begin(), data.end(), [&] { return static_cast<std::byte>(rng()); });
  }
  return {std::move(name), dtype, std::move(shape), std::move(data)};
}

void nudge(TestTensor& tensor, double share, Random& rng) {
  if (tensor.data.empty()) return;
  const auto count = 1 + static_cast<std::size_t>(share * static_cast<double>(tensor.data.size()));
  const std::byte before = tensor.data.front();
  for (std::size_t i = 0; i < count; i++) {
    std::byte& byte = tensor.data[rng() % tensor.data.size()];
    byte = static_cast<std::byte>(static_cast<unsigned>(byte) + 1);
  }
  tensor.data.front() = static_cast<std::byte>(static_cast<unsigned>(before) + 1);
}

}  // namespace weightfs::test
