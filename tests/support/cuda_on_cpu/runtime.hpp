// The part of the CUDA runtime API that host code uses: memory, streams, events, launches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "scheduler.hpp"

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorLaunchFailure = 719,
};
enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
struct cudaFuncAttributes {};
inline constexpr unsigned cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2;

struct cudaDeviceProp {
  char name[256] = "CUDA on CPU";
  int major = 9, minor = 0, multiProcessorCount = 1, warpSize = 32, maxThreadsPerBlock = 1024;
  std::size_t totalGlobalMem = std::size_t{1} << 34, sharedMemPerBlock = 48 << 10,
              sharedMemPerBlockOptin = 227 << 10;
};

namespace cuda_on_cpu {

/// Queued work, oldest first.
struct Stream {
  std::deque<std::function<void()>> pending;
  std::uint64_t done = 0;

  void run_until(std::uint64_t count) {
    while (done < count) {
      const std::function<void()> work = std::move(pending.front());
      pending.pop_front();
      ++done;
      work();
    }
  }
  void run_all() { run_until(done + pending.size()); }
};

struct Event {
  Stream* stream = nullptr;
  std::uint64_t position = 0;  // the event occurs when the stream has done this much
};

struct Allocation {
  std::size_t size;
  bool on_device;
};

/// The device's memory, streams and settings.
struct Runtime {
  std::recursive_mutex mutex;  // held by every call of the API
  std::map<std::uintptr_t, Allocation> allocations;
  std::map<Stream*, std::unique_ptr<Stream>> streams;
  Stream default_stream;
  std::map<const void*, int> shared_limits;  // by kernel, if the host raised it
  cudaError_t last_error = cudaSuccess;
  std::function<cudaError_t(const char* call)>
      fault;                     // the error of a call, or of a kernel by its name
  std::size_t calls_failed = 0;  // by `fault`
  std::function<void(cudaMemcpyKind kind, std::span<std::byte> copied)>
      after_copy;             // of an asynchronous one; may change what it brought
  cudaDeviceProp properties;  // of the device

  Runtime() {
    const char* seed = std::getenv("CUDA_ON_CPU_SEED");
    scheduler().reseed(seed != nullptr ? std::strtoull(seed, nullptr, 10) : 1);
  }

  cudaError_t note(cudaError_t error) {
    if (error != cudaSuccess) last_error = error;
    return error;
  }

  Stream& stream(Stream* handle) { return handle != nullptr ? *handle : default_stream; }

  void run_all() {
    default_stream.run_all();
    for (auto& [handle, stream] : streams) stream->run_all();
  }

  const Allocation* find(const void* pointer) const {
    auto after = allocations.upper_bound(reinterpret_cast<std::uintptr_t>(pointer));
    if (after == allocations.begin()) return nullptr;
    --after;
    return reinterpret_cast<std::uintptr_t>(pointer) - after->first < after->second.size
               ? &after->second
               : nullptr;
  }

  bool is_device(const void* pointer) const {
    const Allocation* const allocation = find(pointer);
    return allocation != nullptr && allocation->on_device;
  }
};

inline Runtime& runtime() {
  static Runtime instance;
  return instance;
}

/// One call of the API at a time.
struct Lock : std::lock_guard<std::recursive_mutex> {
  Lock() : lock_guard(runtime().mutex) {}
};

inline void reseed(std::uint64_t seed) {
  const Lock lock;
  scheduler().reseed(seed);
}

/// Asks the test whether this call should fail.  Launches are identified by the kernel's name.
inline cudaError_t injected(const char* call) {
  const cudaError_t error = runtime().fault ? runtime().fault(call) : cudaSuccess;
  runtime().calls_failed += error != cudaSuccess;
  return runtime().note(error);
}

/// While one of these lives, device memory may be accessed.
class DeviceAccess {
 public:
  DeviceAccess() { apply(sanitizer::unpoison); }
  ~DeviceAccess() { apply(sanitizer::poison); }
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;

 private:
  template <typename Change>
  static void apply(Change change) {
    for (const auto& [address, allocation] : runtime().allocations)
      if (allocation.on_device) change(reinterpret_cast<const void*>(address), allocation.size);
  }
};

inline cudaError_t allocate(void** pointer, std::size_t size, bool on_device) {
  const Lock lock;
  *pointer = nullptr;
  if (const cudaError_t error = injected(on_device ? "cudaMalloc" : "cudaMallocHost")) return error;
  if (size == 0) return cudaSuccess;
  if (posix_memalign(pointer, 256, size) != 0) return runtime().note(cudaErrorMemoryAllocation);
  scheduler().fill(*pointer, size);
  runtime().allocations[reinterpret_cast<std::uintptr_t>(*pointer)] = {size, on_device};
  if (on_device) sanitizer::poison(*pointer, size);
  return cudaSuccess;
}

inline cudaError_t release(void* pointer) {
  const Lock lock;
  runtime().run_all();
  if (pointer == nullptr) return cudaSuccess;
  const auto found = runtime().allocations.find(reinterpret_cast<std::uintptr_t>(pointer));
  if (found == runtime().allocations.end()) return runtime().note(cudaErrorInvalidValue);
  sanitizer::unpoison(pointer, found->second.size);
  runtime().allocations.erase(found);
  std::free(pointer);
  return cudaSuccess;
}

}  // namespace cuda_on_cpu

