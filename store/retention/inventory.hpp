// Inventory: what a bucket holds: its versions, and all objects by kind and version.
//
// Objects are those of a LIST, which may lag; versions are read one by one and checked.
//
// Threads: a value; read_inventory() may run concurrently.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/context.hpp"
#include "store/base/version_pair.hpp"
#include "store/format/skip_record.hpp"
#include "store/repository/gc_record.hpp"
#include "store/repository/repository.hpp"

namespace weightfs {

/// What a version's manifest says about objects.
struct VersionFacts {
  std::uint64_t number = 0;
  std::string tag;
  bool has_delta = false;
  std::uint64_t delta_bytes = 0;
  std::vector<std::string> packs;  // their names, sorted
  std::string snapshot;            // its nonce; empty: it has none
  ObjectRef snapshot_hashes;       // of its .hashes, inflated
  /// What readers fetch of a snapshot that lies on the Hub, or more; 0: it lies in the bucket.
  std::uint64_t hub_bytes = 0;
  ObjectRef layout;
  Sha256 manifest_sha256{};

  /// Whether it names this object, which must be one of its version.
  [[nodiscard]] bool names(const VersionKey& key) const noexcept;
};

VersionFacts facts_of(const Version& version);

/// What the record of a skip delta says, which is undamaged and of this history.
struct SkipFacts {
  SkipRecord record;
  Sha256 sha256{};                 // of its bytes
  std::vector<std::string> packs;  // their names, sorted
  std::uint64_t bytes = 0;         // of them
};

enum class ObjectKind {
  record,
  manifest,
  layout,
  blob,
  snapshot,
  pack,
  skip_record,
  skip_pack,
  gc_record,
  part,
  early,
  reader,
  other
};
inline constexpr std::size_t kObjectKinds = static_cast<std::size_t>(ObjectKind::other) + 1;

/// "manifests", as du prints it.
std::string_view plural_of(ObjectKind kind) noexcept;

ObjectKind kind_of(std::string_view key) noexcept;

struct HeldObject {
  enum class Place {
    elsewhere,   // none of the following, or its key has an unknown form
    named,       // by its version's manifest, or a skip delta's record; or it is such a record
    orphan,      // its version's manifest or its skip's record exists, and names something else
    unfinished,  // of a skip delta without a record that can be used: its maker may be at work
    above_head,  // its version does not exist, yet
  };
  std::string key;
  std::uint64_t size_bytes = 0;
  ObjectKind kind{};
  Place place{};
  std::uint64_t version = 0;  // of what belongs to one; of skips: where these lead
};

struct Inventory {
  std::vector<VersionFacts> versions;  // version v at [v - 1]: all up to the newest
  std::vector<HeldObject> objects;     // by key
  std::map<VersionPair, SkipFacts> skips;
  std::set<VersionPair> unfinished;  // without a record that can be used

  [[nodiscard]] std::uint64_t head() const noexcept { return versions.size(); }
};

/// Called before each step, a request or a piece of work, by any thread; may wait while others are
/// to go first.  May be empty.
using WaitTurn = std::function<void(const Context& context)>;

/// Reads all manifests, in parallel, then lists the whole bucket, and reads the records of skips.
/// Throws Error: corrupt (a manifest is missing, damaged, or does not follow its parent),
/// unsupported, permission (LIST is needed).
Inventory read_inventory(Repository& repository, const Context& context,
                         const WaitTurn& wait_turn = {});

/// Whether the objects of a version's snapshot are there: of those in the bucket files each as LIST
/// showed it, or by a GET; the hashes are read and checked.  `layout`: the version's.
/// Throws Error: corrupt if one is missing or too short, naming it; unsupported if this host has
/// not the memory for the hashes; what the bucket throws.
void check_snapshot(const VersionFacts& version, const Layout& layout, const Inventory& inventory,
                    Repository& repository, const Context& context, const WaitTurn& wait_turn = {});

/// Looks again for the record of a skip delta between versions that exist.
/// Returns: whether there is one that can be used.
bool read_skip(Inventory& inventory, Repository& repository, const VersionPair& versions,
               const Context& context);

}  // namespace weightfs
