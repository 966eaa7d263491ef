#include "store/sparse/ahead_deltas.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <mutex>
#include <optional>
#include <utility>

#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/patches/fresh_patches.hpp"
#include "store/sparse/log_entries.hpp"
#include "store/sparse/sparse_layout.hpp"

namespace weightfs {
namespace {

constexpr std::uint64_t kShareMax = 4;  // a delta has at most one part in 4 of its version's bytes

DeltaTable::Home home_of_deltas(ImagesHome home) {
  return home == ImagesHome::memory ? DeltaTable::Home::memory : DeltaTable::Home::disk;
}

/// Whether each chunk of the newer version is the same one of the older.
/// Throws Error: unsupported: there is no delta between them.
bool has_same_chunks(const DeltaEnds& ends) {
  const auto older = match_tensors(*ends.from, *ends.to, ends.versions);
  for (std::uint32_t i = 0; i < older.size(); i++) {
    if (older[i].value_or(i) != i) return false;
  }
  return ends.from->tensors().size() == ends.to->tensors().size();
}

void check_share(std::uint64_t delta_bytes, std::uint64_t version_bytes) {
  if (delta_bytes <= version_bytes / kShareMax) return;
  throw Error(ErrorCode::no_space,
              fmt::format("it has {} bytes, more than a quarter of its version", delta_bytes));
}

OldValues old_of(const DeltaId& id) { return id.with_old ? OldValues::with : OldValues::without; }

void log_not_made(VersionPair span, std::string_view why) {
  log_info(fmt::format("the delta from version {} to {} is not made with the version: {}",
                       span.from, span.to, why));
}

/// Runs `body`, which may fail as files do.  Returns: why it failed; nullopt: it did not.
template <typename Body>
std::optional<std::string> find_failure(Body&& body) {
  try {
    body();
    return std::nullopt;
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

// ---- of one step ----

struct AheadDeltas::Output {
  DeltaId id;
  SparseFile file;
};

// ---- of several ----

class AheadDeltas::Held final : public UnfinishedDelta {
 public:
  Held(Store& store, const DeltaEnds& ends)
      : store_(store),
        layout_(ends.to),
        versions_(ends.versions),
        time_(ends.time),
        home_(ends.home),
        version_bytes_(ends.to->size_bytes()) {}

  ~Held() override {
    for (const auto& [id, path] : files_) store_.deltas().abandon_ahead(id, path);
  }

  /// Whoever asks for it from now on waits.  Returns: false if it is made already.
  bool begin(const DeltaId& id) {
    const auto path = store_.deltas().begin(id, 0, home_of_deltas(home_));
    if (path) files_.emplace_back(id, *path);
    return path.has_value();
  }

  /// Returns: false if there is too much.
  bool add(ChunkPlace place, const SparseEntries& entries) {
    bytes_ += sizeof(Chunk) + entries.positions.size() * sizeof(std::uint32_t) +
              entries.values.size() + entries.old.size();
    if (bytes_ > fresh_bytes_max(version_bytes_)) return false;
    chunks_.push_back({place, entries});
    chunks_.back().entries.indices.clear();
    return true;
  }

  void finish(const Context& context) override {
    std::vector<std::uint32_t> counts(layout_->chunk_count());
    for (const Chunk& chunk : chunks_) {
      counts[layout_->tensors()[chunk.place.tensor].first_chunk + chunk.place.chunk] =
          chunk.entries.changed;
    }
    for (const auto& file : files_) {
      const auto failure = find_failure([&] { write(file.first, file.second, counts, context); });
      if (!failure) continue;
      log_not_made(versions_, *failure);
      store_.deltas().abandon_ahead(file.first, file.second);
    }
    files_.clear();
  }

 private:
  struct Chunk {
    ChunkPlace place;
    SparseEntries entries;
  };

  void write(const DeltaId& id, const std::filesystem::path& path,
             std::span<const std::uint32_t> counts, const Context& context) {
    SparseLayout sparse(*layout_, counts, versions_, old_of(id));
    check_share(sparse.size_bytes(), version_bytes_);
    {
      // A caller that brings in a version relies on the room that it made.
      const ImagesLock lock = store_.images().lock_images(context);
      if (home_ == ImagesHome::memory) {
        store_.evictor().admit_delta_to_memory(sparse.size_bytes());
      } else {
        store_.evictor().evict_for_delta(sparse.size_bytes());
      }
      store_.deltas().set_bytes(id, sparse.size_bytes());
    }
    const SparseFile file(*layout_, std::move(sparse), counts, path);
    for (Chunk& chunk : chunks_) {
      context.check("writing a delta");
      file.write(chunk.place, chunk.entries);
    }
    file.finish(time_, false);
    store_.deltas().complete_ahead(id, path);
  }

  Store& store_;
  const std::shared_ptr<const Layout> layout_;
  const VersionPair versions_;
  const std::int64_t time_;
  const ImagesHome home_;
  const std::uint64_t version_bytes_;
  std::vector<std::pair<DeltaId, std::filesystem::path>> files_;
  std::vector<Chunk> chunks_;
  std::uint64_t bytes_ = 0;  // of memory
};

// ---- while the version is made ----

std::unique_ptr<AheadDeltas> AheadDeltas::begin(Store& store, DeltaEnds ends,
                                                std::vector<DeltaId> ids) {
  const VersionPair versions = ends.versions;
  std::unique_ptr<AheadDeltas> made;
  const auto failure = find_failure([&] {
    if (!has_same_chunks(ends)) throw Error(ErrorCode::unsupported, "tensors moved");
    made.reset(new AheadDeltas(store, std::move(ends), std::move(ids)));
    if (!made->begin_files()) made.reset();
  });
  if (!failure) return made;
  log_not_made(versions, *failure);
  return nullptr;
}

AheadDeltas::AheadDeltas(Store& store, DeltaEnds ends, std::vector<DeltaId> ids)
    : store_(store), ends_(std::move(ends)), ids_(std::move(ids)), added_(ends_.to->chunk_count()) {
  for (const DeltaId& id : ids_) {
    if (id.with_old) old_ = OldValues::with;
  }
}

AheadDeltas::~AheadDeltas() {
  for (const auto& output : outputs_) {
    store_.deltas().abandon_ahead(output->id, output->file.path());
  }
}

/// Returns: false if there is nothing to be made.
bool AheadDeltas::begin_files() {
  if (!ends_.counts) return begin_held();
  for (const DeltaId& id : ids_) {
    SparseLayout sparse(*ends_.to, *ends_.counts, id.versions, old_of(id));
    const std::uint64_t bytes = sparse.size_bytes();
    check_share(bytes, ends_.to->size_bytes());
    if (ends_.home == ImagesHome::memory) {
      store_.evictor().admit_delta_to_memory(bytes, ends_.coming_bytes);
    } else {
      store_.evictor().evict_for_delta(bytes, ends_.coming_bytes);
    }
    const auto path = store_.deltas().begin(id, bytes, home_of_deltas(ends_.home));
    if (!path) continue;  // it is made already
    try {
      outputs_.push_back(std::unique_ptr<Output>(
          new Output{id, {*ends_.to, std::move(sparse), *ends_.counts, *path}}));
    } catch (...) {
      store_.deltas().abandon_ahead(id, *path);
      throw;
    }
  }
  return !outputs_.empty();
}

bool AheadDeltas::begin_held() {
  held_ = std::make_unique<Held>(store_, ends_);
  bool has_begun = false;
  for (const DeltaId& id : ids_) has_begun |= held_->begin(id);
  return has_begun;
}

void AheadDeltas::add(ChunkPlace place, const kernels::ChangeLog& log,
                      std::span<const std::byte> chunk, Worker& worker) {
  const LayoutTensor& tensor = ends_.to->tensors()[place.tensor];
  if (!is_wanted_ || is_opaque(*ends_.to, tensor) || !is_new(place)) return;
  const SparseElement element = sparse_element_of(tensor.dtype);
  SparseEntries& entries = worker.entries;
  if (!take_log_entries(tensor.kind, element, log, chunk, old_, worker.scratch, entries)) {
    return give_up("a chunk and what was noted of it disagree");
  }
  if (!ends_.counts) {
    if (!hold(place, entries)) give_up("what several versions changed takes too much memory");
    return;
  }
  if (entries.changed != (*ends_.counts)[tensor.first_chunk + place.chunk]) {
    return give_up("the index of a pack does not say how much changes");
  }
  const auto failure = find_failure([&] {
    for (const auto& output : outputs_) output->file.write(place, entries);
  });
  if (failure) give_up(*failure);
}

/// A chunk that straddles two segments is made by the writers of both.
bool AheadDeltas::is_new(ChunkPlace place) {
  const std::uint64_t number = ends_.to->tensors()[place.tensor].first_chunk + place.chunk;
  const std::lock_guard lock(mutex_);
  if (added_[number]) return false;
  added_[number] = true;
  return true;
}

bool AheadDeltas::hold(ChunkPlace place, const SparseEntries& entries) {
  const std::lock_guard lock(mutex_);
  return held_ == nullptr || held_->add(place, entries);
}

void AheadDeltas::give_up(std::string_view why) {
  std::unique_ptr<Held> dropped;  // goes after the lock
  {
    const std::lock_guard lock(mutex_);
    if (!is_wanted_.exchange(false)) return;
    dropped = std::move(held_);
  }
  log_not_made(ends_.versions, why);
}

/// Whether each chunk that changed, and no other, was added.
bool AheadDeltas::is_whole() {
  const std::lock_guard lock(mutex_);
  for (const LayoutTensor& tensor : ends_.to->tensors()) {
    if (is_opaque(*ends_.to, tensor)) continue;
    for (std::uint32_t chunk = 0; chunk < tensor.chunk_count; chunk++) {
      const std::uint64_t number = tensor.first_chunk + chunk;
      const bool is_changed = ends_.hashes_from[number] != ends_.hashes_to[number];
      if (added_[number] != is_changed) return false;
      if (ends_.counts && ((*ends_.counts)[number] > 0) != is_changed) return false;
    }
  }
  return true;
}

std::unique_ptr<UnfinishedDelta> AheadDeltas::complete() {
  if (is_wanted_ && !is_whole()) give_up("not all that changed was noted");
  if (!is_wanted_) return nullptr;
  for (const auto& output : outputs_) {
    const auto failure = find_failure([&] {
      output->file.finish(ends_.time, false);
      store_.deltas().complete_ahead(output->id, output->file.path());
    });
    if (!failure) continue;
    log_not_made(ends_.versions, *failure);
    store_.deltas().abandon_ahead(output->id, output->file.path());
  }
  outputs_.clear();
  const std::lock_guard lock(mutex_);
  return std::move(held_);
}

}  // namespace weightfs
