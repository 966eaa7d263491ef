#include "store/base/utc_text.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>

namespace weightfs {

std::string utc_text(std::int64_t time) {
  const std::time_t seconds = time;
  std::tm parts{};
  if (::gmtime_r(&seconds, &parts) == nullptr) return "an unknown time";
  return fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", parts);
}

}  // namespace weightfs
