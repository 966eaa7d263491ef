#include "store/materialize/pack_spool.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "store/base/bytes.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/os/file.hpp"
#include "store/repository/pieces.hpp"
#include "store/threads/byte_budget.hpp"
#include "store/threads/parallel.hpp"
#include "store/threads/progress_counter.hpp"

namespace weightfs {
namespace {

// Limits: requests of one fetch() call, and bytes in flight for all callers together.
constexpr unsigned kFetchesAtOnce = 8;
constexpr std::uint64_t kFetchedBytesInHand = 64u << 20;

// A spool that is not larger does not touch the disk.
constexpr std::uint64_t kBytesInMemoryMax = 32u << 20;

PieceRun run_of(const Step& step, std::size_t pack) {
  const PackIndex& index = *step.packs[pack];
  return {step.pack_key(pack), index.data_offset_bytes(), index.data_size_bytes(), index.pieces()};
}

/// A request in flight and its result.  Threads that wait for its pieces look here.
struct Fetch {
  bool is_done = false;
  /// The error as text, because an exception object must not be shared between threads.
  struct Failure {
    ErrorCode code;
    std::string message, key;  // key: of an ObjectError
  };
  std::optional<Failure> failure;
};

/// Of the exception that is being handled.  Without memory for it there is none: each waiter then
/// tries for itself.
void note_failure(Fetch& fetch) noexcept {
  try {
    try {
      throw;
    } catch (const ObjectError& error) {
      fetch.failure = {error.code(), error.what(), error.key()};
    } catch (const Error& error) {
      fetch.failure = {error.code(), error.what(), {}};
    }
  } catch (...) {
    return;
  }
}

[[noreturn]] void rethrow(const Fetch::Failure& failure) {
  if (failure.key.empty()) throw Error(failure.code, failure.message);
  throw ObjectError(failure.code, failure.key, failure.message);
}

/// A pack, and where its pieces lie in the spool.
struct SpooledPack {
  struct Piece {
    bool is_here = false;
    std::shared_ptr<Fetch> fetch;  // the request in flight for it
  };

  [[nodiscard]] bool is_absent(std::uint64_t piece) const {
    return piece < pieces.size() && !pieces[piece].is_here && !pieces[piece].fetch;
  }

  PieceRun run;
  const PlannedData* data = nullptr;  // of the plan
  std::uint64_t to = 0;               // offset in the spool
  std::vector<Piece> pieces;
};

struct PieceRange {
  SpooledPack* pack = nullptr;
  std::uint64_t first = 0, last = 0;
};

}  // namespace

struct PackSpool::State {
  State(const Plan& its_plan, Repository& its_repository, std::filesystem::path its_directory,
        const Context& its_context, BuildMeter* its_meter)
      : plan(its_plan),
        repository(its_repository),
        directory(std::move(its_directory)),
        context(its_context),
        meter(its_meter) {}

  PieceRange pieces_of(std::size_t step, PackEntry place);
  std::vector<PieceRange> absent_of(std::span<const Wanted> wanted);
  Clock::duration need(SpooledPack& pack, std::uint64_t first, std::uint64_t last);
  void wait_for(std::shared_ptr<Fetch> fetch, std::unique_lock<RankedMutex>& lock);
  void fetch(SpooledPack& pack, std::uint64_t first, std::unique_lock<RankedMutex>& lock);
  void bring(const SpooledPack& pack, std::uint64_t first, std::uint64_t count);
  bool copy_planned(const SpooledPack& pack, std::uint64_t first, std::size_t size_bytes);
  [[nodiscard]] std::filesystem::path path() const { return directory / "(spool)"; }

