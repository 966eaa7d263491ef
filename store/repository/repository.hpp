// Repository: the history of one run in a bucket.  Reads and checks records, manifests, layouts,
// blobs and pack headers; writes new ones.  Knows nothing of the local store.
//
//     weightfs.json                               record: format, id, required features
//     versions/<20 digits>.json                   manifests; writing one is the commit
//     layouts/<sha256>                            zstd
//     blobs/<sha256>                              zstd
//     snapshots/<version>/<nonce>/<path>          files, verbatim, unless they lie on the Hub
//     snapshots/<version>/<nonce>/.hashes         chunk and piece hashes, zstd
//     packs/<version>/<nonce>-<k>.safetensors
//     skips/...                                   skip deltas (store/repository/skips.hpp)
//     parts/...                                   parts of versions (store/parts)
//     early/<20 digits>.json                      what comes next (early_records.hpp)
//     gc/<20 digits>.json                         what was retired (store/retention)
//
// Everything that is returned has been checked against the hash that names it; a mismatch is
// Error corrupt with the key.
//
// Threads: all calls may run in parallel.  Format: docs/FORMAT.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/error.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/bucket/bucket.hpp"
#include "store/format/layout.hpp"
#include "store/format/manifest.hpp"
#include "store/format/pack.hpp"
#include "store/hub/hub_reader.hpp"
#include "store/s3/bucket_options.hpp"

namespace weightfs {

inline constexpr std::uint64_t kFormat = 1;

/// Feature of a repository of which objects may have been removed.  Format: docs/FORMAT.md,
/// "Retired objects".
inline constexpr std::string_view kFeatureRetired = "retired-objects";

namespace keys {
inline constexpr std::string_view kRecord = "weightfs.json";
inline constexpr std::string_view kVersions = "versions/", kLayouts = "layouts/", kBlobs = "blobs/",
                                  kSnapshots = "snapshots/", kPacks = "packs/", kGc = "gc/",
                                  kParts = "parts/", kReaders = "readers/";
std::string gc_record(std::uint64_t number);
std::string reader(std::string_view id);
std::string manifest(std::uint64_t version);
std::string layout(const Sha256& id);
std::string blob(const Sha256& id);
std::string pack(std::uint64_t version, std::string_view name);
std::string snapshot_file(std::uint64_t version, std::string_view nonce, std::string_view path);
std::string snapshot_hashes(std::uint64_t version, std::string_view nonce);
}  // namespace keys

/// The id in the bytes of a repository's record.
/// Throws Error: unsupported (newer format, unknown required feature), corrupt.
std::string id_of_record(std::string_view bytes, std::string_view url);

/// For messages: what stands at `url` where `id` is followed.  `found`: its id; empty: nothing.
std::string another_repository(std::string_view url, std::string_view id, std::string_view found);

/// One version: its manifest, and the SHA-256 of the manifest's bytes.
struct Version {
  Manifest manifest;
  Sha256 manifest_sha256{};
  std::string manifest_bytes;
  [[nodiscard]] std::uint64_t number() const noexcept { return manifest.version; }
};

/// The key of a file of the version's snapshot, for Repository::snapshot_reader().
/// Requires: the version has a snapshot.
std::string snapshot_key(const Version& version, std::string_view path);

/// The outcome of a commit is unknown: the version may exist, now or later.  Either the manifest
/// was sent without an answer from the bucket, and reading the number back failed or found it free
/// (the request may still be carried out); or it was written, but may not be durable (io).  The
/// outcome is known once the number is taken: the nonce in its manifest shows by whom.  A commit
/// with the same nonce settles it too.
class CommitUnknown : public Error {
 public:
  CommitUnknown(std::uint64_t version, ErrorCode code, const std::string& message)
      : Error(code, message), version_(version) {}
  [[nodiscard]] std::uint64_t version() const noexcept { return version_; }

 private:
  std::uint64_t version_;
};

/// The object next to a snapshot that contains its hashes.
struct SnapshotHashes {
  std::vector<std::uint64_t> chunks;        // Layout::chunk_count() of them
  std::vector<std::vector<Sha256>> pieces;  // for each file of the layout, one per kPieceBytes
};

class Repository {
 public:
  /// Creates a repository at `url`, and its directory; an existing one is left as it is.
  ///
  /// Proves first that put_if_absent works there: see store/repository/probe.hpp.
  /// Returns: true in `created` if it is new.
  /// Throws Error: unsupported if it does not work, permission, not_found (no such bucket).
  static std::unique_ptr<Repository> init(std::string_view url, bool& created,
                                          const Context& context,
                                          const BucketOptions& options = {});

  /// Opens an existing one.
  /// Throws Error: not_found ("no weightfs repository at URL; create one with: weightfs init URL"),
  /// unsupported (newer format, unknown required feature), corrupt, permission, unavailable.
  static std::unique_ptr<Repository> open(std::string_view url, const Context& context,
                                          const BucketOptions& options = {});

  /// For tests: opens the caller's bucket.  `environment`: of the Hub.
  static std::unique_ptr<Repository> open(std::unique_ptr<Bucket> bucket, const Context& context,
                                          Environment environment = process_environment());

  /// A repository known from the store, whose bucket may be unreachable.  Reads nothing now; the
  /// first call that reads checks the record.
  static std::unique_ptr<Repository> assume(std::string_view url, std::string_view id,
                                            const BucketOptions& options = {});

  [[nodiscard]] const std::string& id() const noexcept { return id_; }
  [[nodiscard]] const std::string& url() const noexcept { return url_; }

