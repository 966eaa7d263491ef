#include "store/publish/publish_part.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/base/path_rules.hpp"
#include "store/coding/checkpoint_reader.hpp"
#include "store/format/checkpoint.hpp"
#include "store/materialize/bases.hpp"
#include "store/materialize/materialize.hpp"
#include "store/parts/part_hashes.hpp"
#include "store/parts/part_objects.hpp"
#include "store/parts/part_union.hpp"
#include "store/parts/wait_rhythm.hpp"
#include "store/publish/code_version.hpp"
#include "store/publish/keep_images.hpp"
#include "store/publish/parent.hpp"
#include "store/publish/part_chunks.hpp"
#include "store/publish/snapshot_choice.hpp"
#include "store/publish/upload_names.hpp"
#include "store/publish/version_upload.hpp"
#include "store/threads/background.hpp"
#include "store/threads/parallel.hpp"

namespace weightfs {
namespace {

/// Versions before the newest one, in which a host that was restarted looks for its own.
constexpr std::uint64_t kLooksBack = 32;
constexpr unsigned kPartsAtOnce = 4;  // that are fetched

class PartPublisher {
 public:
  PartPublisher(History& history, Store& store, const PublishOptions& options,
                const Context& context, const Progress& progress)
      : history_(history),
        repository_(history.repository()),
        store_(store),
        options_(options),
        context_(context),
        progress_(progress) {}

  PartResult run();

 private:
  void check_options() const;
  void attempt(bool is_first);
  void take_parent();
  void check_fence() const;
  void scan();
  [[nodiscard]] PartSet set_of(std::uint64_t version) const {
    return part_set(repository_.id(), options_.part, options_.wishes.tag, version);
  }
  bool find_own_version();
  bool find_own_part();
  void hash_own();
  [[nodiscard]] std::vector<BlobRef> own_blobs() const;
  void check_same_as(const Version& version);
  [[nodiscard]] std::vector<std::uint64_t> hashes_in(const Version& version);
  void saying_what_is_claimed(const std::function<void()>& body) const;
  [[nodiscard]] bool publish_own();
  [[nodiscard]] bool code_and_upload();
  [[nodiscard]] bool wants_snapshot();
  void check_unchanged() const {
    reader_->wait_unwritten(context_);
    reader_->check_untouched();
  }
  void fill_record(std::string_view layout, std::string_view hashes);
  [[nodiscard]] bool claim();
  void put_objects(std::string_view layout, std::string_view hashes);
  void begin_commit() const {
    if (options_.committing) options_.committing(set_.version);
  }
  void put_record();
  bool wait();
  bool look_at_version(bool is_first);
  void ask_for_parts(bool for_all);
  [[nodiscard]] std::vector<unsigned> missing() const;
  void complete();
  void put_union(PartUnion made);
  void finish(const Version& version);
  [[noreturn]] void give_up_waiting() const;
  void reached(std::string_view point) const {
    if (options_.at) options_.at(point);
  }

  History& history_;
  Repository& repository_;
  Store& store_;
  const PublishOptions& options_;
  const Context& context_;
  const Progress& progress_;

  Checkpoint checkpoint_;
  std::shared_ptr<const Layout> layout_;
  std::optional<CheckpointReader> reader_;
  std::optional<SnapshotHashes> hashes_;  // of the part's files; pieces may be missing

