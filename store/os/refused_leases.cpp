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
    if (std::exchange(why_, why) == why) return;
  }
  log_warning(refusal_text(file, why));
}

std::string RefusedLeases::text() const {
  std::filesystem::path file;
  std::string why;
  {
    const std::lock_guard lock(mutex_);
    if (why_.empty()) return "";
    file = file_;
    why = why_;
  }
  // It may have gone without having been asked for again, say because its disk lost it.
  std::error_code unknown;
  const auto found = std::filesystem::symlink_status(file, unknown);
  if (found.type() == std::filesystem::file_type::not_found) return "";
  return refusal_text(file, why);
}

}  // namespace weightfs
