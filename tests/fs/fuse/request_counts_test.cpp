#include "fs/fuse/request_counts.hpp"

#include <gtest/gtest.h>
#include <linux/fuse.h>

#include <cerrno>
#include <cstddef>
#include <span>
#include <thread>
#include <vector>

namespace weightfs::fs {
namespace {

void ask(RequestCounts& counts, std::uint64_t unique, std::uint32_t op) {
  fuse_in_header header{};
  header.len = sizeof header;
  header.unique = unique;
  header.opcode = op;
  counts.asked(std::as_bytes(std::span(&header, 1)));
}

void answer_with(RequestCounts& counts, std::uint64_t unique, int error, std::uint32_t bytes = 0) {
  fuse_out_header header{};
  header.len = static_cast<std::uint32_t>(sizeof header) + bytes;
  header.unique = unique;
  header.error = -error;
  const iovec part{.iov_base = &header, .iov_len = sizeof header};
  counts.answered(std::span(&part, 1));
}

TEST(RequestCounts, CountsAnswersByOperationAndErrno) {
  RequestCounts counts;
  ask(counts, 2, FUSE_READ);
  ask(counts, 4, FUSE_READ);
  ask(counts, 6, FUSE_LOOKUP);
  EXPECT_TRUE(counts.list().empty());
  answer_with(counts, 4, 0, 4096);
  answer_with(counts, 6, ENOENT);
  answer_with(counts, 2, EIO);
  const std::vector<RequestCount> expected{
      {"lookup", "ENOENT", 1}, {"read", "ok", 1}, {"read", "EIO", 1}};
  EXPECT_EQ(counts.list(), expected);
  EXPECT_EQ(counts.served_bytes(), 4096u);
}

TEST(RequestCounts, WhatHasNoAnswerOrWasNotAskedIsNotCounted) {
  RequestCounts counts;
  ask(counts, 2, FUSE_FORGET);
  answer_with(counts, 2, 0);
  answer_with(counts, 8, 0);  // never asked
  answer_with(counts, 0, 3);  // a notice
  ask(counts, 10, FUSE_OPEN);
  answer_with(counts, 10, 0);
  answer_with(counts, 10, 0);  // once
  counts.asked({});
  counts.answered({});
  const std::vector<RequestCount> expected{{"open", "ok", 1}};
  EXPECT_EQ(counts.list(), expected);
}

TEST(RequestCounts, StrangeNumbersAreOther) {
  RequestCounts counts;
  ask(counts, 2, 63);
  answer_with(counts, 2, 130);
  ask(counts, 4, 4096);
  answer_with(counts, 4, 100'000);
  ask(counts, 6, 4096);
  answer_with(counts, 6, 100'001);
  for (const RequestCount& one : counts.list()) EXPECT_EQ(one.op, "other");
  EXPECT_EQ(counts.list().size(), 2u);
}

TEST(RequestCounts, ThreadsDoNotLoseAny) {
  RequestCounts counts;
  {
    std::vector<std::jthread> threads;
    for (std::uint64_t thread = 0; thread < 4; thread++) {
      threads.emplace_back([&counts, thread] {
        for (std::uint64_t i = 0; i < 5000; i++) {
          const std::uint64_t unique = 2 * (4 * i + thread + 1);
          ask(counts, unique, FUSE_GETATTR);
          answer_with(counts, unique, 0);
        }
      });
    }
  }
  const std::vector<RequestCount> expected{{"getattr", "ok", 20'000}};
  EXPECT_EQ(counts.list(), expected);
}

}  // namespace
}  // namespace weightfs::fs
