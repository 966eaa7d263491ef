#include "store/publish/publish.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <mutex>
#include <random>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/base/compress.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/base/parallel.hpp"
#include "store/base/path_rules.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/base/sha256.hpp"
#include "store/format/checkpoint.hpp"
#include "store/format/version_images.hpp"
#include "store/local/db.hpp"
#include "store/materialize/bases.hpp"
#include "store/materialize/materialize.hpp"
#include "store/materialize/plan.hpp"
#include "store/publish/checkpoint_reader.hpp"
#include "store/publish/delta_coder.hpp"
#include "store/publish/pre_encoded.hpp"

namespace weightfs {
namespace {

constexpr unsigned kBlobsAtOnce = 4;  // which are in memory as a whole

/// How long what was uploaded in vain is removed: somebody may wait for the end.
constexpr std::chrono::seconds kRemoveTime{5};

/// A pack that is still to be uploaded.
struct PackUpload {
  const SpooledPack* pack = nullptr;
  std::string head;
  std::string name;
};

/// Adds up what is uploaded, over all objects, and tells it.
class Upload {
 public:
  Upload(Bucket& bucket, const Context& context, const Progress& progress,
         std::uint64_t total_bytes)
      : bucket_(bucket), context_(context), progress_(progress), total_(total_bytes) {}

  void put(const std::string& key, const Source& source) {
    bucket_.put(key, Counted(*this, source), context_);
  }

 private:
  /// A bucket reads a source once, unless it begins an upload anew; what is shown never exceeds
  /// the total.
  class Counted final : public Source {
   public:
    Counted(Upload& upload, const Source& source) : upload_(upload), source_(source) {}
    [[nodiscard]] std::uint64_t size_bytes() const override { return source_.size_bytes(); }
    void read(std::uint64_t offset_bytes, std::span<std::byte> into) const override {
      source_.read(offset_bytes, into);
      upload_.add(into.size());
    }

   private:
    Upload& upload_;
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

/// What the user gave, before any work is done.
void check_options(const PublishOptions& options) {
  if (!options.tag.empty()) {
    const std::string problem = tag_problem(options.tag);
    if (!problem.empty()) {
      throw Error(ErrorCode::invalid,
                  fmt::format("the tag '{}' {}", escape_name(options.tag), problem));
    }
  }
  if (!options.nonce.empty() && !is_nonce(options.nonce)) {
    throw Error(ErrorCode::invalid, "a nonce must be 32 hex digits");
  }
  check_users_meta(options.meta);
  Manifest manifest;
  manifest.meta = options.meta;
  static_cast<void>(manifest.serialize());  // refuses what is not text, or too much
}

/// Remembers other digits, so that no later publish uses the names of what is uploaded now.
void forget_uploader(Store& store) {
  try {
    store.db().write({{ColumnFamily::store, "uploader", random_hex(16)}});
  } catch (const Error& error) {
    log_debug(fmt::format("cannot change the names of uploads: {}", error.what()));
  }
}

/// Digits of a store alone.  No two processes hold a store at a time, so no two that run at the
/// same time have the same.
std::string uploader_of(Store& store) {
  std::string digits = random_hex(16);
  try {
    if (const auto known = store.db().find(ColumnFamily::store, "uploader")) return *known;
    store.db().write({{ColumnFamily::store, "uploader", digits}});
  } catch (const Error& error) {
    log_debug(fmt::format("interrupted uploads cannot be resumed: {}", error.what()));
  }
  return digits;
}

/// The nonce of what one uploader uploads, by all that decides its bytes: the same again after a
/// crash, so that the upload is resumed, and never the same for other bytes.
class UploadNonce {
 public:
  UploadNonce(const Repository& repository, std::string_view uploader, std::uint64_t version) {
    add(repository.id());
    add(uploader);
    add(std::to_string(version));
  }

  void add(std::string_view text) { add(as_bytes(text)); }
  void add(std::span<const std::byte> bytes) {
    std::string size;
    append_le<std::uint64_t>(size, bytes.size());
    hash_.update(as_bytes(size));
    hash_.update(bytes);
  }

  [[nodiscard]] std::string finish() {
    const Sha256 hash = hash_.finish();
    return to_hex(std::span(hash).first(16));
  }

