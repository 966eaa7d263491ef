// Coder choice: what does the work on chunks in this process, as WEIGHTFS_KERNELS and --gpu say.
//
// A GPU is used only where the user asks for one, since the engine owns it.  If it cannot be used
// the CPU does the work; that is logged once (a command logs to stderr) and told by state().
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
  std::string variant;      // of the CPU
  std::optional<int> gpu;   // that was asked for
  std::string gpu_failure;  // why it is not used; empty: it is
};

/// {"variant": NAME, "gpu": null or {"device": N, "state": "in use" or "failed: WHY"}}.
Json to_json(const CoderState& state);

/// "avx2", "avx2; GPU 0 in use", "avx2; GPU 0 failed: WHY".  `json`: what to_json gave.
std::string coder_text(const Json& json);

class CoderChoice {
 public:
  /// `gpu`: a device's number.  Requires: no fork() after this while the object lives.
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
