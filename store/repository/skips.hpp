// Skips: the skip deltas of a bucket (store/format/skip_record.hpp).
//
//     skips/<to>-<from>.json                      the record; put-if-absent; 20 digits each
//     skips/<to>-<from>/<nonce>-<k>.safetensors   its packs
//
// A LIST after `skips/<20 digits>` shows the records and packs of all skips to later versions, each
// record directly before its packs.  So one LIST tells a planner which ways there are, and about
// how many bytes each costs.  It is a hint: what is used is fetched and checked.
//
// Threads: all calls may run in parallel.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/context.hpp"
#include "store/base/version_pair.hpp"
#include "store/format/skip_record.hpp"
#include "store/repository/repository.hpp"

namespace weightfs {

namespace keys {
inline constexpr std::string_view kSkips = "skips/";
std::string skip_record(const VersionPair& versions);
std::string skip_pack(const VersionPair& versions, std::string_view name);
}  // namespace keys

/// A key below skips/ that may be of a skip delta.
struct SkipKey {
  VersionPair versions;
  std::string_view pack;  // "<nonce>-<k>"; empty: the key is that of the record
};

/// nullopt: it has none of the forms above.  Points into `key`.
std::optional<SkipKey> find_skip_key(std::string_view key);

/// A skip whose record LIST shows.
struct ListedSkip {
  VersionPair versions;
  std::uint64_t bytes = 0;  // of the record and of all packs below its prefix
};

/// What a LIST is for: a page that is not full may be followed by another one, if the service likes
/// short pages.  Who asks for a hint takes it for the last.
enum class ListDepth { hint, whole };

/// Skips to versions above `after`, ascending by `to`, then by `from`.  A request for each 1,000
/// objects, and one more for the whole.  Empty as well if this key may not LIST.
/// Throws Error: unavailable, timed_out, cancelled.
std::vector<ListedSkip> list_skips(Repository& repository, std::uint64_t after,
                                   const Context& context, ListDepth depth = ListDepth::whole);

/// The record of a skip; nullopt: there is none.
/// Throws Error: corrupt (damaged, or of other versions or another repository), unsupported; what
/// the bucket throws.
std::optional<SkipRecord> find_skip(Repository& repository, const VersionPair& versions,
                                    const Context& context);

/// Adds a record.  Returns: the record that the bucket has now, which is another one if somebody
/// else was faster (another nonce).  A lost reply is settled by reading it back.
/// Requires: its packs are in the bucket.
/// Throws Error: what the bucket throws; then it may have been added or not, and doing it again
/// settles it.
SkipRecord put_skip(Repository& repository, const SkipRecord& record, const Context& context);

}  // namespace weightfs
