#include "store/publish.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <utility>

#include "store/bytes.hpp"
#include "store/checkpoint.hpp"
#include "store/checkpoint_reader.hpp"
#include "store/compress.hpp"
#include "store/delta_coder.hpp"
#include "store/error.hpp"
#include "store/log.hpp"
#include "store/materialize.hpp"
#include "store/parallel.hpp"
#include "store/path_rules.hpp"

namespace weightfs {
namespace {

/// A head in memory and its data in a file, as one object.
class PackSource final : public Source {
 public:
  PackSource(const SpooledPack& pack, const std::filesystem::path& spool)
      : head_(pack.head), data_(pack.data.fd(), pack.data_size_bytes, spool) {}

  [[nodiscard]] std::uint64_t size_bytes() const override {
    return head_.size_bytes() + data_.size_bytes();
  }

  void read(std::uint64_t offset_bytes, std::span<std::byte> into) const override {
    const std::uint64_t head_size = head_.size_bytes();
    if (offset_bytes < head_size) {
      const auto part = into.first(std::min<std::uint64_t>(into.size(), head_size - offset_bytes));
      head_.read(offset_bytes, part);
      into = into.subspan(part.size());
      offset_bytes += part.size();
    }
    if (!into.empty()) data_.read(offset_bytes - head_size, into);
  }

 private:
  TextSource head_;
  FileSource data_;
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
  /// A bucket may read a source twice; what is shown never exceeds the total.
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
  Manifest manifest;
  manifest.meta = options.meta;
  static_cast<void>(manifest.serialize());  // refuses what is not text, or too much
}

std::int64_t seconds_now() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
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
  void find_parent();
  void check_parent_in_bucket();
  void scan();
  void make_delta();
  CodedDelta code_against_parent();
  void bring_parent();
  void make_snapshot();
  void upload();
  void upload_packs(Upload& upload);
  void upload_snapshot(Upload& upload);
  void upload_blobs();
  void upload_layout();
  void commit();
  void remember(const Version& version);
  void reached(std::string_view point) const {
    if (options_.at) options_.at(point);
  }

  History& history_;
  Repository& repository_;
  Store& store_;
  const PublishOptions& options_;
  const Context& context_;
  const Progress& progress_;