  /// The bucket.  Throws Error: unavailable if it is unreachable, or has no repository now, or
  /// another one.  Each call retries.
  Bucket& bucket(const Context& context);

  /// Reads the record again: a bucket that was emptied and begun anew under its URL has no next
  /// version either.
  /// Throws Error: not_found (another_repository()); as bucket(); what reading the record throws.
  void check_still_there(const Context& context);

  /// When manifests were last asked for, or listed, and there was an answer, as that there is none.
  [[nodiscard]] Clock::time_point last_answer() const noexcept { return last_answer_; }

  /// Where the files of the version's snapshot lie: the bucket, or the Hub.
  /// Requires: the version has a snapshot.  Throws Error: as bucket(), hub().
  BucketReader& snapshot_reader(const Version& version, const Context& context);

  /// The Hub, as the environment says that it is reached; asks nothing of the network.
  /// Throws Error: invalid (the environment).
  HubReader& hub();

  /// Fetched from the Hub by this process; nullopt: nothing was asked of it.
  [[nodiscard]] std::optional<std::uint64_t> hub_bytes() const;

  /// nullopt if the version does not exist (404).
  /// Throws Error: corrupt (malformed, other number or repository than its key says), unsupported.
  std::optional<Version> find_version(std::uint64_t number, const Context& context);

  /// The newest version that exists, at least `known`; 0 for an empty repository.  A GET of the
  /// next number decides whether there is a new version; if so, LIST gives a hint how far to look,
  /// and GETs decide.  Reads no manifest.  Lower numbers may be missing: see find_behind_gap().
  std::uint64_t newest_version(std::uint64_t known, const Context& context);

  /// The numbers of versions after `known`, without gaps: LIST gives hints, and each number that it
  /// leaves out between others is asked for.  Reads no manifest.
  struct Numbers {
    std::uint64_t newest = 0;  // `known` + 1 to here exist, as far as LIST and GETs say
    std::optional<std::uint64_t> behind_gap = {};  // the next one is missing, but this exists
  };
  Numbers list_numbers(std::uint64_t known, const Context& context);

  /// A version above `newest` + 1 that exists while `newest` + 1 does not: numbers have no gaps, so
  /// that manifest was removed.  LIST gives hints, GETs decide. nullopt: there is none, or this key
  /// lacks permission to LIST.
  std::optional<std::uint64_t> find_behind_gap(std::uint64_t newest, const Context& context);

  /// All of these compute the memory that an object needs before it is inflated, and throw Error
  /// unsupported if that exceeds the budget of this host (MemoryBudget).
  std::shared_ptr<const Layout> get_layout(const ObjectRef& ref, const Context& context);
  std::string get_blob(const BlobRef& ref, const Context& context);
  /// The header of a pack, whose SHA-256 was compared.  `key`: of the pack.
  std::string get_pack_head(const std::string& key, const PackRef& ref, const Layout& layout,
                            const Context& context);
  /// Likewise, and what follows the header, unchecked: its pieces must be compared before use.
  struct PackBytes {
    std::string head, data;
  };
  PackBytes get_whole_pack(const std::string& key, const PackRef& ref, const Layout& layout,
                           const Context& context);
  /// `room`: shared by all packs of a delta, if several are read.
  std::shared_ptr<const PackIndex> get_pack_index(const std::string& key, const PackRef& ref,
                                                  const Layout& layout, const Context& context,
                                                  PackRoom* room = nullptr);
  SnapshotHashes get_snapshot_hashes(std::uint64_t version, const SnapshotRef& ref,
                                     const Layout& layout, const Context& context);

  /// Uploads it unless it exists; content-addressed, so doing it twice is harmless.
  ObjectRef put_layout(const Layout& layout, const Context& context);
  BlobRef put_blob(std::string path, std::string_view bytes, const Context& context);
  ObjectRef put_snapshot_hashes(std::uint64_t version, std::string_view nonce,
                                const SnapshotHashes& hashes, const Context& context);

  /// Writes the manifest; this is the commit.
  /// After a lost reply it reads the number back; if that is taken, the nonce shows by whom.
  /// Returns: the version as the bucket has it: if an earlier try with this nonce succeeded, the
  /// manifest of that try.
  /// Throws Error: conflict if the number is taken by another nonce.
  /// Throws CommitUnknown.  After every other error the version was not written.
  Version commit(const Manifest& manifest, const Context& context);

  /// Makes the record name a feature that readers must know, unless it does already; other fields
  /// stay as they are.  Returns: whether it was added.
  /// Throws Error: corrupt if it is not there after it was written; what the bucket throws.
  bool require_feature(std::string_view feature, const Context& context);

 private:
  Repository(std::string id, std::string url, BucketOptions options, std::unique_ptr<Bucket> bucket,
             Environment environment);
  bool fill_hole(Numbers& numbers, std::uint64_t listed, unsigned& may_ask, const Context& context);
  std::optional<Version> settle(const Manifest& manifest, const Error& why);

  const std::string id_, url_;
  const BucketOptions options_;
  const Environment environment_;
  std::atomic<Clock::time_point> last_answer_{};
  // Guards what follows, each of which is set once.
  mutable RankedMutex mutex_{LockRank::repository, "Repository::mutex_"};
  std::unique_ptr<Bucket> bucket_;  // null until it was reached
  std::unique_ptr<HubReader> hub_;  // null until it was needed
};

}  // namespace weightfs