using cudaStream_t = cuda_on_cpu::Stream*;
using cudaEvent_t = cuda_on_cpu::Event*;

struct cudaLaunchAttribute {};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  std::size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  cudaLaunchAttribute* attrs = nullptr;
  unsigned numAttrs = 0;
};

// Memory ---------------------------------------------------------------------------------------

template <typename T>
cudaError_t cudaMalloc(T** pointer, std::size_t size) {
  return cuda_on_cpu::allocate(reinterpret_cast<void**>(pointer), size, /*on_device=*/true);
}
template <typename T>
cudaError_t cudaMallocHost(T** pointer, std::size_t size) {
  return cuda_on_cpu::allocate(reinterpret_cast<void**>(pointer), size, /*on_device=*/false);
}
inline cudaError_t cudaFree(void* pointer) { return cuda_on_cpu::release(pointer); }
inline cudaError_t cudaFreeHost(void* pointer) { return cuda_on_cpu::release(pointer); }

/// Deferred if both ends are the runtime's own (device or pinned) memory; otherwise done before it
/// returns.
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t size,
                                   cudaMemcpyKind kind, cudaStream_t stream = nullptr) {
  const cuda_on_cpu::Lock lock;
  if (const cudaError_t error = cuda_on_cpu::injected("cudaMemcpyAsync")) return error;
  cuda_on_cpu::Runtime& runtime = cuda_on_cpu::runtime();
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  const bool as_told = runtime.is_device(to) == to_device && runtime.is_device(from) == from_device;
  if (size > 0 && kind != cudaMemcpyDefault && !as_told) return runtime.note(cudaErrorInvalidValue);
  runtime.stream(stream).pending.emplace_back([=] {
    const cuda_on_cpu::DeviceAccess access;
    if (size > 0) std::memmove(to, from, size);
    const auto& after_copy = cuda_on_cpu::runtime().after_copy;
    if (after_copy) after_copy(kind, {static_cast<std::byte*>(to), size});
  });
  if (runtime.find(to) == nullptr || runtime.find(from) == nullptr)
    runtime.stream(stream).run_all();
  return cudaSuccess;
}

inline cudaError_t cudaMemcpy(void* to, const void* from, std::size_t size, cudaMemcpyKind kind) {
  const cuda_on_cpu::Lock lock;
  cuda_on_cpu::runtime().run_all();
  const cudaError_t error = cudaMemcpyAsync(to, from, size, kind);
  cuda_on_cpu::runtime().run_all();
  return error;
}

inline cudaError_t cudaMemsetAsync(void* to, int value, std::size_t size,
                                   cudaStream_t stream = nullptr) {
  const cuda_on_cpu::Lock lock;
  cuda_on_cpu::runtime().stream(stream).pending.emplace_back([=] {
    const cuda_on_cpu::DeviceAccess access;
    if (size > 0) std::memset(to, value, size);
  });
  return cudaSuccess;
}

inline cudaError_t cudaMemset(void* to, int value, std::size_t size) {
  const cuda_on_cpu::Lock lock;
  const cudaError_t error = cudaMemsetAsync(to, value, size);
  cuda_on_cpu::runtime().run_all();
  return error;
}

// Streams and events ---------------------------------------------------------------------------

inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  const cuda_on_cpu::Lock lock;
  if (const cudaError_t error = cuda_on_cpu::injected("cudaStreamCreate")) return error;
  auto made = std::make_unique<cuda_on_cpu::Stream>();
  *stream = made.get();
  cuda_on_cpu::runtime().streams[*stream] = std::move(made);
  return cudaSuccess;
}
inline cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, 0);
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const cuda_on_cpu::Lock lock;
  cuda_on_cpu::runtime().stream(stream).run_all();
  if (const cudaError_t error = cuda_on_cpu::injected("cudaStreamSynchronize")) return error;
  return cudaSuccess;
}
inline cudaError_t cudaDeviceSynchronize() {
  const cuda_on_cpu::Lock lock;
  cuda_on_cpu::runtime().run_all();
  return cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const cuda_on_cpu::Lock lock;
  stream->run_all();
  cuda_on_cpu::runtime().streams.erase(stream);
  return cudaSuccess;
}

inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  *event = new cuda_on_cpu::Event();
  return cudaSuccess;
}
inline cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, 0);
}
inline cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr) {
  const cuda_on_cpu::Lock lock;
  event->stream = &cuda_on_cpu::runtime().stream(stream);
  event->position = event->stream->done + event->stream->pending.size();
  return cudaSuccess;
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const cuda_on_cpu::Lock lock;
  if (event->stream != nullptr) event->stream->run_until(event->position);
  return cudaSuccess;
}
inline cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                       unsigned /*flags*/ = 0) {
  const cuda_on_cpu::Lock lock;
  cuda_on_cpu::runtime().stream(stream).pending.emplace_back(
      [recorded = *event]() mutable { cudaEventSynchronize(&recorded); });
  return cudaSuccess;
}

// Launches, errors, properties -----------------------------------------------------------------

namespace cuda_on_cpu {

template <typename T>
void check_argument(const char* kernel, const T& argument) {
  if constexpr (std::is_pointer_v<T>)
    if (argument != nullptr && runtime().find(argument) == nullptr)
      throw Error(std::string("kernel ") + kernel + ": an argument points to host memory");
}

template <typename... Parameters, typename... Arguments>
cudaError_t launch(const char* name, const cudaLaunchConfig_t* config,
                   void (*kernel)(Parameters...), Arguments&&... arguments) {
  const Lock lock;
  if (const cudaError_t error = injected(name)) return error;
  const dim3 grid = config->gridDim, block = config->blockDim;
  const auto threads = std::uint64_t{block.x} * block.y * block.z;
  const bool in_range = grid.x > 0 && grid.y > 0 && grid.z > 0 && grid.x < 1u << 31 &&
                        grid.y < 1u << 16 && grid.z < 1u << 16;
  if (!in_range || threads == 0 || threads > 1024)
    return runtime().note(cudaErrorInvalidConfiguration);
  const auto limit = runtime().shared_limits.find(reinterpret_cast<const void*>(kernel));
  const int shared_max = limit != runtime().shared_limits.end() ? limit->second : 48 << 10;
  if (config->dynamicSmemBytes > static_cast<std::size_t>(shared_max))
    return runtime().note(cudaErrorInvalidValue);

  std::tuple<Parameters...> packed(std::forward<Arguments>(arguments)...);
  std::apply([&](const auto&... each) { (check_argument(name, each), ...); }, packed);
  const Launch work{name, grid, block, config->dynamicSmemBytes,
                    [=] { std::apply(kernel, packed); }};
  runtime().stream(config->stream).pending.emplace_back([work] {
    const DeviceAccess access;
    scheduler().run_grid(work);
  });
  return cudaSuccess;
}

}  // namespace cuda_on_cpu

#define cudaLaunchKernelEx(config, kernel, ...) \
  cuda_on_cpu::launch(#kernel, config, kernel __VA_OPT__(, ) __VA_ARGS__)

template <typename... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute /*attribute*/,
                                 int value) {
  const cuda_on_cpu::Lock lock;
  if (value > 227 << 10) return cuda_on_cpu::runtime().note(cudaErrorInvalidValue);
  cuda_on_cpu::runtime().shared_limits[reinterpret_cast<const void*>(kernel)] = value;
  return cudaSuccess;
}

template <typename... Parameters>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* /*attributes*/,
                                  void (* /*kernel*/)(Parameters...)) {
  const cuda_on_cpu::Lock lock;
  return cuda_on_cpu::injected("cudaFuncGetAttributes");
}

inline cudaError_t cudaPeekAtLastError() {
  const cuda_on_cpu::Lock lock;
  return cuda_on_cpu::runtime().last_error;
}
inline cudaError_t cudaGetLastError() {
  const cuda_on_cpu::Lock lock;
  return std::exchange(cuda_on_cpu::runtime().last_error, cudaSuccess);
}
inline const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInsufficientDriver:
      return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorNoKernelImageForDevice:
      return "no kernel image is available for execution on the device";
    case cudaErrorLaunchFailure:
      return "unspecified launch failure";
  }
  return "unknown error";
}
inline cudaError_t cudaGetDeviceCount(int* count) {
  const cuda_on_cpu::Lock lock;
  if (const cudaError_t error = cuda_on_cpu::injected("cudaGetDeviceCount")) return error;
  *count = 1;
  return cudaSuccess;
}
inline cudaError_t cudaSetDevice(int /*device*/) {
  const cuda_on_cpu::Lock lock;
  return cuda_on_cpu::injected("cudaSetDevice");
}
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int /*device*/) {
  *properties = cuda_on_cpu::runtime().properties;
  return cudaSuccess;
}
