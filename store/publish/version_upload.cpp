#include "store/publish/version_upload.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iterator>
#include <mutex>
#include <numeric>
#include <system_error>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/base/compress.hpp"
#include "store/base/log.hpp"
#include "store/base/sha256.hpp"
#include "store/publish/upload_names.hpp"
#include "store/threads/parallel.hpp"

namespace weightfs {
namespace {

constexpr unsigned kBlobsAtOnce = 4;  // each is wholly in memory

/// Time limit for removing useless uploads: a caller may be waiting for the end.
constexpr std::chrono::seconds kRemoveTime{5};

bool is_named(const std::string& key, const Manifest& by) {
  const auto is_it = [&](const PackRef& pack) { return key == keys::pack(by.version, pack.name); };
  if (by.delta && std::ranges::any_of(by.delta->packs, is_it)) return true;
  return by.snapshot && key.starts_with(keys::snapshot_file(by.version, by.snapshot->nonce, ""));
}

}  // namespace

/// Sums up the upload progress over all objects, and reports it.
class VersionUpload::CountedPuts {
 public:
  CountedPuts(Bucket& bucket, const Context& context, const Progress& progress,
              std::uint64_t total_bytes)
      : bucket_(bucket), context_(context), progress_(progress), total_(total_bytes) {}

  void put(const std::string& key, const Source& source) {
    bucket_.put(key, Counted(*this, source), context_);
  }

 private:
  /// Buckets read a source once, unless they restart an upload; the reported progress never exceeds
  /// the total.
  class Counted final : public Source {
   public:
    Counted(CountedPuts& puts, const Source& source) : puts_(puts), source_(source) {}
    [[nodiscard]] std::uint64_t size_bytes() const override { return source_.size_bytes(); }
    void read(std::uint64_t offset_bytes, std::span<std::byte> into) const override {
      source_.read(offset_bytes, into);
      puts_.add(into.size());
    }

   private:
    CountedPuts& puts_;
    const Source& source_;
  };

  void add(std::uint64_t bytes) {
    const std::uint64_t done = done_ += bytes;
    if (progress_) progress_("uploading", std::min(done, total_), total_);
  }

  Bucket& bucket_;
  const Context& context_;
  const Progress& progress_;
  std::uint64_t total_;
  std::atomic<std::uint64_t> done_{0};
};

std::uint64_t CodedVersion::early_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& result : early) bytes += result ? result->file.stamp.size_bytes : 0;
  return bytes;
}

VersionUpload::VersionUpload(Of of, Manifest& manifest, const Context& context,
                             const Progress& progress)
    : of_(std::move(of)), manifest_(manifest), context_(context), progress_(progress) {}

// ---- blobs, layout ----

void VersionUpload::put_blobs() {
  if (of_.content) {
    manifest_.blobs = of_.content->manifest.blobs;  // they are there
    return;
  }
  const auto blobs = of_.reader->blobs();
  std::vector<std::size_t> sizes(blobs.size());  // in the bucket; 0: the parent has the blob too
  manifest_.blobs.resize(blobs.size());
  parallel_for(blobs.size(), kBlobsAtOnce, context_, [&](std::size_t i) {
    const std::string bytes = of_.reader->read_all(*blobs[i]);
    manifest_.blobs[i] = of_.repository.put_blob(blobs[i]->path, bytes, context_);
    const Sha256& id = manifest_.blobs[i].sha256;
    const bool known =
        of_.parent && std::ranges::any_of(of_.parent->manifest.blobs,
                                          [&](const auto& b) { return b.sha256 == id; });
    if (!known) sizes[i] = compress(bytes).size();
  });
  blob_bytes_ = std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
}

void VersionUpload::put_layout() {
  if (of_.content) {
    manifest_.layout = of_.content->manifest.layout;
    return;
  }
  manifest_.layout = of_.repository.put_layout(layout(), context_);
  const bool known = of_.parent && of_.parent->manifest.layout.sha256 == manifest_.layout.sha256;
  layout_bytes_ = known ? 0 : compress(layout().serialize()).size();
}

// ---- what was uploaded early ----

bool VersionUpload::is_there(const EarlyResult& early) const {
  return early.is_uploaded && !lost_.contains(&early);
}

/// Asks for each object: a list proves nothing (store/bucket/bucket.hpp).
void VersionUpload::find_lost(const CodedVersion& coded) {
  std::vector<std::pair<std::string, const EarlyResult*>> objects;  // with their keys
  for (std::size_t i = 0; i < coded.early.size(); i++) {
    const EarlyResult* const early = coded.early[i].get();
    const bool is_old = early != nullptr && early->is_uploaded &&
                        Clock::now() >= early->begun + of_.options.early_trust;
    if (!is_old) continue;
    if (coded.delta) {
      for (const PackRef& ref : early->uploaded) {
        objects.emplace_back(keys::pack(manifest_.version, ref.name), early);
      }
    } else if (coded.snapshot && of_.proof == nullptr) {
      objects.emplace_back(
          keys::snapshot_file(manifest_.version, early->nonce, layout().files()[i].path), early);
    }
  }
  Bucket& bucket = of_.repository.bucket(context_);
  in_parallel(objects.size(), [&](std::size_t i) {
    const auto& [key, early] = objects[i];
    if (has_object(bucket, key, context_)) return;
    log_warning(
        fmt::format("object {} is gone from the bucket, though no version has it yet; it is "
                    "uploaded again",
                    key));
    const std::lock_guard lock(mutex_);
    lost_.insert(early);
  });
}

