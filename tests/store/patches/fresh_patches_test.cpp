// FreshPatches: what is kept of what was noted, in which order it is taken, and what is dropped.
#include "store/patches/fresh_patches.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace weightfs::test {
namespace {

PatchVersion version(std::uint64_t number) {
  PatchVersion version{number, {}};
  version.manifest[0] = static_cast<std::byte>(number);
  return version;
}

std::unique_ptr<FreshSpan> span_of(std::uint64_t first, std::uint64_t last) {
  return std::make_unique<FreshSpan>(
      FreshEnd{version(first), nullptr}, FreshEnd{version(last), nullptr},
      std::vector<FreshPart>{{std::make_shared<FreshChunks>(1u << 20), 0}});
}

FreshChunk chunk_at(std::uint32_t tensor, std::uint32_t chunk, std::size_t bytes = 10) {
  FreshChunk fresh;
  fresh.place = {tensor, chunk};
  fresh.log.bytes.resize(bytes);
  return fresh;
}

std::vector<ChunkPlace> places_of(const std::vector<FreshChunk>& chunks) {
  std::vector<ChunkPlace> places;
  for (const FreshChunk& chunk : chunks) places.push_back(chunk.place);
  return places;
}

TEST(FreshSpan, GivesItsChunksInOrderAndOnceEach) {
  const auto chunks = std::make_shared<FreshChunks>(1u << 20);
  FreshSpan span({version(1), nullptr}, {version(2), nullptr}, {{chunks, 0}});
  for (const auto& [tensor, chunk] : {std::pair{2u, 0u}, {0u, 3u}, {0u, 1u}, {2u, 0u}, {0u, 3u}}) {
    chunks->add(chunk_at(tensor, chunk));
  }
  EXPECT_EQ(places_of(span.take_chunks()), (std::vector<ChunkPlace>{{0, 1}, {0, 3}, {2, 0}}));
  EXPECT_TRUE(span.take_chunks().empty());
}

TEST(FreshSpan, PutsTheTensorsOfItsPartsInTheirPlaces) {
  const auto rest = std::make_shared<FreshChunks>(1u << 20);
  const auto early = std::make_shared<FreshChunks>(1u << 20);
  rest->add(chunk_at(7, 1));
  rest->add(chunk_at(0, 0));
  early->add(chunk_at(1, 0));
  early->add(chunk_at(0, 2));
  FreshSpan span({version(1), nullptr}, {version(2), nullptr}, {{rest, 0}, {early, 5}});
  EXPECT_TRUE(span.is_wanted());
  EXPECT_EQ(places_of(span.take_chunks()),
            (std::vector<ChunkPlace>{{0, 0}, {5, 2}, {6, 0}, {7, 1}}));
  EXPECT_EQ(early->size_bytes(), 0u);
  early->give_up("test");
  EXPECT_FALSE(span.is_wanted()) << "a part is not enough";
}

TEST(FreshChunks, AreGivenUpBeyondTheirMemory) {
  FreshChunks chunks(4096);
  chunks.add(chunk_at(0, 0, 3000));
  EXPECT_TRUE(chunks.is_wanted());
  EXPECT_GE(chunks.size_bytes(), 3000u);
  chunks.add(chunk_at(0, 1, 3000));
  EXPECT_FALSE(chunks.is_wanted());
  chunks.add(chunk_at(0, 2));
  std::vector<FreshChunk> left;
  chunks.take(0, left);
  EXPECT_TRUE(left.empty()) << "their memory is free";
  EXPECT_EQ(chunks.size_bytes(), 0u);
  EXPECT_EQ(fresh_bytes_max(0), 64u << 20);
  EXPECT_EQ(fresh_bytes_max(64ull << 30), 2ull << 30);
}

TEST(FreshChunks, ComeFromManyThreads) {
  const auto chunks = std::make_shared<FreshChunks>(1u << 30);
  {
    std::vector<std::jthread> threads;
    for (std::uint32_t tensor = 0; tensor < 4; tensor++) {
      threads.emplace_back([&, tensor] {
        for (std::uint32_t chunk = 0; chunk < 200; chunk++) chunks->add(chunk_at(tensor, chunk));
      });
    }
  }
  FreshSpan span({version(1), nullptr}, {version(2), nullptr}, {{chunks, 0}});
  const auto places = places_of(span.take_chunks());
  EXPECT_EQ(places.size(), 800u);
  EXPECT_TRUE(std::is_sorted(places.begin(), places.end()));
}

TEST(FreshPatches, NotesNothingWhileNobodyTakesIt) {
  FreshPatches fresh;
  EXPECT_EQ(fresh.begin(0), nullptr);
  fresh.add_taker();
  EXPECT_NE(fresh.begin(0), nullptr);
  fresh.put(span_of(1, 2));
  fresh.add_taker();
  fresh.remove_taker();
  fresh.remove_taker();
  fresh.add_taker();
  EXPECT_EQ(fresh.take(version(1)), nullptr) << "dropped with the last taker";
  EXPECT_EQ(fresh.counters(), FreshCounters{});
}

TEST(FreshPatches, ChainsAreTakenInOrderAndWhatIsPassedIsDropped) {
  FreshPatches fresh;
  fresh.add_taker();
  fresh.put(nullptr);
  fresh.put(span_of(2, 3));
  fresh.put(span_of(1, 2));
  fresh.put(span_of(3, 4));  // too many
  EXPECT_EQ(fresh.counters().given_up, 1u);
  EXPECT_EQ(fresh.take(version(1))->last(), version(2));
  EXPECT_EQ(fresh.take(version(1)), nullptr);
  PatchVersion another = version(2);
  another.manifest[1] = std::byte{1};
  EXPECT_EQ(fresh.take(another), nullptr) << "the same number in another history";
  EXPECT_EQ(fresh.take(version(2))->last(), version(3));

  fresh.put(span_of(4, 5));
  fresh.put(span_of(5, 6));
  fresh.note_installed({PatchLevel::one, version(3), version(5), {}}, false);
  EXPECT_EQ(fresh.take(version(5))->last(), version(6));
  const auto given_up = std::make_shared<FreshChunks>(1u << 20);
  given_up->give_up("test");
  fresh.put(std::make_unique<FreshSpan>(FreshEnd{version(6), nullptr},
                                        FreshEnd{version(7), nullptr},
                                        std::vector<FreshPart>{{given_up, 0}}));
  EXPECT_EQ(fresh.take(version(7)), nullptr);
  EXPECT_EQ(fresh.counters(), (FreshCounters{0, 1, 3}));
}

}  // namespace
}  // namespace weightfs::test
