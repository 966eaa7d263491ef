#include "store/publish/publish.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/base/sha256.hpp"
#include "store/coding/checkpoint_reader.hpp"
#include "store/database/db.hpp"
#include "store/format/checkpoint.hpp"
#include "store/format/own_meta.hpp"
#include "store/publish/code_version.hpp"
#include "store/publish/hub_proof.hpp"
#include "store/publish/keep_images.hpp"
#include "store/publish/parent.hpp"
#include "store/publish/pre_encoded.hpp"
#include "store/publish/snapshot_choice.hpp"
#include "store/publish/upload_names.hpp"
#include "store/publish/version_upload.hpp"
#include "store/threads/background.hpp"
#include "store/threads/parallel.hpp"

namespace weightfs {
namespace {

/// Validates what the user gave, before any work is done.
void check_options(const PublishOptions& options) {
  check_wishes(options.wishes);
  if (!options.nonce.empty() && !is_nonce(options.nonce)) {
    throw Error(ErrorCode::invalid, "a nonce must be 32 hex digits");
  }
  if (options.base && options.wishes.rollback != 0) {
    throw Error(ErrorCode::invalid, "a rollback is published as a delta, without a base");
  }
}

/// One publish: the steps of publish() and the state they share.
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
  bool take_fence_as_parent();
  std::uint64_t ask_newest(const Context& context);
  void find_parent();
  void take_parent(std::uint64_t parent);
  void find_content();
  void scan();
  [[nodiscard]] bool may_exist() const;
  void require_weights() const;
  [[nodiscard]] bool wants_snapshot();
  void code_and_upload();
  void ask_bucket(const Context& context);
  void confirm_newest(const Context& context);
  void check_fence(std::uint64_t newest) const;
  void check_parent_in_bucket(const Context& context);
  void commit();
  [[nodiscard]] bool is_as_sent(const Manifest& manifest) const;
  void change_uploader();
  [[nodiscard]] std::uint64_t size_bytes_of(const Manifest& manifest) const;
  void finish_result(const Version& version);
  void remember(const Version& version);
  void note_changes(const Version& version) noexcept;
  void keep() noexcept;
  void remove_uploads(ErrorCode why) noexcept;
  void reached(std::string_view point) const {
    if (options_.at) options_.at(point);
  }

  History& history_;
  Repository& repository_;
  Store& store_;
  const PublishOptions& options_;
  const Context& context_;
  const Progress& progress_;

  std::string nonce_;     // for the manifest
  std::string uploader_;  // for the nonces of uploads
  Checkpoint checkpoint_;
  std::shared_ptr<const Layout> layout_;
  std::optional<CheckpointReader> reader_;  // nullopt for a rollback
  std::shared_ptr<const Version> content_;  // of a rollback
  std::optional<HubProof> proof_;           // with a base

  // State of one try:
  std::shared_ptr<const Version> parent_;  // nullptr for version 1
  bool is_parent_found_ = false;           // in the bucket, not only assumed
  Eviction::Reservation parent_images_;    // keeps the parent's images, which are read
  CodedVersion coded_;
  bool is_sent_ = false;  // the manifest was sent, so the version may exist
  Manifest manifest_;
  PublishResult result_;
  std::optional<VersionUpload> upload_;  // last: its thread uses those above
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
      remove_uploads(error.code());
      lap(options_.watch, &HandOverTiming::wait);
      if (error.code() != ErrorCode::conflict || !options_.wishes.rebase) throw;
      if (tries == kRebaseTries) throw error.within(fmt::format("gave up after {} tries", tries));
      log_info(fmt::format("{}; coding again on top of it", error.what()));
    } catch (...) {  // a thread or memory that the system refuses
      remove_uploads(ErrorCode::io);
      throw;
    }
    result_.images_lock.unlock();
    context_.pause(pause_after(tries), "publishing");
    if (options_.watch != nullptr) options_.watch->timing.attempts++;
  }
}

