// Version upload: puts what a version consists of into the bucket; all but its manifest.
//
//     blobs, layout   whole; may be there already, and be used by other versions
//     packs           each as soon as it is full, by a thread of its own; the rest with put()
//     snapshot        by put(); of one on the Hub the hashes alone, once its files are proven
//
// Files that were coded early may be in the bucket: then they are only entered into the manifest.
// What has been there for a while is looked for first, and uploaded again if somebody removed it.
//
// Threads: put_blobs() and put_layout() may run beside each other and beside all other calls; those
// are made by one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/context.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/coding/checkpoint_reader.hpp"
#include "store/coding/delta_coder.hpp"
#include "store/format/manifest.hpp"
#include "store/patches/fresh_patches.hpp"
#include "store/publish/hub_proof.hpp"
#include "store/publish/packs_ahead.hpp"
#include "store/publish/pre_encoded.hpp"
#include "store/publish/publish_options.hpp"
#include "store/repository/repository.hpp"

namespace weightfs {

/// What the weights files of a checkpoint were coded to.
struct CodedVersion {
  std::vector<std::shared_ptr<const EarlyResult>> early;  // by file of the layout; nullptr: not
                                                          // coded early
  std::string early_nonce;  // of those uploaded early, for a snapshot; empty: none may be used
  std::optional<CodedDelta> delta;  // the hashes of all files; packs of those not coded early
  std::optional<CheckpointHashes> snapshot;  // at least one of the two
  /// Of the files that `delta` coded; nullptr: they are not noted.
  std::shared_ptr<FreshChunks> fresh;

  [[nodiscard]] const std::vector<std::uint64_t>& chunk_hashes() const {
    return delta ? delta->hashes : snapshot->chunks;
  }
  [[nodiscard]] std::uint64_t early_bytes() const;  // size of the files that were coded early
};

class VersionUpload {
 public:
  struct Of {
    Repository& repository;
    const PublishOptions& options;
    const Layout& layout;
    const CheckpointReader* reader;          // nullptr: there are no files
    HubProof* proof;                         // nullptr: the snapshot's files are uploaded
    std::shared_ptr<const Version> content;  // else this version's, which is published again
    std::shared_ptr<const Version> parent;   // nullptr for version 1
    std::string uploader;                    // store/publish/upload_names.hpp
    /// Of a part's snapshot, whose hashes whoever commits puts; empty: it follows from the bytes.
    std::string snapshot_nonce = {};
  };

  /// Keeps the references.  What is uploaded is entered into `manifest`, which has its version.
  /// Progress: "uploading", bytes of packs and snapshot, but not of packs uploaded ahead.
  VersionUpload(Of of, Manifest& manifest, const Context& context, const Progress& progress);

  // All that upload throw Error: busy (a file was written to), invalid (the proof), permission,
  // no_space, io (a spool), unavailable, timed_out, cancelled.

  void put_blobs();
  void put_layout();

  /// Begins to upload packs while others are being coded: the first ones of the version.  Forgets
  /// those of an earlier call.  Where the system refuses a thread, put() uploads them.
  void begin_ahead();
  /// The next pack, which is full.  Returns at once.
  void put_ahead(std::shared_ptr<const SpooledPack> pack);
  /// Stops that; the version gets no delta, or none of this coding.
  void drop_ahead() noexcept { ahead_.reset(); }

  /// Uploads the packs that are left, and the snapshot.
  void put(const CodedVersion& coded);

  /// All that was added to the bucket for this version.  Requires: put..() have returned.
  [[nodiscard]] std::uint64_t bytes() const noexcept {
    return bytes_ + blob_bytes_ + layout_bytes_;
  }

  /// Removes the objects that only this publish uses, and no manifest names that has taken its
  /// number.  Requires: nothing is being uploaded.
  /// Gives up soon if the bucket does not answer.  Throws Error.
  void remove_all();

 private:
  /// A pack yet to be uploaded.
  struct PackUpload {
    const SpooledPack* pack = nullptr;
    std::string head;
    PackRef ref;
  };
  class CountedPuts;

  void find_lost(const CodedVersion& coded);
  [[nodiscard]] bool is_there(const EarlyResult& early) const;
  void list_packs(const CodedVersion& coded);
  void list_pack(const PackRef& ref);
  void add_upload(const SpooledPack& pack, std::uint32_t first_tensor);
  [[nodiscard]] PackUpload upload_of(const SpooledPack& pack, std::uint32_t first_tensor,
                                     std::size_t k) const;
  [[nodiscard]] PackRef upload_ahead(const SpooledPack& pack, std::size_t k);
  void upload_packs(CountedPuts& puts);
  void upload_pack(const PackUpload& pack,
                   const std::function<void(const std::string& key, const Source& source)>& put);
  void in_parallel(std::size_t count, const std::function<void(std::size_t index)>& request);
  void finish_ahead();
  void choose_snapshot_nonce(const CodedVersion& coded);
  [[nodiscard]] bool is_in_snapshot(const CodedVersion& coded, std::size_t file) const;
  void upload_snapshot(const CodedVersion& coded, CountedPuts& puts);
  void upload_snapshot_files(const CodedVersion& coded, bool is_shared, SnapshotHashes& hashes,
                             CountedPuts& puts);
  void note_upload(std::string key);
  [[nodiscard]] const Layout& layout() const noexcept { return of_.layout; }

  const Of of_;
  Manifest& manifest_;
  const Context context_;
  const Progress& progress_;

  std::size_t packs_ahead_ = 0;  // so many were uploaded, or begun, while others were being coded
  std::vector<PackUpload> pack_uploads_;
  std::string snapshot_nonce_;
  std::uint64_t bytes_ = 0, blob_bytes_ = 0, layout_bytes_ = 0;
  // Guards the next two.
  RankedMutex mutex_{LockRank::leaf, "VersionUpload::mutex_"};
  std::vector<std::string> uploads_;   // keys that only this publish uses
  std::set<const EarlyResult*> lost_;  // not in the bucket any more; only find_lost() changes it
  std::optional<PacksAhead> ahead_;    // last: its thread uses those above
};

}  // namespace weightfs
