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

/// Which implementation an operation on blocks has.
struct OperationUse {
  std::string operation;  // "diff", "encode", ...
  std::string variant;    // the variant in use, or "scalar" where it has none of its own
};

struct Diagnosis {
  std::string weightfs, libfuse;  // versions
  std::string kernel;             // release
  std::string fuse_problem;       // why nothing can be mounted, and what to do; empty: it can be
  PassthroughState passthrough;   // as far as it can be told without a mount
  std::string variant;            // in use
  std::vector<std::string> variants;
  std::vector<OperationUse> operations;
  kernels::GpuDevices gpus;

  [[nodiscard]] bool is_broken() const noexcept { return !fuse_problem.empty(); }
};

/// `fuse_device`: another one in tests.
Diagnosis diagnose(const std::filesystem::path& fuse_device = "/dev/fuse");

}  // namespace weightfs::fs
