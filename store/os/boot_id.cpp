#include "store/os/boot_id.hpp"

#include <fstream>
#include <utility>

#include "store/base/sha256.hpp"

namespace weightfs {

std::optional<std::string> find_boot_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id.empty() ? std::nullopt : std::optional(std::move(id));
}

std::string boot_id() {
  auto id = find_boot_id();
  return id ? *std::move(id) : random_hex(16);
}

}  // namespace weightfs
