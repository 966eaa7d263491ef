// The chunk coder on a CUDA device: the assignment of lanes, and the handling of device failures.
//
// A failure loses nothing: the CPU repeats the whole call, or for jobs that are decoded in place
// does what the device has not done.  If the device still answers, the next call tries it again;
// otherwise it is given up, and so it is if it fails every time.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <utility>

#include "kernels/cuda/lane.hpp"
#include "kernels/dispatch/cpu_coder.hpp"
#include "kernels/dispatch/gpu.hpp"
#include "kernels/dispatch/hash.hpp"

namespace weightfs::kernels {

namespace {

using cuda::check;
using cuda::CudaFailure;
using cuda::Lane;

constexpr int kMajorMin = 8;             // the kernels add up a warp by __reduce_add_sync
constexpr unsigned kFailuresInARow = 3;  // calls; then the device is given up

cudaDeviceProp properties_of(int device) {
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, device), "asking for its name");
  return properties;
}

/// Why no build of the kernels runs on such a device; empty: one may.
std::string why_not(const cudaDeviceProp& properties) {
  if (properties.major >= kMajorMin) return {};
  return "its compute capability is " + std::to_string(properties.major) + "." +
         std::to_string(properties.minor) + ", and the kernels need " + std::to_string(kMajorMin) +
         ".0";
}

/// Lanes that are not in use.
///
/// Threads: all.
class LanePool {
 public:
  void add(std::unique_ptr<Lane> lane) {
    free_.push_back(lane.get());
    lanes_.push_back(std::move(lane));
  }
  [[nodiscard]] bool is_empty() const { return lanes_.empty(); }

  Lane* borrow() {
    std::unique_lock lock(mutex_);
    is_free_.wait(lock, [&] { return !free_.empty(); });
    Lane* const lane = free_.back();
    free_.pop_back();
    return lane;
  }
  void give_back(Lane* lane) {
    {
      const std::scoped_lock lock(mutex_);
      free_.push_back(lane);  // never reallocates: it held as many before
    }
    is_free_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable is_free_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<Lane*> free_;
};

/// Borrows a lane for one call.  However the call ends, the lane is returned with nothing queued.
class Loan {
 public:
  explicit Loan(LanePool& pool) : pool_(pool), lane_(pool.borrow()) {}
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;
  ~Loan() {
    lane_->wait();
    pool_.give_back(lane_);
  }

  Lane& operator*() const { return *lane_; }

 private:
  LanePool& pool_;
  Lane* lane_;
};

class GpuCoder final : public ChunkCoder {
 public:
  /// Throws CudaFailure if not even one lane can be made.
  explicit GpuCoder(const GpuOptions& options) : options_(options), cpu_(make_cpu_coder()) {
    const cudaDeviceProp properties = properties_of(options.device);
    name_ = std::string("cuda: ") + properties.name;
    if (std::string why = why_not(properties); !why.empty())
      throw CudaFailure{"looking at the device", std::move(why)};
    check(cudaSetDevice(options.device), "choosing the device");
    cuda::check_kernels();
    for (unsigned i = 0; i < std::max(options.lanes, 1U); ++i) {
      try {
        lanes_.add(std::make_unique<Lane>(options.lane_bytes, hash_chunk));
      } catch (const CudaFailure&) {
        if (lanes_.is_empty()) throw;
        break;  // fewer lanes are slower, but not a failure
      }
    }
  }

  void encode(std::span<EncodeJob> jobs) override {
    work(&Lane::encode, &ChunkCoder::encode, jobs, encode_failures_);
  }
  void decode(std::span<DecodeJob> jobs) override {
    std::vector<DecodeJob> left(jobs.begin(), jobs.end());  // a lane takes off what is done
    const bool is_done = try_gpu(&Lane::decode, std::span(left), decode_failures_);
    for (std::size_t i = 0; i < jobs.size(); ++i)
      jobs[i].by_gpu = is_done || left[i].steps.size() < jobs[i].steps.size();
    if (!is_done) cpu_->decode(left);
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      jobs[i].is_decoded = left[i].is_decoded;
      jobs[i].hash = left[i].hash;
      jobs[i].old_hash = left[i].old_hash;
    }
  }

