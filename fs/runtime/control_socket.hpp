// Control socket: the control server of a mount or a sync, at the path that belongs to its store.
// It is notified of every new catalog.
//
// Threads: all calls may run in parallel.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "fs/control/server.hpp"
#include "store/inspect/patch_diff.hpp"
#include "store/local/store.hpp"
#include "store/materialize/history.hpp"
#include "store/sync/sync.hpp"

namespace weightfs::fs {

class ControlSocket {
 public:
  /// Without a socket waiting is impossible, but everything else works; the log says why there is
  /// none.  Requires: `sync` and what `handlers` refer to outlive this.
  ControlSocket(const std::filesystem::path& store, Sync& sync, const ControlHandlers& handlers);
  ControlSocket(const ControlSocket&) = delete;
  ControlSocket& operator=(const ControlSocket&) = delete;

  /// Empty if there is no socket.
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

  /// Something other than the catalog may have changed: the conditions of waiting clients are
  /// checked.
  void notify() noexcept;

 private:
  std::filesystem::path path_;
  std::unique_ptr<ControlServer> server_;  // nullptr: none
  CatalogListeners::Listening listening_;  // must be destroyed first
};

/// ControlHandlers::diff of a daemon with this store.  Keeps the references.
std::function<std::optional<PatchDiffPage>(const DiffRequest&, const Context&)> diff_handler(
    Store& store, History& history);

}  // namespace weightfs::fs
