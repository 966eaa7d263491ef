// MeddlingCoder: the CPU's chunk coder, with results that a test can count and falsify.
//
// Threads: all calls may run in parallel if the test's functions may.
#pragma once

#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>

#include "kernels/block/chunk_coder.hpp"
#include "kernels/dispatch/cpu_coder.hpp"

namespace weightfs::test {

class MeddlingCoder final : public kernels::ChunkCoder {
 public:
  std::function<void(kernels::EncodeJob&)> after_encode;  // may be empty
  std::function<void(kernels::DecodeJob&)> after_decode;
  bool has_logs = false;                                              // writes_logs()
  std::size_t batch_bytes = std::numeric_limits<std::size_t>::max();  // decode_batch_bytes()
  std::atomic<std::size_t> encoded = 0, decoded = 0, folded = 0;      // jobs
  std::atomic<std::size_t> distrusted = 0;                            // chunks
  std::atomic<std::size_t> encode_calls = 0, decode_calls = 0, fold_calls = 0;  // non-empty batches

  void encode(std::span<kernels::EncodeJob> jobs) override {
    real_->encode(jobs);
    encoded += jobs.size();
    if (!jobs.empty()) encode_calls++;
    if (!after_encode) return;
    for (kernels::EncodeJob& job : jobs) after_encode(job);
  }

  void decode(std::span<kernels::DecodeJob> jobs) override {
    real_->decode(jobs);
    decoded += jobs.size();
    if (!jobs.empty()) decode_calls++;
    if (!after_decode) return;
    for (kernels::DecodeJob& job : jobs) after_decode(job);
  }

  void fold(std::span<kernels::FoldJob> jobs) override {
    real_->fold(jobs);
    folded += jobs.size();
    if (!jobs.empty()) fold_calls++;
  }

  void distrust(std::string_view /*chunk*/) override { distrusted++; }

  [[nodiscard]] bool writes_logs() const noexcept override { return has_logs; }

  [[nodiscard]] std::size_t decode_batch_bytes() const noexcept override { return batch_bytes; }

  [[nodiscard]] std::string name() const override { return "meddling"; }

 private:
  std::unique_ptr<kernels::ChunkCoder> real_ = kernels::make_cpu_coder();
};

}  // namespace weightfs::test