  /// Those of the CPU, once that does all the work.
  [[nodiscard]] bool writes_logs() const noexcept override { return is_given_up_; }

  void fold(std::span<FoldJob> jobs) override {
    work(&Lane::fold, &ChunkCoder::fold, jobs, fold_failures_);
  }

  void distrust(std::string_view chunk) override {
    give_up({"decoding blocks", std::string(chunk) + " came out wrong"});
  }

  /// One trip is worthwhile for all that the caller has.
  [[nodiscard]] std::size_t decode_batch_bytes() const noexcept override {
    return is_given_up_ ? cpu_->decode_batch_bytes() : std::numeric_limits<std::size_t>::max();
  }

  [[nodiscard]] std::string name() const override { return is_given_up_ ? cpu_->name() : name_; }

 private:
  template <typename Job>
  void work(void (Lane::*on_gpu)(std::span<Job>), void (ChunkCoder::*on_cpu)(std::span<Job>),
            std::span<Job> jobs, std::atomic<unsigned>& failures_in_a_row) {
    if (!try_gpu(on_gpu, jobs, failures_in_a_row)) ((*cpu_).*on_cpu)(jobs);
  }

  /// Returns: false if the CPU must do it, or the rest of it.
  template <typename Job>
  bool try_gpu(void (Lane::*on_gpu)(std::span<Job>), std::span<Job> jobs,
               std::atomic<unsigned>& failures_in_a_row) {
    if (jobs.empty()) return true;
    if (is_given_up_) return false;
    try {
      check(cudaSetDevice(options_.device), "choosing the device");  // a per-thread setting
      const Loan lane(lanes_);
      try {
        ((*lane).*on_gpu)(jobs);
        failures_in_a_row = 0;
        return true;
      } catch (const CudaFailure& failure) {
        if (!(*lane).wait() || ++failures_in_a_row >= kFailuresInARow) {
          give_up(failure);
        } else {
          warn(failure);
        }
      }
    } catch (const CudaFailure& failure) {
      give_up(failure);
    }
    return false;
  }

  void warn(const CudaFailure& failure);
  void give_up(const CudaFailure& failure);

  const GpuOptions options_;
  const std::unique_ptr<ChunkCoder> cpu_;
  std::string name_;
  LanePool lanes_;
  // In a row, each: what always fails is not hidden by what works.
  std::atomic<unsigned> encode_failures_ = 0, decode_failures_ = 0, fold_failures_ = 0;
  std::atomic<bool> is_given_up_ = false;
  std::atomic<bool> has_warned_ = false;
};

/// Says that a call failed, or that the device is given up.
void say(const GpuOptions& options, const CudaFailure& failure, bool is_given_up) {
  if (!options.on_failure) return;
  options.on_failure("cuda: device " + std::to_string(options.device) + ": " + failure.why + " (" +
                         failure.doing + "); the CPU does " +
                         (is_given_up ? "the work" : "it, and the device is tried again"),
                     is_given_up);
}

void GpuCoder::warn(const CudaFailure& failure) {
  if (!is_given_up_ && !has_warned_.exchange(true)) say(options_, failure, false);
}

void GpuCoder::give_up(const CudaFailure& failure) {
  if (!is_given_up_.exchange(true)) say(options_, failure, true);
}

}  // namespace

GpuDevices find_gpus() {
  GpuDevices found;
  try {
    int count = 0;
    check(cudaGetDeviceCount(&count), "looking for devices");
    for (int number = 0; number < count; ++number) {
      const cudaDeviceProp properties = properties_of(number);
      found.devices.push_back(
          {number, properties.name, properties.totalGlobalMem, why_not(properties)});
    }
    if (found.devices.empty()) found.why = "cuda: no device";
  } catch (const CudaFailure& failure) {
    found.devices.clear();
    found.why = "cuda: " + failure.why + " (" + failure.doing + ")";
  }
  return found;
}

std::unique_ptr<ChunkCoder> make_gpu_coder(const GpuOptions& options) {
  try {
    return std::make_unique<GpuCoder>(options);
  } catch (const CudaFailure& failure) {
    say(options, failure, true);
    return make_cpu_coder();
  }
}

}  // namespace weightfs::kernels