 private:
  Sha256Stream hash_;
};

/// Pauses between the tries of a rebase: they double, and differ from publisher to publisher.
Clock::duration pause_after(unsigned tries) {
  constexpr double kFirstSeconds = 0.02, kLongestSeconds = 1;
  std::random_device random;
  std::uniform_real_distribution<double> jitter(0.5, 1.5);
  const double seconds = std::min(kFirstSeconds * std::exp2(tries - 1), kLongestSeconds);
  return std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(seconds * jitter(random)));
}

/// One publish: the steps of publish(), and what they hand to each other.
class Publisher {
 public:
  Publisher(History& history, Store& store, const PublishOptions& options, const Context& context,
            const Progress& progress)
      : history_(history),
        repository_(history.repository()),
        store_(store),
        options_(options),
        context_(context),
        progress_(progress) {}

  PublishResult run();

 private:
  void attempt(bool is_first);
  void begin();
  void find_parent();
  void check_fence(std::uint64_t newest) const;
  void check_parent_in_bucket();
  void scan();
  void take_early();
  void forget_early();
  void try_delta();
  void make_delta();
  void code_rest();
  CodedDelta code_against_parent();
  void bring_parent();
  void make_snapshot();
  void check_same_bytes() const;
  void upload();
  void list_packs();
  void list_pack(const SpooledPack& pack, std::uint32_t first_tensor, std::string_view uploaded_as);
  void upload_packs(Upload& upload);
  void upload_parallel(std::size_t count, const std::function<void(std::size_t index)>& put);
  void choose_snapshot_nonce();
  [[nodiscard]] bool is_in_snapshot(std::size_t file) const;
  void upload_snapshot(Upload& upload);
  void upload_blobs();
  void upload_layout();
  void commit();
  void remember(const Version& version);
  void note_upload(std::string key);
  void remove_uploads(const Error& why) noexcept;
  void reached(std::string_view point) const {
    if (options_.at) options_.at(point);
  }

  History& history_;
  Repository& repository_;
  Store& store_;
  const PublishOptions& options_;
  const Context& context_;
  const Progress& progress_;

  std::string nonce_;     // of the manifest
  std::string uploader_;  // of the nonces of what is uploaded
  Checkpoint checkpoint_;
  std::shared_ptr<const Layout> layout_;
  std::optional<CheckpointReader> reader_;