  // State of one try:
  std::shared_ptr<const Version> parent_;  // nullptr for version 1
  std::shared_ptr<const Layout> parent_layout_;
  Eviction::Reservation parent_images_;
  PartSet set_;
  PartRecord record_;
  bool is_claimed_ = false;
  Manifest scratch_;  // takes what is uploaded
  CodedVersion coded_;
  std::vector<std::optional<PartRecord>> found_;  // by part - 1
  std::size_t asked_ = 0;                         // where the next look goes on
  PartResult result_;
  std::optional<PartChunks> chunks_;
  std::optional<VersionUpload> upload_;  // last: its thread uses those above
};

PartResult PartPublisher::run() {
  check_options();
  for (unsigned tries = 1;; tries++) {
    try {
      attempt(tries == 1);
      return std::move(result_);
    } catch (const NumberTaken& error) {
      if (!options_.wishes.rebase) throw;
      if (tries == kRebaseTries) throw error.within(fmt::format("gave up after {} tries", tries));
      log_info(fmt::format("{}; coding again on top of it", error.what()));
    }
    context_.pause(pause_after(tries), "publishing");
  }
}

void PartPublisher::check_options() const {
  check_wishes(options_.wishes);
  check_choice(options_.part, options_.wishes.tag);
  if (!options_.base && options_.wishes.rollback == 0) return;
  throw Error(ErrorCode::invalid,
              "a part has files of its own: there is no part of a rollback, or of a base on the "
              "Hub");
}

void PartPublisher::attempt(bool is_first) {
  upload_.reset();
  chunks_.reset();
  take_parent();
  if (is_first) scan();
  result_.elements = layout_->element_count();
  result_.part_bytes = checkpoint_.size_bytes();
  result_.unpublished = checkpoint_.unpublished;
  if (find_own_version()) return;
  check_fence();
  lap(options_.watch, &HandOverTiming::seal);
  found_.assign(set_.parts, std::nullopt);
  asked_ = 0;
  if (find_own_part()) {
    lap(options_.watch, &HandOverTiming::code);
    begin_commit();
  } else if (!publish_own()) {
    return;
  }
  found_[options_.part.part - 1] = record_;
  reached("part");
  if (options_.keeps_images && parent_) {
    parent_images_.give_up();
    remove_other_images(store_, parent_->number());
  }
  if (!wait()) result_.missing = missing();
  lap(options_.watch, &HandOverTiming::commit);
}

void PartPublisher::take_parent() {
  const std::uint64_t parent = find_newest(history_, store_, context_);
  check_has_room(parent, repository_);
  parent_.reset();
  parent_layout_.reset();
  if (parent > 0) {
    parent_ = history_.get(parent, context_);
    parent_layout_ = history_.layout(*parent_, context_);
  }
  set_ = set_of(parent + 1);
  result_ = {};
  result_.parent = parent;
  result_.version = parent + 1;
}

/// After the own version was looked for: that may be the one behind the fence.
void PartPublisher::check_fence() const {
  if (!options_.fence_parent || *options_.fence_parent == result_.parent) return;
  throw NumberTaken(
      ErrorCode::conflict,
      fmt::format("the newest version is {}, but part {} of {} must follow version {}: another "
                  "writer published in between",
                  result_.parent, options_.part.part, set_.tag, *options_.fence_parent));
}

void PartPublisher::scan() {
  checkpoint_ = scan_checkpoint(options_.directory, options_.wishes.include, ScanScope::part);
  layout_ = Layout::from_checkpoint(checkpoint_);
  check_part_files(*layout_);
  reader_.emplace(checkpoint_, *layout_);
  reader_->wait_unwritten(context_);
  reached("scanned");
}

// ---- what was published before ----

/// A host that was killed when its version was about to be complete, and comes back.
bool PartPublisher::find_own_version() {
  const std::uint64_t newest = result_.parent;
  for (std::uint64_t number = newest; number > newest - std::min(newest, kLooksBack); number--) {
    const std::shared_ptr<const Version> version = history_.get(number, context_);
    if (version->manifest.tag != options_.wishes.tag) continue;
    if (version->manifest.nonce != set_of(number).manifest_nonce()) continue;
    set_ = set_of(number);
    check_same_as(*version);
    result_.version = number;
    result_.parent = number - 1;
    finish(*version);
    return true;
  }
  return false;
}

bool PartPublisher::find_own_part() {
  auto record = find_part(repository_, set_, options_.part.part, context_);
  if (!record) return false;
  if (options_.wishes.snapshot && !record->snapshot) {
    throw Error(
        ErrorCode::conflict,
        fmt::format("part {} of {} of {} was published without a snapshot, and stays so: {}",
                    options_.part.part, set_.parts, set_.tag, kSnapshotWay));
  }
  hash_own();
  const std::string hashes = serialize_part_hashes(*hashes_, record->snapshot);
  const bool is_same =
      record->layout.sha256 == layout_->id() && record->hashes.sha256 == sha256(as_bytes(hashes)) &&
      std::ranges::equal(record->blobs, own_blobs(),
                         [](auto& a, auto& b) { return a.path == b.path && a.sha256 == b.sha256; });
  if (!is_same) throw other_bytes(set_, options_.part.part);
  record_ = std::move(*record);
  result_.snapshot = record_.snapshot;
  result_.delta = record_.delta.has_value();
  log_info(fmt::format("part {} of {} of version {} was published before", options_.part.part,
                       set_.parts, set_.version));
  return true;
}

void PartPublisher::hash_own() {
  hashes_ = hash_checkpoint(*reader_, {.with_pieces = true}, options_.threads, context_, progress_);
}

std::vector<BlobRef> PartPublisher::own_blobs() const {
  std::vector<BlobRef> blobs;
  for (const CheckpointFile* file : reader_->blobs()) {
    const std::string bytes = reader_->read_all(*file);
    blobs.push_back({file->path, bytes.size(), sha256(as_bytes(bytes))});
  }
  return blobs;
}

/// That the version was made of this part.
void PartPublisher::check_same_as(const Version& version) {
  const std::shared_ptr<const Layout> whole = history_.layout(version, context_);
  for (const LayoutFile& file : layout_->files()) {
    const LayoutFile* const there = whole->find_file(file.path);
    if (there == nullptr || there->head != file.head || there->size_bytes != file.size_bytes) {
      throw other_bytes(set_, options_.part.part);
    }
  }
  for (const BlobRef& blob : own_blobs()) {
    const auto& there = version.manifest.blobs;
    const bool is_there = std::ranges::any_of(there, [&](const BlobRef& other) {
      return other.path == blob.path && other.sha256 == blob.sha256;
    });
    if (!is_there) throw other_bytes(set_, options_.part.part);
  }
  if (layout_->files().empty()) return;
  if (!hashes_) hash_own();
  if (hashes_in(version) != hashes_->chunks) throw other_bytes(set_, options_.part.part);
}

/// The hashes that the chunks of the part's files have in a version.
std::vector<std::uint64_t> PartPublisher::hashes_in(const Version& version) {
  const auto reserved =
      store_.eviction().reserve(version.number(), Eviction::Claim::stays, context_);
  materialize(store_, history_, version.number(), context_, progress_, options_.coder,
              globs_of(*layout_));
  const Base base = base_of(store_, history_, version.number(), context_);
  std::vector<std::uint64_t> hashes;
  for (const LayoutFile& file : layout_->files()) {
    for (const LayoutTensor& tensor : base.layout->tensors_of(*base.layout->find_file(file.path))) {
      const auto first = base.hashes.begin() + static_cast<std::ptrdiff_t>(tensor.first_chunk);
      hashes.insert(hashes.end(), first, first + tensor.chunk_count);
    }
  }
  return hashes;
}

// ---- this part ----

/// Runs `body`, which finds files that have changed; whether that was after the claim.
void PartPublisher::saying_what_is_claimed(const std::function<void()>& body) const {
  try {
    body();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::busy || !is_claimed_) throw;
    throw Error(
        error.code(),
        fmt::format("{}, all parts with a new token (--run) or tag: part {} of {} was begun "
                    "with the bytes from before",
                    error.what(), options_.part.part, set_.tag));
  }
}

/// Returns: false if the version exists by now, and was made of this part.
bool PartPublisher::publish_own() {
  bool is_new = false;
  saying_what_is_claimed([&] { is_new = code_and_upload(); });
  if (!is_new) return false;
  lap(options_.watch, &HandOverTiming::code);
  reader_->wait_unwritten(context_);
  saying_what_is_claimed([&] { reader_->check_untouched(); });
  begin_commit();
  put_record();
  lap(options_.watch, &HandOverTiming::upload);
  return true;
}

/// Without a parent, or where the files do not fit it, there is no delta.
bool PartPublisher::wants_snapshot() {
  if (!parent_ || options_.wishes.snapshot) return true;
  SnapshotPolicy policy = options_.snapshots;
  policy.asks_bucket = false;
  return is_snapshot_due(history_, set_.version, parent_layout_->size_bytes(), policy, context_);
}

/// Returns: as publish_own().
bool PartPublisher::code_and_upload() {
  const bool with_snapshot = wants_snapshot();
  const std::string problem = parent_ ? table_problem(*layout_, *parent_layout_) : "";
  if (!problem.empty() && !with_snapshot) {
    throw Error(ErrorCode::invalid,
                fmt::format("{}: the other parts cannot know the numbers of its tensors; {}",
                            problem, kSnapshotWay));
  }
  const bool has_base = parent_ && problem.empty();
  if (has_base) chunks_.emplace(*reader_, *parent_layout_);
  record_ = {};
  is_claimed_ = false;
  bool exists = false;
  scratch_ = {};
  scratch_.version = set_.version;
  OwnContext own(context_);
  const Context& context = own.get();
  upload_.emplace(VersionUpload::Of{repository_, options_, *layout_, &*reader_, nullptr, nullptr,
                                    parent_, uploader_of(store_) + set_.id, set_.snapshot_nonce()},
                  scratch_, context, progress_);
  const auto code = [&] {
    const VersionToCode what{history_,
                             store_,
                             options_,
                             *layout_,
                             &*reader_,
                             nullptr,
                             has_base ? parent_ : nullptr,
                             with_snapshot,
                             parent_images_,
                             *upload_,
                             has_base ? &*chunks_ : nullptr,
                             true};
    coded_ = code_version(what, context, progress_);
    reached("diffed");
    hashes_ = coded_.snapshot ? *coded_.snapshot : SnapshotHashes{coded_.chunk_hashes(), {}};
    const std::string layout = layout_->serialize();
    const std::string hashes = serialize_part_hashes(*hashes_, coded_.snapshot.has_value());
    fill_record(layout, hashes);
    exists = record_.snapshot && !claim();
    if (exists) return;
    put_objects(layout, hashes);
    upload_->put(coded_);
    reached("pack");
  };
  const auto ask = [&] {
    if (parent_) {
      check_is_in_bucket(*parent_, repository_, context);
    } else {
      repository_.check_still_there(context);
    }
    upload_->put_blobs();
  };
  run_both(own, ask, code);
  return !exists;
}

/// What the record says of the part's content.
void PartPublisher::fill_record(std::string_view layout, std::string_view hashes) {
  record_.repository = repository_.id();
  record_.set = set_.id;
  record_.version = set_.version;
  record_.part = options_.part.part;
  record_.parts = set_.parts;
  record_.tag = set_.tag;
  record_.meta = options_.wishes.meta;
  record_.snapshot = coded_.snapshot.has_value();
  if (parent_) record_.parent_sha256 = parent_->manifest_sha256;
  record_.layout = {layout.size(), layout_->id()};
  record_.hashes = {hashes.size(), sha256(as_bytes(hashes))};
}

/// Before the first file of a snapshot is uploaded.  A claim for other bytes may have been there
/// and gone, but only after its version existed; then nothing may be uploaded any more.
/// Returns: as publish_own().
bool PartPublisher::claim() {
  check_unchanged();  // else it is claimed for bytes that nobody has
  claim_part(repository_, set_, record_, context_);
  is_claimed_ = true;
  reached("claimed");
  return !look_at_version(true);
}

void PartPublisher::put_objects(std::string_view layout, std::string_view hashes) {
  static_cast<void>(put_part_object(repository_, set_, layout, context_));
  static_cast<void>(put_part_object(repository_, set_, hashes, context_));
  result_.uploaded_bytes = layout.size() + hashes.size();
  reached("part-objects");
}

void PartPublisher::put_record() {
  record_.blobs = scratch_.blobs;
  record_.delta = scratch_.delta;
  if (scratch_.has_feature(kFeatureXr)) record_.features.emplace_back(kFeatureXr);
  const PartRecord there = put_part(repository_, set_, record_, context_);
  const bool is_same = there.content() == record_.content() &&
                       std::ranges::equal(there.blobs, record_.blobs, [](auto& a, auto& b) {
                         return a.path == b.path && a.sha256 == b.sha256;
                       });
  if (!is_same) throw other_bytes(set_, record_.part);
  record_ = there;
  result_.uploaded_bytes += upload_->bytes() + record_.serialize().size();
  result_.changed_elements = record_.delta ? record_.delta->changed_elements : 0;
  result_.snapshot = record_.snapshot;
  result_.delta = record_.delta.has_value();
}

// ---- the others ----

/// Returns: false if other parts are missing, and nobody waits for them.
bool PartPublisher::wait() {
  const Clock::time_point until = Clock::now() + options_.part_wait;
  const bool waits = options_.part_wait.count() > 0;
  WaitRhythm rhythm(set_.parts);
  std::vector<unsigned> told;
  for (bool is_first = true;; is_first = false) {
    if (look_at_version(is_first)) return true;
    const bool is_last = !waits || Clock::now() >= until;
    if (rhythm.asks(Clock::now()) || is_last) ask_for_parts(is_last);
    const std::vector<unsigned> missing = this->missing();
    const bool is_news = missing != told;
    if (missing.empty()) {
      if (rhythm.completes(Clock::now()) || is_last) {
        complete();
        return true;
      }
    } else if (is_last) {
      // The last part may have come after the look, and all be removed since.
      if (look_at_version(false)) return true;
      if (!waits) return false;
      give_up_waiting();
    }
    if (is_news && options_.waiting) options_.waiting(missing);
    told = missing;
    reached("waiting");
    context_.pause(rhythm.pause(), "waiting for other parts");
  }
}

/// Returns: whether the version exists.
bool PartPublisher::look_at_version(bool is_first) {
  const auto there = repository_.find_version(set_.version, context_);
  if (!there) return false;
  if (there->manifest.nonce != set_.manifest_nonce()) {
    throw NumberTaken(
        ErrorCode::conflict,
        fmt::format("version {} was published by another writer (tag '{}') before all parts of {} "
                    "had come.  Use --rebase to follow it",
                    set_.version, escape_name(there->manifest.tag), set_.tag));
  }
  // Who saw the record before the version existed knows that the version was made of it.  Else it
  // was there, and its records removed, before this one was written.
  if (is_first) check_same_as(*there);
  finish(*there);
  return true;
}

/// Goes on while it finds what it asks for, so that who comes last finds all.
void PartPublisher::ask_for_parts(bool for_all) {
  std::vector<std::size_t> wanted;
  for (std::size_t k = 0; k < found_.size(); k++) {
    const std::size_t i = (asked_ + k) % found_.size();
    if (!found_[i]) wanted.push_back(i);
  }
  const auto is_missing = [this](std::size_t i) { return !found_[i]; };
  for (std::span<const std::size_t> rest = wanted; !rest.empty();) {
    const auto some = rest.first(std::min<std::size_t>(rest.size(), WaitRhythm::kPartsAsked));
    parallel_for(some.size(), kPartsAtOnce, context_, [&](std::size_t k) {
      found_[some[k]] = find_part(repository_, set_, static_cast<unsigned>(some[k] + 1), context_);
    });
    asked_ = some.back() + 1;
    rest = rest.subspan(some.size());
    if (!for_all && std::ranges::any_of(some, is_missing)) return;
  }
}

std::vector<unsigned> PartPublisher::missing() const {
  std::vector<unsigned> parts;
  for (std::size_t i = 0; i < found_.size(); i++) {
    if (!found_[i]) parts.push_back(static_cast<unsigned>(i + 1));
  }
  return parts;
}

void PartPublisher::give_up_waiting() const {
  throw PartsMissing(
      ErrorCode::timed_out,
      fmt::format("version {} ({}) is not published: part{} {} of {} did not come within {} "
                  "s.  Part {} stays; publish the missing, or the same again to wait on",
                  set_.version, set_.tag, missing().size() == 1 ? "" : "s", parts_text(missing()),
                  set_.parts, static_cast<double>(options_.part_wait.count()) / 1000,
                  options_.part.part));
}

// ---- the version ----

void PartPublisher::complete() {
  reached("complete");
  try {
    std::vector<FoundPart> parts(found_.size());
    MemoryBudget memory;
    parallel_for(parts.size(), kPartsAtOnce, context_, [&](std::size_t i) {
      parts[i] = get_part(repository_, set_, *found_[i], memory, context_);
    });
    const UnionParent parent{parent_layout_.get(), parent_ ? parent_->manifest_sha256 : Sha256{}};
    put_union(unite_parts(parts, parent, [this](const BlobRef& blob) {
      return repository_.get_blob(blob, context_);
    }));
  } catch (const Error& error) {
    // Somebody else may have made the version, and removed what is missing.
    if (error.code() != ErrorCode::not_found || !look_at_version(false)) throw;
  }
}

void PartPublisher::put_union(PartUnion made) {
  Manifest manifest;
  manifest.repository = repository_.id();
  manifest.version = set_.version;
  manifest.parent = result_.parent;
  if (parent_) manifest.parent_sha256 = parent_->manifest_sha256;
  manifest.time = seconds_now();
  manifest.tag = set_.tag;
  manifest.meta = std::move(made.meta);
  manifest.layout = repository_.put_layout(*made.layout, context_);
  manifest.blobs = std::move(made.blobs);
  for (const auto& [path, text] : made.indexes) {
    manifest.blobs.push_back(repository_.put_blob(path, text, context_));
  }
  std::ranges::sort(manifest.blobs, {}, &BlobRef::path);
  manifest.root = root_of(made.hashes.chunks);
  manifest.delta = std::move(made.delta);
  if (made.needs_xr) manifest.add_feature(kFeatureXr);
  manifest.snapshot_before = find_snapshot_before(parent_, history_, context_);
  manifest.nonce = set_.manifest_nonce();
  if (made.snapshot) {
    manifest.snapshot.emplace();
    manifest.snapshot->nonce = set_.snapshot_nonce();
    manifest.snapshot->hashes = repository_.put_snapshot_hashes(
        set_.version, manifest.snapshot->nonce, made.hashes, context_);
  }
  reached("united");
  context_.check("publishing");
  reached("before-commit");
  std::optional<Version> version;
  try {
    version = repository_.commit(manifest, context_);
  } catch (const CommitUnknown&) {
    throw;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::conflict) throw NumberTaken(error.code(), error.what());
    throw;
  }
  result_.is_committed_here = true;
  reached("committed");
  finish(*version);
}

