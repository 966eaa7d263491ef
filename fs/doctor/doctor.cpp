#include "fs/doctor/doctor.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "fs/base/kernel_release.hpp"
#include "fs/fuse/session.hpp"
#include "kernels/dispatch/variant_table.hpp"
#include "store/os/file.hpp"

namespace weightfs::fs {
namespace {

std::string find_fuse_problem(const std::filesystem::path& device) {
  const File file(::open(device.c_str(), O_RDWR | O_CLOEXEC));
  if (file) return {};
  switch (errno) {
    case ENOENT:
    case ENODEV:
    case ENXIO:
      return fmt::format(
          "there is no {}: load the kernel module (modprobe fuse), and give a container the "
          "device (--device /dev/fuse --cap-add SYS_ADMIN)",
          device.string());
    case EACCES:
    case EPERM:
      return fmt::format(
          "no permission to open {}: mount as root; in a container pass the device (--device "
          "/dev/fuse --cap-add SYS_ADMIN)",
          device.string());
    default:
      return fmt::format("{} cannot be opened: {}", device.string(), std::strerror(errno));
  }
}

/// A variant uses `scalar` for operations that it lacks.
std::vector<OperationUse> operations_of(const kernels::Variant& used) {
  const kernels::Variant& scalar = kernels::variants().front();
  const auto use = [&](const char* operation, auto member) -> OperationUse {
    const bool is_own = used.*member != scalar.*member;
    return {operation, std::string(is_own ? used.name : scalar.name)};
  };
  using kernels::Variant;
  return {use("summarize", &Variant::summarize_diff), use("diff", &Variant::find_changes),
          use("encode", &Variant::encode_block),      use("decode", &Variant::decode_block),
          use("patch", &Variant::make_patch),         use("apply", &Variant::apply_patch),
          use("fold", &Variant::fold_patches),        use("invert", &Variant::invert_patch),
          use("hash", &Variant::hash_chunk)};
}

}  // namespace

Diagnosis diagnose(const std::filesystem::path& fuse_device) {
  const kernels::Variant& used = kernels::chosen_variant();
  Diagnosis diagnosis{.weightfs = WEIGHTFS_VERSION,
                      .libfuse = libfuse_version(),
                      .kernel = kernel_release(),
                      .fuse_problem = find_fuse_problem(fuse_device),
                      .passthrough = guess_passthrough(),
                      .variant = std::string(used.name),
                      .variants = {},
                      .operations = operations_of(used),
                      .gpus = kernels::find_gpus()};
  for (const kernels::Variant& variant : kernels::variants()) {
    diagnosis.variants.emplace_back(variant.name);
  }
  return diagnosis;
}

}  // namespace weightfs::fs
