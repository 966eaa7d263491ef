// The path is found backwards from the wanted version, because a version knows its parent. The
// expected hashes are then derived forwards from the start, because a delta lists only what
// changed.

#include "store/materialize/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

#include "store/base/bytes.hpp"
#include "store/base/log.hpp"
#include "store/base/path_rules.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/materialize/file_filter.hpp"
#include "store/os/memory_budget.hpp"
#include "store/repository/pieces.hpp"
#include "store/repository/skips.hpp"
#include "store/retention/gc_log.hpp"
#include "store/threads/byte_budget.hpp"
#include "store/threads/parallel.hpp"

namespace weightfs {
namespace {

// Layouts and pack headers are fetched by more threads than there are cores, because latency is the
// limit, not CPU. The second limit is for their coded bytes in flight.
constexpr unsigned kRecordThreads = 32;
constexpr std::uint64_t kRecordBytesInHand = 16u << 20;
// For inflated layouts: reading one may take many times its size.
constexpr std::uint64_t kLayoutBytesInHand = 4u << 20;

std::string name_of(const Version& version) { return fmt::format("version {}", version.number()); }

/// Runs `body` and adds the version's name to any Error it throws.
template <typename Body>
auto naming(const Version& version, Body&& body) {
  try {
    return body();
  } catch (const ObjectError&) {
    throw;  // its key contains the version's number
  } catch (const BaseDamaged&) {
    throw;  // already names the version
  } catch (const PatchDamaged&) {
    throw;  // likewise
  } catch (const Error& error) {
    throw error.within(name_of(version));
  }
}

[[noreturn]] void throw_corrupt(const Version& version, const std::string& message) {
  const std::string key = keys::manifest(version.number());
  throw ObjectError(ErrorCode::corrupt, key,
                    fmt::format("{} ({}): {}", name_of(version), key, message));
}

/// Whether an error concerns only this path to the version (something is damaged, or needs more
/// than this host can read), so that another path may work.
bool is_of_this_way(const Error& error) {
  return error.code() == ErrorCode::corrupt || error.code() == ErrorCode::not_found ||
         error.code() == ErrorCode::unsupported;
}

std::uint64_t pack_bytes(const DeltaRef& delta) {
  std::uint64_t total = 0;
  for (const PackRef& pack : delta.packs) total += pack.size_bytes;
  return total;
}

const Base* find_base(std::span<const Base> bases, const Version& version) {
  for (const Base& base : bases) {
    if (base.version->number() == version.number() &&
        base.version->manifest_sha256 == version.manifest_sha256) {
      return &base;
    }
  }
  return nullptr;
}

bool any_older(std::span<const Base> bases, const Version& version) {
  return std::any_of(bases.begin(), bases.end(),
                     [&](const Base& base) { return base.version->number() < version.number(); });
}

/// No path may occur twice or be a directory of another. Manifest and layout are checked separately
/// when parsed; conflicts between them can only be found here.
void check_paths(const Version& version, const Layout& layout) {
  std::vector<std::string_view> paths;
  for (const LayoutFile& file : layout.files()) paths.push_back(file.path);
  for (const BlobRef& blob : version.manifest.blobs) paths.push_back(blob.path);
  std::sort(paths.begin(), paths.end());
  if (const std::string problem = paths_problem(paths); !problem.empty()) {
    throw_corrupt(version, problem);
  }
}

void check_root(const Version& version, std::span<const std::uint64_t> hashes) {
  const Sha256 found = root_of(hashes);
  if (found == version.manifest.root) return;
  throw_corrupt(version, fmt::format("its chunk hashes have the root {}, the manifest says {}",
                                     to_hex(found), to_hex(version.manifest.root)));
}

/// Checks that the packs list all chunks they must, before memory is allocated for the layout's
/// chunk count.
void check_enough_listed(const Step& step, const Layout& before) {
  std::uint64_t listed = 0, needed = 0;
  for (const auto& pack : step.packs) listed += pack->chunks().size();
  for (std::size_t i = 0; i < step.layout->tensors().size(); i++) {
    const std::uint32_t count = step.layout->tensors()[i].chunk_count;
    const auto& counterpart = step.counterparts[i];
    const std::uint32_t old_count = counterpart ? before.tensors()[*counterpart].chunk_count : 0;
    needed += count - std::min(count, old_count);
  }
  if (needed <= listed) return;
  throw_corrupt(*step.version,
                fmt::format("{} chunks have no base chunk, but its packs have only {} chunks",
                            needed, listed));
}

std::vector<PackEntry> list_chunks(const Step& step) {
  std::vector<PackEntry> listed(step.layout->chunk_count());
  for (std::uint32_t p = 0; p < step.packs.size(); p++) {
    const auto chunks = step.packs[p]->chunks();
    for (std::uint32_t i = 0; i < chunks.size(); i++) {
      const LayoutTensor& tensor = step.layout->tensors()[chunks[i].tensor];
      PackEntry& place = listed[tensor.first_chunk + chunks[i].chunk];
      if (place) {
        throw ObjectError(ErrorCode::corrupt, step.pack_key(p),
                          fmt::format("{}: chunk {} of tensor '{}' is in {} too", step.pack_key(p),
                                      chunks[i].chunk, tensor.name, step.pack_key(place.pack)));
      }
      place = {p, i};
    }
  }
  return listed;
}

using Versions = std::vector<std::shared_ptr<const Version>>;
using Layouts = std::vector<std::shared_ptr<const Layout>>;

/// Charges layouts to the memory budget for a version's records as they arrive.
class LayoutCharge {
 public:
  explicit LayoutCharge(MemoryBudget& budget) : budget_(budget) {}

