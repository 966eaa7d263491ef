#include "fs/doctor/hooks.hpp"

#include <algorithm>

#include "fs/client/mount_status.hpp"
#include "fs/mount/mount_info.hpp"
#include "store/base/error.hpp"

namespace weightfs::fs {
namespace {

/// Whether engines of this type load any path that they are told.
bool has_development_endpoints(std::string_view type) {
  return type == "vllm" || type == "vllm-lora" || type == "sglang";
}

}  // namespace

std::vector<std::string> hook_warnings(const Json& status, const std::vector<Listener>& listeners) {
  std::vector<std::string> warnings;
  const auto hooks = status.is_object() ? status.find("hooks") : status.end();
  if (!status.is_object() || hooks == status.end() || !hooks->is_array()) return warnings;
  for (const Json& hook : *hooks) {
    const std::string type = json_string(hook, "type", "a hook");
    if (!has_development_endpoints(type)) continue;  // others may have no URL
    std::string warning = exposure_of(type, json_string(hook, "url", "a hook"), listeners);
    const bool is_new = std::find(warnings.begin(), warnings.end(), warning) == warnings.end();
    if (!warning.empty() && is_new) warnings.push_back(std::move(warning));
  }
  return warnings;
}

std::vector<std::string> find_hook_warnings(const std::string& target) {
  const std::vector<Listener> listeners = read_listeners();
  std::vector<MountInfo> mounts = read_mounts();
  // Looking into a mount whose daemon is stopped would never end.
  if (!target.empty() && !find_mount(target) && is_synced(target))
    mounts.push_back(get_served(target));
  std::vector<std::string> warnings;
  for (const MountInfo& mount : mounts) {
    if (mount.type != kMountType && mount.type != kDirectoryType) continue;
    try {
      const Json status = parse_json(read_status(mount), mount.path.string());
      for (std::string& warning : hook_warnings(status, listeners)) {
        warnings.push_back(mount.path.string() + ": " + warning);
      }
    } catch (const Error&) {
      // `weightfs status` lists mounts whose daemon does not answer.
    }
  }
  return warnings;
}

}  // namespace weightfs::fs
