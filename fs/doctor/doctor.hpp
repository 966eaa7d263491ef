// Doctor: what weightfs finds on this host, and what is missing.
//
// Threads: a pure function of the system's state.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "fs/fuse/passthrough.hpp"
#include "kernels/dispatch/gpu.hpp"

namespace weightfs::fs {

/// Which variant implements an operation on blocks.
struct OperationUse {
  std::string operation;  // "diff", "encode", ...
  std::string variant;    // the variant in use, or "scalar" if that lacks the operation
};

struct Diagnosis {
  std::string weightfs, libfuse;  // versions
  std::string kernel;             // release
  std::string fuse_problem;       // why mounting is impossible, and what to do; empty: it is
                                  // possible
  PassthroughState passthrough;   // as far as is known without a mount
  std::string variant;            // in use
  std::vector<std::string> variants;
  std::vector<OperationUse> operations;
  kernels::GpuDevices gpus;

  [[nodiscard]] bool is_broken() const noexcept { return !fuse_problem.empty(); }
};

/// `fuse_device`: replaced in tests.
Diagnosis diagnose(const std::filesystem::path& fuse_device = "/dev/fuse");

}  // namespace weightfs::fs
