// CUDA check: holds every kernel to the scalar reference, and what drives them to the CPU's coder,
// without a test framework, so that the same program runs in the emulator
// (tests/support/cuda_on_cpu) and on a bare machine with a device.
//
// A check is a function that makes cases from a seed, runs kernels on them and reports each case
// that came out wrong.  Each theme has its own file, tests/kernels/cuda_check_*.cpp, which gives a
// list of checks; cuda_check.cpp runs them all.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/block/block.hpp"
#include "kernels/block/scratch.hpp"
#include "tests/support/random.hpp"

namespace weightfs::cuda_check {

using kernels::Kind;
using Bytes = std::vector<std::uint8_t>;

inline constexpr std::array kKinds = {Kind::u8,  Kind::bf16,    Kind::f16,
                                      Kind::f32, Kind::f8_e4m3, Kind::f8_e5m2};

inline std::uint32_t elements_of(Kind kind, const Bytes& block) {
  return static_cast<std::uint32_t>(block.size() / kernels::width_bytes(kind));
}
inline kernels::ByteSpan as_span(const Bytes& bytes) {
  return std::as_bytes(std::span<const std::uint8_t>(bytes));
}
inline std::span<std::byte> as_writable_span(Bytes& bytes) {
  return std::as_writable_bytes(std::span<std::uint8_t>(bytes));
}
inline Bytes to_bytes(const std::vector<std::byte>& bytes) {
  const auto* const begin = reinterpret_cast<const std::uint8_t*>(bytes.data());
  return {begin, begin + bytes.size()};
}

/// One check with one seed.
class Run {
 public:
  Run(std::uint64_t seed, bool is_quick, std::string_view data)
      : rng_(seed), is_quick_(is_quick), data_(data) {}

  test::Random& rng() { return rng_; }
  /// A number below `bound`.
  std::size_t random(std::size_t bound) { return rng_() % bound; }
  /// Fewer and smaller cases: for sanitizers.
  [[nodiscard]] bool is_quick() const { return is_quick_; }
  /// The folder tests/data.
  [[nodiscard]] const std::string& data() const { return data_; }

  /// Counts a case; prints `what` if it came out wrong.
  void expect(bool is_right, const std::string& what) {
    ++cases_;
    if (is_right) return;
    if (++wrong_ <= kPrintedMax) std::printf("    wrong: %s\n", what.c_str());
  }
  [[nodiscard]] std::size_t cases() const { return cases_; }
  [[nodiscard]] std::size_t wrong() const { return wrong_; }

 private:
  static constexpr std::size_t kPrintedMax = 10;
  test::Random rng_;
  bool is_quick_;
  std::string data_;
  std::size_t cases_ = 0, wrong_ = 0;
};

struct Check {
  const char* name;
  void (*run)(Run&);
};

// One for each theme.
std::vector<Check> decode_checks();  // cuda_check_decode.cpp
std::vector<Check> encode_checks();  // cuda_check_encode.cpp
std::vector<Check> patch_checks();   // cuda_check_patch.cpp
std::vector<Check> lane_checks();    // cuda_check_lanes.cpp

// Cases ------------------------------------------------------------------------------------------

/// What old blocks look like.
enum class Style {
  random,  // every bit random: infinities, NaNs, zeros, both signs
  real,    // weights: most exponents within a few of each other
  equal,   // one value throughout: one class has all elements
};
inline constexpr std::array kStyles = {Style::random, Style::real, Style::equal};

Bytes make_block(Kind kind, std::size_t elements, Style style, test::Random& rng);

/// What happens to an element that changes.
enum class Step {
  unit,  // the next number up or down
  few,   // up to 9 further
  any,   // any bits
};
inline constexpr std::array kSteps = {Step::unit, Step::few, Step::any};

/// A copy in which each element changes with probability `share`.
Bytes change_block(Kind kind, const Bytes& block, double share, Step step, test::Random& rng);

/// Random changes of a coded block: bits flipped, bytes set, cut off, appended or repeated.
Bytes damage(const Bytes& coded, test::Random& rng);

/// Sizes around those of words, tiles and groups, or any up to some thousands; a share of changed
/// elements.
std::size_t any_size(Run& run);
double any_share(Run& run);
inline Kind any_kind(Run& run) { return kKinds.at(run.random(kKinds.size())); }
inline Style any_style(Run& run) { return kStyles.at(run.random(kStyles.size())); }
inline Step any_step(Run& run) { return kSteps.at(run.random(kSteps.size())); }

/// For the scalar reference.
inline kernels::Scratch& reference_scratch() {
  static kernels::Scratch scratch;
  return scratch;
}

/// "bf16, 1000 elements".
std::string describe(Kind kind, std::size_t elements);

// Device memory ----------------------------------------------------------------------------------

inline void require(cudaError_t error) {
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(error));
  }
}

/// Owns device memory for `count` values, and not a byte more: the sanitizers see what reads past
/// it.
template <typename Value>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t count) : count_(count) {
    require(cudaMalloc(&data_dev_, count * sizeof(Value)));
  }
  explicit DeviceArray(std::span<const Value> content) : DeviceArray(content.size()) {
    if (content.empty()) return;
    require(cudaMemcpy(data_dev_, content.data(), content.size_bytes(), cudaMemcpyHostToDevice));
  }
  DeviceArray(DeviceArray&& other) noexcept
      : data_dev_(std::exchange(other.data_dev_, nullptr)),
        count_(std::exchange(other.count_, 0)) {}
  DeviceArray& operator=(DeviceArray&&) = delete;
  ~DeviceArray() { cudaFree(data_dev_); }

  Value* data_dev() { return data_dev_; }
  [[nodiscard]] std::size_t size() const { return count_; }

  /// Waits for the device.
  [[nodiscard]] std::vector<Value> download() const {
    std::vector<Value> content(count_);
    if (count_ == 0) return content;
    require(cudaMemcpy(content.data(), data_dev_, count_ * sizeof(Value), cudaMemcpyDeviceToHost));
    return content;
  }

 private:
  Value* data_dev_ = nullptr;
  std::size_t count_ = 0;
};

/// Coded bytes on the device, at an address of any alignment; they end where the memory ends.
class CodedArray {
 public:
  CodedArray(const Bytes& coded, std::size_t misalignment)
      : size_(coded.size()), misalignment_(misalignment), memory_(shifted(coded, misalignment)) {}

  const std::uint8_t* data_dev() { return memory_.data_dev() + misalignment_; }
  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(size_); }

 private:
  static DeviceArray<std::uint8_t> shifted(const Bytes& coded, std::size_t by) {
    Bytes bytes(by + coded.size());
    std::copy(coded.begin(), coded.end(), bytes.begin() + static_cast<std::ptrdiff_t>(by));
    return DeviceArray<std::uint8_t>(std::span<const std::uint8_t>(bytes));
  }

  std::size_t size_, misalignment_;
  DeviceArray<std::uint8_t> memory_;
};

}  // namespace weightfs::cuda_check
