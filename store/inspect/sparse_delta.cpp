// The counts tell how many entries precede those of a chunk, so chunks are written in parallel,
// each once, in place.  A wrong count is noticed before its chunk is written.

#include "store/inspect/sparse_delta.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <map>
#include <string_view>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/base/json.hpp"
#include "store/format/safetensors.hpp"
#include "store/materialize/base_reader.hpp"
#include "store/os/file.hpp"
#include "store/os/new_file.hpp"
#include "store/threads/parallel.hpp"
#include "store/threads/progress_counter.hpp"

namespace weightfs {
namespace {

constexpr unsigned kHeadsAtOnce = 8;  // packs read in parallel, since latency is the limit

static_assert(std::endian::native == std::endian::little, "indices are written as they lie");

bool is_opaque(const Layout& layout, const LayoutTensor& tensor) {
  return layout.files()[tensor.file].kind == LayoutFile::Kind::opaque;
}

std::uint64_t sparse_elements(const LayoutTensor& tensor) {
  return tensor.size_bytes / sparse_element_of(tensor.dtype).width_bytes;
}

/// The number of entries of a chunk of `size_bytes` with `changed` changed elements (as the codec
/// counts them).
std::uint64_t entries_of(const SparseElement& element, std::uint64_t changed,
                         std::uint64_t size_bytes) {
  return element.by_byte ? std::min(changed, size_bytes / element.width_bytes) : changed;
}

[[noreturn]] void refuse_delta(VersionPair versions, const std::string& why) {
  throw Error(
      ErrorCode::unsupported,
      fmt::format("the change from version {} to {} cannot be expressed as a sparse delta: {}",
                  versions.from, versions.to, why));
}

std::string tensor_place(const Layout& layout, const LayoutTensor& tensor) {
  return fmt::format("tensor '{}' in '{}'", tensor.name, layout.files()[tensor.file].path);
}

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

/// Fills `positions` with the entries of a chunk: elements, counted from its start.
/// Returns: the number of changed elements, as the codec counts them.
std::uint32_t find_entries(const SparseElement& element, std::span<const std::byte> older,
                           std::span<const std::byte> newer,
                           std::vector<std::uint32_t>& positions) {
  positions.clear();
  const std::size_t width = element.by_byte ? 1 : element.width_bytes;
  each_difference(width, older, newer,
                  [&](std::size_t i) { positions.push_back(static_cast<std::uint32_t>(i)); });
  const auto changed = static_cast<std::uint32_t>(positions.size());
  if (!element.by_byte) return changed;
  const std::size_t elements = newer.size() / element.width_bytes;
  if (changed >= elements) {
    positions.resize(elements);
    for (std::size_t i = 0; i < elements; i++) positions[i] = static_cast<std::uint32_t>(i);
  } else {
    for (std::uint32_t& at : positions) at /= static_cast<std::uint32_t>(element.width_bytes);
  }
  return changed;
}

// ---- the header ----

void append_header_entry(std::string& header, const std::string& name, Dtype dtype,
                         std::uint64_t count, std::uint64_t begin, std::uint64_t size) {
  header += fmt::format(R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                        Json(name).dump(), to_string(dtype), count, begin, begin + size);
}

/// Creates a file of this size.
File make_sparse_file(const std::filesystem::path& path, std::uint64_t size_bytes) {
  File file = File::open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
  const auto size = static_cast<off_t>(size_bytes);
  int failed = 0;
  do {
    failed = ::fallocate(file.fd(), 0, 0, size) == 0 ? 0 : errno;
  } while (failed == EINTR);
  if (failed == EOPNOTSUPP) failed = ::ftruncate(file.fd(), size) == 0 ? 0 : errno;
  if (failed != 0) throw_errno(failed, "make room for " + path.string());
  return file;
}

void finish_sparse_file(int fd, const std::filesystem::path& path, std::int64_t time) {
  if (::fchmod(fd, 0444) != 0) throw_errno(errno, "set the mode of " + path.string());
  const timespec times[2] = {{time, 0}, {time, 0}};
  if (::futimens(fd, times) != 0) throw_errno(errno, "set the time of " + path.string());
  fsync_file(fd, path);
}

}  // namespace

SparseElement sparse_element_of(Dtype dtype) noexcept {
  const unsigned bits = bits_of(dtype);
  if (bits < 8) return {Dtype::u8, 1, false};  // elements of F4 and F6 straddle bytes
  const std::size_t width = bits / 8;
  return {dtype, width, kind_of(dtype) == kernels::Kind::u8 && width > 1};
}

std::vector<std::optional<std::uint32_t>> match_tensors(const Layout& from, const Layout& to,
                                                        VersionPair versions) {
  auto older = counterparts(to, from);
  std::vector<bool> found(from.tensors().size());
  for (std::uint32_t i = 0; i < older.size(); i++) {
    const LayoutTensor& tensor = to.tensors()[i];
    if (is_opaque(to, tensor)) {
      older[i].reset();
      continue;
    }
    if (!older[i] || is_opaque(from, from.tensors()[*older[i]])) {
      refuse_delta(versions, fmt::format("{} of version {} has no tensor of the same name and "
                                         "dtype in version {}; export the whole version",
                                         tensor_place(to, tensor), versions.to, versions.from));
    }
    const LayoutTensor& other = from.tensors()[*older[i]];
    if (other.shape != tensor.shape) {
      refuse_delta(versions, fmt::format("{} has another shape in version {}; export the whole "
                                         "version",
                                         tensor_place(to, tensor), versions.from));
    }
    found[*older[i]] = true;
  }
  for (std::uint32_t i = 0; i < found.size(); i++) {
    const LayoutTensor& tensor = from.tensors()[i];
    if (found[i] || is_opaque(from, tensor)) continue;
    refuse_delta(versions, fmt::format("{} of version {} is not in version {}; export the whole "
                                       "version",
                                       tensor_place(from, tensor), versions.from, versions.to));
  }
  return older;
}

// ---- the layout ----

SparseLayout::SparseLayout(const Layout& to, std::span<const std::uint32_t> changed,
                           VersionPair versions, OldValues old, std::uint64_t narrow_max) {
  add_tensors(to, changed, versions, narrow_max);
  place(to, versions, old);
}

void SparseLayout::add_tensors(const Layout& to, std::span<const std::uint32_t> changed,
                               VersionPair versions, std::uint64_t narrow_max) {
  std::map<std::string_view, unsigned> names;
  for (std::uint32_t i = 0; i < to.tensors().size(); i++) {
    const LayoutTensor& tensor = to.tensors()[i];
    if (is_opaque(to, tensor)) continue;
    names[tensor.name]++;
    elements_ += sparse_elements(tensor);
    Tensor entry{i, sparse_element_of(tensor.dtype), sparse_elements(tensor) > narrow_max};
    for (std::uint32_t c = 0; c < tensor.chunk_count; c++) {
      const std::uint64_t size = tensor.chunk_size_bytes(c);
      const std::uint64_t count = changed[tensor.first_chunk + c];
      if (count > size / kernels::width_bytes(tensor.kind)) {
        throw Error(
            ErrorCode::corrupt,
            fmt::format("the packs or patches of version {} say that {} elements of chunk {} "
                        "of {} changed, which has {}",
                        versions.to, count, c, tensor_place(to, tensor),
                        size / kernels::width_bytes(tensor.kind)));
      }
      entry.entries += entries_of(entry.element, count, size);
    }
    if (entry.entries > 0) tensors_.push_back(entry);
  }
  for (const Tensor& entry : tensors_) {
    const LayoutTensor& tensor = to.tensors()[entry.number];
    if (names[tensor.name] == 1) continue;
    refuse_delta(versions, fmt::format("{} changed, and another file of version {} has a tensor "
                                       "of that name too, so '{}.values' would be ambiguous",
                                       tensor_place(to, tensor), versions.to, tensor.name));
  }
}

/// Widest elements first, as the safetensors package writes them, so that all are aligned.
void SparseLayout::place(const Layout& to, VersionPair versions, OldValues old) {
  std::string arrays;
  std::uint64_t at = 0;  // offset in the data
  for (const std::size_t width : {8U, 4U, 2U, 1U}) {
    for (Tensor& tensor : tensors_) {
      const std::string& name = to.tensors()[tensor.number].name;
      if (width == (tensor.wide ? 8U : 4U)) {
        append_header_entry(arrays, name + ".indices", tensor.wide ? Dtype::i64 : Dtype::i32,
                            tensor.entries, at, tensor.entries * width);
        tensor.indices_offset_bytes = at;
        at += tensor.entries * width;
      }
      if (width == tensor.element.width_bytes) {
        append_header_entry(arrays, name + ".values", tensor.element.dtype, tensor.entries, at,
                            tensor.entries * width);
        tensor.values_offset_bytes = at;
        at += tensor.entries * width;
        if (old == OldValues::without) continue;
        append_header_entry(arrays, name + ".old", tensor.element.dtype, tensor.entries, at,
                            tensor.entries * width);
        tensor.old_offset_bytes = at;
        at += tensor.entries * width;
      }
    }
  }
  Json names = Json::array();
  for (const Tensor& tensor : tensors_) {
    names.push_back(to.tensors()[tensor.number].name);
    entries_ += tensor.entries;
  }
  const double share =
      elements_ == 0 ? 0 : static_cast<double>(entries_) / static_cast<double>(elements_);
  const Json metadata{{"format", "sparse_weight_patch"},
                      {"version", "1"},
                      {"sparse", "True"},
                      {"model_version", std::to_string(versions.to)},
                      {"prev_model_version", std::to_string(versions.from)},
                      {"num_changed_params", std::to_string(tensors_.size())},
                      {"total_changed_elements", std::to_string(entries_)},
                      {"total_elements", std::to_string(elements_)},
                      {"sparsity", fmt::format("{}", 1 - share)},
                      {"changed_params", names.dump()}};
  std::string json = fmt::format(R"({{"__metadata__":{}{}}})", metadata.dump(), arrays);
  json.resize((json.size() + 7) / 8 * 8, ' ');
  if (json.size() > kSafetensorsHeaderBytesMax) {
    refuse_delta(versions, fmt::format("its header would have {} bytes, but safetensors allows {}",
                                       json.size(), kSafetensorsHeaderBytesMax));
  }
  append_le(head_, std::uint64_t{json.size()});
  head_ += json;
  for (Tensor& tensor : tensors_) {
    tensor.indices_offset_bytes += head_.size();
    tensor.values_offset_bytes += head_.size();
    if (old == OldValues::with) tensor.old_offset_bytes += head_.size();
  }
  size_bytes_ = head_.size() + at;
}

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
  std::vector<std::uint32_t> positions;
  std::vector<std::byte> indices, values;
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
    changed[tensor.first_chunk + all[i].chunk] = find_entries(
        sparse_element_of(tensor.dtype), worker->old_bytes, worker->new_bytes, worker->positions);
    counter.add(1);
  });
  return changed;
}