void Publisher::attempt(bool is_first) {
  begin();
  if (!take_fence_as_parent()) find_parent();
  lap(options_.watch, &HandOverTiming::wait);
  if (is_first) {
    options_.wishes.rollback != 0 ? find_content() : scan();
    reached("scanned");
  } else if (reader_) {
    require_weights();  // this parent may have some
  }
  lap(options_.watch, &HandOverTiming::seal);
  code_and_upload();
  if (reader_) {
    reader_->wait_unwritten(context_);
    reader_->check_untouched();
  }
  reached("before-commit");
  lap(options_.watch, &HandOverTiming::upload);
  commit();
  lap(options_.watch, &HandOverTiming::commit);
  reached("committed");
  if (!options_.keeps_images || !reader_ || result_.images.version == 0) return;
  keep();
  lap(options_.watch, &HandOverTiming::adopt);
}

/// Discards the state of an earlier try.
void Publisher::begin() {
  upload_.reset();
  parent_.reset();
  is_parent_found_ = false;
  coded_ = {};
  is_sent_ = false;
  manifest_ = {};
  result_ = {};
  manifest_.nonce = nonce_;
}

// ---- the parent ----

/// A fence says which version must be the newest.  If this host has seen none that is newer, it is
/// taken for it, and confirm_newest() asks the bucket meanwhile.
/// Returns: false if the bucket must be asked first.
bool Publisher::take_fence_as_parent() {
  const std::uint64_t newest = store_.manifests().newest().version;
  if (options_.wishes.rebase || options_.fence_parent != newest) return false;
  take_parent(newest);
  return true;
}

/// The newest version in the bucket.
std::uint64_t Publisher::ask_newest(const Context& context) {
  const std::uint64_t newest = find_newest(history_, store_, context);
  const std::uint64_t from = options_.may_exist_from;
  if (from == 0 || newest < from) return newest;
  if (const auto own = find_nonce(history_, from - 1, nonce_, context)) {
    throw CommitUnknown(*own, ErrorCode::unavailable,
                        fmt::format("an earlier try has become version {} after all", *own));
  }
  return newest;
}

void Publisher::find_parent() {
  const std::uint64_t parent = ask_newest(context_);
  check_fence(parent);
  take_parent(parent);
  is_parent_found_ = true;
}

void Publisher::take_parent(std::uint64_t parent) {
  check_has_room(parent, repository_);
  if (parent > 0) {
    parent_ = history_.get(parent, context_);
    manifest_.parent_sha256 = parent_->manifest_sha256;
  }
  result_.parent = manifest_.parent = parent;
  result_.version = manifest_.version = parent + 1;
}

// ---- coding, and what goes on beside it ----

/// What a rollback goes back to.
void Publisher::find_content() {
  const std::uint64_t number = options_.wishes.rollback;
  if (number > result_.parent) {
    throw Error(
        ErrorCode::not_found,
        fmt::format("there is no version {} to roll back to: the newest version of {} is {}",
                    number, repository_.url(), result_.parent));
  }
  content_ = history_.get(number, context_);
  layout_ = history_.layout(*content_, context_);
}

/// Whether an earlier try may have made the version that is to be made.  A release that looked
/// neither for missing shards nor for weights may have sent it: then it must not be refused.
bool Publisher::may_exist() const {
  return options_.may_exist_from != 0 && result_.parent < options_.may_exist_from;
}

void Publisher::scan() {
  checkpoint_ = scan_checkpoint(options_.directory, options_.wishes.include,
                                may_exist() ? ScanScope::part : ScanScope::whole);
  require_weights();
  layout_ = Layout::from_checkpoint(checkpoint_);
  reader_.emplace(checkpoint_, *layout_);
  reader_->wait_unwritten(context_);
  if (!options_.base) return;
  proof_.emplace(repository_, *options_.base, *reader_, options_.threads);
  proof_->ask(context_);
}

/// What a saver of pickles writes, or one that was killed before its first shard.
void Publisher::require_weights() const {
  if (!parent_ || checkpoint_.has_weights()) return;
  if (may_exist()) return;
  const auto before = history_.layout(*parent_, context_);
  const auto is_weights = [](const LayoutFile& file) {
    return file.kind == LayoutFile::Kind::safetensors;
  };
  if (std::ranges::none_of(before->files(), is_weights)) return;
  const std::string left = checkpoint_.unpublished_text();
  throw Error(
      ErrorCode::invalid,
      fmt::format("there are no weights in it (*.safetensors), and version {} has some{}: save the "
                  "whole checkpoint, or name its files of weights (--include GLOB)",
                  parent_->number(), left.empty() ? "" : "; left out were " + left));
}

