#include "store/materialize/chunk_maker.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/dispatch/decode.hpp"
#include "kernels/dispatch/hash.hpp"
#include "store/repository/pieces.hpp"

namespace weightfs {
namespace {

constexpr std::size_t kLogBytesKept = 256u << 10;  // of a log, for the next chunk

std::string place_of(const Layout& layout, const LayoutTensor& tensor, std::uint32_t chunk) {
  return fmt::format("chunk {} of tensor '{}' in '{}'", chunk, tensor.name,
                     layout.files()[tensor.file].path);
}

}  // namespace

ChunkMaker::ChunkMaker(const Plan& plan, const PackSpool& spool, std::unique_ptr<BaseReader> old,
                       kernels::ChunkCoder& coder, const NotedChanges& noted)
    : plan_(plan), spool_(spool), source_(std::move(old)), coder_(coder), noted_(noted) {}

void ChunkMaker::make(std::span<const WantedChunk> wanted) {
  clear_jobs();
  fetch_ahead(wanted);
  for (const WantedChunk& chunk : wanted) add(chunk);
  run_jobs();
}

/// Fetches what the batch needs for all steps in parallel, instead of one chunk and step at a time.
void ChunkMaker::fetch_ahead(std::span<const WantedChunk> wanted) {
  if (spool_.is_whole()) return;
  std::vector<PackSpool::Wanted> needed;
  for (const WantedChunk& one : wanted) {
    trace(one.tensor, one.chunk);
    for (std::size_t i = 0; i < trail_.tensors.size(); i++) {
      if (const PackEntry place = listed(i, one.chunk)) {
        needed.push_back({trail_.first_step + i, place});
      }
    }
  }
  spool_.fetch(needed);
}

void ChunkMaker::add(const WantedChunk& wanted) {
  trace(wanted.tensor, wanted.chunk);
  const std::size_t coded = coded_size(wanted.chunk);
  if (!is_of_one_size(wanted) || coded > kCodedBytesMax) {
    make_alone(wanted);
    return;
  }
  if (coded_.size() + coded > kCodedBytesMax) run_jobs();
  add_job(wanted);
}

/// Follows the chunk's counterparts back to the start, or to the step that created the chunk.
void ChunkMaker::trace(std::uint32_t tensor, std::uint32_t chunk) {
  trail_.tensors.clear();
  trail_.from_start = false;
  std::size_t& step = trail_.first_step;
  for (step = plan_.steps.size(); step > 0; step--) {
    trail_.tensors.push_back(tensor);
    const auto counterpart = plan_.steps[step - 1].counterparts[tensor];
    const Layout& before = plan_.before(step - 1);
    if (!counterpart || chunk >= before.tensors()[*counterpart].chunk_count) {
      step--;
      std::reverse(trail_.tensors.begin(), trail_.tensors.end());
      return;
    }
    tensor = *counterpart;
  }
  trail_.from_start = true;
  trail_.start_tensor = tensor;
  std::reverse(trail_.tensors.begin(), trail_.tensors.end());
}

/// Whether the chunk has kept its size since the start, or since it was created.
bool ChunkMaker::is_of_one_size(const WantedChunk& wanted) const {
  const auto has_size = [&](const Layout& layout, std::uint32_t tensor) {
    return layout.tensors()[tensor].chunk_size_bytes(wanted.chunk) == wanted.into.size();
  };
  if (trail_.from_start && !has_size(plan_.before(0), trail_.start_tensor)) return false;
  for (std::size_t i = 0; i < trail_.tensors.size(); i++) {
    if (!has_size(*plan_.steps[trail_.first_step + i].layout, trail_.tensors[i])) return false;
  }
  return true;
}

/// The pack entry of the chunk in step `trail_index` of the trail.
PackEntry ChunkMaker::listed(std::size_t trail_index, std::uint32_t chunk) const {
  const Step& step = plan_.steps[trail_.first_step + trail_index];
  return step.listed[step.layout->tensors()[trail_.tensors[trail_index]].first_chunk + chunk];
}

std::size_t ChunkMaker::coded_size(std::uint32_t chunk) const {
  std::size_t size = 0;
  for (std::size_t i = 0; i < trail_.tensors.size(); i++) {
    const PackEntry place = listed(i, chunk);
    if (place) size += plan_.steps[trail_.first_step + i].chunk(place).data_size_bytes;
  }
  return size;
}

// ---- in batches ----

void ChunkMaker::add_job(const WantedChunk& wanted) {
  const std::size_t first_step = steps_.size();
  for (std::size_t i = 0; i < trail_.tensors.size(); i++) add_step(i, wanted.chunk);
  if (trail_.from_start && steps_.size() == first_step) {
    read_start(wanted.chunk, wanted.into);
    check(wanted, kernels::hash_chunk(wanted.into));
    return;
  }
  if (trail_.from_start) {
    read_start(wanted.chunk, wanted.into);
  } else {
    std::fill(wanted.into.begin(), wanted.into.end(), std::byte{0});
  }
  // Else its tensor is not the base's, and no patches can lead over the tables.
  const bool is_of_base = trail_.from_start && trail_.start_tensor == wanted.tensor;
  if (!is_of_base) give_up_notes("tensors come and go");
  jobs_.push_back({&wanted, first_step, steps_.size() - first_step});
  job_bytes_ += wanted.into.size();
  if (job_bytes_ >= coder_.decode_batch_bytes()) run_jobs();
}

void ChunkMaker::add_step(std::size_t trail_index, std::uint32_t chunk) {
  const PackEntry place = listed(trail_index, chunk);
  if (!place) return;
  const std::size_t number = trail_.first_step + trail_index;
  const Step& step = plan_.steps[number];
  const PackChunk& packed = step.chunk(place);
  const std::size_t at = coded_.size();
  coded_.resize(at + packed.data_size_bytes);
  spool_.read(number, place, std::span(coded_).subspan(at));
  steps_.push_back({step.packs[place.pack]->block_lengths(packed), at, packed.data_size_bytes});
}

void ChunkMaker::run_jobs() {
  coder_steps_.clear();
  for (const CodedStep& step : steps_) {
    coder_steps_.push_back({step.lengths, std::span(coded_).subspan(step.at, step.size)});
  }
  coder_jobs_.clear();
  const bool is_noted = notes_changes();
  if (is_noted && logs_.size() < jobs_.size()) logs_.resize(jobs_.size());
  for (const Job& job : jobs_) {
    const WantedChunk& wanted = *job.wanted;
    kernels::ChangeLog* const log = is_noted ? &logs_[coder_jobs_.size()] : nullptr;
    coder_jobs_.push_back({.kind = plan_.layout->tensors()[wanted.tensor].kind,
                           .old_chunk = wanted.into,
                           .steps = std::span(coder_steps_).subspan(job.first_step, job.step_count),
                           .new_chunk = wanted.into,
                           .log = log});
  }
  coder_.decode(coder_jobs_);
  for (std::size_t i = 0; i < jobs_.size(); i++) {
    const WantedChunk& wanted = *jobs_[i].wanted;
    const kernels::DecodeJob& job = coder_jobs_[i];
    if (!job.is_decoded || job.hash != hash_of(wanted)) {
      make_again(wanted, job);
    } else if (is_noted) {
      note(wanted, job);
    }
  }
  for (kernels::ChangeLog& log : logs_) {
    if (log.bytes.capacity() > kLogBytesKept) log = {};
  }
  clear_jobs();
}

bool ChunkMaker::notes_changes() const noexcept {
  return (noted_.fresh != nullptr && noted_.fresh->is_wanted()) ||
         (noted_.ahead != nullptr && noted_.ahead->is_wanted());
}

/// Notes what changed in a chunk that has its hash.
void ChunkMaker::note(const WantedChunk& wanted, const kernels::DecodeJob& job) {
  const LayoutTensor& tensor = plan_.layout->tensors()[wanted.tensor];
  const LayoutTensor& before = plan_.before(0).tensors()[wanted.tensor];
  const std::uint64_t old_hash = plan_.base->hashes[before.first_chunk + wanted.chunk];
  if (old_hash == job.hash) return;  // it came back
  if (job.old_hash && *job.old_hash != old_hash) {
    return give_up_notes("the base is damaged where the version is not");
  }
  const ChunkPlace place{wanted.tensor, wanted.chunk};
  if (noted_.ahead != nullptr && noted_.ahead->is_wanted()) {
    if (!ahead_worker_) ahead_worker_ = std::make_unique<AheadDeltas::Worker>();
    noted_.ahead->add(place, *job.log, wanted.into, *ahead_worker_);
  }
  if (noted_.fresh == nullptr || !noted_.fresh->is_wanted()) return;
  noted_.fresh->add({place, tensor.kind, static_cast<std::uint32_t>(wanted.into.size()), old_hash,
                     job.hash, *job.log});
}

void ChunkMaker::give_up_notes(std::string_view why) {
  if (noted_.fresh != nullptr) noted_.fresh->give_up(why);
  if (noted_.ahead != nullptr) noted_.ahead->give_up(why);
}

void ChunkMaker::clear_jobs() {
  jobs_.clear();
  steps_.clear();
  coded_.clear();
  job_bytes_ = 0;
}

/// Builds a chunk that a GPU made wrongly, or refused, by the plain functions.
/// Throws as rebuild(); Error: io too if it was the CPU.
void ChunkMaker::make_again(const WantedChunk& wanted, const kernels::DecodeJob& job) {
  const Trail trail = trail_;  // of the chunk that waits for room in the batch
  const std::span<const std::byte> bytes = rebuild(wanted);
  if (!job.by_gpu) blame_host(wanted);
  coder_.distrust(describe(wanted));
  give_up_notes("a chunk was made step by step");
  std::ranges::copy(bytes, wanted.into.begin());
  trail_ = trail;
}

std::string ChunkMaker::describe(const WantedChunk& wanted) const {
  const Layout& layout = *plan_.layout;
  return fmt::format("version {}: {}", plan_.version->number(),
                     place_of(layout, layout.tensors()[wanted.tensor], wanted.chunk));
}

std::uint64_t ChunkMaker::hash_of(const WantedChunk& wanted) const {
  return plan_.hashes[plan_.layout->tensors()[wanted.tensor].first_chunk + wanted.chunk];
}

void ChunkMaker::check(const WantedChunk& wanted, std::uint64_t found) {
  if (found == hash_of(wanted)) return;
  rebuild(wanted);
  blame_host(wanted);
}

/// Builds a chunk that was wrong once more, step by step, and compares every hash.
/// Throws the cause: BaseDamaged, ObjectError; Error: io if it is this host.
std::span<const std::byte> ChunkMaker::rebuild(const WantedChunk& wanted) {
  trace(wanted.tensor, wanted.chunk);
  const std::span<const std::byte> bytes = run(wanted.chunk, Check::every_hash);
  if (kernels::hash_chunk(bytes) != hash_of(wanted)) blame_host(wanted);
  return bytes;
}

void ChunkMaker::blame_host(const WantedChunk& wanted) const {
  throw Error(
      ErrorCode::io,
      fmt::format("{} was built wrongly, but all of its inputs are correct when read again; check "
                  "the memory and disks of this host",
                  describe(wanted)));
}

// ---- step by step ----

void ChunkMaker::make_alone(const WantedChunk& wanted) {
  give_up_notes("a chunk was made step by step");
  const auto bytes = run(wanted.chunk, Check::nothing);
  check(wanted, kernels::hash_chunk(bytes));
  std::copy(bytes.begin(), bytes.end(), wanted.into.begin());
}

std::span<const std::byte> ChunkMaker::run(std::uint32_t chunk, Check check) {
  if (!alone_) {
    const auto make = [] {
      return std::make_unique_for_overwrite<std::byte[]>(kernels::kChunkBytesMax);
    };
    alone_.reset(new Alone{.old_bytes = make(), .new_bytes = make(), .coded = {}, .scratch = {}});
  }
  alone_->size = 0;
  if (trail_.from_start) {
    alone_->size = plan_.before(0).tensors()[trail_.start_tensor].chunk_size_bytes(chunk);
    read_start(chunk, {alone_->old_bytes.get(), alone_->size});
    if (check == Check::every_hash) check_start(chunk);
  }
  for (std::size_t i = 0; i < trail_.tensors.size(); i++) apply(i, chunk, check);
  return {alone_->old_bytes.get(), alone_->size};
}

void ChunkMaker::read_start(std::uint32_t chunk, std::span<std::byte> into) {
  const LayoutTensor& tensor = plan_.before(0).tensors()[trail_.start_tensor];
  source_->read(tensor.file, tensor.offset_bytes + tensor.chunk_offset_bytes(chunk), into);
}

void ChunkMaker::check_start(std::uint32_t chunk) const {
  const LayoutTensor& tensor = plan_.before(0).tensors()[trail_.start_tensor];
  const auto& hashes = plan_.base ? plan_.base->hashes : plan_.snapshot->hashes.chunks;
  const std::uint64_t expected = hashes[tensor.first_chunk + chunk];
  const std::uint64_t found = kernels::hash_chunk({alone_->old_bytes.get(), alone_->size});
  if (found == expected) return;
  const std::string reason = fmt::format("{} has the hash {:016x}, expected {:016x}",
                                         place_of(plan_.before(0), tensor, chunk), found, expected);
  if (plan_.base) {
    const std::uint64_t number = plan_.base->images().number();
    throw BaseDamaged(number, fmt::format("the images of version {} are damaged: {}/{}: {}", number,
                                          plan_.base->directory.string(),
                                          plan_.before(0).files()[tensor.file].path, reason));
  }
  const Version& version = *plan_.snapshot->version;
  std::string key = keys::snapshot_hashes(version.number(), version.manifest.snapshot->nonce);
  throw ObjectError(ErrorCode::corrupt, key,
                    fmt::format("{}: it does not match the snapshot's files: {}", key, reason));
}

/// Cuts the chunk or extends it with zeros.
void ChunkMaker::resize(std::size_t size_bytes) {
  const std::size_t size = std::exchange(alone_->size, size_bytes);
  if (size_bytes > size) std::memset(alone_->old_bytes.get() + size, 0, size_bytes - size);
}

void ChunkMaker::apply(std::size_t trail_index, std::uint32_t chunk, Check check) {
  const std::size_t number = trail_.first_step + trail_index;
  const Step& step = plan_.steps[number];
  const LayoutTensor& tensor = step.layout->tensors()[trail_.tensors[trail_index]];
  resize(tensor.chunk_size_bytes(chunk));
  const PackEntry place = listed(trail_index, chunk);
  if (!place) return;

  const PackChunk& packed = step.chunk(place);
  alone_->coded.resize(packed.data_size_bytes);
  spool_.read(number, place, alone_->coded);
  const auto fail = [&](std::string_view reason) {
    const std::string key = step.pack_key(place.pack);
    throw ObjectError(ErrorCode::corrupt, key,
                      fmt::format("{}: {} {}; the pack is wrong; publish again with --snapshot",
                                  key, place_of(*step.layout, tensor, chunk), reason));
  };
  const std::span<std::byte> decoded(alone_->new_bytes.get(), alone_->size);
  if (!kernels::decode_chunk(tensor.kind, {alone_->old_bytes.get(), alone_->size},
                             step.packs[place.pack]->block_lengths(packed), alone_->coded, decoded,
                             alone_->scratch)) {
    fail("is malformed");
  }
  alone_->old_bytes.swap(alone_->new_bytes);
  if (check == Check::nothing) return;
  const std::uint64_t found = kernels::hash_chunk(decoded);
  if (found != packed.hash) {
    fail(fmt::format("decodes to the hash {:016x}, expected {:016x}", found, packed.hash));
  }
}

}  // namespace weightfs
