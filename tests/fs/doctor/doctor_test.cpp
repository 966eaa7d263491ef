#include "fs/doctor/doctor.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>

#include "kernels/dispatch/variant_table.hpp"
#include "tests/support/contains.hpp"
#include "tests/support/support.hpp"

namespace weightfs::fs {
namespace {

using test::contains;

TEST(Doctor, AFuseDeviceThatOpensIsNoProblem) {
  const Diagnosis found = diagnose("/dev/null");
  EXPECT_EQ(found.fuse_problem, "");
  EXPECT_FALSE(found.is_broken());
}

TEST(Doctor, WithoutAFuseDeviceItSaysWhatToDo) {
  const test::TempDir dir;
  const Diagnosis found = diagnose(dir / "fuse");
  EXPECT_TRUE(found.is_broken());
  EXPECT_TRUE(contains(found.fuse_problem, (dir / "fuse").string())) << found.fuse_problem;
  EXPECT_TRUE(contains(found.fuse_problem, "modprobe fuse")) << found.fuse_problem;
  EXPECT_TRUE(contains(found.fuse_problem, "--device /dev/fuse")) << found.fuse_problem;
}

TEST(Doctor, TellsTheVariantOfEveryOperation) {
  const Diagnosis found = diagnose();
  EXPECT_EQ(found.variant, kernels::chosen_variant().name);
  EXPECT_EQ(std::count(found.variants.begin(), found.variants.end(), found.variant), 1);
  EXPECT_EQ(found.operations.size(), 9U);
  for (const OperationUse& use : found.operations) {
    EXPECT_TRUE(use.variant == found.variant || use.variant == "scalar") << use.operation;
  }
}

TEST(Doctor, TellsWhyThereIsNoGpu) {
  const Diagnosis found = diagnose();
  EXPECT_EQ(found.gpus.devices.empty(), !found.gpus.why.empty());
}

TEST(Doctor, TellsWhyThereIsNoPassthrough) {
  const Diagnosis found = diagnose();
  EXPECT_EQ(found.passthrough.available, found.passthrough.why_not.empty());
  EXPECT_FALSE(found.kernel.empty());
  EXPECT_FALSE(found.libfuse.empty());
}

}  // namespace
}  // namespace weightfs::fs