bool Publisher::wants_snapshot() {
  if (content_ || options_.wishes.snapshot) return options_.wishes.snapshot;
  if (options_.base) return true;
  return is_snapshot_due(history_, manifest_.version, layout_->size_bytes(), options_.snapshots,
                         context_);
}

/// What is asked of the bucket takes its time: it goes on beside what reads and codes.
void Publisher::code_and_upload() {
  OwnContext own(context_);
  const Context& context = own.get();
  const CheckpointReader* const reader = reader_ ? &*reader_ : nullptr;
  upload_.emplace(VersionUpload::Of{repository_, options_, *layout_, reader,
                                    proof_ ? &*proof_ : nullptr, content_, parent_, uploader_},
                  manifest_, context, progress_);
  const auto code = [&] {
    const VersionToCode what{history_, store_,  options_,         *layout_,       reader,
                             content_, parent_, wants_snapshot(), parent_images_, *upload_};
    coded_ = code_version(what, context, progress_);
    lap(options_.watch, &HandOverTiming::code);
    reached("diffed");
    upload_->put(coded_);
    reached("pack");
  };
  run_both(
      own, [&] { ask_bucket(context); }, code);
  reached("blobs");
  reached("layout");
}

/// What needs nothing that was coded; several requests at a time, since each takes a while.
void Publisher::ask_bucket(const Context& context) {
  constexpr unsigned kQuestions = 4;
  const std::array<std::function<void()>, kQuestions> questions{
      [&] { confirm_newest(context); }, [&] { check_parent_in_bucket(context); },
      [&] {
        if (content_) check_is_in_bucket(*content_, repository_, context);
        upload_->put_blobs();
      },
      [&] { upload_->put_layout(); }};
  parallel_for(kQuestions, kQuestions, context, [&](std::size_t i) { questions[i](); });
}

void Publisher::confirm_newest(const Context& context) {
  if (!is_parent_found_) check_fence(ask_newest(context));
}

void Publisher::check_fence(std::uint64_t newest) const {
  if (!options_.fence_parent || *options_.fence_parent == newest || options_.wishes.rebase) return;
  throw Error(
      ErrorCode::conflict,
      fmt::format("the newest version is {}, but this one must follow version {}: another writer "
                  "published in between.  Use --rebase to take the newest version as the parent",
                  newest, *options_.fence_parent));
}

void Publisher::check_parent_in_bucket(const Context& context) {
  if (parent_) return check_is_in_bucket(*parent_, repository_, context);
  repository_.check_still_there(context);  // nothing else tells of one that was begun anew
}

// ---- the commit, and after it ----

void Publisher::commit() {
  manifest_.repository = repository_.id();
  manifest_.time = seconds_now();
  manifest_.tag = options_.wishes.tag;
  manifest_.meta = options_.wishes.meta;
  if (content_) manifest_.meta[std::string(kRollbackKey)] = std::to_string(content_->number());
  if (options_.early) {
    manifest_.meta[std::string(kEarlyBytesKey)] = std::to_string(coded_.early_bytes());
  }
  result_.images.chunk_hashes = coded_.chunk_hashes();
  manifest_.root = root_of(result_.images.chunk_hashes);
  manifest_.snapshot_before = find_snapshot_before(parent_, history_, context_);
  if (options_.lock_images) result_.images_lock = store_.images().lock_images(context_);
  context_.check("publishing");  // the last moment at which the version certainly does not exist
  change_uploader();
  is_sent_ = true;
  const Version version = repository_.commit(manifest_, context_);
  finish_result(version);
  remember(version);
  if (is_as_sent(version.manifest)) {
    note_changes(version);
  } else {
    result_.images = {};
  }
}

/// Else an earlier try with the same nonce made the version, of other files.
bool Publisher::is_as_sent(const Manifest& manifest) const {
  return manifest.root == manifest_.root && manifest.layout.sha256 == manifest_.layout.sha256;
}

std::uint64_t Publisher::size_bytes_of(const Manifest& manifest) const {
  std::uint64_t bytes = layout_->size_bytes();
  for (const BlobRef& blob : manifest.blobs) bytes += blob.size_bytes;
  return bytes;
}

