#include "store/os/refused_leases.hpp"

#include <fmt/format.h>

#include <mutex>
#include <utility>

#include "store/base/log.hpp"

namespace weightfs {
namespace {

std::string refusal_text(const std::filesystem::path& file, const std::string& why) {
  return fmt::format("old versions cannot be removed, as nobody can tell who reads {}: {}",
                     file.string(), why);
}

}  // namespace

void RefusedLeases::note(const std::filesystem::path& file, const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    if (why.empty()) {
      if (file == file_) why_.clear();
      return;
    }
    file_ = file;
    noted_ = Clock::now();
    if (std::exchange(why_, why) == why) return;
  }
  log_warning(refusal_text(file, why));
}

std::string RefusedLeases::text() const {
  const std::lock_guard lock(mutex_);
  // The file may go without having been asked for again.  Nobody looks whether it has: its file
  // system may hang, and status must not.  While versions come, it is asked for again with each.
  const bool stands = !why_.empty() && Clock::now() - noted_ < stands_;
  return stands ? refusal_text(file_, why_) : "";
}

}  // namespace weightfs
