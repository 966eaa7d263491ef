#include "store/pack_spool.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "store/parallel.hpp"
#include "store/pieces.hpp"
#include "store/progress_counter.hpp"

namespace weightfs {
namespace {

/// One request: some pieces of one pack, and where they go.
struct Fetch {
  std::size_t run = 0;
  std::uint64_t first = 0;  // piece
  std::uint64_t size_bytes = 0;
  std::uint64_t to = 0;  // offset in the spool
};

PieceRun run_of(const Step& step, std::size_t pack) {
  const PackIndex& index = *step.packs[pack];
  return {step.pack_key(pack), index.data_offset_bytes(), index.data_size_bytes(), index.pieces()};
}

void append_fetches(std::vector<Fetch>& fetches, const PieceRun& run, std::size_t number,
                    std::uint64_t to) {
  for (std::uint64_t first = 0; first < run.hashes.size(); first += kPiecesPerFetch) {
    fetches.push_back(
        {number, first, run.bytes_of(first, kPiecesPerFetch), to + first * kPieceBytes});
  }
}

}  // namespace

PackSpool::PackSpool(const Plan& plan, Repository& repository,
                     const std::filesystem::path& directory, unsigned threads,
                     const Context& context, const Progress& progress)
    : plan_(plan), directory_(directory) {
  std::vector<PieceRun> runs;
  std::vector<Fetch> fetches;
  std::uint64_t end = 0;
  for (const Step& step : plan.steps) {
    auto& offsets = offsets_.emplace_back();
    for (std::size_t pack = 0; pack < step.packs.size(); pack++) {
      runs.push_back(run_of(step, pack));
      append_fetches(fetches, runs.back(), runs.size() - 1, end);
      offsets.push_back(end);
      end += runs.back().size_bytes;
    }
  }
  if (fetches.empty()) return;

  file_ = File::temporary(directory);
  Bucket& bucket = repository.bucket(context);
  ProgressCounter counter(progress, "fetching", end);
  parallel_for(fetches.size(), request_threads(bucket, threads), context, [&](std::size_t i) {
    const Fetch& fetch = fetches[i];
    const auto size = static_cast<std::size_t>(fetch.size_bytes);
    const auto buffer = std::make_unique_for_overwrite<std::byte[]>(size);
    const std::span<std::byte> bytes(buffer.get(), size);
    fetch_pieces(bucket, runs[fetch.run], fetch.first, bytes, context);
    write_at(file_.fd(), fetch.to, bytes, directory_ / "(spool)");
    counter.add(size);
  });
}

void PackSpool::read(std::size_t step, Listed place, std::span<std::byte> into) const {
  const PackChunk& chunk = plan_.steps[step].chunk(place);
  const std::uint64_t offset = offsets_[step][place.pack] + chunk.data_offset_bytes;
  if (!into.empty() && !read_at(file_.fd(), offset, into, directory_ / "(spool)")) {
    throw Error(ErrorCode::io, fmt::format("the spool in {} became shorter while it was read",
                                           directory_.string()));
  }
}

}  // namespace weightfs