void Publisher::finish_result(const Version& version) {
  const auto& delta = version.manifest.delta;  // all of what is there: an earlier try's, perhaps
  const auto& snapshot = version.manifest.snapshot;
  result_.changed_elements = delta ? delta->changed_elements : 0;
  result_.elements = layout_->element_count();
  result_.version_bytes = size_bytes_of(version.manifest);
  result_.uploaded_bytes = upload_->bytes() + version.manifest_bytes.size();
  result_.early_bytes = coded_.early_bytes();
  if (options_.watch != nullptr) {
    HandOverTiming& timing = options_.watch->timing;
    timing.version = version.number();
    timing.bytes = result_.version_bytes;
    timing.early_bytes = result_.early_bytes;
    timing.uploaded_bytes = result_.uploaded_bytes;
  }
  result_.snapshot = snapshot.has_value();
  if (snapshot) result_.base = snapshot->base;
  result_.delta = delta.has_value();
  if (content_) result_.rollback = coded_.delta->rollback;
  result_.unpublished = checkpoint_.unpublished;
  result_.images.version = version.number();
  result_.images.time = version.manifest.time;
  result_.images.files = files_of(version.manifest, *layout_);
}

/// From here on the manifest may be in the bucket, so it throws where the names cannot be changed.
void Publisher::change_uploader() {
  if (!options_.committing) return set_uploader(store_, random_hex(16), Durability::power);
  // What `committing` writes to the store is durable, and so is what was written before it.
  set_uploader(store_, random_hex(16), Durability::process);
  try {
    options_.committing(manifest_.version);
  } catch (...) {
    try {
      set_uploader(store_, uploader_, Durability::process);
    } catch (const Error& error) {
      log_debug(fmt::format("interrupted uploads cannot be resumed: {}", error.what()));
    }
    throw;
  }
}

/// The version exists now, so an error here must not look like a failed publish.
void Publisher::remember(const Version& version) {
  try {
    history_.add(version, layout_);
  } catch (const Error& error) {
    log_warning(
        fmt::format("version {} is published, but could not be recorded in the store {}: {}",
                    version.number(), store_.path().string(), error.what()));
  }
}

/// Best effort: what is not noted is found by comparing images.
void Publisher::note_changes(const Version& version) noexcept {
  try {
    if (!coded_.fresh) return;
    std::vector<FreshPart> parts{{coded_.fresh, 0}};
    for (std::size_t i = 0; i < coded_.early.size(); i++) {
      if (!coded_.early[i]) continue;
      if (!coded_.early[i]->fresh) return;
      parts.push_back({coded_.early[i]->fresh, layout_->files()[i].first_tensor});
    }
    const FreshEnd parent{{parent_->number(), parent_->manifest_sha256},
                          history_.layout(*parent_, context_)};
    auto fresh = std::make_unique<FreshSpan>(
        parent, FreshEnd{{version.number(), version.manifest_sha256}, layout_}, std::move(parts));
    if (fresh->find_ends()) result_.fresh = std::move(fresh);
  } catch (const std::exception& error) {
    log_if_possible(LogLevel::debug, [&] {
      return fmt::format("what changed in version {} is not noted: {}", version.number(),
                         error.what());
    });
  }
}

/// The version exists already: the next publish decodes its parent if this fails.
void Publisher::keep() noexcept {
  try {
    parent_images_.give_up();
    keep_images(store_, *reader_, result_.images, options_.threads, context_, progress_);
    reached("kept");
  } catch (const std::exception& error) {
    log_if_possible(LogLevel::warning, [&] {
      return fmt::format(
          "version {} is published, but its files are not kept in the store {}: {}; the next "
          "publish decodes them",
          result_.version, store_.path().string(), error.what());
    });
  }
}

/// Best effort.  Gives up if the bucket does not answer: verify lists what is left.
void Publisher::remove_uploads(ErrorCode why) noexcept {
  if (!upload_) return;
  upload_->drop_ahead();
  const bool is_taken = why == ErrorCode::conflict;  // of the number: our manifest does not exist
  const bool is_out_of_reach = why == ErrorCode::unavailable || why == ErrorCode::timed_out;
  if ((is_sent_ || options_.keeps_uploads) && !is_taken) return;
  if (is_out_of_reach) return;
  try {
    upload_->remove_all();
  } catch (const std::exception& error) {
    log_if_possible(LogLevel::warning, [&] {
      return fmt::format(
          "cannot remove uploads of version {} in {}; they belong to no version, and weightfs "
          "verify lists them: {}",
          manifest_.version, repository_.url(), error.what());
    });
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
