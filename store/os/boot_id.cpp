#include "store/os/boot_id.hpp"

#include <fstream>

#include "store/base/sha256.hpp"

namespace weightfs {

std::string boot_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id.empty() ? random_hex(16) : id;
}

}  // namespace weightfs
