#include "fs/base/descriptors.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "store/staging/staging.hpp"

namespace weightfs::fs {
namespace {

// A higher limit brings nothing, and programs run by hooks may close every possible descriptor, one
// by one.
constexpr rlim_t kLimitMax = 131072;
constexpr std::size_t kOwnMax = 1024;

}  // namespace

void fill_standard_descriptors() noexcept {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    // It gets the lowest free number, which is `fd`.  Read-only: a write fails as if it were still
    // closed, so a command whose output is lost does not succeed.  Not O_CLOEXEC: hooks and helpers
    // inherit the three.
    static_cast<void>(open("/dev/null", O_RDONLY));
  }
}

std::size_t raise_descriptor_limit() noexcept {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < kLimitMax) {
    limit.rlim_cur = std::max(limit.rlim_cur, std::min(limit.rlim_max, kLimitMax));
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  return descriptor_limit();
}

std::size_t descriptor_limit() noexcept {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kOwnMax;
  return static_cast<std::size_t>(std::min(limit.rlim_cur, kLimitMax));
}

std::size_t descriptors_for_files(std::size_t limit) noexcept {
  return limit - std::min(limit / 2, kOwnMax);
}

void DescriptorShare::take(std::size_t count, const std::filesystem::path& path) {
  if (count_.fetch_add(count) + count <= count_max_) return;
  give(count);
  throw PosixError(
      ENFILE,
      fmt::format("open {}: readers have {} daemon-served files open, which is the daemon's limit "
                  "(raise it: ulimit -Hn, LimitNOFILE=)",
                  path.string(), count_max_));
}

}  // namespace weightfs::fs
