// Inventory: what a bucket holds: its versions, and all objects by kind and version.
//
// Objects are those of a LIST, which may lag; versions are read one by one and checked.
//
// Threads: a value; read_inventory() may run concurrently.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/context.hpp"
#include "store/repository/repository.hpp"
#include "store/retention/gc_record.hpp"

namespace weightfs {

/// What a version's manifest says about objects.
struct VersionFacts {
  std::uint64_t number = 0;
  std::string tag;
  bool has_delta = false;
  std::vector<std::string> packs;  // their names, sorted
  std::string snapshot;            // its nonce; empty: it has none

  /// Whether it names this object, which must be one of its version.
  [[nodiscard]] bool names(const VersionKey& key) const noexcept;
};

enum class ObjectKind { record, manifest, layout, blob, snapshot, pack, skip, gc_record, other };
inline constexpr std::size_t kObjectKinds = 9;

/// "manifests", as du prints it.
std::string_view plural_of(ObjectKind kind) noexcept;

/// Of skips/ only the kind is known; nothing there is ever removed.
ObjectKind kind_of(std::string_view key) noexcept;

struct HeldObject {
  enum class Place {
    elsewhere,   // neither a pack nor of a snapshot, or its key has an unknown form
    named,       // by its version's manifest
    orphan,      // its version's manifest exists, and names something else
    above_head,  // its version does not exist, yet
  };
  std::string key;
  std::uint64_t size_bytes = 0;
  ObjectKind kind{};
  Place place{};
  std::uint64_t version = 0;  // of packs, snapshots and manifests
};

struct Inventory {
  std::vector<VersionFacts> versions;  // version v at [v - 1]: all up to the newest
  std::vector<HeldObject> objects;     // by key

  [[nodiscard]] std::uint64_t head() const noexcept { return versions.size(); }
};

/// Reads all manifests, in parallel, then lists the whole bucket.
/// Throws Error: corrupt (a manifest is missing, damaged, or does not follow its parent),
/// unsupported, permission (LIST is needed).
Inventory read_inventory(Repository& repository, const Context& context);

}  // namespace weightfs
