#include "fs/runtime/control_socket.hpp"

#include <fmt/format.h>

#include "fs/control/path.hpp"
#include "fs/control/protocol.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"

namespace weightfs::fs {

ControlSocket::ControlSocket(const std::filesystem::path& store, Sync& sync,
                             const ControlHandlers& handlers) {
  for (const auto& path : {control_path(store), store / "control.sock"}) {
    try {
      server_ = std::make_unique<ControlServer>(path, handlers);
      path_ = path;
      listening_ = sync.listen({.changed = [this] { notify(); }});
      return;
    } catch (const Error& error) {
      log_warning(
          fmt::format("no control socket, so `weightfs wait` does not work: {}", error.what()));
    }
  }
}

void ControlSocket::notify() noexcept {
  if (server_) server_->notify();
}

std::function<std::optional<PatchDiffPage>(const DiffRequest&, const Context&)> diff_handler(
    Store& store, History& history) {
  return [&store, &history](const DiffRequest& request, const Context& context) {
    return diff_by_patches(store, history, request.versions, request.first, kDiffPageBytesMax,
                           context);
  };
}

}  // namespace weightfs::fs
