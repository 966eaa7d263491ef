// Part objects: the records, claims, layouts and hashes of parts in a bucket.
//
//     parts/<version>/<set>/<i>-of-<n>.json     PartRecord; put-if-absent
//     parts/<version>/<set>/<i>-of-<n>.claim    PartRecord::content() of a part with a snapshot
//     parts/<version>/<set>/<sha256>            zstd of a layout, or of hashes
//
// Threads: all calls may run in parallel.  Format: docs/FORMAT.md, "Parts".
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "store/base/context.hpp"
#include "store/os/memory_budget.hpp"
#include "store/parts/part_record.hpp"
#include "store/parts/part_set.hpp"
#include "store/repository/repository.hpp"

namespace weightfs {

namespace keys {
std::string part_record(const PartSet& set, unsigned part);
std::string part_claim(const PartSet& set, unsigned part);
std::string part_object(const PartSet& set, const Sha256& id);
}  // namespace keys

/// What a record says, and what it names of the part itself.
struct FoundPart {
  PartRecord record;
  std::shared_ptr<const Layout> layout;  // of its own files
  SnapshotHashes hashes;                 // by that layout; pieces only with a snapshot
};

/// The record of a part; nullopt: there is none.
/// Throws Error: corrupt (damaged, or not what its key says), unsupported; what the bucket throws.
std::optional<PartRecord> find_part(Repository& repository, const PartSet& set, unsigned part,
                                    const Context& context);

/// The layout and the hashes that a record names.  They are taken from `memory`, which is for all
/// parts of a version together.
/// Throws Error: not_found, corrupt; unsupported (too large for this host).
FoundPart get_part(Repository& repository, const PartSet& set, PartRecord record,
                   MemoryBudget& memory, const Context& context);

/// Puts a layout's or hashes' bytes.
ObjectRef put_part_object(Repository& repository, const PartSet& set, std::string_view bytes,
                          const Context& context);

/// Conflict: the part has other bytes there.
Error other_bytes(const PartSet& set, unsigned part);

/// Claims the part for this content.  The claim of another one may have been removed with all of
/// its set, so whoever has claimed looks whether the version exists. Throws Error: conflict if it
/// is claimed for another one; what the bucket throws.
void claim_part(Repository& repository, const PartSet& set, const PartRecord& record,
                const Context& context);

/// Writes the record.  Returns: the record that the bucket has now, which is another one if the
/// part was published before. Throws Error: what the bucket throws; then it may be there or not.
PartRecord put_part(Repository& repository, const PartSet& set, const PartRecord& record,
                    const Context& context);

/// Removes all below parts/<version>/<set>/ as far as LIST shows it.  Requires: the version exists.
void remove_part_set(Repository& repository, const PartSet& set, const Context& context);

/// The version in a key below parts/; nullopt: it has another form.
std::optional<std::uint64_t> find_part_version(std::string_view key);

}  // namespace weightfs
