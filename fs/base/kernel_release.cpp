#include "fs/base/kernel_release.hpp"

#include <sys/utsname.h>

namespace weightfs::fs {

std::string kernel_release() {
  utsname names{};
  return uname(&names) == 0 ? names.release : "?";
}

}  // namespace weightfs::fs
