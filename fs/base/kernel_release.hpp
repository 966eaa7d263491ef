// Kernel release of this host.
#pragma once

#include <string>

namespace weightfs::fs {

/// "6.12.0-amd64".
std::string kernel_release();

}  // namespace weightfs::fs
