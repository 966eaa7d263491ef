// The chunk coder on a CUDA device: the assignment of lanes, and the handling of device failures.
//
// A failure loses nothing: the CPU repeats the whole call, or for jobs that are decoded in place
// does what the device has not done.  If the device still answers, the next call tries it again;
// otherwise it is given up.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <utility>

#include "kernels/cuda/lane.hpp"
#include "kernels/dispatch/cpu_coder.hpp"
#include "kernels/dispatch/gpu.hpp"

namespace weightfs::kernels {

namespace {

using cuda::check;
using cuda::CudaFailure;
using cuda::Lane;

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
    check(cudaSetDevice(options.device), "choosing the device");
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, options.device), "asking for its name");
    name_ = std::string("cuda: ") + properties.name;
    for (unsigned i = 0; i < std::max(options.lanes, 1U); ++i) {
      try {
        lanes_.add(std::make_unique<Lane>(options.lane_bytes));
      } catch (const CudaFailure&) {
        if (lanes_.is_empty()) throw;
        break;  // fewer lanes are slower, but not a failure
      }
    }
  }

  void encode(std::span<EncodeJob> jobs) override {
    work(&Lane::encode, &ChunkCoder::encode, jobs);
  }
  void decode(std::span<DecodeJob> jobs) override {
    std::vector<DecodeJob> left(jobs.begin(), jobs.end());  // a lane takes off what is done
    work(&Lane::decode, &ChunkCoder::decode, std::span(left));
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      jobs[i].is_decoded = left[i].is_decoded;
      jobs[i].hash = left[i].hash;
    }
  }

  void fold(std::span<FoldJob> jobs) override { work(&Lane::fold, &ChunkCoder::fold, jobs); }

  /// One trip is worthwhile for all that the caller has.
  [[nodiscard]] std::size_t decode_batch_bytes() const noexcept override {
    return is_given_up_ ? cpu_->decode_batch_bytes() : std::numeric_limits<std::size_t>::max();
  }

  [[nodiscard]] std::string name() const override { return is_given_up_ ? cpu_->name() : name_; }

 private:
  template <typename Job>
  void work(void (Lane::*on_gpu)(std::span<Job>), void (ChunkCoder::*on_cpu)(std::span<Job>),
            std::span<Job> jobs) {
    if (jobs.empty() || try_gpu(on_gpu, jobs)) return;
    ((*cpu_).*on_cpu)(jobs);
  }

  template <typename Job>
  bool try_gpu(void (Lane::*on_gpu)(std::span<Job>), std::span<Job> jobs) {
    if (is_given_up_) return false;
    try {
      check(cudaSetDevice(options_.device), "choosing the device");  // a per-thread setting
      const Loan lane(lanes_);
      try {
        ((*lane).*on_gpu)(jobs);
        return true;
      } catch (const CudaFailure& failure) {
        give_up_if(!(*lane).wait(), failure);
      }
    } catch (const CudaFailure& failure) {
      give_up_if(true, failure);
    }
    return false;
  }

  void give_up_if(bool is_lost, const CudaFailure& failure) {
    if (is_lost) is_given_up_ = true;
    say(failure);
  }

  void say(const CudaFailure& failure);

  const GpuOptions options_;
  const std::unique_ptr<ChunkCoder> cpu_;
  std::string name_;
  LanePool lanes_;
  std::atomic<bool> is_given_up_ = false;
  std::atomic<bool> has_said_ = false;
};

std::string words_for(const CudaFailure& failure, int device) {
  return "cuda: device " + std::to_string(device) + ": " + failure.why + " (" + failure.doing +
         "); the CPU does the work";
}

void GpuCoder::say(const CudaFailure& failure) {
  if (!has_said_.exchange(true) && options_.on_failure)
    options_.on_failure(words_for(failure, options_.device));
}

}  // namespace

GpuDevices find_gpus() {
  GpuDevices found;
  try {
    int count = 0;
    check(cudaGetDeviceCount(&count), "looking for devices");
    for (int number = 0; number < count; ++number) {
      cudaDeviceProp properties;
      check(cudaGetDeviceProperties(&properties, number), "asking for its name");
      found.devices.push_back({number, properties.name, properties.totalGlobalMem});
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
    if (options.on_failure) options.on_failure(words_for(failure, options.device));
    return make_cpu_coder();
  }
}

}  // namespace weightfs::kernels
