#include "store/inspect/check_objects.hpp"

#include <fmt/format.h>

#include <array>
#include <mutex>

#include "store/base/ranked_mutex.hpp"
#include "store/threads/parallel.hpp"

namespace weightfs {

bool ObjectChecker::check_packs(const DeltaRef& delta, const KeyOf& key_of, const Layout& layout,
                                ProgressCounter& counter) {
  ObjectRuns runs;
  MemoryBudget budget;
  PackRoom room(layout, budget);
  bool whole = true;
  for (const PackRef& ref : delta.packs) {
    const std::string key = key_of(ref);
    verdicts_.report.objects++;
    whole &= verdicts_.judge(key, [&] {
      auto index = repository_.get_pack_index(key, ref, layout, context_, &room);
      runs.runs.push_back(
          {key, index->data_offset_bytes(), index->data_size_bytes(), index->pieces()});
      runs.indexes.push_back(std::move(index));
      verdicts_.report.bytes += ref.head_bytes;
    });
  }
  return check_runs(repository_.bucket(context_), runs, counter) && whole;
}

bool ObjectChecker::check_snapshot(const Version& version, const Layout& layout,
                                   ProgressCounter& counter) {
  const SnapshotRef& ref = *version.manifest.snapshot;
  ObjectRuns runs;
  verdicts_.report.objects++;
  const bool readable = verdicts_.judge(keys::snapshot_hashes(version.number(), ref.nonce), [&] {
    runs.snapshot = repository_.get_snapshot_hashes(version.number(), ref, layout, context_);
    verdicts_.report.bytes += ref.hashes.size_bytes;
  });
  if (!readable) return false;
  for (std::size_t i = 0; i < layout.files().size(); i++) {
    const LayoutFile& file = layout.files()[i];
    verdicts_.report.objects++;
    runs.runs.push_back(
        {snapshot_key(version, file.path), 0, file.size_bytes, runs.snapshot.pieces[i]});
  }
  return check_runs(repository_.snapshot_reader(version, context_), runs, counter);
}

bool ObjectChecker::check_runs(BucketReader& from, const ObjectRuns& runs,
                               ProgressCounter& counter) {
  struct Part {
    std::size_t run;
    std::uint64_t first;
  };
  std::vector<Part> parts;
  for (std::size_t i = 0; i < runs.runs.size(); i++) {
    const std::size_t pieces = runs.runs[i].hashes.size();
    // An object without data has one part too, to check where it ends.
    for (std::uint64_t first = 0; first == 0 || first < pieces; first += kPiecesPerFetch) {
      parts.push_back({i, first});
    }
  }
  std::vector<std::string> failures(runs.runs.size());
  // Guards `failures` and the byte count.
  RankedMutex mutex{LockRank::leaf, "check_runs::mutex"};
  const unsigned threads = request_threads(from, 0);
  parallel_for(parts.size(), threads, context_, [&](std::size_t i) {
    const PieceRun& run = runs.runs[parts[i].run];
    try {
      const std::uint64_t bytes = check_part(from, run, parts[i].first);
      counter.add(bytes);
      const std::lock_guard lock(mutex);
      verdicts_.report.bytes += bytes;
    } catch (const ObjectError& error) {
      const std::lock_guard lock(mutex);
      failures[parts[i].run] = error.what();
    }
  });
  bool whole = true;
  for (std::size_t i = 0; i < failures.size(); i++) {
    if (failures[i].empty()) continue;
    whole = false;
    verdicts_.add(runs.runs[i].key, failures[i]);
  }
  return whole;
}

/// Returns: the number of bytes fetched.
std::uint64_t ObjectChecker::check_part(BucketReader& from, const PieceRun& run,
                                        std::uint64_t first) {
  if (first == 0) check_end(from, run);
  if (run.size_bytes == 0) return 0;
  const auto size = static_cast<std::size_t>(run.bytes_of(first, kPiecesPerFetch));
  const auto buffer = std::make_unique_for_overwrite<std::byte[]>(size);
  fetch_pieces(from, run, first, {buffer.get(), size}, context_);
  return size;
}

void ObjectChecker::check_end(BucketReader& from, const PieceRun& run) {
  std::array<std::byte, 1> byte{};
  const std::uint64_t end = run.offset_bytes + run.size_bytes;
  std::size_t behind = 0;
  try {
    behind = from.get(run.key, end, byte, context_);
  } catch (const Error& error) {
    if (!is_verdict(error)) throw;
    throw ObjectError(error.code(), run.key, error.what());
  }
  if (behind == 0) return;
  throw ObjectError(ErrorCode::corrupt, run.key,
                    fmt::format("{} continues after its expected end at byte {}", run.key, end));
}

}  // namespace weightfs