  /// Throws Error: unsupported.
  void add(const Layout& layout) {
    std::uint64_t bytes = 0;
    for (const LayoutFile& file : layout.files()) {
      bytes += sizeof(file) + file.path.size() + file.head.size();
    }
    const std::lock_guard lock(mutex_);
    if (tables_.insert(layout.tensors().data()).second) bytes += table_bytes(layout);
    budget_.take(bytes, keys::layout(layout.id()));
  }

 private:
  static std::uint64_t table_bytes(const Layout& layout) {
    std::uint64_t bytes = 0;
    for (const LayoutTensor& tensor : layout.tensors()) {
      bytes += sizeof(tensor) + tensor.name.size() + sizeof(std::uint64_t) * tensor.shape.size();
    }
    return bytes;
  }

  MemoryBudget& budget_;
  RankedMutex mutex_{LockRank::leaf, "LayoutCharge::mutex_"};  // guards tables_
  std::set<const LayoutTensor*> tables_;                       // layouts may share a table
};

/// Memory that a step takes for the chunks and tensors of its layout, without its packs.
std::uint64_t memory_of_step(const Layout& layout) {
  return layout.chunk_count() * (sizeof(PackEntry) + sizeof(std::uint64_t)) +
         layout.tensors().size() * sizeof(std::optional<std::uint32_t>);
}

/// The layouts of these versions; each distinct layout is fetched once.
Layouts fetch_layouts(History& history, const Versions& versions, MemoryBudget& memory,
                      const Context& context) {
  LayoutCharge charge(memory);
  std::map<Sha256, std::size_t> first_with;  // index into `versions`
  std::vector<std::size_t> firsts;
  for (std::size_t i = 0; i < versions.size(); i++) {
    if (first_with.emplace(versions[i]->manifest.layout.sha256, i).second) firsts.push_back(i);
  }
  Layouts layouts(versions.size());
  ByteBudget budget(kLayoutBytesInHand);
  parallel_for(firsts.size(), kRecordThreads, context, [&](std::size_t i) {
    const Version& version = *versions[firsts[i]];
    const auto share =
        budget.take(version.manifest.layout.size_bytes, context, "fetching a layout");
    naming(version, [&] {
      layouts[firsts[i]] = history.layout(version, context);
      charge.add(*layouts[firsts[i]]);
    });
  });
  for (std::size_t i = 0; i < versions.size(); i++) {
    layouts[i] = layouts[first_with.at(versions[i]->manifest.layout.sha256)];
  }
  return layouts;
}

/// Fetches the indexes of all packs of all steps.
void fetch_indexes(std::vector<Step>& steps, Repository& repository, MemoryBudget& memory,
                   const Context& context) {
  struct Head {
    Step& step;
    std::size_t pack;
    PackRoom& room;  // shared by the packs of a step
  };
  std::vector<Head> heads;
  std::deque<PackRoom> rooms;
  for (Step& step : steps) {
    step.packs.resize(step.delta().packs.size());
    PackRoom& room = rooms.emplace_back(*step.layout, memory);
    for (std::size_t pack = 0; pack < step.packs.size(); pack++) {
      heads.push_back({step, pack, room});
    }
  }
  ByteBudget budget(kRecordBytesInHand);
  parallel_for(heads.size(), kRecordThreads, context, [&](std::size_t i) {
    Step& step = heads[i].step;
    const PackRef& ref = step.delta().packs[heads[i].pack];
    const auto share = budget.take(ref.head_bytes, context, "fetching a pack header");
    step.packs[heads[i].pack] = naming(*step.version, [&] {
      return repository.get_pack_index(step.pack_key(heads[i].pack), ref, *step.layout, context,
                                       &heads[i].room);
    });
  });
}

/// The deltas that lead to these versions, each parsed and checked on its own.
std::vector<Step> fetch_steps(History& history, const Versions& versions, MemoryBudget& memory,
                              const Context& context) {
  const Layouts layouts = fetch_layouts(history, versions, memory, context);
  std::vector<Step> steps(versions.size());
  for (std::size_t i = 0; i < steps.size(); i++) {
    steps[i].version = versions[i];
    steps[i].layout = layouts[i];
    memory.take(memory_of_step(*layouts[i]), keys::layout(layouts[i]->id()));
  }
  fetch_indexes(steps, history.repository(), memory, context);
  return steps;
}

/// Links a step to the layout before it.
void join(Step& step, const Layout& before) {
  step.counterparts = counterparts(*step.layout, before);
  check_enough_listed(step, before);
  step.listed = list_chunks(step);
}

std::uint64_t inherited_hash(const Step& step, std::uint32_t number, std::uint32_t chunk,
                             const Layout& before, std::span<const std::uint64_t> hashes) {
  const LayoutTensor& tensor = step.layout->tensors()[number];
  if (const auto counterpart = step.counterparts[number]) {
    const LayoutTensor& old = before.tensors()[*counterpart];
    if (chunk < old.chunk_count && old.chunk_size_bytes(chunk) == tensor.chunk_size_bytes(chunk)) {
      return hashes[old.first_chunk + chunk];
    }
  }
  throw_corrupt(
      *step.version,
      fmt::format(
          "chunk {} of tensor '{}' in '{}' is in none of its packs, and the version before has "
          "no chunk of that size as a base",
          chunk, tensor.name, step.layout->files()[tensor.file].path));
}

std::vector<std::uint64_t> hashes_after(const Step& step, const Layout& before,
                                        std::span<const std::uint64_t> hashes) {
  std::vector<std::uint64_t> result(step.layout->chunk_count());
  for (std::uint32_t t = 0; t < step.layout->tensors().size(); t++) {
    const LayoutTensor& tensor = step.layout->tensors()[t];
    for (std::uint32_t c = 0; c < tensor.chunk_count; c++) {
      const PackEntry place = step.listed[tensor.first_chunk + c];
      result[tensor.first_chunk + c] =
          place ? step.chunk(place).hash : inherited_hash(step, t, c, before, hashes);
    }
  }
  return result;
}

/// The versions after `start` up to `wanted`, oldest first.
Versions versions_between(History& history, const Version& start,
                          std::shared_ptr<const Version> wanted, const Context& context) {
  Versions versions;
  while (wanted->number() > start.number()) {
    if (!wanted->manifest.delta) {
      throw_corrupt(*wanted,
                    fmt::format("it has no delta, so it cannot be built from {}", name_of(start)));
    }
    versions.push_back(wanted);
    if (wanted->manifest.parent == start.number()) break;
    wanted = history.get(wanted->manifest.parent, context);
  }
  std::reverse(versions.begin(), versions.end());
  return versions;
}

/// A record that does not match its own version is damage, just like a damaged image.
void check_base(const Base& base) {
  const bool whole = base.hashes.size() == base.layout->chunk_count();
  if (whole && root_of(base.hashes) == base.version->manifest.root) return;
  if (base.patched) {
    throw PatchDamaged(std::nullopt,
                       fmt::format("{}: what the store's patches make of version {} does not match "
                                   "the root in its manifest",
                                   name_of(*base.version), base.images().number()));
  }
  throw BaseDamaged(
      base.version->number(),
      fmt::format(
          "{}: the chunk hashes recorded on this host do not match the root in its manifest",
          name_of(*base.version)));
}

Plan start_of(const ReconstructionPath& path, History& history, MemoryBudget& memory,
              const Context& context) {
  Plan plan;
  plan.layout = history.layout(*path.start, context);
  LayoutCharge(memory).add(*plan.layout);
  memory.take(memory_of_step(*plan.layout), keys::layout(plan.layout->id()));
  if (path.base != nullptr) {
    check_base(*path.base);
    plan.base = *path.base;
    plan.hashes = plan.base->hashes;
    return plan;
  }
  plan.snapshot.emplace(StoredSnapshot{
      path.start, plan.layout,
      history.repository().get_snapshot_hashes(path.start->number(), *path.start->manifest.snapshot,
                                               *plan.layout, context)});
  if (const auto& seed = history.seed()) {
    plan.snapshot->seed = std::make_shared<SnapshotSeed>(seed, *plan.layout);
  }
  plan.hashes = plan.snapshot->hashes.chunks;
  check_root(*path.start, plan.hashes);
  return plan;
}

}  // namespace

std::string Step::pack_key(std::size_t pack) const {
  const std::string& name = delta().packs[pack].name;
  return skip ? keys::skip_pack(skip->versions, name) : keys::pack(version->number(), name);
}

std::uint64_t Plan::version_bytes() const noexcept {
  std::uint64_t total = layout->size_bytes() - bytes_of(*layout, without);
  for (const BlobRef& blob : version->manifest.blobs) total += blob.size_bytes;
  return total;
}

const Layout& Plan::before(std::size_t index) const noexcept {
  if (index > 0) return *steps[index - 1].layout;
  return base ? *base->layout : *snapshot->layout;
}

std::vector<ReconstructionPath> find_paths(History& history,
                                           const std::shared_ptr<const Version>& wanted,
                                           std::span<const Base> bases, const Context& context) {
  std::vector<ReconstructionPath> paths;
  std::uint64_t behind = 0;  // pack bytes between `version` and `wanted`
  std::size_t steps = 0;
  for (auto version = wanted;; steps++) {
    if (const Base* base = find_base(bases, *version)) {
      paths.push_back({version, base, behind, steps});
      break;
    }
    const Manifest& manifest = version->manifest;
    if (manifest.snapshot) {
      const auto layout = naming(*version, [&] { return history.layout(*version, context); });
      paths.push_back({version, nullptr, behind + layout->size_bytes(), steps});
    }
    if (!manifest.delta) break;
    behind += pack_bytes(*manifest.delta);
    const bool further_is_dearer =
        std::any_of(paths.begin(), paths.end(),
                    [&](const ReconstructionPath& path) { return path.fetch_bytes <= behind; });
    if (!paths.empty() && (further_is_dearer || !any_older(bases, *version))) break;
    try {
      version = naming(*version, [&] { return history.get(manifest.parent, context); });
    } catch (const Error& error) {
      if (paths.empty() || !is_of_this_way(error)) throw;
      break;  // use the paths found so far
    }
  }
  if (paths.empty()) throw_corrupt(*wanted, "neither a snapshot nor a delta leads to it");
  std::stable_sort(paths.begin(), paths.end(),
                   [](const ReconstructionPath& a, const ReconstructionPath& b) {
                     return a.fetch_bytes < b.fetch_bytes;
                   });
  return paths;
}

Plan make_plan_by(const ReconstructionPath& path, History& history,
                  const std::shared_ptr<const Version>& wanted, const Context& context) {
  const Versions versions = versions_between(history, *path.start, wanted, context);
  MemoryBudget memory;
  Plan plan = naming(*path.start, [&] { return start_of(path, history, memory, context); });
  plan.steps = fetch_steps(history, versions, memory, context);
  for (Step& step : plan.steps) {
    naming(*step.version, [&] {
      join(step, *plan.layout);
      plan.hashes = hashes_after(step, *plan.layout, plan.hashes);
      check_root(*step.version, plan.hashes);
      plan.layout = step.layout;
    });
  }
  plan.version = wanted;
  plan.fetch_bytes = path.fetch_bytes;
  check_paths(*wanted, *plan.layout);
  return plan;
}

namespace {

Plan make_plan_from(History& history, const std::shared_ptr<const Version>& wanted,
                    std::span<const Base> bases, const Context& context) {
  const std::vector<ReconstructionPath> paths = find_paths(history, wanted, bases, context);
  std::exception_ptr first_error;
  for (const ReconstructionPath& path : paths) {
    try {
      return make_plan_by(path, history, wanted, context);
    } catch (const BaseDamaged&) {
      throw;  // the caller must learn of it and rebuild the base
    } catch (const PatchDamaged&) {
      throw;  // and remove the patch
    } catch (const Error& error) {
      if (!is_of_this_way(error)) throw;
      if (!first_error) first_error = std::current_exception();
      if (&path != &paths.back()) {
        log_warning(fmt::format("{}; trying another path to {}", error.what(), name_of(*wanted)));
      }
    }
  }
  try {
    std::rethrow_exception(first_error);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::not_found) {
      throw_if_retired(history.repository(), wanted->number(), context);
    }
    throw;
  }
}

/// The tensor of the start that a tensor comes from; nullopt if a step introduced it.
std::optional<std::uint32_t> origin_of(const Plan& plan, std::uint32_t tensor) {
  for (std::size_t i = plan.steps.size(); i > 0; i--) {
    const auto counterpart = plan.steps[i - 1].counterparts[tensor];
    if (!counterpart) return std::nullopt;
    tensor = *counterpart;
  }
  return tensor;
}

/// Whether no tensor to be built comes from a file that the base lacks.
bool has_what_it_needs(const Plan& plan) {
  if (!plan.base || plan.base->absent.empty()) return true;
  const auto tensors = plan.layout->tensors();
  for (std::uint32_t i = 0; i < tensors.size(); i++) {
    if (contains(plan.without, tensors[i].file)) continue;
    const auto origin = origin_of(plan, i);
    if (origin && contains(plan.base->absent, plan.base->layout->tensors()[*origin].file))
      return false;
  }
  return true;
}

}  // namespace

Plan make_plan(History& history, std::shared_ptr<const Version> wanted, std::span<const Base> bases,
               const Context& context, const FileSet& without) {
  std::vector<Base> left(bases.begin(), bases.end());
  for (;;) {
    Plan plan = make_plan_from(history, wanted, left, context);
    plan.without = without;
    if (has_what_it_needs(plan)) return plan;
    std::erase_if(left, [unfit = plan.base->version->number()](const Base& base) {
      return base.version->number() == unfit;
    });
  }
}

void note_origin(const Plan& plan, VersionTiming& timing) {
  if (timing.base == 0 && timing.snapshot == 0) {
    timing.base = plan.base ? plan.base->images().number() : 0;
    timing.snapshot = plan.snapshot ? plan.snapshot->version->number() : 0;
  }
  if (plan.base && plan.base->patched) timing.patches += plan.base->patched->path.size();
  timing.deltas += plan.steps.size();
  timing.bytes = plan.version_bytes();
  timing.published = plan.version->manifest.time;
}

}  // namespace weightfs