namespace {

/// The index of each changed chunk's first entry within its tensor.
std::vector<std::uint64_t> first_entries(const Layout& layout, const SparseLayout& sparse,
                                         std::span<const std::uint32_t> changed) {
  std::vector<std::uint64_t> firsts(layout.chunk_count());
  for (const SparseLayout::Tensor& entry : sparse.tensors()) {
    const LayoutTensor& tensor = layout.tensors()[entry.number];
    std::uint64_t first = 0;
    for (std::uint32_t c = 0; c < tensor.chunk_count; c++) {
      firsts[tensor.first_chunk + c] = first;
      first +=
          entries_of(entry.element, changed[tensor.first_chunk + c], tensor.chunk_size_bytes(c));
    }
  }
  return firsts;
}

template <typename Index>
void put_indices(std::uint64_t first_element, std::span<const std::uint32_t> positions,
                 std::vector<std::byte>& into) {
  into.resize(positions.size() * sizeof(Index));
  for (std::size_t i = 0; i < positions.size(); i++) {
    const auto index = static_cast<Index>(first_element + positions[i]);
    std::memcpy(into.data() + i * sizeof index, &index, sizeof index);
  }
}

void put_values(std::size_t width_bytes, std::span<const std::byte> from,
                std::span<const std::uint32_t> positions, std::vector<std::byte>& into) {
  into.resize(positions.size() * width_bytes);
  for (std::size_t i = 0; i < positions.size(); i++) {
    std::memcpy(into.data() + i * width_bytes, from.data() + positions[i] * width_bytes,
                width_bytes);
  }
}

const SparseLayout::Tensor* find_sparse(const SparseLayout& sparse, std::uint32_t number) {
  const auto tensors = sparse.tensors();
  const auto found = std::partition_point(tensors.begin(), tensors.end(),
                                          [&](const auto& entry) { return entry.number < number; });
  return found != tensors.end() && found->number == number ? &*found : nullptr;
}

}  // namespace

