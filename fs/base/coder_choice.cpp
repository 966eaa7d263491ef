#include "fs/base/coder_choice.hpp"

#include <fmt/format.h>

#include <mutex>
#include <string_view>

#include "kernels/dispatch/cpu_coder.hpp"
#include "kernels/dispatch/gpu.hpp"
#include "kernels/dispatch/variant_table.hpp"
#include "store/base/log.hpp"
#include "store/base/ranked_mutex.hpp"

namespace weightfs::fs {
namespace {

constexpr std::string_view kInUse = "in use";

}  // namespace

Json to_json(const CoderState& state) {
  Json gpu = nullptr;
  if (state.gpu) {
    const std::string& why = state.gpu_failure;
    gpu = {{"device", *state.gpu}, {"state", why.empty() ? std::string(kInUse) : "failed: " + why}};
  }
  return {{"variant", state.variant}, {"gpu", std::move(gpu)}};
}

std::string coder_text(const Json& json) {
  std::string text = json.at("variant").get<std::string>();
  const Json& gpu = json.at("gpu");
  if (gpu.is_null()) return text;
  return text + fmt::format("; GPU {} {}", gpu.at("device").get<int>(),
                            gpu.at("state").get<std::string>());
}

/// Shared with the coder, which may outlive the choice.
struct CoderChoice::Failure {
  RankedMutex mutex{LockRank::leaf, "CoderChoice::Failure::mutex"};  // guards why
  std::string why;
};

CoderChoice::CoderChoice(std::optional<int> gpu)
    : gpu_(gpu), failure_(std::make_shared<Failure>()) {
  if (!gpu) {
    coder_ = kernels::make_cpu_coder();
    return;
  }
  kernels::GpuOptions options;
  options.device = *gpu;
  options.on_failure = [failure = failure_, device = *gpu](std::string_view why, bool is_given_up) {
    log_warning(fmt::format("--gpu {}: {}", device, why));
    if (!is_given_up) return;
    const std::lock_guard lock(failure->mutex);
    failure->why = why;
  };
  coder_ = kernels::make_gpu_coder(options);
}

CoderState CoderChoice::state() const {
  const std::lock_guard lock(failure_->mutex);
  return {std::string(kernels::chosen_variant().name), gpu_, failure_->why};
}

}  // namespace weightfs::fs