  std::shared_ptr<const Version> parent_;  // nullptr for version 1
  Checkpoint checkpoint_;
  std::shared_ptr<const Layout> layout_;
  std::optional<CheckpointReader> reader_;
  std::optional<CodedDelta> delta_;
  std::optional<SnapshotHashes> snapshot_;
  Manifest manifest_;
  PublishResult result_;
};

PublishResult Publisher::run() {
  check_options(options_);
  find_parent();
  scan();
  reached("scanned");
  if (parent_) make_delta();
  if (!parent_ || options_.snapshot) make_snapshot();
  reached("diffed");
  upload();
  reader_->check_untouched();
  reached("before-commit");
  commit();
  reached("committed");
  return std::move(result_);
}

void Publisher::find_parent() {
  // Twice: the first call gives what it found before it met trouble, the second one throws it.
  const std::uint64_t seen = history_.refresh(store_.newest().version, context_);
  const std::uint64_t parent = history_.refresh(seen, context_);
  if (parent >= kVersionMax) {
    throw Error(ErrorCode::unsupported, fmt::format("the repository {} is full: it has {} versions",
                                                    repository_.url(), parent));
  }
  if (parent > 0) {
    parent_ = history_.get(parent, context_);
    check_parent_in_bucket();
    manifest_.parent_sha256 = parent_->manifest_sha256;
  }
  result_.parent = manifest_.parent = parent;
  result_.version = manifest_.version = parent + 1;
}

/// The store may remember a version that the bucket has lost; a version on top of it would leave a
/// hole that no reader gets over.
void Publisher::check_parent_in_bucket() {
  const auto there = repository_.find_version(parent_->number(), context_);
  if (there && there->manifest_sha256 == parent_->manifest_sha256) return;
  throw Error(ErrorCode::corrupt,
              fmt::format("{} in {} is {}: this host has seen version {}.  Restore the bucket, or "
                          "publish with an empty --store to go on from what is there",
                          keys::manifest(parent_->number()), repository_.url(),
                          there ? "not what it was" : "gone", parent_->number()));
}

void Publisher::scan() {
  checkpoint_ = scan_checkpoint(options_.directory, options_.include);
  layout_ = Layout::from_checkpoint(checkpoint_);
  reader_.emplace(checkpoint_, *layout_);
  manifest_.nonce = random_hex(16);
  result_.elements = layout_->element_count();
  result_.version_bytes = checkpoint_.size_bytes();
  result_.unpublished = checkpoint_.unpublished;
}

void Publisher::make_delta() {
  try {
    bring_parent();
    delta_ = code_against_parent();
  } catch (const BaseDamaged& damaged) {
    log_warning(fmt::format("{}; it is made again from the bucket", damaged.what()));
    store_.remove_images(damaged.version());
    bring_parent();
    delta_ = code_against_parent();
  }
  result_.changed_elements = delta_->changed_elements;
}

void Publisher::bring_parent() {
  const std::uint64_t parent = parent_->number();
  if (store_.newest().version < parent) store_.put_newest({parent, parent_->manifest_sha256});
  const auto release = [this](std::uint64_t version) {
    return nobody_reads(store_.image_directory(version));
  };
  const Progress reading = [this](std::string_view, std::uint64_t done, std::uint64_t total) {
    if (progress_) progress_("reading parent", done, total);
  };
  materialize(store_, history_, parent, std::span(&parent, 1), release, context_, reading,
              options_.coder);
  reached("parent");
}

CodedDelta Publisher::code_against_parent() {
  const Base base = base_of(store_, history_, parent_->number(), context_);
  CodeOptions options;
  options.spool = store_.temporary_directory();
  options.threads = options_.threads;
  options.coder = options_.coder;
  return code_delta(*reader_, base, options, context_, progress_);
}

void Publisher::make_snapshot() {
  if (delta_) {
    snapshot_ = SnapshotHashes{delta_->hashes,
                               hash_pieces(*reader_, options_.threads, context_, progress_)};
  } else {
    snapshot_ = hash_checkpoint(*reader_, options_.threads, context_, progress_);
  }
  result_.snapshot = true;
}

void Publisher::upload() {
  std::uint64_t total = snapshot_ ? layout_->size_bytes() : 0;
  if (delta_) {
    for (const SpooledPack& pack : delta_->packs) total += pack.head.size() + pack.data_size_bytes;
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

void Publisher::upload_packs(Upload& upload) {
  manifest_.delta.emplace();
  manifest_.delta->changed_elements = delta_->changed_elements;
  if (delta_->needs_xr) manifest_.features.emplace_back(kFeatureXr);
  manifest_.delta->packs.resize(delta_->packs.size());
  parallel_for(delta_->packs.size(), options_.threads, context_, [&](std::size_t k) {
    const SpooledPack& pack = delta_->packs[k];
    const PackSource source(pack, store_.temporary_directory());
    PackRef& ref = manifest_.delta->packs[k];
    ref.name = fmt::format("{}-{}", manifest_.nonce, k);
    ref.size_bytes = source.size_bytes();
    ref.head_bytes = pack.head.size();
    ref.head_sha256 = sha256(as_bytes(pack.head));
    upload.put(keys::pack(manifest_.version, ref.name), source);
  });
  for (const PackRef& ref : manifest_.delta->packs) result_.uploaded_bytes += ref.size_bytes;
}

void Publisher::upload_snapshot(Upload& upload) {
  const auto files = reader_->weights();
  parallel_for(files.size(), options_.threads, context_, [&](std::size_t i) {
    const CheckpointFile& file = *files[i];
    const File opened = reader_->open(file);
    const FileSource source(opened.fd(), file.stamp.size_bytes, reader_->path_of(file));
    upload.put(keys::snapshot_file(manifest_.version, manifest_.nonce, file.path), source);
  });
  manifest_.snapshot.emplace();
  manifest_.snapshot->nonce = manifest_.nonce;
  manifest_.snapshot->hashes =
      repository_.put_snapshot_hashes(manifest_.version, manifest_.nonce, *snapshot_, context_);
  // Hashes do not compress: their plain size is that of the object.
  result_.uploaded_bytes += layout_->size_bytes() + manifest_.snapshot->hashes.size_bytes;
}

void Publisher::upload_blobs() {
  for (const CheckpointFile* file : reader_->blobs()) {
    const std::string bytes = reader_->read_all(*file);
    manifest_.blobs.push_back(repository_.put_blob(file->path, bytes, context_));
    const Sha256& id = manifest_.blobs.back().sha256;
    const bool known = parent_ && std::ranges::any_of(parent_->manifest.blobs, [&](const auto& b) {
                         return b.sha256 == id;
                       });
    if (!known) result_.uploaded_bytes += compress(bytes).size();
  }
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
  manifest_.root = root_of(delta_ ? delta_->hashes : snapshot_->chunks);
  const Version version = repository_.commit(manifest_, context_);
  result_.uploaded_bytes += version.manifest_bytes.size();
  remember(version);
}

/// The version exists now, so nothing that fails here may look like a failed publish.
void Publisher::remember(const Version& version) {
  try {
    store_.put_manifest(version.number(), version.manifest_bytes);
    store_.put_newest({version.number(), version.manifest_sha256});
  } catch (const Error& error) {
    log_warning(fmt::format("version {} is published; the store {} did not take note of it: {}",
                            version.number(), store_.path().string(), error.what()));
  }
}

}  // namespace

PublishResult publish(History& history, Store& store, const PublishOptions& options,
                      const Context& context, const Progress& progress) {
  return Publisher(history, store, options, context, progress).run();
}

}  // namespace weightfs
