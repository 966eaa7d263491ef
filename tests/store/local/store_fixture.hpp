// StoreFixture: a store whose file system is controlled by the test, and versions in it.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/block/scratch.hpp"
#include "store/base/sha256.hpp"
#include "store/local/store.hpp"
#include "store/local/sync_images.hpp"
#include "tests/support/support.hpp"

namespace weightfs::test {

inline constexpr std::string_view kStoreId = "0123456789abcdef0123456789abcdef";
inline constexpr std::string_view kOtherId = "ffffffffffffffffffffffffffffffff";
inline constexpr std::string_view kStoreUrl = "file:///bucket";
inline constexpr std::uint64_t kStorePlenty = 1ull << 40;

using Versions = std::vector<std::uint64_t>;

// A store whose file system is controlled by the test.
struct StoreFixture {
  TempDir parent;
  std::filesystem::path path = parent / "store";
  StoreLimits limits;
  std::atomic<std::uint64_t> free_bytes = kStorePlenty;
  std::atomic<std::uint64_t> total_bytes = 2 * kStorePlenty;

  std::unique_ptr<Store> open(std::string_view repository = kStoreId,
                              std::string_view url = kStoreUrl) {
    return Store::open(path, repository, url, limits, [this] {
      return Space{free_bytes, total_bytes};
    });
  }
};

// Two files and `chunks` hashes, as a sync would make them.
inline void add_version(Store& store, std::uint64_t version, std::size_t bytes = 1000,
                        std::size_t chunks = 3) {
  const std::filesystem::path directory = store.images().begin_images(version);
  write_text(directory / "a.bin", std::string(bytes - 10, 'a'));
  write_text(directory / "sub/b.bin", std::string(10, 'b'));
  seal_files(directory);
  const std::vector<std::uint64_t> sizes{bytes - 10, 10};
  std::vector<std::uint64_t> hashes;
  for (std::size_t i = 0; i < chunks; i++) hashes.push_back(version * 1000 + i);
  store.images().complete_images(version, sizes, hashes);
  sync_images(store.images(), version);
}

// Patches from a version to the next one: one chunk of 100 bytes, all changed.
inline void install_patches(Store& store, unsigned first) {
  kernels::Scratch scratch;
  const Bytes before(100, std::byte(first)), after(100, std::byte(first + 1));
  const SpanEnds ends{PatchLevel::one, {first, sha256(before)}, {first + 1, sha256(after)}, {}};
  PatchFileWriter writer = store.patches().make_writer(ends.span());
  writer.add({0, 0}, *make_chunk_patch(kernels::Kind::u8, before, after, scratch));
  store.patches().install(ends, writer.take());
}

// Reserves a version like `latest`.
inline Eviction::Reservation keep(Store& store, std::uint64_t version) {
  return store.eviction().reserve(version, Eviction::Claim::stays, {});
}

// Reports every version as in use, or none; records the versions asked for.
class InUse : public VersionGuard {
 public:
  InUse(Store& store, bool in_use, Versions* asked = nullptr, std::function<void()> also = {})
      : in_use_(in_use),
        asked_(asked),
        also_(std::move(also)),
        guarding_(store.eviction().add_guard(*this)) {}

  bool release(std::uint64_t version) override {
    if (asked_ != nullptr) asked_->push_back(version);
    if (also_) also_();
    return !in_use_;
  }

 private:
  const bool in_use_;
  Versions* const asked_;
  const std::function<void()> also_;
  Eviction::Guarding guarding_;
};

}  // namespace weightfs::test