// ---- packs ----

void VersionUpload::begin_ahead() {
  try {
    ahead_.emplace(
        context_, [this](const SpooledPack& pack, std::size_t k) { return upload_ahead(pack, k); });
  } catch (const std::system_error& error) {
    note_refused_thread(error);  // put() uploads them all
  }
}

void VersionUpload::put_ahead(std::shared_ptr<const SpooledPack> pack) {
  if (ahead_) ahead_->add(std::move(pack));
}

PackRef VersionUpload::upload_ahead(const SpooledPack& pack, std::size_t k) {
  PackUpload full = upload_of(pack, 0, k);
  upload_pack(full, [&](const std::string& key, const Source& source) {
    of_.repository.bucket(context_).put(key, source, context_);
  });
  if (of_.options.at) of_.options.at("pack-ahead");
  return std::move(full.ref);
}

void VersionUpload::put(const CodedVersion& coded) {
  std::uint64_t total = 0;
  if (ahead_) packs_ahead_ = ahead_->end();
  find_lost(coded);
  if (coded.delta) list_packs(coded);
  for (const PackUpload& pack : pack_uploads_) total += pack.ref.size_bytes;
  if (coded.snapshot) choose_snapshot_nonce(coded);
  if (coded.snapshot && of_.proof == nullptr) {
    for (std::size_t i = 0; i < coded.early.size(); i++) {
      if (!is_in_snapshot(coded, i)) total += layout().files()[i].size_bytes;
    }
  }
  CountedPuts puts(of_.repository.bucket(context_), context_, progress_, total);
  if (coded.delta) upload_packs(puts);
  if (coded.snapshot) upload_snapshot(coded, puts);
  if (coded.delta) finish_ahead();
}

/// The first packs of the manifest.
void VersionUpload::finish_ahead() {
  if (!ahead_) return;
  std::vector<PackRef> first = ahead_->finish();
  for (const PackRef& ref : first) bytes_ += ref.size_bytes;
  std::vector<PackRef>& packs = manifest_.delta->packs;
  packs.insert(packs.begin(), std::make_move_iterator(first.begin()),
               std::make_move_iterator(first.end()));
}

/// Lists the packs of the manifest that were not uploaded during coding, and those of them that are
/// yet to be uploaded.
void VersionUpload::list_packs(const CodedVersion& coded) {
  manifest_.delta.emplace();
  manifest_.delta->changed_elements = coded.delta->changed_elements;
  if (coded.delta->needs_xr) manifest_.add_feature(kFeatureXr);
  for (std::size_t k = packs_ahead_; k < coded.delta->packs.size(); k++) {
    add_upload(*coded.delta->packs[k], 0);
  }
  for (std::size_t i = 0; i < coded.early.size(); i++) {
    if (!coded.early[i]) continue;
    const EarlyResult& early = *coded.early[i];
    const std::uint32_t first_tensor = layout().files()[i].first_tensor;
    if (is_there(early) && early.first_tensor == first_tensor) {
      for (const PackRef& ref : early.uploaded) list_pack(ref);
    } else {
      for (const auto& pack : early.delta.packs) add_upload(*pack, first_tensor);
    }
  }
}

void VersionUpload::list_pack(const PackRef& ref) {
  bytes_ += ref.size_bytes;
  manifest_.delta->packs.push_back(ref);
}

void VersionUpload::add_upload(const SpooledPack& pack, std::uint32_t first_tensor) {
  PackUpload made = upload_of(pack, first_tensor, packs_ahead_ + pack_uploads_.size());
  list_pack(made.ref);
  pack_uploads_.push_back(std::move(made));
}

VersionUpload::PackUpload VersionUpload::upload_of(const SpooledPack& pack,
                                                   std::uint32_t first_tensor,
                                                   std::size_t k) const {
  PackUpload made{&pack, pack.writer.head(first_tensor), {}};
  made.ref = pack_ref(pack, made.head);
  // The header contains the hash of every piece of the data.
  UploadNonce nonce(of_.repository, of_.uploader, manifest_.version);
  nonce.add(made.ref.head_sha256);
  made.ref.name = fmt::format("{}-{}", nonce.finish(), k);
  return made;
}

void VersionUpload::upload_packs(CountedPuts& puts) {
  in_parallel(pack_uploads_.size(), [&](std::size_t i) {
    upload_pack(pack_uploads_[i],
                [&](const std::string& key, const Source& source) { puts.put(key, source); });
  });
}

