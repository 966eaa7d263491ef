// Code version: makes what is uploaded of the weights files of a checkpoint.
//
//     early      files that were coded before the publish, and have not changed since
//     delta      all others against the parent's images; full packs are uploaded meanwhile
//     snapshot   where it is wanted, or there is no parent
//
// Of a part (store/parts) packs have the numbers of the version's tensors, and hashes are those of
// its own files.
//
// Of a version that is published again only the delta: its chunks are made, or known to be the
// parent's (store/publish/old_version.hpp).
//
// Threads: one call runs its own threads.
#pragma once

#include <memory>

#include "store/base/context.hpp"
#include "store/coding/checkpoint_reader.hpp"
#include "store/local/store.hpp"
#include "store/materialize/history.hpp"
#include "store/publish/part_chunks.hpp"
#include "store/publish/publish_options.hpp"
#include "store/publish/version_upload.hpp"

namespace weightfs {

struct VersionToCode {
  History& history;
  Store& store;
  const PublishOptions& options;
  const Layout& layout;
  const CheckpointReader* reader;          // nullptr: there are no files
  std::shared_ptr<const Version> content;  // else this version's, which is published again
  std::shared_ptr<const Version> parent;   // nullptr for version 1
  bool with_snapshot;                      // wished for or not
  Eviction::Reservation& parent_images;    // is set, and keeps what is coded against
  VersionUpload& upload;
  const PartChunks* part = nullptr;  // of a part with a parent; nullptr: the whole version
  bool with_pieces = false;          // of a part: its record has them before the snapshot is there
};

/// If the parent's bytes are damaged, a snapshot is made without a delta, provided that the options
/// want one.  Progress: "reading parent", "coding", "hashing".
/// Throws Error: busy (the checkpoint was written to), corrupt or not_found (the parent's bytes,
/// naming them), no_space, io, unavailable, timed_out, cancelled.
CodedVersion code_version(const VersionToCode& what, const Context& context,
                          const Progress& progress);

}  // namespace weightfs
