// Preload library that gives a program a clock that is WEIGHTFS_TEST_SKEW_S seconds off, and set
// back by one second per byte of the file WEIGHTFS_TEST_BACK; and a time since boot that is ahead
// by one second per byte of the file WEIGHTFS_TEST_AHEAD: appending to the file makes time pass.
#include <dlfcn.h>
#include <sys/stat.h>
#include <time.h>

#include <cstdlib>

namespace {

/// 0: the variable names no file.
off_t size_of_file(const char* variable) {
  const char* path = getenv(variable);
  struct stat file {};
  return path != nullptr && stat(path, &file) == 0 ? file.st_size : 0;
}

}  // namespace

extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  using Function = int (*)(clockid_t, timespec*);
  static const auto real = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "clock_gettime"));
  const int result = real(clock, time);
  const char* skew = getenv("WEIGHTFS_TEST_SKEW_S");
  if (clock == CLOCK_REALTIME && skew != nullptr) time->tv_sec += std::atol(skew);
  if (clock == CLOCK_REALTIME) time->tv_sec -= size_of_file("WEIGHTFS_TEST_BACK");
  if (clock == CLOCK_BOOTTIME) time->tv_sec += size_of_file("WEIGHTFS_TEST_AHEAD");
  return result;
}

extern "C" time_t time(time_t* into) noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  if (into != nullptr) *into = now.tv_sec;
  return now.tv_sec;
}