void VersionUpload::upload_pack(
    const PackUpload& pack,
    const std::function<void(const std::string& key, const Source& source)>& put) {
  const PackSource source(pack.head, *pack.pack);
  const std::string key = keys::pack(manifest_.version, pack.ref.name);
  note_upload(key);
  put(key, source);
}

void VersionUpload::in_parallel(std::size_t count,
                                const std::function<void(std::size_t index)>& request) {
  const unsigned threads = request_threads(of_.repository.bucket(context_), of_.options.threads);
  parallel_for(count, threads, context_, request);
}

// ---- snapshot ----

/// All files of a snapshot share one nonce: that of the files uploaded early, if there are any.
void VersionUpload::choose_snapshot_nonce(const CodedVersion& coded) {
  snapshot_nonce_ = of_.snapshot_nonce;
  if (!snapshot_nonce_.empty()) return;
  UploadNonce nonce(of_.repository, of_.uploader, manifest_.version);
  for (std::size_t i = 0; i < coded.early.size(); i++) {
    nonce.add(layout().files()[i].path);
    nonce.add(std::as_bytes(std::span(coded.snapshot->marks[i])));
  }
  // Else files that an upload without a base left behind would pass for those of the snapshot.
  if (of_.proof != nullptr) nonce.add(of_.proof->base().text());
  snapshot_nonce_ = nonce.finish();
  if (coded.delta) return;
  const bool any = std::ranges::any_of(coded.early, [&](const auto& early) {
    return early && is_there(*early) && early->nonce == coded.early_nonce;
  });
  if (any) snapshot_nonce_ = coded.early_nonce;
}

bool VersionUpload::is_in_snapshot(const CodedVersion& coded, std::size_t file) const {
  const auto& early = coded.early[file];
  return !coded.delta && early && is_there(*early) && early->nonce == snapshot_nonce_;
}

void VersionUpload::upload_snapshot(const CodedVersion& coded, CountedPuts& puts) {
  // The nonce of early work is used again when the same hand-over is published again.
  const bool is_shared = !coded.delta && snapshot_nonce_ == coded.early_nonce;
  manifest_.snapshot.emplace();
  manifest_.snapshot->nonce = snapshot_nonce_;
  SnapshotHashes hashes{coded.snapshot->chunks, {}};
  if (of_.proof != nullptr) {
    hashes.pieces = of_.proof->compare(coded.snapshot->marks, context_, progress_);
    manifest_.snapshot->base = of_.proof->base();
    manifest_.add_feature(kFeatureHubBase);
  } else {
    upload_snapshot_files(coded, is_shared, hashes, puts);
    bytes_ += layout().size_bytes();
  }
  if (!of_.snapshot_nonce.empty()) return;
  if (!is_shared) note_upload(keys::snapshot_hashes(manifest_.version, snapshot_nonce_));
  manifest_.snapshot->hashes =
      of_.repository.put_snapshot_hashes(manifest_.version, snapshot_nonce_, hashes, context_);
  // Hashes do not compress, so the object has their plain size.
  bytes_ += manifest_.snapshot->hashes.size_bytes;
}

/// Also fills in the pieces of all files.
void VersionUpload::upload_snapshot_files(const CodedVersion& coded, bool is_shared,
                                          SnapshotHashes& hashes, CountedPuts& puts) {
  const auto files = of_.reader->weights();
  hashes.pieces.resize(files.size());
  in_parallel(files.size(), [&](std::size_t i) {
    if (is_in_snapshot(coded, i)) {
      hashes.pieces[i] = coded.early[i]->pieces;
      return;
    }
    const CheckpointFile& file = *files[i];
    const SnapshotSource source(*of_.reader, file, coded.snapshot->marks[i]);
    const std::string key = keys::snapshot_file(manifest_.version, snapshot_nonce_, file.path);
    if (!is_shared) note_upload(key);
    puts.put(key, source);
    hashes.pieces[i] = source.pieces();
  });
}

// ---- what is left after a failure ----

/// Called before the upload, because a failed upload may still have created the object.  By any
/// thread.
void VersionUpload::note_upload(std::string key) {
  const std::lock_guard lock(mutex_);
  uploads_.push_back(std::move(key));
}

// A host with a copy of this store gives the same bytes the same names.
void VersionUpload::remove_all() {
  if (uploads_.empty()) return;
  const Context context = Context{}.within(kRemoveTime);
  const auto there = of_.repository.find_version(manifest_.version, context);
  std::erase_if(uploads_,
                [&](const std::string& key) { return there && is_named(key, there->manifest); });
  Bucket& bucket = of_.repository.bucket(context);
  parallel_for(uploads_.size(), request_threads(bucket, of_.options.threads), context,
               [&](std::size_t i) { bucket.remove(uploads_[i], context); });
}

}  // namespace weightfs