  // Of one try:
  std::shared_ptr<const Version> parent_;                  // nullptr for version 1
  Eviction::Reservation parent_images_;                    // that are read
  std::vector<std::shared_ptr<const EarlyResult>> early_;  // by file of the layout; nullptr: none
  FileSet is_early_;
  std::optional<CodedDelta> delta_;
  std::vector<PackUpload> pack_uploads_;
  std::optional<SnapshotHashes> snapshot_;
  std::string snapshot_nonce_;
  bool is_sent_ = false;  // the manifest; from then on the version may exist
  RankedMutex mutex_{LockRank::leaf, "Publisher::mutex_"};  // guards uploads_
  std::vector<std::string> uploads_;                        // keys that no other publish uses
  Manifest manifest_;
  PublishResult result_;
};

PublishResult Publisher::run() {
  check_options(options_);
  nonce_ = options_.nonce.empty() ? random_hex(16) : options_.nonce;
  uploader_ = uploader_of(store_);
  for (unsigned tries = 1;; tries++) {
    try {
      attempt(tries == 1);
      return std::move(result_);
    } catch (const Error& error) {
      remove_uploads(error);
      if (error.code() != ErrorCode::conflict || !options_.rebase) throw;
      if (tries == kRebaseTries) throw error.within(fmt::format("gave up after {} tries", tries));
      log_info(fmt::format("{}; coding again on top of it", error.what()));
    }
    result_.images_lock.unlock();
    context_.pause(pause_after(tries), "publishing");
  }
}

void Publisher::attempt(bool is_first) {
  begin();
  find_parent();
  if (is_first) {
    scan();
    reached("scanned");
  }
  take_early();
  if (parent_) try_delta();
  if (!parent_ || options_.snapshot) make_snapshot();
  reached("diffed");
  upload();
  reader_->wait_unwritten(context_);
  reader_->check_untouched();
  reached("before-commit");
  commit();
  reached("committed");
}

/// Forgets an earlier try, and what it uploaded.
void Publisher::begin() {
  parent_.reset();
  delta_.reset();
  snapshot_.reset();
  pack_uploads_.clear();
  is_sent_ = false;
  uploads_.clear();
  manifest_ = {};
  result_ = {};
  manifest_.nonce = nonce_;
}

void Publisher::find_parent() {
  history_.look_behind_the_newest();
  // Twice: the first call gives what it found before it met trouble, the second one throws it.
  const std::uint64_t seen = history_.refresh(store_.newest().version, context_);
  const std::uint64_t parent = history_.refresh(seen, context_);
  if (parent >= kVersionMax) {
    throw Error(ErrorCode::unsupported, fmt::format("the repository {} is full: it has {} versions",
                                                    repository_.url(), parent));
  }
  check_fence(parent);
  if (parent > 0) {
    parent_ = history_.get(parent, context_);
    check_parent_in_bucket();
    manifest_.parent_sha256 = parent_->manifest_sha256;
  }
  result_.parent = manifest_.parent = parent;
  result_.version = manifest_.version = parent + 1;
}

void Publisher::check_fence(std::uint64_t newest) const {
  if (!options_.fence_parent || *options_.fence_parent == newest || options_.rebase) return;
  throw Error(
      ErrorCode::conflict,
      fmt::format("the newest version is {}, but this one must follow version {}: another writer "
                  "published in between.  Use --rebase to take the newest version as the parent",
                  newest, *options_.fence_parent));
}

/// The store may remember a version that the bucket has lost; a version on top of it would leave a
/// hole that no reader gets over.
void Publisher::check_parent_in_bucket() {
  const auto there = repository_.find_version(parent_->number(), context_);
  if (there && there->manifest_sha256 == parent_->manifest_sha256) return;
  throw Error(
      ErrorCode::corrupt,
      fmt::format(
          "{} in {} is {}: this host has seen version {}.  Restore the bucket, or publish with "
          "an empty --store to continue from its present state",
          keys::manifest(parent_->number()), repository_.url(),
          there ? "no longer the same" : "gone", parent_->number()));
}

void Publisher::scan() {
  checkpoint_ = scan_checkpoint(options_.directory, options_.include);
  layout_ = Layout::from_checkpoint(checkpoint_);
  reader_.emplace(checkpoint_, *layout_);
  reader_->wait_unwritten(context_);
}

/// Finds out which files need not be coded.
void Publisher::take_early() {
  result_.elements = layout_->element_count();
  result_.version_bytes = checkpoint_.size_bytes();
  result_.unpublished = checkpoint_.unpublished;
  forget_early();
  if (!options_.early) return;
  const Sha256 parent_sha256 = parent_ ? parent_->manifest_sha256 : Sha256{};
  for (std::size_t i = 0; i < early_.size(); i++) {
    const CheckpointFile& file = *reader_->weights()[i];
    early_[i] = options_.early->find(file, result_.parent, parent_sha256);
    is_early_[i] = early_[i] != nullptr;
    if (early_[i]) result_.early_bytes += file.stamp.size_bytes;
  }
}

void Publisher::forget_early() {
  early_.assign(layout_->files().size(), nullptr);
  is_early_.assign(layout_->files().size(), false);
  result_.early_bytes = 0;
}

/// Puts the chunk hashes of a file where they belong in those of the version.
void place_hashes(const EarlyResult& early, const Layout& layout, const LayoutFile& file,
                  std::vector<std::uint64_t>& hashes) {
  if (early.delta.hashes.empty()) return;
  const std::uint64_t first = layout.tensors()[file.first_tensor].first_chunk;
  std::copy(early.delta.hashes.begin(), early.delta.hashes.end(),
            hashes.begin() + static_cast<std::ptrdiff_t>(first));
}

/// A snapshot needs none of the parent's bytes: where these are damaged, which a snapshot is the
/// way out of, it goes without a delta.
void Publisher::try_delta() {
  try {
    make_delta();
  } catch (const Error& error) {
    const bool is_damage =
        error.code() == ErrorCode::corrupt || error.code() == ErrorCode::not_found;
    if (!options_.snapshot || !is_damage) throw;
    log_warning(fmt::format("{}; version {} gets a snapshot and no delta", error.what(),
                            manifest_.version));
    delta_.reset();
    forget_early();
    result_.changed_elements = 0;
  }
}

void Publisher::make_delta() {
  code_rest();
  for (std::size_t i = 0; i < early_.size(); i++) {
    if (!early_[i]) continue;
    place_hashes(*early_[i], *layout_, layout_->files()[i], delta_->hashes);
    delta_->changed_elements += early_[i]->delta.changed_elements;
    delta_->needs_xr = delta_->needs_xr || early_[i]->delta.needs_xr;
  }
  result_.changed_elements = delta_->changed_elements;
}

/// Codes the files that were not coded early.
void Publisher::code_rest() {
  if (std::ranges::all_of(early_, [](const auto& early) { return early != nullptr; })) {
    delta_.emplace();
    delta_->hashes.resize(layout_->chunk_count());
    return;
  }
  try {
    bring_parent();
    delta_ = code_against_parent();
  } catch (const BaseDamaged& damaged) {
    parent_images_.give_up();
    if (!store_.evictor().evict(damaged.version())) throw;
    log_warning(fmt::format("{}; it is rebuilt from the bucket", damaged.what()));
    bring_parent();
    delta_ = code_against_parent();
  }
}

void Publisher::bring_parent() {
  const std::uint64_t parent = parent_->number();
  if (store_.newest().version < parent) store_.put_newest({parent, parent_->manifest_sha256});
  const Progress reading = [this](std::string_view, std::uint64_t done, std::uint64_t total) {
    if (progress_) progress_("reading parent", done, total);
  };
  parent_images_ = store_.eviction().reserve(parent, Eviction::Claim::stays, context_);
  materialize(store_, history_, parent, context_, reading, options_.coder);
  reached("parent");
}

CodedDelta Publisher::code_against_parent() {
  const Base base = base_of(store_, history_, parent_->number(), context_);
  CodeOptions options;
  options.spool = store_.temporary_directory();
  options.threads = options_.threads;
  options.coder = options_.coder;
  options.without = is_early_;
  return code_delta(*reader_, base, options, context_, progress_);
}

void Publisher::make_snapshot() {
  result_.snapshot = true;
  if (delta_) {
    snapshot_ = hash_checkpoint(*reader_, options_.threads, context_, progress_);
    check_same_bytes();
    return;
  }
  snapshot_ = hash_checkpoint(*reader_, options_.threads, is_early_, context_, progress_);
  for (std::size_t i = 0; i < early_.size(); i++) {
    if (!early_[i]) continue;
    place_hashes(*early_[i], *layout_, layout_->files()[i], snapshot_->chunks);
    snapshot_->pieces[i] = early_[i]->pieces;
  }
}

/// What was coded and what goes into the snapshot were read one after the other.
void Publisher::check_same_bytes() const {
  for (const LayoutTensor& tensor : layout_->tensors()) {
    const auto coded = std::span(delta_->hashes).subspan(tensor.first_chunk, tensor.chunk_count);
    const auto full = std::span(snapshot_->chunks).subspan(tensor.first_chunk, tensor.chunk_count);
    if (!std::ranges::equal(coded, full)) reader_->refuse(*reader_->weights()[tensor.file]);
  }
}

void Publisher::upload() {
  std::uint64_t total = 0;
  if (delta_) list_packs();
  for (const PackUpload& pack : pack_uploads_) {
    total += pack.head.size() + pack.pack->data_size_bytes;
  }
  if (snapshot_) {
    choose_snapshot_nonce();
    for (std::size_t i = 0; i < early_.size(); i++) {
      if (!is_in_snapshot(i)) total += layout_->files()[i].size_bytes;
    }
  }
  Upload upload(repository_.bucket(context_), context_, progress_, total);
  if (delta_) upload_packs(upload);
  if (snapshot_) upload_snapshot(upload);
  reached("pack");
  upload_blobs();
  reached("blobs");
  upload_layout();
  reached("layout");
}

/// The packs of the manifest, and which of them are still to be uploaded.
void Publisher::list_packs() {
  manifest_.delta.emplace();
  manifest_.delta->changed_elements = delta_->changed_elements;
  if (delta_->needs_xr) manifest_.features.emplace_back(kFeatureXr);
  for (const SpooledPack& pack : delta_->packs) list_pack(pack, 0, "");
  for (std::size_t i = 0; i < early_.size(); i++) {
    if (!early_[i]) continue;
    const EarlyResult& early = *early_[i];
    const std::uint32_t first_tensor = layout_->files()[i].first_tensor;
    const bool is_there = early.is_uploaded && early.first_tensor == first_tensor;
    for (std::size_t k = 0; k < early.delta.packs.size(); k++) {
      list_pack(early.delta.packs[k], first_tensor,
                is_there ? fmt::format("{}-{}", early.nonce, k) : "");
    }
  }
}

void Publisher::list_pack(const SpooledPack& pack, std::uint32_t first_tensor,
                          std::string_view uploaded_as) {
  std::string head = pack.writer.head(first_tensor);
  PackRef& ref = manifest_.delta->packs.emplace_back();
  ref.size_bytes = head.size() + pack.data_size_bytes;
  ref.head_bytes = head.size();
  ref.head_sha256 = sha256(as_bytes(head));
  ref.name = uploaded_as;
  if (ref.name.empty()) {
    // The head has the hash of every piece of the data.
    UploadNonce nonce(repository_, uploader_, manifest_.version);
    nonce.add(ref.head_sha256);
    ref.name = fmt::format("{}-{}", nonce.finish(), pack_uploads_.size());
  }
  result_.uploaded_bytes += ref.size_bytes;
  if (uploaded_as.empty()) pack_uploads_.push_back({&pack, std::move(head), ref.name});
}

void Publisher::upload_packs(Upload& upload) {
  upload_parallel(pack_uploads_.size(), [&](std::size_t i) {
    const PackSource source(pack_uploads_[i].head, *pack_uploads_[i].pack);
    const std::string key = keys::pack(manifest_.version, pack_uploads_[i].name);
    note_upload(key);
    upload.put(key, source);
  });
}

void Publisher::upload_parallel(std::size_t count,
                                const std::function<void(std::size_t index)>& put) {
  const unsigned threads = request_threads(repository_.bucket(context_), options_.threads);
  parallel_for(count, threads, context_, put);
}

/// All files of a snapshot lie below one nonce: that of the files that were uploaded early, if
/// there are any.
void Publisher::choose_snapshot_nonce() {
  UploadNonce nonce(repository_, uploader_, manifest_.version);
  for (std::size_t i = 0; i < early_.size(); i++) {
    nonce.add(layout_->files()[i].path);
    for (const Sha256& piece : snapshot_->pieces[i]) nonce.add(piece);
  }
  snapshot_nonce_ = nonce.finish();
  if (delta_) return;
  const bool any = std::ranges::any_of(early_, [&](const auto& early) {
    return early && early->is_uploaded && early->nonce == options_.early->snapshot_nonce();
  });
  if (any) snapshot_nonce_ = options_.early->snapshot_nonce();
}

bool Publisher::is_in_snapshot(std::size_t file) const {
  const auto& early = early_[file];
  return !delta_ && early && early->is_uploaded && early->nonce == snapshot_nonce_;
}

void Publisher::upload_snapshot(Upload& upload) {
  const auto files = reader_->weights();
  upload_parallel(files.size(), [&](std::size_t i) {
    if (is_in_snapshot(i)) return;
    const CheckpointFile& file = *files[i];
    const SnapshotSource source(*reader_, file, snapshot_->pieces[i]);
    const std::string key = keys::snapshot_file(manifest_.version, snapshot_nonce_, file.path);
    note_upload(key);
    upload.put(key, source);
  });
  note_upload(keys::snapshot_hashes(manifest_.version, snapshot_nonce_));
  manifest_.snapshot.emplace();
  manifest_.snapshot->nonce = snapshot_nonce_;
  manifest_.snapshot->hashes =
      repository_.put_snapshot_hashes(manifest_.version, snapshot_nonce_, *snapshot_, context_);
  // Hashes do not compress: their plain size is that of the object.
  result_.uploaded_bytes += layout_->size_bytes() + manifest_.snapshot->hashes.size_bytes;
}

void Publisher::upload_blobs() {
  const auto blobs = reader_->blobs();
  std::vector<std::size_t> sizes(blobs.size());  // in the bucket; 0: the parent has it too
  manifest_.blobs.resize(blobs.size());
  parallel_for(blobs.size(), kBlobsAtOnce, context_, [&](std::size_t i) {
    const std::string bytes = reader_->read_all(*blobs[i]);
    manifest_.blobs[i] = repository_.put_blob(blobs[i]->path, bytes, context_);
    const Sha256& id = manifest_.blobs[i].sha256;
    const bool known = parent_ && std::ranges::any_of(parent_->manifest.blobs, [&](const auto& b) {
                         return b.sha256 == id;
                       });
    if (!known) sizes[i] = compress(bytes).size();
  });
  for (const std::size_t size : sizes) result_.uploaded_bytes += size;
}

void Publisher::upload_layout() {
  manifest_.layout = repository_.put_layout(*layout_, context_);
  const bool known = parent_ && parent_->manifest.layout.sha256 == manifest_.layout.sha256;
  if (!known) result_.uploaded_bytes += compress(layout_->serialize()).size();
}

void Publisher::commit() {
  manifest_.repository = repository_.id();
  manifest_.time = seconds_now();
  manifest_.tag = options_.tag;
  manifest_.meta = options_.meta;
  if (options_.early) {
    manifest_.meta[std::string(kEarlyBytesKey)] = std::to_string(result_.early_bytes);
  }
  result_.images.chunk_hashes = delta_ ? delta_->hashes : snapshot_->chunks;
  manifest_.root = root_of(result_.images.chunk_hashes);
  if (options_.lock_images) result_.images_lock = store_.lock_images(context_);
  context_.check("publishing");  // the last moment at which the version certainly does not exist
  if (options_.committing) options_.committing(manifest_.version);
  forget_uploader(store_);
  is_sent_ = true;
  const Version version = repository_.commit(manifest_, context_);
  result_.uploaded_bytes += version.manifest_bytes.size();
  result_.delta = delta_.has_value();
  result_.images.version = version.number();
  result_.images.time = version.manifest.time;
  result_.images.files = files_of(version.manifest, *layout_);
  remember(version);
}

/// Before it is uploaded: what failed may be there all the same.
void Publisher::note_upload(std::string key) {
  // The nonce of early work is used again by whoever publishes the same hand-over again.
  const bool is_shared =
      options_.early && !delta_ && snapshot_nonce_ == options_.early->snapshot_nonce();
  if (is_shared) return;
  const std::lock_guard lock(mutex_);
  uploads_.push_back(std::move(key));
}

/// Best effort.  A bucket that does not answer is not asked: verify names what stays.
void Publisher::remove_uploads(const Error& why) noexcept {
  const bool is_taken = why.code() == ErrorCode::conflict;  // the number, so no manifest of ours
  const bool is_out_of_reach =
      why.code() == ErrorCode::unavailable || why.code() == ErrorCode::timed_out;
  if ((is_sent_ || options_.keeps_uploads) && !is_taken) return;
  if (uploads_.empty() || is_out_of_reach) return;
  try {
    const Context context = Context{}.within(kRemoveTime);
    Bucket& bucket = repository_.bucket(context);
    parallel_for(uploads_.size(), request_threads(bucket, options_.threads), context,
                 [&](std::size_t i) { bucket.remove(uploads_[i], context); });
  } catch (const std::exception& error) {
    log_warning(fmt::format(
        "cannot remove uploads of version {} in {}; they belong to no version, and weightfs "
        "verify lists them: {}",
        manifest_.version, repository_.url(), error.what()));
  }
}

/// The version exists now, so nothing that fails here may look like a failed publish.
void Publisher::remember(const Version& version) {
  try {
    history_.add(version, layout_);
  } catch (const Error& error) {
    log_warning(
        fmt::format("version {} is published, but could not be recorded in the store {}: {}",
                    version.number(), store_.path().string(), error.what()));
  }
}

}  // namespace

PublishResult publish(History& history, Store& store, const PublishOptions& options,
                      const Context& context, const Progress& progress) {
  return Publisher(history, store, options, context, progress).run();
}

std::optional<std::uint64_t> find_nonce(History& history, std::uint64_t after,
                                        std::string_view nonce, const Context& context) {
  for (std::uint64_t number = after + 1;; number++) {
    const auto version = history.find(number, context);
    if (!version) return std::nullopt;
    if (version->manifest.nonce == nonce) return number;
  }
}

}  // namespace weightfs
