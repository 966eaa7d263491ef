// Publish: makes a version out of a checkpoint directory.
//
//     parent    the newest version when the command starts, or the one that a fence names; never
//               one beyond a gap in the history
//     scan      check every header and index; decide what is published; check for writers; with
//               PublishOptions::base: whether the Hub has files of these names and sizes
//     ask       during the next two steps: is the parent there, and the newest?  Blobs, layout
//     diff      for each file that was not coded early: bring the parent's images into the store;
//               per chunk, in parallel: read old and new, compare the old with its hash, code,
//               decode the result and compare it with the new, hash
//     upload    packs, each as soon as it is full, or the snapshot; outgoing bytes are compared
//               with their hashes.  With PublishOptions::base the snapshot's files are not uploaded
//               but compared with those of the Hub
//     commit    manifest, by put-if-absent
//     keep      where that is wanted: the files become images in the store, for the next publish
//
// A rollback (VersionWishes::rollback) has no files: instead of the scan the version is found whose
// content it has.  Of that its layout and small files are named again, and its chunks are made
// where they differ from the parent's (store/publish/old_version.hpp).
//
// If it is killed at any point, it leaves objects that no manifest names, and nothing else.  After
// an Error it removes its uploads, except for layouts and blobs, which other versions may use, and
// objects of a manifest that was sent and may still arrive.  Therefore no publish uses the names of
// an earlier one whose manifest was sent.
//
// Threads: one call runs its own threads; several calls, in any number of processes, may race for
// the same number: one wins, the others get Error conflict, or with `rebase` code again on top of
// the winner.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/coding/delta_coder.hpp"
#include "store/format/version_images.hpp"
#include "store/materialize/history.hpp"
#include "store/patches/fresh_patches.hpp"
#include "store/publish/publish_options.hpp"

namespace weightfs {

/// The most tries of a publish with `rebase`.
inline constexpr unsigned kRebaseTries = 10;

struct PublishResult {
  std::uint64_t version = 0;
  std::uint64_t parent = 0;
  std::uint64_t changed_elements = 0;  // 0 without a delta
  std::uint64_t elements = 0;
  std::uint64_t version_bytes = 0;         // the checkpoint's published files
  std::uint64_t uploaded_bytes = 0;        // everything added to the bucket for this version
  std::uint64_t early_bytes = 0;           // part of version_bytes: files coded early
  bool snapshot = false, delta = false;    // which the version has
  std::optional<HubBase> base;             // where the snapshot's files lie, if not in the bucket
  std::optional<RollbackChunks> rollback;  // of a rollback
  std::vector<std::string> unpublished;
  /// Of the version; none (version 0) if an earlier try with the same nonce made it of other files.
  VersionImages images;
  ImagesLock images_lock;  // with PublishOptions::lock_images
  /// What changed since the parent, for Store::fresh_patches() when the version is adopted;
  /// nullptr: it was not noted.
  std::unique_ptr<FreshSpan> fresh;
};

/// Throws Error: invalid (also: a file is not that of PublishOptions::base; no weights after a
/// version that has some), corrupt, not_found (the directory; see scan_checkpoint; the version to
/// roll back to; the repository, or another one is in its place), busy (a file was written to
/// while it was read), conflict (another writer published first, or the fence does not hold),
/// permission (the bucket cannot be written), no_space, corrupt (the parent's bytes, or a gap in
/// the history, naming the object), unavailable, timed_out, cancelled. Throws CommitUnknown: the
/// version may exist (store/repository/repository.hpp).  After every other error it does not.
PublishResult publish(History& history, Store& store, const PublishOptions& options,
                      const Context& context, const Progress& progress);

/// The version after `after` whose manifest has this nonce; nullopt if there is none up to the
/// newest.  Reads the manifests one after another.  Throws Error: as History::find.
std::optional<std::uint64_t> find_nonce(History& history, std::uint64_t after,
                                        std::string_view nonce, const Context& context);

}  // namespace weightfs