/// The version exists, so an error here must not look like a failed publish.
void PartPublisher::finish(const Version& version) {
  try {
    if (history_.refresh(result_.parent, context_) < version.number()) {
      log_debug(fmt::format("version {} is not recorded here yet", version.number()));
    }
    if (result_.is_committed_here) remove_part_set(repository_, set_, context_);
    reached("removed");
  } catch (const Error& error) {
    if (error.code() == ErrorCode::permission) return;  // a writer need not remove anything
    log_info(
        fmt::format("version {} is published; what its parts told each other is left in {}: {}",
                    version.number(), repository_.url(), error.what()));
  }
}

}  // namespace

PartResult publish_part(History& history, Store& store, const PublishOptions& options,
                        const Context& context, const Progress& progress) {
  return PartPublisher(history, store, options, context, progress).run();
}

std::optional<std::uint64_t> find_part_version(History& history, std::uint64_t after,
                                               const PartChoice& part, std::string_view tag,
                                               const Context& context) {
  const std::string& repository = history.repository().id();
  for (std::uint64_t number = after + 1;; number++) {
    const auto version = history.find(number, context);
    if (!version) return std::nullopt;
    const std::string nonce = part_set(repository, part, tag, number).manifest_nonce();
    if (version->manifest.nonce == nonce) return number;
  }
}

}  // namespace weightfs