  const Plan& plan;
  Repository& repository;
  const std::filesystem::path directory;
  const Context& context;
  BuildMeter* const meter;
  File file;
  std::vector<std::vector<SpooledPack>> packs;  // by step
  // Guards the pieces, their fetches, and the counters below.
  RankedMutex mutex{LockRank::pack_spool, "PackSpool::State::mutex"};
  std::uint64_t fetched_bytes = 0, absent_pieces = 0;
  std::condition_variable_any fetched;
  ByteBudget in_hand{kFetchedBytesInHand};
};

PackSpool::PackSpool(const Plan& plan, Repository& repository, std::filesystem::path directory,
                     const Context& context, BuildMeter* meter)
    : state_(std::make_unique<State>(plan, repository, std::move(directory), context, meter)) {
  std::uint64_t end = 0;
  for (const Step& step : plan.steps) {
    auto& packs = state_->packs.emplace_back();
    for (std::size_t i = 0; i < step.packs.size(); i++) {
      const PieceRun run = run_of(step, i);
      packs.push_back(
          {run, &step.pack_data[i], end, std::vector<SpooledPack::Piece>(run.hashes.size())});
      end += run.size_bytes;
      state_->absent_pieces += run.hashes.size();
    }
  }
  if (end > 0 && end <= kBytesInMemoryMax) state_->file = File::in_memory();
  if (end > 0 && !state_->file) state_->file = File::temporary(state_->directory);
}

PackSpool::~PackSpool() = default;

void PackSpool::fetch_all(unsigned threads, const Progress& progress,
                          const std::vector<bool>& needed) {
  struct Part {
    SpooledPack& pack;
    std::uint64_t first, last;
  };
  std::vector<Part> parts;
  std::uint64_t total = 0;
  for (std::size_t step = 0; step < state_->packs.size(); step++) {
    for (std::size_t i = 0; i < state_->packs[step].size(); i++) {
      if (step == 0 && i < needed.size() && !needed[i]) continue;
      SpooledPack& pack = state_->packs[step][i];
      total += pack.run.size_bytes;
      for (std::uint64_t first = 0; first < pack.pieces.size(); first += kPiecesPerFetch) {
        parts.push_back({pack, first, std::min(first + kPiecesPerFetch, pack.pieces.size()) - 1});
      }
    }
  }
  if (parts.empty()) return;

  const unsigned wanted = request_threads(state_->repository.bucket(state_->context), threads);
  ProgressCounter counter(progress, "fetching", total);
  parallel_for(parts.size(), wanted, state_->context, [&](std::size_t i) {
    const Part& part = parts[i];
    state_->need(part.pack, part.first, part.last);
    counter.add(part.pack.run.bytes_of(part.first, kPiecesPerFetch));
  });
}

void PackSpool::fetch(std::span<const Wanted> wanted) const {
  const std::vector<PieceRange> absent = state_->absent_of(wanted);
  if (absent.empty()) return;
  const Clock::time_point begin = Clock::now();
  parallel_for(absent.size(), kFetchesAtOnce, state_->context, [&](std::size_t i) {
    const auto& [pack, first, last] = absent[i];
    const std::uint64_t bytes = pack->run.bytes_of(first, last - first + kPiecesPerFetch);
    const auto share = state_->in_hand.take(bytes, state_->context, "fetching packs");
    state_->need(*pack, first, last);
  });
  if (state_->meter != nullptr) state_->meter->add_stalled(Clock::now() - begin);
}

bool PackSpool::is_whole() const {
  const std::lock_guard lock(state_->mutex);
  return state_->absent_pieces == 0;
}

void PackSpool::read(std::size_t step, PackEntry place, std::span<std::byte> into) const {
  if (into.empty()) return;
  const auto [pack, first, last] = state_->pieces_of(step, place);
  const std::uint64_t begin = state_->plan.steps[step].chunk(place).data_offset_bytes;
  const Clock::duration waited = state_->need(*pack, first, last);
  if (state_->meter != nullptr && waited > Clock::duration::zero()) {
    state_->meter->add_stalled(waited);
  }
  if (read_at(state_->file.fd(), pack->to + begin, into, state_->path())) return;
  throw Error(ErrorCode::io, fmt::format("the spool in {} was truncated while it was read",
                                         state_->directory.string()));
}

std::uint64_t PackSpool::fetched_bytes() const {
  const std::lock_guard lock(state_->mutex);
  return state_->fetched_bytes;
}

/// The pieces that hold a chunk.  Requires: the chunk is not empty.
PieceRange PackSpool::State::pieces_of(std::size_t step, PackEntry place) {
  const PackChunk& chunk = plan.steps[step].chunk(place);
  return {&packs[step][place.pack], chunk.data_offset_bytes / kPieceBytes,
          (chunk.data_offset_bytes + chunk.data_size_bytes - 1) / kPieceBytes};
}

/// The missing pieces of these chunks, merged into ranges of at most one request.
std::vector<PieceRange> PackSpool::State::absent_of(std::span<const Wanted> wanted) {
  std::vector<PieceRange> absent;
  const std::lock_guard lock(mutex);
  for (const auto& [step, place] : wanted) {
    if (plan.steps[step].chunk(place).data_size_bytes == 0) continue;
    const PieceRange range = pieces_of(step, place);
    const auto piece = range.pack->pieces.begin();
    const bool is_here = std::all_of(piece + static_cast<std::ptrdiff_t>(range.first),
                                     piece + static_cast<std::ptrdiff_t>(range.last + 1),
                                     [](const auto& one) { return one.is_here; });
    if (!is_here) absent.push_back(range);
  }
  std::sort(absent.begin(), absent.end(), [](const PieceRange& a, const PieceRange& b) {
    return std::tie(a.pack->to, a.first) < std::tie(b.pack->to, b.first);
  });
  std::vector<PieceRange> joined;  // without overlaps
  for (PieceRange range : absent) {
    PieceRange* const before = joined.empty() ? nullptr : &joined.back();
    if (before != nullptr && before->pack == range.pack) {
      range.first = std::max(range.first, before->last + 1);
      if (range.last < range.first) continue;
      if (range.first == before->last + 1 && range.last < before->first + kPiecesPerFetch) {
        before->last = range.last;
        continue;
      }
    }
    joined.push_back(range);
  }
  return joined;
}

/// Returns when pieces `first` to `last` are in the file: how long that took, 0 if they were.
Clock::duration PackSpool::State::need(SpooledPack& pack, std::uint64_t first, std::uint64_t last) {
  std::optional<Clock::time_point> begin;
  std::unique_lock lock(mutex);
  for (std::uint64_t piece = first; piece <= last;) {
    if (pack.pieces[piece].is_here) {
      piece++;
      continue;
    }
    if (!begin) begin = Clock::now();
    if (pack.pieces[piece].fetch) {
      wait_for(pack.pieces[piece].fetch, lock);
    } else {
      fetch(pack, piece, lock);
    }
  }
  return begin ? Clock::now() - *begin : Clock::duration::zero();
}

void PackSpool::State::wait_for(std::shared_ptr<Fetch> fetch, std::unique_lock<RankedMutex>& lock) {
  constexpr auto kLookAgain = std::chrono::hours(1);  // the deadline may be infinite
  while (!fetched.wait_until(lock, context.stop,
                             std::min(context.deadline, Clock::now() + kLookAgain),
                             [&] { return fetch->is_done; })) {
    context.check("waiting for a pack");
  }
  if (fetch->failure) rethrow(*fetch->failure);
}

/// Fetches `first` and the absent pieces after it in one request.
void PackSpool::State::fetch(SpooledPack& pack, std::uint64_t first,
                             std::unique_lock<RankedMutex>& lock) {
  const auto request = std::make_shared<Fetch>();
  std::uint64_t count = 0;
  while (count < kPiecesPerFetch && pack.is_absent(first + count)) {
    pack.pieces[first + count++].fetch = request;
  }
  lock.unlock();
  std::exception_ptr failed;
  try {
    bring(pack, first, count);
  } catch (...) {
    failed = std::current_exception();
    note_failure(*request);
  }
  const bool is_here = failed == nullptr;
  lock.lock();
  for (std::uint64_t i = 0; i < count; i++) pack.pieces[first + i] = {is_here, nullptr};
  if (is_here) {
    fetched_bytes += pack.run.bytes_of(first, count);
    absent_pieces -= count;
  }
  request->is_done = true;
  fetched.notify_all();
  if (failed) std::rethrow_exception(failed);
}

/// Of what came with the header.  If that was damaged in transit, it is fetched.
bool PackSpool::State::copy_planned(const SpooledPack& pack, std::uint64_t first,
                                    std::size_t size_bytes) {
  if (!pack.data->bytes) return false;
  const auto bytes = as_bytes(*pack.data->bytes)
                         .subspan(static_cast<std::size_t>(first * kPieceBytes), size_bytes);
  if (!are_right(pack.run, first, bytes)) return false;
  if (meter != nullptr && !pack.data->is_kept) meter->add_planned(size_bytes);
  write_at(file.fd(), pack.to + first * kPieceBytes, bytes, path());
  return true;
}

void PackSpool::State::bring(const SpooledPack& pack, std::uint64_t first, std::uint64_t count) {
  const auto size = static_cast<std::size_t>(pack.run.bytes_of(first, count));
  if (copy_planned(pack, first, size)) return;
  const auto buffer = std::make_unique_for_overwrite<std::byte[]>(size);
  const std::span<std::byte> bytes(buffer.get(), size);
  const Clock::time_point begin = Clock::now();
  fetch_pieces(repository.bucket(context), pack.run, first, bytes, context);
  if (meter != nullptr) meter->add_fetch(begin, size);
  write_at(file.fd(), pack.to + first * kPieceBytes, bytes, path());
}

}  // namespace weightfs
