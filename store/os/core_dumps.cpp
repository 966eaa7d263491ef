#include "store/os/core_dumps.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "store/base/log.hpp"
#include "store/os/file.hpp"

namespace weightfs {

void keep_memory_out_of_core_dumps() {
  const File filter(open("/proc/self/coredump_filter", O_WRONLY | O_CLOEXEC));
  if (filter && write(filter.fd(), "0\n", 2) == 2) return;
  const rlimit none{0, 0};
  if (setrlimit(RLIMIT_CORE, &none) == 0) return;
  log_warning(
      "cannot keep credentials out of core files: /proc/self/coredump_filter cannot be written: "
      "set 'ulimit -c 0'");
}

}  // namespace weightfs
