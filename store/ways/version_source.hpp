// VersionSource: where manifests and layouts of a repository come from.
//
// Threads: all calls may run in parallel.
#pragma once

#include <cstdint>
#include <memory>

#include "store/base/context.hpp"
#include "store/format/layout.hpp"
#include "store/repository/repository.hpp"

namespace weightfs {

class VersionSource {
 public:
  virtual ~VersionSource() = default;

  /// Throws Error: not_found, listing the versions that exist; corrupt if the version is among them
  /// but its manifest is missing or damaged; what the bucket throws.
  virtual std::shared_ptr<const Version> get(std::uint64_t number, const Context& context) = 0;

  /// The layout of a version; versions with the same layout share the object.
  virtual std::shared_ptr<const Layout> layout(const Version& version, const Context& context) = 0;

  /// The same without the bucket; nullptr if this host does not have it.
  virtual std::shared_ptr<const Layout> find_layout(const Version& version) = 0;
};

}  // namespace weightfs
