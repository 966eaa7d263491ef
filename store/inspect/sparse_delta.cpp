// Chunks are written in parallel, each once.  A wrong count is noticed before its chunk is written.

#include "store/inspect/sparse_delta.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "store/materialize/base_reader.hpp"
#include "store/os/memory_budget.hpp"
#include "store/os/new_file.hpp"
#include "store/sparse/sparse_file.hpp"
#include "store/threads/parallel.hpp"
#include "store/threads/progress_counter.hpp"

namespace weightfs {
namespace {

constexpr unsigned kHeadsAtOnce = 8;  // packs read in parallel, since latency is the limit

// ---- comparing ----

/// Calls each(index) for every element of kWidth bytes that differs, ascending.
template <std::size_t kWidth, typename Each>
void each_difference(std::span<const std::byte> older, std::span<const std::byte> newer,
                     const Each& each) {
  constexpr std::size_t kStretchBytes = 256;  // mostly equal, so one memcmp is enough
  for (std::size_t at = 0; at < newer.size(); at += kStretchBytes) {
    const std::size_t end = std::min(at + kStretchBytes, newer.size());
    if (std::memcmp(older.data() + at, newer.data() + at, end - at) == 0) continue;
    for (std::size_t i = at; i < end; i += kWidth) {
      if (std::memcmp(older.data() + i, newer.data() + i, kWidth) != 0) each(i / kWidth);
    }
  }
}

template <typename Each>
void each_difference(std::size_t width_bytes, std::span<const std::byte> older,
                     std::span<const std::byte> newer, const Each& each) {
  switch (width_bytes) {
    case 1:
      return each_difference<1>(older, newer, each);
    case 2:
      return each_difference<2>(older, newer, each);
    case 4:
      return each_difference<4>(older, newer, each);
    default:
      return each_difference<8>(older, newer, each);
  }
}

/// Fills in which elements of a chunk differ, without their values.
void find_entries(const SparseElement& element, std::span<const std::byte> older,
                  std::span<const std::byte> newer, SparseEntries& entries) {
  std::vector<std::uint32_t>& positions = entries.positions;
  positions.clear();
  const std::size_t width = element.by_byte ? 1 : element.width_bytes;
  each_difference(width, older, newer,
                  [&](std::size_t i) { positions.push_back(static_cast<std::uint32_t>(i)); });
  entries.changed = static_cast<std::uint32_t>(positions.size());
  if (element.by_byte) list_elements_of_bytes(element, newer.size(), positions);
}

}  // namespace

// ---- plans ----

SparsePlan make_sparse_plan(History& history, VersionPair versions, std::span<const Base> bases,
                            const Context& context) {
  const auto from = history.get(versions.from, context);
  const auto to = history.get(versions.to, context);
  auto older =
      match_tensors(*history.layout(*from, context), *history.layout(*to, context), versions);
  return {make_plan(history, from, bases, context), make_plan(history, to, bases, context),
          std::move(older)};
}

std::optional<ChangedCounts> find_changed_counts(History& history, const Version& version,
                                                 const Layout& layout, const Context& context) {
  if (!version.manifest.delta) return std::nullopt;
  MemoryBudget budget;
  budget.take(layout.chunk_count() * sizeof(ChangedCounts::value_type), keys::layout(layout.id()));
  PackRoom room(layout, budget);
  const std::vector<PackRef>& packs = version.manifest.delta->packs;
  std::vector<std::shared_ptr<const PackIndex>> indexes(packs.size());
  parallel_for(packs.size(), kHeadsAtOnce, context, [&](std::size_t i) {
    indexes[i] = history.repository().get_pack_index(keys::pack(version.number(), packs[i].name),
                                                     packs[i], layout, context, &room);
  });
  ChangedCounts changed(layout.chunk_count());
  for (const auto& index : indexes) {
    for (const PackChunk& chunk : index->chunks()) {
      changed[layout.tensors()[chunk.tensor].first_chunk + chunk.chunk] = chunk.changed;
    }
  }
  return changed;
}

// ---- the reader ----

struct SparseDeltaReader::Worker {
  ChunkMaker from, to;
  std::vector<std::byte> old_bytes, new_bytes;
  SparseEntries entries;
};

SparseDeltaReader::SparseDeltaReader(const SparsePlan& plan, Repository& repository,
                                     const std::filesystem::path& spool, kernels::SharedCoder coder,
                                     const Context& context, const Progress& progress)
    : plan_(plan),
      repository_(repository),
      coder_(std::move(coder)),
      context_(context),
      progress_(progress),
      from_spool_(plan.from, repository, spool, context_),
      to_spool_(plan.to, repository, spool, context_) {
  from_spool_.fetch_all(0, progress_);
  to_spool_.fetch_all(0, progress_);
}

SparseDeltaReader::~SparseDeltaReader() = default;

std::unique_ptr<SparseDeltaReader::Worker> SparseDeltaReader::make_worker() const {
  return std::unique_ptr<Worker>(new Worker{
      {plan_.from, from_spool_, open_base_reader(plan_.from, repository_, context_), *coder_},
      {plan_.to, to_spool_, open_base_reader(plan_.to, repository_, context_), *coder_},
      {},
      {},
      {}});
}

/// The chunks whose hashes differ, or whose count in `changed`, which may be empty, is not 0.
std::vector<SparseDeltaReader::Job> SparseDeltaReader::jobs(
    std::span<const std::uint32_t> changed) const {
  std::vector<Job> jobs;
  const auto tensors = plan_.to.layout->tensors();
  for (std::uint32_t i = 0; i < tensors.size(); i++) {
    if (!plan_.older[i]) continue;
    const LayoutTensor& old = plan_.from.layout->tensors()[*plan_.older[i]];
    for (std::uint32_t c = 0; c < tensors[i].chunk_count; c++) {
      const std::uint64_t number = tensors[i].first_chunk + c;
      if (plan_.from.hashes[old.first_chunk + c] != plan_.to.hashes[number] ||
          (!changed.empty() && changed[number] > 0)) {
        jobs.push_back({i, c});
      }
    }
  }
  return jobs;
}

/// Fills the worker's old_bytes and new_bytes with verified bytes.
void SparseDeltaReader::read(const Job& job, Worker& worker) const {
  const std::size_t size = plan_.to.layout->tensors()[job.tensor].chunk_size_bytes(job.chunk);
  worker.old_bytes.resize(size);
  worker.new_bytes.resize(size);
  const WantedChunk older{*plan_.older[job.tensor], job.chunk, worker.old_bytes};
  const WantedChunk newer{job.tensor, job.chunk, worker.new_bytes};
  worker.from.make({&older, 1});
  worker.to.make({&newer, 1});
}

ChangedCounts SparseDeltaReader::count() {
  const Layout& layout = *plan_.to.layout;
  ChangedCounts changed(layout.chunk_count());
  const std::vector<Job> all = jobs({});
  ProgressCounter counter(progress_, "comparing", all.size());
  parallel_for(all.size(), 0, context_, [&](std::size_t i) {
    const LayoutTensor& tensor = layout.tensors()[all[i].tensor];
    const auto worker = idle_.borrow([&] { return make_worker(); });
    read(all[i], *worker);
    find_entries(sparse_element_of(tensor.dtype), worker->old_bytes, worker->new_bytes,
                 worker->entries);
    changed[tensor.first_chunk + all[i].chunk] = worker->entries.changed;
    counter.add(1);
  });
  return changed;
}

void SparseDeltaReader::write(const SparseLayout& sparse, std::span<const std::uint32_t> changed,
                              const std::filesystem::path& path) {
  const Layout& layout = *plan_.to.layout;
  const SparseFile file(layout, sparse, changed, path);

  const std::vector<Job> all = jobs(changed);
  ProgressCounter counter(progress_, "writing", sparse.size_bytes());
  parallel_for(all.size(), 0, context_, [&](std::size_t i) {
    const LayoutTensor& tensor = layout.tensors()[all[i].tensor];
    const std::uint64_t chunk = tensor.first_chunk + all[i].chunk;
    const SparseElement element = sparse_element_of(tensor.dtype);
    const auto worker = idle_.borrow([&] { return make_worker(); });
    SparseEntries& entries = worker->entries;
    read(all[i], *worker);
    find_entries(element, worker->old_bytes, worker->new_bytes, entries);
    if (entries.changed != changed[chunk]) {
      throw Error(
          ErrorCode::corrupt,
          fmt::format(
              "{} elements of chunk {} of {} changed from version {} to {}, but the index of its "
              "pack, or its patches, say {}; they are wrong",
              entries.changed, all[i].chunk, tensor_place(layout, tensor), plan_.versions().from,
              plan_.versions().to, changed[chunk]));
    }
    put_values(element.width_bytes, worker->new_bytes, entries.positions, entries.values);
    if (sparse.old() == OldValues::with) {
      put_values(element.width_bytes, worker->old_bytes, entries.positions, entries.old);
    }
    counter.add(file.write({all[i].tensor, all[i].chunk}, entries));
  });
  file.finish(plan_.to.version->manifest.time, true);
}

std::uint64_t export_sparse_delta(History& history, VersionPair versions,
                                  const std::filesystem::path& file, const Context& context,
                                  const Progress& progress, const kernels::SharedCoder& coder) {
  return planning_again(history.skips(), [&] {
    const NewFile target(file);
    const std::filesystem::path directory = target.partial().parent_path();
    const SparsePlan plan = make_sparse_plan(history, versions, {}, context);
    SparseDeltaReader reader(plan, history.repository(), directory, coder, context, progress);
    const ChangedCounts changed = reader.count();
    const SparseLayout sparse(*plan.to.layout, changed, versions);
    reader.write(sparse, changed, target.partial());
    target.keep();
    return sparse.entries();
  });
}

}  // namespace weightfs
