// Version timing: where the time went, on this host, between a version's manifest and its files,
// and between a hand-over and its manifest.  For the person who asks at night why one host is slow.
//
//     last poll     manifest                                                latest     files are
//     without it    seen                                                    shows it   on the disk
//     |   unseen    | wait | plan | room |       build        | record | flip |   sync   |
//                                          fetch  [=======]
//                                          decode, write [========]
//
//     unseen   it may have been in the bucket for so long: the interval between two polls, in which
//              this host may have been busy with another version
//     wait     earlier attempts that failed, and other versions that are being made
//     plan     the way to it: manifests, layouts and headers of packs
//     room     old versions are evicted
//     build    packs or a snapshot are fetched, decoded, verified and written, all at the same time
//     record   its images are recorded, and that it is the newest (that waits for the disk)
//     flip     who has to prepare for it does (bind mounts, page cache), then `latest` moves
//
// From seen to shown every moment belongs to one of these phases, so their sum is the whole.  Of
// what happens during `build` only the fetch is measured by the clock on the wall, from the first
// request to the end of the last one; the rest are sums over all threads: two threads that write
// for a second are 2 s.
//
// A version that is *streamed* is shown before it is built: then `build` is the time from `shown`
// until all of it is here, and not a part of the sum.
//
// A hand-over is cut in the same way, from the rename to publish/ until `latest` shows it:
//
//     | seal | wait | code | upload | commit | adopt |
//
//     seal     files are checked, for writers too, and linked
//     wait     earlier hand-overs, a look for the newest version, pauses after tries that failed
//     code     what was not coded early, and uploads at the same time
//     upload   what is left to be sent when all is coded
//     commit   its record here, and the manifest
//     adopt    the files become images, `latest` moves
//
// A try that failed counts in the phases that it reached.
//
// Threads: values; all functions are pure.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace weightfs {

/// Work of all threads that built a version; see above.
struct BuildTiming {
  std::chrono::nanoseconds fetch{};    // wall time
  std::uint64_t fetched_bytes = 0;     // of packs, snapshot and small files; not what `plan` read
  std::uint64_t requests = 0;          // for these, but for what came with a pack's header
  std::uint64_t seeded_bytes = 0;      // of a snapshot, taken from the seed instead
  std::chrono::nanoseconds stalled{};  // thread time: nothing to decode yet, because of the fetch
  std::chrono::nanoseconds decode{};   // thread time: reading the base, decoding, verifying
  std::chrono::nanoseconds patch{};    // thread time, a part of `decode`: the store's patches
  std::uint64_t patched_bytes = 0;     // of these patches
  std::chrono::nanoseconds write{};    // thread time
  std::uint64_t written_bytes = 0;     // the others are hard links to the base's

  friend bool operator==(const BuildTiming&, const BuildTiming&) = default;
};

/// How a version came to this host.
struct VersionTiming {
  std::uint64_t version = 0;
  std::int64_t seen_ns = 0;    // since 1970, by this host's clock
  std::int64_t published = 0;  // its manifest's time: seconds since 1970, the publisher's clock
  unsigned attempts = 1;       // the last one succeeded
  bool is_streamed = false;    // it was shown before it was built
  std::uint64_t base = 0;      // images of this version were here; 0: of none
  std::uint64_t snapshot = 0;  // else this version's snapshot was fetched
  std::uint64_t deltas = 0;    // that were applied
  std::uint64_t skips = 0;     // skip deltas, among or before them
  std::uint64_t patches = 0;   // spans of the store's patches that were applied, before the deltas
  std::uint64_t bytes = 0;     // of its files that are kept here
  std::uint64_t early_bytes = 0;  // of these, of files that were made before the manifest was seen

  std::optional<std::chrono::nanoseconds> unseen = {};  // nullopt: there was no poll before
  std::chrono::nanoseconds wait{}, plan{}, room{}, build{}, record{}, flip{};
  std::optional<std::chrono::nanoseconds> sync = {};  // from flip or, if streamed, build; nullopt:
                                                      // not on the disk yet, or not known
  BuildTiming work = {};

  /// Whether it was built; else it was here.
  [[nodiscard]] bool has_origin() const noexcept { return base != 0 || snapshot != 0; }

  /// From seen to shown.
  [[nodiscard]] std::chrono::nanoseconds total() const noexcept;

  friend bool operator==(const VersionTiming&, const VersionTiming&) = default;
};

/// How a version came about on the host that published it.
struct HandOverTiming {
  std::uint64_t version = 0;
  std::int64_t begun_ns = 0;  // since 1970
  std::string name = {};      // in publish/; "": by the command
  unsigned attempts = 1;
  std::chrono::nanoseconds seal{}, wait{}, code{}, upload{}, commit{}, adopt{};
  std::uint64_t bytes = 0;           // of its files
  std::uint64_t early_bytes = 0;     // of those that were coded before the hand-over
  std::uint64_t uploaded_bytes = 0;  // by the last attempt, early work included

  [[nodiscard]] std::chrono::nanoseconds total() const noexcept;

  friend bool operator==(const HandOverTiming&, const HandOverTiming&) = default;
};

/// What a host knows of one version; at least one of the two.
struct TimingRecord {
  std::uint64_t version = 0;
  std::optional<VersionTiming> brought = {};
  std::optional<HandOverTiming> handed_over = {};

  friend bool operator==(const TimingRecord&, const TimingRecord&) = default;
};

/// The value of a record, and what `status --json` and `log --timing --json` show: JSON, with ms as
/// numbers of three decimals.  Fields that a later release adds are ignored by this one.
std::string to_json_text(TimingRecord record);
/// Throws Error: corrupt, naming the field.
TimingRecord parse_timing(std::string_view text);

}  // namespace weightfs
