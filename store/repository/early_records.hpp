// Early records: the hints that writers publish of the version that comes next.
//
//     early/<20 digits>.json     EarlyRecord of that version; overwritten by its writer
//
// Threads: all calls may run in parallel.  Format: docs/FORMAT.md, "Early records".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "store/base/context.hpp"
#include "store/format/early_record.hpp"
#include "store/repository/repository.hpp"

namespace weightfs {

namespace keys {
inline constexpr std::string_view kEarly = "early/";
std::string early_record(std::uint64_t version);
}  // namespace keys

/// The version in such a key; nullopt: it has another form.
std::optional<std::uint64_t> find_early_version(std::string_view key);

/// nullopt: there is none.
/// Throws Error: corrupt (malformed, or of another version or repository than its key says),
/// unsupported, permission, unavailable, cancelled, timed_out.
std::optional<EarlyRecord> find_early_record(Repository& repository, std::uint64_t version,
                                             const Context& context);

/// Overwrites what is there.  Throws Error: as Bucket::put().
void put_early_record(Repository& repository, const EarlyRecord& record, const Context& context);

/// Does nothing if there is none.  Throws Error: as Bucket::remove().
void remove_early_record(Repository& repository, std::uint64_t version, const Context& context);

}  // namespace weightfs
