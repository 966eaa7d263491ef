// Passes with a clock that the tests move and processes that they make up, and the loads of these.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/pass_world.hpp"

namespace weightfs::fs {

class PassesTest : public testing::Test {
 protected:
  using milliseconds = std::chrono::milliseconds;
  using minutes = std::chrono::minutes;
  using seconds = std::chrono::seconds;
  static constexpr std::uint32_t kShards = 3;
  static constexpr auto kConfig = PassWorld::kConfig, kIndex = PassWorld::kIndex;
  static constexpr auto kGrace = seconds(60);
  static constexpr auto kQuiet = seconds(2);
  static constexpr auto kTick = milliseconds(1);

  /// open(2), close(2).
  std::uint64_t read(pid_t pid, std::uint32_t file) {
    const std::uint64_t version = world_.open(pid, file);
    world_.close(pid);
    return version;
  }
  /// All shards, one at a time.  Returns: their version.
  std::uint64_t load(pid_t pid) {
    const std::uint64_t version = read(pid, 1);
    for (std::uint32_t file = 2; file <= kShards; file++) EXPECT_EQ(read(pid, file), version);
    return version;
  }
  /// How a process works on one layer after another.
  struct Layers {
    std::vector<std::uint32_t> begins_with, before_each;  // small files
    unsigned of_each_shard = 1;  // but the first: opening that again after a pause begins a load
    BootTime pause{};
    bool polls = false;
  };
  /// Opens a shard for each of its layers.  Expects one version, whatever is published meanwhile.
  void load_in_layers(const Layers& layers) {
    const pid_t pid = start(fmt::format("session {}", world_.processes.size()));
    const std::uint64_t version = world_.newest;
    for (const std::uint32_t file : layers.begins_with) EXPECT_EQ(read(pid, file), version);
    for (unsigned layer = 0; layer < 1 + (kShards - 1) * layers.of_each_shard; layer++) {
      const std::uint32_t shard = 1 + (layer + layers.of_each_shard - 1) / layers.of_each_shard;
      for (const std::uint32_t file : layers.before_each) EXPECT_EQ(read(pid, file), version);
      EXPECT_EQ(read(pid, shard), version) << layer;
      if (shard == kShards) return;  // it has all
      publish();
      wait(layers.pause);
      if (layers.polls) world_.read_link(pid);
    }
  }
  /// The files that a rank opens in each load.
  struct Rank {
    std::vector<std::uint32_t> files;
    pid_t pid = 0;
  };
  std::vector<Rank> start_ranks(const std::vector<std::vector<std::uint32_t>>& files) {
    const std::string session = fmt::format("session {}", world_.processes.size());
    std::vector<Rank> ranks;
    for (const auto& each : files) ranks.push_back({each, start(session)});
    return ranks;
  }
  /// One rank after another.  Expects one version, and publishes another after each of them.
  std::uint64_t load_together(const std::vector<Rank>& ranks, BootTime between = seconds(1)) {
    std::uint64_t version = 0;
    for (const Rank& rank : ranks) {
      if (version != 0) wait(between);
      for (const std::uint32_t file : rank.files) {
        const std::uint64_t got = read(rank.pid, file);
        if (version == 0) version = got;
        EXPECT_EQ(got, version) << "file " << file << " of process " << rank.pid;
      }
      publish();
    }
    return version;
  }
  /// A rank that has all, and reads no small file, in one pass with a process that has a part and
  /// is idle.  Returns: that.
  pid_t start_beside_a_part() {
    const std::string session = fmt::format("session {}", world_.processes.size());
    const pid_t part = start(session);
    rank_ = start(session);
    const std::uint64_t version = world_.newest;
    for (const std::uint32_t file : {kConfig, 1u}) EXPECT_EQ(read(part, file), version);
    EXPECT_EQ(load(rank_), version);
    return part;
  }
  /// By a process that ends.
  std::uint64_t cat(std::uint32_t file, const std::string& session = "session 1") {
    const pid_t pid = world_.start(session);
    wait(milliseconds(20));
    const std::uint64_t version = read(pid, file);
    world_.end(pid);
    wait(milliseconds(20));
    return version;
  }
  pid_t start(const std::string& session = "session 1", pid_t parent = 0) {
    return world_.start(session, parent);
  }
  void wait(BootTime time) { world_.pass_time(time); }
  void publish() { world_.newest++; }

  PassWorld world_{kShards};
  pid_t rank_ = 0;  // start_beside_a_part()
};

}  // namespace weightfs::fs