void SparseDeltaReader::write(const SparseLayout& sparse, std::span<const std::uint32_t> changed,
                              const std::filesystem::path& path) {
  const Layout& layout = *plan_.to.layout;
  const std::vector<std::uint64_t> firsts = first_entries(layout, sparse, changed);
  const File file = make_sparse_file(path, sparse.size_bytes());
  write_at(file.fd(), 0, as_bytes(sparse.head()), path);

  const std::vector<Job> all = jobs(changed);
  ProgressCounter counter(progress_, "writing", sparse.size_bytes());
  parallel_for(all.size(), 0, context_, [&](std::size_t i) {
    const LayoutTensor& tensor = layout.tensors()[all[i].tensor];
    const std::uint64_t chunk = tensor.first_chunk + all[i].chunk;
    const SparseElement element = sparse_element_of(tensor.dtype);
    const auto worker = idle_.borrow([&] { return make_worker(); });
    read(all[i], *worker);
    const std::uint32_t found =
        find_entries(element, worker->old_bytes, worker->new_bytes, worker->positions);
    if (found != changed[chunk]) {
      throw Error(
          ErrorCode::corrupt,
          fmt::format(
              "{} elements of chunk {} of {} changed from version {} to {}, but the index of its "
              "pack, or its patches, say {}; they are wrong",
              found, all[i].chunk, tensor_place(layout, tensor), plan_.versions().from,
              plan_.versions().to, changed[chunk]));
    }
    const SparseLayout::Tensor& entry = *find_sparse(sparse, all[i].tensor);
    const std::uint64_t first_element =
        tensor.chunk_offset_bytes(all[i].chunk) / element.width_bytes;
    if (entry.wide) {
      put_indices<std::int64_t>(first_element, worker->positions, worker->indices);
    } else {
      put_indices<std::int32_t>(first_element, worker->positions, worker->indices);
    }
    put_values(element.width_bytes, worker->new_bytes, worker->positions, worker->values);
    const std::uint64_t index_bytes = entry.wide ? 8 : 4;
    write_at(file.fd(), entry.indices_offset_bytes + firsts[chunk] * index_bytes, worker->indices,
             path);
    write_at(file.fd(), entry.values_offset_bytes + firsts[chunk] * element.width_bytes,
             worker->values, path);
    counter.add(worker->indices.size() + worker->values.size());
    if (entry.old_offset_bytes == 0) return;
    put_values(element.width_bytes, worker->old_bytes, worker->positions, worker->values);
    write_at(file.fd(), entry.old_offset_bytes + firsts[chunk] * element.width_bytes,
             worker->values, path);
    counter.add(worker->values.size());
  });
  finish_sparse_file(file.fd(), path, plan_.to.version->manifest.time);
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
