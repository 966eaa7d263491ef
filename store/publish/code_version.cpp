#include "store/publish/code_version.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/materialize/bases.hpp"
#include "store/materialize/materialize.hpp"
#include "store/materialize/patched_base.hpp"
#include "store/materialize/plan.hpp"
#include "store/publish/old_version.hpp"

namespace weightfs {
namespace {

/// Copies the chunk hashes of a file to their place among the version's hashes.
void place_hashes(const EarlyResult& early, const Layout& layout, const LayoutFile& file,
                  std::vector<std::uint64_t>& hashes) {
  if (early.delta.hashes.empty()) return;
  const std::uint64_t first = layout.tensors()[file.first_tensor].first_chunk;
  std::copy(early.delta.hashes.begin(), early.delta.hashes.end(),
            hashes.begin() + static_cast<std::ptrdiff_t>(first));
}

class VersionCoder {
 public:
  VersionCoder(const VersionToCode& what, const Context& context, const Progress& progress)
      : what_(what),
        options_(what.options),
        layout_(what.layout),
        context_(context),
        progress_(progress) {}

  CodedVersion run() {
    if (what_.content) {
      forget_early();
      code_rest();
      return std::move(coded_);
    }
    take_early();
    if (what_.parent) try_delta();
    if (!what_.parent || what_.with_snapshot) make_snapshot();
    return std::move(coded_);
  }

 private:
  void take_early();
  void forget_early();
  void try_delta();
  void make_delta();
  void code_rest();
  [[nodiscard]] std::shared_ptr<FreshChunks> begin_fresh() const;
  [[nodiscard]] unsigned repairs_max() const;
  void bring_parent();
  CodedDelta code_against_parent();
  CodedDelta code_part(const Base& base, CodeOptions options);
  CodedDelta code_content(const Base& base, const CodeOptions& options);
  void make_snapshot();
  void check_same_bytes() const;

