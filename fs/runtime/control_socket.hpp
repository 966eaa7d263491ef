// Control socket: the control server of a mount or a sync, where its store is found, told whenever
// there is another catalog.
//
// Threads: all calls may run in parallel.
#pragma once

#include <filesystem>
#include <memory>

#include "fs/control/server.hpp"
#include "store/sync/sync.hpp"

namespace weightfs::fs {

class ControlSocket {
 public:
  /// Without a socket nobody can wait, but everything else works: then the log says why.
  /// Both outlive it.
  ControlSocket(const std::filesystem::path& store, Sync& sync, const ControlHandlers& handlers);
  ControlSocket(const ControlSocket&) = delete;
  ControlSocket& operator=(const ControlSocket&) = delete;

  /// Empty: there is none.
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

  /// Something else than the catalog may have changed: waiting clients are looked at.
  void notify() noexcept;

 private:
  std::filesystem::path path_;
  std::unique_ptr<ControlServer> server_;  // nullptr: there is none
  CatalogListeners::Listening listening_;  // ends first
};

}  // namespace weightfs::fs
