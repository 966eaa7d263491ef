// Publish: makes a version out of a checkpoint directory.
//
//     parent    the newest version when the command starts, or the one that a fence names; never
//               one behind which the history has a gap
//     scan      check every header and index; decide what is published; nobody may write to it
//     diff      for each file that was not coded early: bring the parent's images into the store;
//               per chunk, in parallel: read old and new, compare the old with its hash, code,
//               decode what was coded and compare with the new, hash
//     upload    packs (or the snapshot), blobs, layout: what goes out is compared with its hashes
//     commit    manifest, by put-if-absent
//
// Killed at any point it leaves objects that no manifest names, and nothing else.  After an Error
// it removes what it uploaded, except for layouts and blobs, which others may rely on, and for
// objects of a manifest that was sent and may still arrive.  Therefore no publish uses the names of
// an earlier one whose manifest was sent.
//
// Threads: one call runs its own threads; several calls, in any number of processes, may race for
// the same number: one wins, the others get Error conflict, or with `rebase` code again on top of
// the winner.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/block/chunk_coder.hpp"
#include "kernels/dispatch/cpu_coder.hpp"
#include "store/format/version_images.hpp"
#include "store/materialize/history.hpp"

namespace weightfs {

class PreEncoded;

/// How often a publish with `rebase` tries at most.
inline constexpr unsigned kRebaseTries = 10;

struct PublishOptions {
  std::filesystem::path directory;
  std::string tag;  // may be empty
  std::map<std::string, std::string> meta;
  std::vector<std::string> include;  // globs beside the built-in patterns
  bool snapshot = false;             // write the full bytes too; without a delta where the parent's
                                     // bytes are damaged
  unsigned threads = 0;              // 0: one for each core
  kernels::SharedCoder coder = kernels::make_cpu_coder();

  /// 32 hex digits that the manifest will carry; empty: fresh ones.  A caller that records it
  /// before the call can find out after a crash, with find_nonce(), whether the version exists.  It
  /// may be used again for the same checkpoint: uploads are named by their bytes, and a manifest
  /// that already carries it counts as this publish's own.
  std::string nonce = {};

  /// Uploads stay after an Error, unless the number is taken: the checkpoint will be published
  /// again, under the same names.
  bool keeps_uploads = false;

  /// The version that must be the newest when the publish begins, 0: none may exist.  If another
  /// one is, that is a conflict before anything is read; after a `rebase` the newest version at
  /// that time is taken.  nullopt: the newest version, whichever that is.
  std::optional<std::uint64_t> fence_parent = {};

  /// A publish that lost a race, or whose fence does not hold, takes the newest version as its
  /// parent and codes again, kRebaseTries times in all, after pauses that grow and are random.
  bool rebase = false;

  /// Called right before a manifest is written, once in each try.  If it throws, the publish ends
  /// with nothing committed.  (`at` is for tests.)
  std::function<void(std::uint64_t version)> committing = {};

  /// Takes Store::lock_images() before `committing` and returns it in the result, so that nobody
  /// fetches the version before the caller has adopted it (store/materialize/adopt.hpp).
  bool lock_images = false;

  /// What was coded before (store/publish/pre_encoder.hpp); may be null.  A file counts if its
  /// path, inode, size, modification time and header, and the parent, are those it was coded with.
  std::shared_ptr<const PreEncoded> early = {};

  /// Called at named points ("scanned", "parent", "diffed", "pack", "blobs", "layout",
  /// "before-commit", "committed"); tests kill the process there.  "parent" is reached only if
  /// a file is coded.
  std::function<void(std::string_view point)> at;
};

struct PublishResult {
  std::uint64_t version = 0;
  std::uint64_t parent = 0;
  std::uint64_t changed_elements = 0;  // 0 without a delta
  std::uint64_t elements = 0;
  std::uint64_t version_bytes = 0;   // the checkpoint's published files
  std::uint64_t uploaded_bytes = 0;  // everything that the version added to the bucket
  std::uint64_t early_bytes = 0;     // of version_bytes: of files that were coded early
  bool snapshot = false, delta = false;
  std::vector<std::string> unpublished;
  VersionImages images;    // of the version
  ImagesLock images_lock;  // with PublishOptions::lock_images
};

/// Throws Error: invalid, corrupt, not_found (the directory; see scan_checkpoint), busy (a file was
/// written to while it was read), conflict (another writer published first, or the fence does not
/// hold), permission (the bucket cannot be written), no_space, corrupt (the parent's bytes, or a
/// gap in the history, naming the object), unavailable, timed_out, cancelled. Throws CommitUnknown:
/// the version may exist (store/repository/repository.hpp).  After every other error it does not.
PublishResult publish(History& history, Store& store, const PublishOptions& options,
                      const Context& context, const Progress& progress);

/// The version after `after` whose manifest has this nonce; nullopt if there is none up to the
/// newest.  Reads the manifests one after another.  Throws Error: as History::find.
std::optional<std::uint64_t> find_nonce(History& history, std::uint64_t after,
                                        std::string_view nonce, const Context& context);

}  // namespace weightfs
