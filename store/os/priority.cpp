#include "store/os/priority.hpp"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace weightfs {

void take_lowest_priority() noexcept {
  constexpr int kOwnThread = 1;                    // IOPRIO_WHO_PROCESS
  constexpr int kLeastOfBestEffort = 2 << 13 | 7;  // the idle class may wait for ever
  ::setpriority(PRIO_PROCESS, 0, 19);
  ::syscall(SYS_ioprio_set, kOwnThread, 0, kLeastOfBestEffort);
}

}  // namespace weightfs
