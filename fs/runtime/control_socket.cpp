#include "fs/runtime/control_socket.hpp"

#include <fmt/format.h>

#include "fs/control/path.hpp"
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

}  // namespace weightfs::fs
