#include "store/publish/early_coding.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "store/base/error.hpp"
#include "store/coding/checkpoint_reader.hpp"
#include "store/coding/growing_file.hpp"
#include "store/materialize/bases.hpp"
#include "store/materialize/plan.hpp"
#include "store/os/file.hpp"

namespace weightfs {
namespace {

/// Whether the one file of `layout` has the tensors of a file of the parent.
bool has_equal_tensors(const Layout& layout, const Layout& parent, const LayoutFile& before) {
  const auto is_equal = [](const LayoutTensor& a, const LayoutTensor& b) {
    return a.name == b.name && a.dtype == b.dtype && a.shape == b.shape;
  };
  return std::ranges::equal(layout.tensors(), parent.tensors_of(before), is_equal);
}

/// The file of the parent that the one file of `layout` will probably replace: savers give a file
/// its name when it is complete.  nullptr: none, or it is not certain.
const LayoutFile* find_file_before(const Layout& layout, const Layout& parent) {
  const auto fits = [&](const LayoutFile& file) { return has_equal_tensors(layout, parent, file); };
  const LayoutFile* const named = parent.find_file(layout.files().front().path);
  if (named != nullptr) return fits(*named) ? named : nullptr;
  const auto found = std::ranges::find_if(parent.files(), fits);
  if (found == parent.files().end()) return nullptr;
  const bool is_only =
      std::find_if(std::next(found), parent.files().end(), fits) == parent.files().end();
  return is_only ? &*found : nullptr;
}

}  // namespace

EarlyCoding::EarlyCoding(const EarlyCoder& coder, EarlyJob& job, std::filesystem::path source,
                         std::string path, std::uint64_t parent, const Context& context)
    : coder_(coder),
      job_(job),
      source_(std::move(source)),
      path_(std::move(path)),
      parent_(parent),
      context_(context) {}

void EarlyCoding::run(bool is_written) {
  if (is_written) code_growing();
  const Checkpoint checkpoint = scan_one_file(source_, path_);
  if (is_written) {
    check_grown(checkpoint);
  } else {
    code_complete(checkpoint);
  }
  result_->file = checkpoint.files.front();
  if (parent_ != 0) number_tensors();
  const CheckpointReader reader(checkpoint, *result_->layout);
  reader.check_untouched();
  if (!job_.put(result_)) return;
  job_.reached("coded");
  if (!upload(reader)) return;
  reader.check_untouched();
  result_->is_uploaded = true;
  job_.uploaded();
}

// ---- coding ----

void EarlyCoding::code_complete(const Checkpoint& checkpoint) {
  result_ = std::make_shared<EarlyResult>();
  result_->file = checkpoint.files.front();
  result_->layout = Layout::from_checkpoint(checkpoint);
  result_->parent = parent_;
  const CheckpointReader reader(checkpoint, *result_->layout);
  if (parent_ == 0) {
    hash(reader);
  } else {
    code(CheckpointChunks(reader));
  }
}

/// Returns when the file is closed.
void EarlyCoding::code_growing() {
  const auto is_written = [&](auto wait) { return job_.is_still_written(wait, context_); };
  const GrowingFile growing(source_, path_, is_written, coder_.pauses);
  job_.grows();
  result_ = std::make_shared<EarlyResult>();
  result_->is_grown = true;
  result_->file = growing.file();
  result_->layout = growing.shared_layout();
  result_->parent = parent_;
  code(growing);
  announce_rest();
  job_.reached("grown");
  path_ = job_.wait_until_closed(context_);
}

/// Throws Error: busy, if the file is not the one that was coded.  What its tensors are coded
/// against depends on its name.
void EarlyCoding::check_grown(const Checkpoint& checkpoint) {
  const CheckpointFile& coded = result_->file;
  const CheckpointFile& closed = checkpoint.files.front();
  if (closed.head != coded.head || closed.stamp.size_bytes != coded.stamp.size_bytes) {
    throw Error(ErrorCode::busy, "what was coded of it was written again");
  }
  const auto layout = Layout::from_checkpoint(checkpoint);
  if (counterparts(*layout, *parent_layout_) != counterparts(*result_->layout, *parent_layout_)) {
    throw Error(ErrorCode::busy, "with this name it is coded against other tensors");
  }
  result_->layout = layout;
  const CheckpointReader reader(checkpoint, *layout);
  if (!has_hashes(reader, result_->delta.hashes, coder_.threads, context_)) {
    throw Error(ErrorCode::busy, "what was coded of it was written again");
  }
}

/// For a first version.
/// Not of a sparse file that no disk could hold: each chunk of it takes memory.
void EarlyCoding::hash(const CheckpointReader& reader) {
  if (result_->file.stamp.size_bytes > space_of(coder_.store.temporary_directory()).total_bytes) {
    throw Error(ErrorCode::no_space, "the file is larger than the disk");
  }
  CheckpointHashes hashes = hash_checkpoint(reader, {}, coder_.threads, context_, {});
  result_->delta.hashes = std::move(hashes.chunks);
  result_->marks = std::move(hashes.marks.front());
  result_->nonce = job_.begin_snapshot_file();
}

void EarlyCoding::code(const NewChunks& chunks) {
  Store& store = coder_.store;
  if (space_of(store.temporary_directory()).free_bytes / 2 < result_->file.stamp.size_bytes) {
    throw Error(ErrorCode::no_space, "the disk is too full for early coding");
  }
  const Base base = base_of(store, coder_.history, parent_, context_);
  CodeOptions coding;
  coding.spool = store.temporary_directory();
  coding.threads = result_->is_grown ? coder_.growing_threads : coder_.threads;
  coding.coder = coder_.coder;
  result_->parent_sha256 = base.version->manifest_sha256;
  result_->fresh = store.fresh_patches().begin(result_->file.stamp.size_bytes);
  coding.fresh = result_->fresh.get();
  result_->nonce = random_hex(16);
  parent_layout_ = base.layout;
  if (result_->is_grown) announce_pieces(coding);
  result_->delta = code_delta(chunks, base, coding, context_, {});
}

/// Of a file of which it is known what it replaces.
void EarlyCoding::announce_pieces(CodeOptions& coding) {
  const LayoutFile* const before = find_file_before(*result_->layout, *parent_layout_);
  if (before == nullptr) return;
  packs_.emplace(coder_.history.repository(),
                 EarlyPacks::Names{parent_ + 1, result_->nonce, before->first_tensor}, context_,
                 [this, before](auto uploaded, const CodedSoFar& so_far) {
                   job_.begun(begun_file(*before, uploaded, so_far));
                 });
  coding.piece_bytes =
      early_piece_bytes(result_->file.stamp.size_bytes, parent_layout_->files().size());
  coding.closed = [this](std::shared_ptr<const SpooledPack> pack, const CodedSoFar& so_far) {
    packs_->add(std::move(pack), so_far);
  };
}

/// The last piece does not wait until the file is closed and read once more: who makes the version
/// has it when the manifest comes.
void EarlyCoding::announce_rest() {
  const CodedDelta& delta = result_->delta;
  const CodedSoFar all{std::nullopt, delta.changed_elements, delta.needs_xr};
  if (packs_) packs_->add_rest(delta.packs, all);
}

BegunFile EarlyCoding::begun_file(const LayoutFile& before, std::span<const PackRef> uploaded,
                                  const CodedSoFar& so_far) const {
  BegunFile begun{{before.path, {{uploaded.begin(), uploaded.end()}, so_far.changed_elements}},
                  result_->parent_sha256,
                  so_far.needs_xr};
  if (so_far.last) {
    const auto [number, chunk] = *so_far.last;
    const LayoutTensor& tensor = parent_layout_->tensors()[before.first_tensor + number];
    begun.file.coded_bytes =
        tensor.offset_bytes + tensor.chunk_offset_bytes(chunk) + tensor.chunk_size_bytes(chunk);
  }
  return begun;
}

// ---- uploading ----

void EarlyCoding::number_tensors() {
  const LayoutFile* const before = parent_layout_->find_file(result_->file.path);
  result_->first_tensor = before != nullptr ? before->first_tensor : EarlyResult::kNoTensor;
  result_->has_parents_tensors =
      before != nullptr && has_equal_tensors(*result_->layout, *parent_layout_, *before);
}

/// Returns: false if the numbers of its tensors are not known yet.
bool EarlyCoding::upload(const CheckpointReader& reader) {
  if (parent_ == 0) {
    upload_file(reader);
    return true;
  }
  if (result_->first_tensor == EarlyResult::kNoTensor) return false;
  if (packs_ && packs_->names().first_tensor != result_->first_tensor) {  // it had another name
    packs_.reset();
    result_->nonce = random_hex(16);
  }
  if (!packs_) {
    packs_.emplace(coder_.history.repository(),
                   EarlyPacks::Names{parent_ + 1, result_->nonce, result_->first_tensor}, context_);
  }
  result_->uploaded = packs_->finish(result_->delta.packs);
  return true;
}

/// For a first version.
void EarlyCoding::upload_file(const CheckpointReader& reader) {
  const CheckpointFile& file = *reader.weights().front();
  const SnapshotSource source(reader, file, result_->marks);
  const Context uploading = early_upload_context(context_, source.size_bytes());
  coder_.history.repository().bucket(uploading).put(
      keys::snapshot_file(1, result_->nonce, file.path), source, uploading);
  result_->pieces = source.pieces();
}

}  // namespace weightfs
