// Coder choice: the coder for this process, according to WEIGHTFS_KERNELS and --gpu.
//
// A GPU is used only on request, since it belongs to the engine.  If it cannot be used the CPU does
// the work; this is logged once (a command logs to stderr) and reported by state().  A failure that
// passes is only logged.
//
// Threads: all calls may run in parallel.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "kernels/block/chunk_coder.hpp"
#include "store/base/json.hpp"

namespace weightfs::fs {

/// For `status`.
struct CoderState {
  std::string variant;      // the CPU's
  std::optional<int> gpu;   // the requested device
  std::string gpu_failure;  // why it is not used; empty: it is
};

/// {"variant": NAME, "gpu": null or {"device": N, "state": "in use" or "failed: WHY"}}.
Json to_json(const CoderState& state);

/// "avx2", "avx2; GPU 0 in use", "avx2; GPU 0 failed: WHY".  `json`: from to_json.
std::string coder_text(const Json& json);

class CoderChoice {
 public:
  /// `gpu`: a device number.  Requires: what fork() makes as long as the object lives never touches
  /// CUDA, as call_in_child(), which makes one call on a path and exits.
  explicit CoderChoice(std::optional<int> gpu);

  [[nodiscard]] const kernels::SharedCoder& coder() const noexcept { return coder_; }
  [[nodiscard]] CoderState state() const;

 private:
  struct Failure;
  std::optional<int> gpu_;
  std::shared_ptr<Failure> failure_;
  kernels::SharedCoder coder_;
};

}  // namespace weightfs::fs
