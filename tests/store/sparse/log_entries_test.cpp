#include "store/sparse/log_entries.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "kernels/dispatch/cpu_coder.hpp"
#include "tests/support/random.hpp"
#include "tests/support/repository_builder.hpp"

namespace weightfs {
namespace {

/// By comparing, element by element.
SparseEntries compared(const SparseElement& element, const Bytes& before, const Bytes& after) {
  SparseEntries entries;
  const std::size_t width = element.width_bytes, step = element.by_byte ? 1 : width;
  for (std::size_t at = 0; at < after.size(); at += step) {
    if (std::memcmp(&before[at], &after[at], step) == 0) continue;
    entries.changed++;
    entries.positions.push_back(static_cast<std::uint32_t>(at / width));
  }
  if (element.by_byte && entries.changed >= after.size() / width) {
    entries.positions.clear();
    for (std::uint32_t i = 0; i < after.size() / width; i++) entries.positions.push_back(i);
  }
  put_values(width, after, entries.positions, entries.values);
  put_values(width, before, entries.positions, entries.old);
  return entries;
}

TEST(LogEntriesTest, AreThoseOfAComparisonForEveryDtypeAndSeveralSteps) {
  test::Random rng = test::make_rng();
  const auto coder = kernels::make_cpu_coder();
  kernels::Scratch scratch;
  for (int number = 0; number <= static_cast<int>(Dtype::u64); number++) {
    const auto dtype = static_cast<Dtype>(number);
    const SparseElement element = sparse_element_of(dtype);
    for (const double share : {0.0, 0.001, 0.3, 1.0}) {
      for (const std::size_t step_count : {1U, 3U}) {
        SCOPED_TRACE(::testing::Message()
                     << to_string(dtype) << ", " << share << ", " << step_count);
        test::TestTensor tensor = test::random_tensor("x", dtype, {60'000, 2}, rng);
        const kernels::Kind kind = kind_of(dtype);
        const Bytes before = tensor.data;
        Bytes older = before;
        std::vector<kernels::EncodeJob> coded(step_count);
        for (kernels::EncodeJob& job : coded) {
          test::nudge(tensor, share, rng);
          const Bytes newer = tensor.data;
          job.kind = kind;
          job.old_chunk = older;
          job.new_chunk = newer;
          coder->encode({&job, 1});
          ASSERT_TRUE(job.is_verified);
          older = newer;
        }
        std::vector<kernels::CodedChunk> steps;
        for (const kernels::EncodeJob& job : coded) steps.push_back({job.lengths, job.coded});
        kernels::ChangeLog log;
        Bytes chunk = before;
        kernels::DecodeJob job{
            .kind = kind, .old_chunk = chunk, .steps = steps, .new_chunk = chunk, .log = &log};
        coder->decode({&job, 1});
        ASSERT_TRUE(job.is_decoded);
        ASSERT_TRUE(chunk == older);
        const SparseEntries wanted = compared(element, before, chunk);
        for (const OldValues old : {OldValues::without, OldValues::with}) {
          SparseEntries found;
          ASSERT_TRUE(take_log_entries(kind, element, log, chunk, old, scratch, found));
          EXPECT_EQ(found.changed, wanted.changed);
          EXPECT_TRUE(found.positions == wanted.positions);
          EXPECT_TRUE(found.values == wanted.values);
          if (old == OldValues::with) {
            EXPECT_TRUE(found.old == wanted.old);
          }
        }
      }
    }
  }
}

TEST(LogEntriesTest, AMalformedLogGivesNone) {
  test::Random rng = test::make_rng();
  const auto coder = kernels::make_cpu_coder();
  kernels::Scratch scratch;
  test::TestTensor tensor = test::random_tensor("x", Dtype::bf16, {300}, rng);
  const Bytes before = tensor.data;
  test::nudge(tensor, 0.1, rng);
  Bytes after = tensor.data;
  kernels::ChangeLog log;
  kernels::EncodeJob job;
  job.kind = kernels::Kind::bf16;
  job.old_chunk = before;
  job.new_chunk = after;
  job.log = &log;
  coder->encode({&job, 1});
  ASSERT_TRUE(job.is_verified);
  const auto is_good = [&](const kernels::ChangeLog& one) {
    SparseEntries entries;
    return take_log_entries(kernels::Kind::bf16, sparse_element_of(Dtype::bf16), one, after,
                            OldValues::with, scratch, entries);
  };
  EXPECT_TRUE(is_good(log));
  kernels::ChangeLog cut = log;
  cut.bytes.pop_back();
  EXPECT_FALSE(is_good(cut));
  kernels::ChangeLog longer = log;
  longer.bytes.push_back({});
  EXPECT_FALSE(is_good(longer));
  kernels::ChangeLog more_blocks = log;
  more_blocks.lengths.push_back(0);
  EXPECT_FALSE(is_good(more_blocks));
  for (int i = 0; i < 1000; i++) {  // whatever it says, nothing is read or written elsewhere
    kernels::ChangeLog damaged = log;
    damaged.bytes[rng() % damaged.bytes.size()] ^= static_cast<std::byte>(1U << rng() % 8);
    static_cast<void>(is_good(damaged));
  }
}

}  // namespace
}  // namespace weightfs
