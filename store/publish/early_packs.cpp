#include "store/publish/early_packs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <system_error>
#include <utility>

#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/format/manifest.hpp"
#include "store/threads/parallel.hpp"

namespace weightfs {
namespace {

constexpr std::uint64_t kPiecesMax = 8;              // of a file
constexpr std::uint64_t kPiecesOfVersionMax = 2048;  // some 400 KiB of a manifest
static_assert(kPiecesOfVersionMax * 256 < kManifestBytesMax);

/// Time limit of an upload: a base value, plus an amount for each MiB.
constexpr std::chrono::seconds kUploadTime{60}, kUploadTimeOfMib{1};

}  // namespace

std::uint64_t early_piece_bytes(std::uint64_t file_bytes, std::size_t files_of_version) noexcept {
  const std::uint64_t files = std::max<std::uint64_t>(1, files_of_version);
  const std::uint64_t pieces =
      std::clamp<std::uint64_t>(kPiecesOfVersionMax / files, 1, kPiecesMax);
  return std::max(kEarlyPieceBytes, (file_bytes + pieces - 1) / pieces);
}

Context early_upload_context(const Context& context, std::uint64_t size_bytes) {
  return context.within(kUploadTime +
                        kUploadTimeOfMib * static_cast<std::int64_t>(size_bytes >> 20));
}

EarlyPacks::EarlyPacks(Repository& repository, Names names, const Context& context, Told told)
    : repository_(repository),
      names_(std::move(names)),
      context_(context),
      told_(std::move(told)) {}

void EarlyPacks::add(std::shared_ptr<const SpooledPack> pack, const CodedSoFar& so_far) {
  std::unique_lock lock(mutex_);
  const bool is_first = so_far_.empty();
  so_far_.push_back(so_far);
  lock.unlock();
  if (is_first) begin();
  if (ahead_) ahead_->add(std::move(pack));
}

/// Once: later packs would be taken for the first ones.
void EarlyPacks::begin() {
  try {
    ahead_.emplace(context_,
                   [this](const SpooledPack& added, std::size_t k) { return put_added(added, k); });
  } catch (const std::system_error& error) {
    note_refused_thread(error);  // finish() uploads them all
  }
}

void EarlyPacks::add_rest(std::span<const std::shared_ptr<const SpooledPack>> packs,
                          const CodedSoFar& so_far) {
  std::unique_lock lock(mutex_);
  const std::size_t added = so_far_.size();
  lock.unlock();
  for (std::size_t k = added; k < packs.size(); k++) add(packs[k], so_far);
}

std::vector<PackRef> EarlyPacks::finish(std::span<const std::shared_ptr<const SpooledPack>> packs) {
  std::vector<PackRef> refs;
  if (ahead_) {
    static_cast<void>(ahead_->end());
    try {
      refs = ahead_->finish();
    } catch (const Error& error) {
      context_.check("uploading packs");
      log_debug(fmt::format("a pack is uploaded again: {}", error.what()));
      refs = added_;
    }
  }
  for (std::size_t k = refs.size(); k < packs.size(); k++) refs.push_back(put(*packs[k], k));
  return refs;
}

PackRef EarlyPacks::put(const SpooledPack& pack, std::size_t k) {
  const std::string head = pack.writer.head(names_.first_tensor);
  const PackSource source(head, pack);
  PackRef ref = pack_ref(pack, head);
  ref.name = fmt::format("{}-{}", names_.nonce, k);
  const Context uploading = early_upload_context(context_, source.size_bytes());
  repository_.bucket(uploading).put(keys::pack(names_.version, ref.name), source, uploading);
  return ref;
}

PackRef EarlyPacks::put_added(const SpooledPack& pack, std::size_t k) {
  added_.push_back(put(pack, k));
  CodedSoFar so_far;
  {
    const std::lock_guard lock(mutex_);
    so_far = so_far_[k];
  }
  if (told_) told_(added_, so_far);
  return added_.back();
}

}  // namespace weightfs