  const VersionToCode& what_;
  const PublishOptions& options_;
  const Layout& layout_;
  const Context& context_;
  const Progress& progress_;
  FileSet is_early_;
  CodedVersion coded_;
};

/// Finds out which files need not be coded.
void VersionCoder::take_early() {
  forget_early();
  if (!options_.early || what_.with_pieces) return;  // of a part nothing is coded early
  const std::shared_ptr<const PreEncoded> early = options_.early(context_);
  if (!early) return;
  coded_.early_nonce = early->snapshot_nonce();
  const std::uint64_t parent = what_.parent ? what_.parent->number() : 0;
  const Sha256 parent_sha256 = what_.parent ? what_.parent->manifest_sha256 : Sha256{};
  for (std::size_t i = 0; i < coded_.early.size(); i++) {
    const CheckpointFile& file = *what_.reader->weights()[i];
    coded_.early[i] = early->find(file, parent, parent_sha256);
    is_early_[i] = coded_.early[i] != nullptr;
  }
}

void VersionCoder::forget_early() {
  coded_.early.assign(layout_.files().size(), nullptr);
  is_early_.assign(layout_.files().size(), false);
}

// ---- delta ----

/// A snapshot needs none of the parent's bytes. If those are damaged, a snapshot is published
/// without a delta, which is the way to repair the history.
void VersionCoder::try_delta() {
  try {
    make_delta();
  } catch (const Error& error) {
    const bool is_damage =
        error.code() == ErrorCode::corrupt || error.code() == ErrorCode::not_found;
    const bool has_snapshot = options_.wishes.snapshot || options_.base;
    if (!has_snapshot || !is_damage) throw;
    log_warning(fmt::format("{}; version {} gets a snapshot and no delta", error.what(),
                            what_.parent->number() + 1));
    what_.upload.drop_ahead();
    coded_.delta.reset();
    coded_.fresh.reset();
    forget_early();
  }
}

void VersionCoder::make_delta() {
  code_rest();
  CodedDelta& delta = *coded_.delta;
  for (std::size_t i = 0; i < coded_.early.size(); i++) {
    if (!coded_.early[i]) continue;
    const EarlyResult& early = *coded_.early[i];
    place_hashes(early, layout_, layout_.files()[i], delta.hashes);
    delta.changed_elements += early.delta.changed_elements;
    delta.needs_xr = delta.needs_xr || early.delta.needs_xr;
  }
}

/// Codes the files that were not coded early.
void VersionCoder::code_rest() {
  if (std::ranges::all_of(coded_.early, [](const auto& early) { return early != nullptr; })) {
    coded_.delta.emplace();
    coded_.delta->hashes.resize(layout_.chunk_count());
    coded_.fresh = begin_fresh();  // of nothing
    return;
  }
  for (unsigned repairs = 0;; repairs++) {
    try {
      bring_parent();
      coded_.fresh = begin_fresh();
      coded_.delta = code_against_parent();
      return;
    } catch (const BaseDamaged& damaged) {
      what_.parent_images.give_up();
      if (repairs == repairs_max() || !what_.store.evictor().discard_damaged(damaged.version()))
        throw;
      log_warning(fmt::format("{}; it is rebuilt from the bucket", damaged.what()));
    } catch (const PatchDamaged& damaged) {
      if (repairs == repairs_max() || !drop_damaged_patches(what_.store, damaged)) throw;
    }
  }
}

/// nullptr also for a part, and for a rollback: its images are made like those of any version, and
/// noted then.
std::shared_ptr<FreshChunks> VersionCoder::begin_fresh() const {
  if (what_.content || what_.part != nullptr) return nullptr;
  return what_.store.fresh_patches().begin(layout_.size_bytes());
}

/// Images and patches that may be found to be damaged, one after the other.
unsigned VersionCoder::repairs_max() const { return what_.content ? 8 : 1; }

void VersionCoder::bring_parent() {
  Store& store = what_.store;
  const std::uint64_t parent = what_.parent->number();
  if (store.manifests().newest().version < parent)
    store.manifests().put_newest({parent, what_.parent->manifest_sha256});
  const Progress reading = [this](std::string_view, std::uint64_t done, std::uint64_t total) {
    if (progress_) progress_("reading parent", done, total);
  };
  what_.parent_images = store.eviction().reserve(parent, Eviction::Claim::stays, context_);
  // A part needs the old bytes of its own files.
  const std::vector<std::string> only =
      what_.part == nullptr ? std::vector<std::string>{} : what_.part->globs();
  materialize(store, what_.history, parent, context_, reading, options_.coder, only);
  if (options_.at) options_.at("parent");
}

CodedDelta VersionCoder::code_against_parent() {
  const Base base = base_of(what_.store, what_.history, what_.parent->number(), context_);
  CodeOptions options;
  options.spool = what_.store.temporary_directory();
  options.threads = options_.threads;
  options.coder = options_.coder;
  options.pack_bytes = options_.pack_bytes;
  options.without = is_early_;
  options.fresh = coded_.fresh.get();
  options.closed = [this](std::shared_ptr<const SpooledPack> pack, const CodedSoFar&) {
    what_.upload.put_ahead(std::move(pack));
  };
  if (what_.content) return code_content(base, options);
  what_.upload.begin_ahead();
  if (what_.part != nullptr) return code_part(base, options);
  return code_delta(*what_.reader, base, options, context_, progress_);
}

/// Of a part no file is coded early.
CodedDelta VersionCoder::code_part(const Base& base, CodeOptions options) {
  options.without = what_.part->others();
  CodedDelta delta = code_delta(*what_.part, base, options, context_, progress_);
  delta.hashes = what_.part->own_hashes(delta.hashes);
  return delta;
}

CodedDelta VersionCoder::code_content(const Base& base, const CodeOptions& options) {
  const OldVersion content(what_.store, what_.history, what_.content, base, options_.coder,
                           context_, progress_);
  what_.upload.begin_ahead();
  CodedDelta delta;
  try {
    delta = code_delta(content, base, options, context_, progress_);
  } catch (const Error& error) {
    what_.history.skips().leave_out_cause(error);  // whoever publishes again does without it
    throw;
  }
  delta.rollback.patched = content.patched_chunks();
  delta.rollback.other = content.other_chunks();
  log_info(
      fmt::format("version {} again, after {}: {} chunks are equal, {} were made by patches of "
                  "these, {} otherwise",
                  what_.content->number(), what_.parent->number(), delta.rollback.equal,
                  delta.rollback.patched, delta.rollback.other));
  return delta;
}

// ---- snapshot ----

void VersionCoder::make_snapshot() {
  const CheckpointReader& reader = *what_.reader;
  if (coded_.delta) {
    coded_.snapshot = hash_checkpoint(reader, {.with_pieces = what_.with_pieces}, options_.threads,
                                      context_, progress_);
    check_same_bytes();
    return;
  }
  coded_.snapshot = hash_checkpoint(reader, {is_early_, what_.with_pieces}, options_.threads,
                                    context_, progress_);
  for (std::size_t i = 0; i < coded_.early.size(); i++) {
    if (!coded_.early[i]) continue;
    place_hashes(*coded_.early[i], layout_, layout_.files()[i], coded_.snapshot->chunks);
    coded_.snapshot->marks[i] = coded_.early[i]->marks;
  }
}

/// The bytes for the delta and for the snapshot were read separately, so compare their hashes.
void VersionCoder::check_same_bytes() const {
  for (const LayoutTensor& tensor : layout_.tensors()) {
    const auto hashes_of = [&](const std::vector<std::uint64_t>& all) {
      return std::span(all).subspan(tensor.first_chunk, tensor.chunk_count);
    };
    const bool is_same =
        std::ranges::equal(hashes_of(coded_.delta->hashes), hashes_of(coded_.snapshot->chunks));
    if (!is_same) what_.reader->refuse(*what_.reader->weights()[tensor.file]);
  }
}

}  // namespace

CodedVersion code_version(const VersionToCode& what, const Context& context,
                          const Progress& progress) {
  return VersionCoder(what, context, progress).run();
}

}  // namespace weightfs
