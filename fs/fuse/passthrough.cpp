#include "fs/fuse/passthrough.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/utsname.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>

#include "fs/base/kernel_release.hpp"
#include "fs/fuse/passthrough_abi.hpp"
#include "store/base/error.hpp"
#include "store/os/file.hpp"

namespace weightfs::fs {
namespace {

// 1: backing files must be on plain file systems.  With 2 they could be on overlayfs, but then this
// mount could not be a layer of one.
constexpr std::uint32_t kStackDepth = 1;

constexpr int kCapSysAdmin = 21;  // linux/capability.h

bool has_cap_sys_admin() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::uint64_t mask = 0;
    if (word == "CapEff:" && status >> std::hex >> mask) return (mask >> kCapSysAdmin & 1) != 0;
  }
  return false;
}

constexpr std::string_view kNoCapability =
    "passthrough needs CAP_SYS_ADMIN (run as root, outside a user namespace)";

std::string no_kernel_support() {
  return fmt::format("kernel {} has no FUSE passthrough (6.9 or newer)", kernel_release());
}

std::string explain(int error, const std::filesystem::path& store) {
  switch (error) {
    case EPERM:
      return std::string(kNoCapability);
    case ENOTTY:
    case EINVAL:
      return no_kernel_support();
    case ELOOP:
      return fmt::format(
          "the store {} is on a stacked file system (overlayfs); choose --store on "
          "a plain one such as ext4, XFS or tmpfs",
          store.string());
    default:
      return fmt::format("the kernel refuses a backing file in {}: {}", store.string(),
                         std::strerror(error));
  }
}

bool is_success(std::span<const iovec> reply) noexcept {
  return !reply.empty() && reply.front().iov_len >= sizeof(abi::OutHeader) &&
         static_cast<const abi::OutHeader*>(reply.front().iov_base)->error == 0;
}

}  // namespace

PassthroughState guess_passthrough() {
  constexpr std::pair kFirst(6, 9);
  std::pair release(0, 0);
  char dot = 0;
  std::istringstream(kernel_release()) >> release.first >> dot >> release.second;
  if (release < kFirst) return {false, no_kernel_support()};
  if (!has_cap_sys_admin()) return {false, std::string(kNoCapability)};
  return {true, ""};
}

bool offers_passthrough(InitRequest init) noexcept {
  abi::InHeader header;
  abi::InitIn body;
  if (init.size() < sizeof header + sizeof body) return false;
  std::memcpy(&header, init.data(), sizeof header);
  std::memcpy(&body, init.data() + sizeof header, sizeof body);
  return header.opcode == abi::kOpcodeInit && (body.flags & abi::kInitExt) != 0 &&
         (body.flags2 & abi::kFlags2Passthrough) != 0;
}

PassthroughState try_passthrough(int fuse_fd, InitRequest init,
                                 const std::filesystem::path& store) {
  if (!offers_passthrough(init)) return {false, no_kernel_support()};
  try {
    const File probe = File::temporary(store);
    const std::int32_t id = register_backing(fuse_fd, fmt::format("/proc/self/fd/{}", probe.fd()));
    if (id <= 0) return {false, explain(-id, store)};
    unregister_backing(fuse_fd, id);
    return {true, ""};
  } catch (const Error& error) {
    return {false, error.what()};
  }
}

std::int32_t register_backing(int fuse_fd, const std::filesystem::path& image) noexcept {
  const File file(::open(image.c_str(), O_PATH | O_CLOEXEC));
  if (!file) return -errno;
  const abi::BackingMap map{file.fd(), 0, 0};
  const int id = ioctl(fuse_fd, abi::kBackingOpen, &map);
  return id < 0 ? -errno : id;
}

void unregister_backing(int fuse_fd, std::int32_t backing_id) noexcept {
  ioctl(fuse_fd, abi::kBackingClose, &backing_id);  // fails only if the id is unknown
}

void patch_init_reply(std::span<const iovec> reply) noexcept {
  if (!is_success(reply) || reply.back().iov_len != sizeof(abi::InitOut)) return;
  auto* init = static_cast<abi::InitOut*>(reply.back().iov_base);
  init->flags |= abi::kInitExt;
  init->flags2 |= abi::kFlags2Passthrough;
  init->max_stack_depth = kStackDepth;
}

void patch_open_reply(std::span<const iovec> reply, std::int32_t backing_id) noexcept {
  if (!is_success(reply)) return;
  const std::size_t size = reply.back().iov_len;
  const bool is_create = size == abi::kEntryOutBytes + sizeof(abi::OpenOut);
  if (!is_create && size != sizeof(abi::OpenOut)) return;
  auto* body = static_cast<std::byte*>(reply.back().iov_base) + size - sizeof(abi::OpenOut);
  auto* open = reinterpret_cast<abi::OpenOut*>(body);
  open->open_flags |= abi::kOpenPassthrough;
  open->backing_id = backing_id;
}

}  // namespace weightfs::fs
