// PatchFixture: a PatchTable on a database that dies on demand, and versions of a few small chunks
// as plain bytes to compare with.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/block/scratch.hpp"
#include "store/base/error.hpp"
#include "store/database/db.hpp"
#include "store/patches/chunk_patch.hpp"
#include "store/patches/patch_path.hpp"
#include "store/patches/patch_reader.hpp"
#include "store/patches/patch_table.hpp"
#include "tests/support/support.hpp"

namespace weightfs::test {

/// Forwards to a database.  Of the writing steps, a whole one or half of one, the `dies_at`th and
/// all later ones fail: as if the process had been killed there.  Whoever catches the error opens
/// everything again.
class MortalDb final : public Db {
 public:
  explicit MortalDb(std::unique_ptr<Db> db) : db_(std::move(db)) {}

  [[nodiscard]] std::optional<std::string> find(ColumnFamily family,
                                                std::string_view key) const override {
    return db_->find(family, key);
  }
  void scan(ColumnFamily family, std::string_view prefix,
            const std::function<void(std::string_view, std::string_view)>& each) const override {
    db_->scan(family, prefix, each);
  }
  void read_range(
      ColumnFamily family, std::string_view begin, std::string_view end,
      const std::function<bool(std::string_view, std::string_view)>& each) const override {
    if (const auto hook = before_read) hook();  // may replace itself
    db_->read_range(family, begin, end, each);
  }
  void write(const std::vector<Change>& changes, Durability durability) override {
    step();
    db_->write(changes, durability);
  }
  [[nodiscard]] DbFacts facts() const override { return db_->facts(); }
  void sync() override { db_->sync(); }
  [[nodiscard]] SortedFile make_sorted_file(const std::filesystem::path& directory) override {
    step();
    return db_->make_sorted_file(directory);
  }
  void ingest(ColumnFamily family, std::vector<SortedFile> files,
              const std::vector<Change>& changes) override {
    step();
    db_->ingest(family, std::move(files), {});
    step();
    db_->write(changes, Durability::power);
  }
  void remove_range(ColumnFamily family, std::string_view begin, std::string_view end,
                    const std::vector<Change>& changes) override {
    if (!changes.empty()) {
      step();
      db_->write(changes, Durability::power);
    }
    step();
    db_->remove_range(family, begin, end, {});
  }

  int dies_at = -1;  // -1: never
  int steps = 0;
  std::function<void()> before_read, before_step;

 private:
  void step() {
    if (const auto hook = before_step) hook();
    if (dies_at >= 0 && steps >= dies_at) throw Error(ErrorCode::io, "killed");
    ++steps;
  }

  std::unique_ptr<Db> db_;
};

/// The bytes of a version.
using PlainVersion = std::map<ChunkPlace, Bytes>;

/// bf16, several tensors, the last chunk of each shorter.
inline constexpr kernels::Kind kPatchKind = kernels::Kind::bf16;

inline PlainVersion random_version(Random& rng, std::uint32_t tensors, std::uint32_t chunks,
                                   std::size_t elements = 200) {
  PlainVersion version;
  for (std::uint32_t tensor = 0; tensor < tensors; tensor++) {
    for (std::uint32_t chunk = 0; chunk < chunks; chunk++) {
      version[{tensor, chunk}] =
          random_bf16(chunk + 1 == chunks ? 1 + elements / 3 : elements, rng);
    }
  }
  return version;
}

/// The next version: some chunks stay, some change a little, some everywhere; some go back to what
/// they were in `before`.
inline PlainVersion changed_version(const PlainVersion& version, const PlainVersion& before,
                                    Random& rng) {
  PlainVersion next = version;
  for (auto& [place, bytes] : next) {
    switch (rng() % 8) {
      case 0:
      case 1:
        break;
      case 2:
        bytes = before.at(place);
        break;
      case 3:
        bytes = random_bf16(bytes.size() / 2, rng);
        break;
      default:
        bytes = nudged_bf16(bytes, 0.05, rng);
    }
  }
  return next;
}

inline Sha256 id_of(std::uint64_t number) {
  std::string text;
  append_le(text, number);
  return sha256(as_bytes(text));
}

/// Version `number` of a repository; of another one if it was made anew (`generation`).
inline PatchVersion patch_version(std::uint64_t number, std::uint64_t generation = 0) {
  return {number, id_of(number + 1'000'000 * generation)};
}

inline SpanEnds ends_of(PatchLevel level, std::uint64_t first, std::uint64_t last,
                        std::uint64_t generation = 0) {
  return {level, patch_version(first, generation), patch_version(last, generation), id_of(77)};
}

struct PatchFixture {
  TempDir parent{memory_directory()};
  std::atomic<std::uint64_t> free_bytes{1ull << 40};
  std::unique_ptr<MortalDb> db;
  std::unique_ptr<PatchTable> table;
  kernels::Scratch scratch;

  PatchFixture() { open(); }
  PatchFixture(const PatchFixture&) = delete;
  PatchFixture& operator=(const PatchFixture&) = delete;

  [[nodiscard]] std::filesystem::path files() const { return parent / "tmp"; }

  /// Opens, or opens again: as after the end of a process.
  void open() {
    table.reset();
    db.reset();
    std::filesystem::remove_all(files());
    std::filesystem::create_directories(files());
    db = std::make_unique<MortalDb>(Db::open(parent / "db", [this] { return free_bytes.load(); }));
    table = std::make_unique<PatchTable>(*db, files());
  }

  PatchFiles files_between(const PatchSpan& span, const PlainVersion& from,
                           const PlainVersion& to) {
    PatchFileWriter writer = table->make_writer(span);
    for (const auto& [place, bytes] : from) {
      const auto patch = make_chunk_patch(kPatchKind, bytes, to.at(place), scratch);
      if (patch) writer.add(place, *patch);
    }
    return writer.take();
  }
  void install(const SpanEnds& ends, const PlainVersion& from, const PlainVersion& to) {
    table->install(ends, files_between(ends.span(), from, to));
  }

  /// What a path makes of a version, chunk by chunk in one pass.
  PlainVersion rebuilt(PlainVersion version, const PatchPath& path) {
    PatchReader reader(*table, path);
    for (auto& [place, bytes] : version) {
      const std::vector<ChunkPatch> patches = reader.take(place, scratch);
      apply_chunk_patches(patches, kPatchKind, bytes, scratch, to_string(place));
    }
    return version;
  }

  /// Keys of all patches in the database.
  [[nodiscard]] std::size_t patch_count() const {
    std::size_t count = 0;
    db->scan(ColumnFamily::patches, "", [&](std::string_view, std::string_view) { count++; });
    return count;
  }
  /// How many there must be, by the records of spans.  (Parts are counted too.)
  [[nodiscard]] std::size_t recorded_count() const {
    std::size_t count = 0;
    db->scan(ColumnFamily::store, kSpanPrefix, [&](std::string_view key, std::string_view value) {
      const auto record = decode_span_record(key, value);
      count += record ? record->info.chunk_count : 0;
    });
    return count;
  }
};

}  // namespace weightfs::test
