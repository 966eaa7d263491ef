// The path is found backwards from the wanted version (PathFinder). The expected hashes are then
// derived forwards from the start, because a delta lists only what changed.

#include "store/materialize/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/base/log.hpp"
#include "store/base/path_rules.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/materialize/file_filter.hpp"
#include "store/os/memory_budget.hpp"
#include "store/patches/tensor_table_id.hpp"
#include "store/repository/gc_log.hpp"
#include "store/repository/pieces.hpp"
#include "store/repository/skips.hpp"
#include "store/threads/byte_budget.hpp"
#include "store/threads/parallel.hpp"
#include "store/ways/path_finder.hpp"

namespace weightfs {
namespace {

// Layouts and pack headers are fetched by more threads than there are cores, because latency is the
// limit, not CPU. The second limit is for their coded bytes in flight.
constexpr unsigned kRecordThreads = 32;
constexpr std::uint64_t kRecordBytesInHand = 16u << 20;
// For inflated layouts: reading one may take many times its size.
constexpr std::uint64_t kLayoutBytesInHand = 4u << 20;

// A pack that is not larger is read whole where its data is needed: so little takes hardly longer
// than the request.  All such packs of one plan are held until the version is made.
constexpr std::uint64_t kSmallPackBytes = 512u << 10;
constexpr std::uint64_t kPackDataBytesMax = 16u << 20;

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

/// Reads the packs of a plan: their indexes, and the data of small ones.
///
/// Threads: read() may run in parallel, for different packs.
class PackReader {
 public:
  PackReader(History& history, PackReads reads, const Context& context)
      : history_(history), reads_(reads), context_(context) {}

  /// For packs that will be asked for again.
  void keep_packs() { keeps_packs_ = true; }

  /// Requires: the step's fields of packs have their size.
  void read(Step& step, std::size_t pack, PackRoom& room) {
    const PackRef& ref = step.delta().packs[pack];
    const std::string key = step.pack_key(pack);
    const auto parse = [&](std::string_view head) {
      step.packs[pack] = PackIndex::parse(head, ref.size_bytes, *step.layout, key, room);
    };
    KeptPacks& kept = history_.kept_packs();
    PlannedData& data = step.pack_data[pack];
    if (const auto head = kept.find_head(ref)) {
      parse(*head);
      if (reads_ == PackReads::with_data) data.bytes = kept.find_data(ref);
      data.is_kept = data.bytes != nullptr;
      return;
    }
    auto [head, bytes] = fetch(key, ref, *step.layout);
    parse(head);
    if (!bytes.empty()) data.bytes = std::make_shared<const std::string>(std::move(bytes));
    if (!keeps_packs_) return;
    kept.put_head(ref, std::move(head));
    if (data.bytes) kept.put_data(ref, data.bytes);
  }

 private:
  Repository::PackBytes fetch(const std::string& key, const PackRef& ref, const Layout& layout) {
    Repository& repository = history_.repository();
    if (takes_data_of(ref)) return repository.get_whole_pack(key, ref, layout, context_);
    return {repository.get_pack_head(key, ref, layout, context_), {}};
  }

  bool takes_data_of(const PackRef& ref) {
    if (reads_ == PackReads::headers || ref.size_bytes > kSmallPackBytes) return false;
    return data_bytes_.fetch_add(ref.size_bytes) + ref.size_bytes <= kPackDataBytesMax;
  }

  History& history_;
  const PackReads reads_;
  const Context& context_;
  bool keeps_packs_ = false;
  std::atomic<std::uint64_t> data_bytes_ = 0;
};

void size_packs(Step& step) {
  step.packs.resize(step.delta().packs.size());
  step.pack_data.resize(step.packs.size());
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
  plan.layout = history.layout(*path.way.start, context);
  LayoutCharge(memory).add(*plan.layout);
  memory.take(memory_of_step(*plan.layout), keys::layout(plan.layout->id()));
  if (path.base != nullptr) {
    check_base(*path.base);
    plan.base = *path.base;
    plan.hashes = plan.base->hashes;
    return plan;
  }
  plan.snapshot.emplace(StoredSnapshot{
      path.way.start, plan.layout,
      history.repository().get_snapshot_hashes(
          path.way.start->number(), *path.way.start->manifest.snapshot, *plan.layout, context)});
  if (const auto& seed = history.seed()) {
    plan.snapshot->seed = std::make_shared<SnapshotSeed>(seed, *plan.layout);
  }
  plan.hashes = plan.snapshot->hashes.chunks;
  check_root(*path.way.start, plan.hashes);
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

ReconstructionPath path_of_deltas(const Base& base, const Version& wanted) {
  ReconstructionPath path{{base.version, true}, &base};
  for (std::uint64_t to = base.version->number() + 1; to <= wanted.number(); to++) {
    path.way.hops.push_back({step_to(to)});
  }
  return path;
}

namespace {

std::vector<std::shared_ptr<const Version>> versions_of(std::span<const Base> bases) {
  std::vector<std::shared_ptr<const Version>> versions;
  for (const Base& base : bases) versions.push_back(base.version);
  return versions;
}

ReconstructionPath path_of(FoundWay way, std::span<const Base> bases) {
  ReconstructionPath path{std::move(way), nullptr};
  if (!path.way.is_here) return path;
  path.base = &*std::ranges::find(bases, path.way.start, &Base::version);
  return path;
}

/// Makes the plan for one path, and knows what of the path was wrong if that fails.
class PathPlanner {
 public:
  PathPlanner(const ReconstructionPath& path, History& history, PackReads reads,
              const Context& context)
      : path_(path), history_(history), packs_(history, reads, context), context_(context) {}

  Plan make(const std::shared_ptr<const Version>& wanted) {
    Plan plan =
        naming(*path_.way.start, [&] { return start_of(path_, history_, memory_, context_); });
    plan.steps = fetch_steps(wanted);
    for (std::size_t i = 0; i < plan.steps.size(); i++) {
      of_step(i, *plan.steps[i].version, [&] { follow(plan.steps[i], plan); });
    }
    plan.version = wanted;
    plan.fetch_bytes = path_.way.fetch_bytes;
    check_paths(*wanted, *plan.layout);
    return plan;
  }

  /// After make() threw: the step that is to blame; nullptr: the start.
  [[nodiscard]] const FoundHop* broken_step() const noexcept {
    return broken_ < path_.way.hops.size() ? &path_.way.hops[broken_] : nullptr;
  }

 private:
  /// Runs `body` and notes the step if it throws: of several the first one, whose error
  /// parallel_for() rethrows.
  template <typename Body>
  std::invoke_result_t<Body> of_step(std::size_t step, const Version& version, Body&& body) {
    try {
      return naming(version, body);
    } catch (const Error&) {
      std::size_t first = broken_;
      while (step < first && !broken_.compare_exchange_weak(first, step)) {
      }
      throw;
    }
  }

  std::vector<Step> fetch_steps(const std::shared_ptr<const Version>& wanted) {
    std::vector<Step> steps(path_.way.hops.size());
    parallel_for(steps.size(), kRecordThreads, context_, [&](std::size_t i) {
      const std::uint64_t to = path_.way.hops[i].versions.to;
      steps[i].version = to == wanted->number() ? wanted : history_.get(to, context_);
      steps[i].skip = path_.way.hops[i].skip;
    });
    for (std::size_t i = 0; i < steps.size(); i++) {
      const Step& step = steps[i];
      if (step.skip || step.version->manifest.delta) continue;
      of_step(i, *step.version, [&] { throw_corrupt(*step.version, "it has no delta"); });
    }
    fetch_layouts(steps);
    fetch_indexes(steps);
    return steps;
  }

  /// Each distinct layout is fetched once.
  void fetch_layouts(std::vector<Step>& steps) {
    LayoutCharge charge(memory_);
    std::map<Sha256, std::size_t> first_with;  // index into `steps`
    std::vector<std::size_t> firsts;
    for (std::size_t i = 0; i < steps.size(); i++) {
      const Sha256& id = steps[i].version->manifest.layout.sha256;
      if (first_with.emplace(id, i).second) firsts.push_back(i);
    }
    ByteBudget budget(kLayoutBytesInHand);
    parallel_for(firsts.size(), kRecordThreads, context_, [&](std::size_t i) {
      Step& step = steps[firsts[i]];
      const Version& version = *step.version;
      const auto share =
          budget.take(version.manifest.layout.size_bytes, context_, "fetching a layout");
      of_step(firsts[i], version, [&] {
        step.layout = history_.layout(version, context_);
        charge.add(*step.layout);
      });
    });
    for (std::size_t i = 0; i < steps.size(); i++) {
      steps[i].layout = steps[first_with.at(steps[i].version->manifest.layout.sha256)].layout;
      const Layout& layout = *steps[i].layout;
      memory_.take(memory_of_step(layout), keys::layout(layout.id()));
    }
  }

  /// Fetches the indexes of all packs of all steps.
  void fetch_indexes(std::vector<Step>& steps) {
    struct Head {
      std::size_t step;
      std::size_t pack;
      PackRoom& room;  // shared by the packs of a step
    };
    std::vector<Head> heads;
    std::deque<PackRoom> rooms;
    for (std::size_t i = 0; i < steps.size(); i++) {
      size_packs(steps[i]);
      PackRoom& room = rooms.emplace_back(*steps[i].layout, memory_);
      for (std::size_t pack = 0; pack < steps[i].packs.size(); pack++) {
        heads.push_back({i, pack, room});
      }
    }
    ByteBudget budget(kRecordBytesInHand);
    parallel_for(heads.size(), kRecordThreads, context_, [&](std::size_t i) {
      Step& step = steps[heads[i].step];
      const std::size_t pack = heads[i].pack;
      const PackRef& ref = step.delta().packs[pack];
      const auto share = budget.take(ref.head_bytes, context_, "fetching a pack header");
      of_step(heads[i].step, *step.version, [&] { packs_.read(step, pack, heads[i].room); });
    });
  }

  /// Derives the hashes after a step from those before it.
  static void follow(Step& step, Plan& plan) {
    const auto derive = [&] {
      join(step, *plan.layout);
      plan.hashes = hashes_after(step, *plan.layout, plan.hashes);
      check_root(*step.version, plan.hashes);
      plan.layout = step.layout;
    };
    step.skip ? follow_skip(step, *plan.layout, derive) : derive();
  }

  /// What is wrong is wrong with the skip, not with its version.
  template <typename Derive>
  static void follow_skip(const Step& step, const Layout& before, Derive&& derive) {
    const std::string key = keys::skip_record(step.skip->versions);
    try {
      if (tensor_table_id(*step.layout) != tensor_table_id(before)) {
        throw Error(ErrorCode::corrupt, "its versions have different tensors");
      }
      derive();
    } catch (const Error& error) {
      throw ObjectError(error.code(), key, fmt::format("object {}: {}", key, error.what()));
    }
  }

  const ReconstructionPath& path_;
  History& history_;
  PackReader packs_;
  const Context& context_;
  MemoryBudget memory_;
  std::atomic<std::size_t> broken_ = SIZE_MAX;
};

}  // namespace

ReconstructionPath find_path(History& history, const std::shared_ptr<const Version>& wanted,
                             std::span<const Base> bases, const Context& context) {
  PathFinder finder(history, history.skips(), wanted, versions_of(bases), context);
  return path_of(finder.find(), bases);
}

namespace {

/// Who may not read skips does without them.
bool is_no_use_of_skip(const Error& error) {
  return is_of_this_way(error) || error.code() == ErrorCode::permission;
}

/// Skips that turn out to be of no use before a way without any is taken that gc does not need.
constexpr unsigned kBadSkipsMax = 32;

Plan make_plan_from(History& history, const std::shared_ptr<const Version>& wanted,
                    std::span<const Base> bases, const Context& context,
                    const PlanOptions& options) {
  PathFinder finder(history, history.skips(), wanted, versions_of(bases), context);
  if (options.skips == SkipUse::none) finder.leave_out_skips();
  std::exception_ptr first_error;
  std::string to_log;
  for (unsigned bad_skips = 0;;) {
    if (bad_skips == kBadSkipsMax) finder.leave_out_skips();  // needed ones stay
    ReconstructionPath path;
    try {
      path = path_of(finder.find(), bases);
    } catch (const Error& error) {
      if (!is_of_this_way(error) || !first_error) throw;
      break;
    }
    if (!to_log.empty()) {
      log_warning(fmt::format("{}; trying another path to {}", std::exchange(to_log, {}),
                              name_of(*wanted)));
    }
    PathPlanner planner(path, history, options.reads, context);
    try {
      return planner.make(wanted);
    } catch (const BaseDamaged&) {
      throw;  // the caller must learn of it and rebuild the base
    } catch (const PatchDamaged&) {
      throw;  // and remove the patch
    } catch (const Error& error) {
      const FoundHop* const broken = planner.broken_step();
      if (broken != nullptr && broken->skip && is_no_use_of_skip(error)) {
        history.skips().leave_out(broken->versions, error);
        finder.leave_out(*broken);
        bad_skips++;
        continue;
      }
      if (!is_of_this_way(error)) throw;
      broken != nullptr ? finder.leave_out(*broken) : finder.leave_out_start(path.way);
      if (!first_error) first_error = std::current_exception();
      to_log = error.what();
    }
  }
  try {
    std::rethrow_exception(first_error);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::not_found) {
      throw_if_retired(history.repository(), wanted->number(), context);
      // What is not found may be a delta that gc removed on purpose.
      if (finder.damaged_need()) throw NeededSkipDamaged(*finder.damaged_need());
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

Plan make_plan_by(const ReconstructionPath& path, History& history,
                  const std::shared_ptr<const Version>& wanted, const Context& context) {
  return PathPlanner(path, history, PackReads::headers, context).make(wanted);
}

namespace {

/// A version that may never exist: the base's successor by these packs, without small files.
std::shared_ptr<const Version> early_version(const Base& base,
                                             std::span<const EarlyRecord::File> files) {
  auto version = std::make_shared<Version>();
  version->manifest = base.version->manifest;
  version->manifest.version++;
  version->manifest.blobs.clear();
  version->manifest.snapshot.reset();
  version->manifest.delta.emplace();
  for (const EarlyRecord::File& file : files) {
    std::ranges::copy(file.delta.packs, std::back_inserter(version->manifest.delta->packs));
  }
  return version;
}

void check_is_of(const PackIndex& pack, const LayoutFile& file, const std::string& key) {
  for (const PackChunk& chunk : pack.chunks()) {
    if (chunk.tensor - file.first_tensor < file.tensor_count) continue;
    throw ObjectError(
        ErrorCode::corrupt, key,
        fmt::format("object {}: it has chunks of other files than '{}'", key, file.path));
  }
}

}  // namespace

Plan make_early_plan(History& history, const Base& base, std::span<const EarlyRecord::File> files,
                     const Context& context) {
  check_base(base);
  Plan plan;
  plan.base = base;
  plan.layout = base.layout;
  plan.version = early_version(base, files);
  plan.without.assign(base.layout->files().size(), true);
  std::vector<const LayoutFile*> of_pack;
  for (const EarlyRecord::File& file : files) {
    const LayoutFile* const its_file = base.layout->find_file(file.path);
    plan.without[base.layout->number_of(*its_file)] = false;
    of_pack.insert(of_pack.end(), file.delta.packs.size(), its_file);
  }
  Step& step = plan.steps.emplace_back();
  step.version = plan.version;
  step.layout = base.layout;
  size_packs(step);
  MemoryBudget memory;
  LayoutCharge(memory).add(*plan.layout);
  memory.take(memory_of_step(*plan.layout), keys::layout(plan.layout->id()));
  PackRoom room(*plan.layout, memory);
  PackReader packs(history, PackReads::with_data, context);
  packs.keep_packs();
  parallel_for(of_pack.size(), kRecordThreads, context, [&](std::size_t i) {
    packs.read(step, i, room);
    check_is_of(*step.packs[i], *of_pack[i], step.pack_key(i));
  });
  for (std::size_t i = 0; i < of_pack.size(); i++) {
    if (!step.pack_data[i].is_kept) plan.fetch_bytes += step.delta().packs[i].size_bytes;
  }
  join(step, *plan.layout);
  plan.hashes = hashes_after(step, *plan.layout, base.hashes);
  return plan;
}

Plan make_plan(History& history, std::shared_ptr<const Version> wanted, std::span<const Base> bases,
               const Context& context, const PlanOptions& options) {
  std::vector<Base> left(bases.begin(), bases.end());
  for (;;) {
    Plan plan = make_plan_from(history, wanted, left, context, options);
    plan.without = options.without;
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
  for (const Step& step : plan.steps) step.skip ? timing.skips++ : timing.deltas++;
  timing.bytes = plan.version_bytes();
  timing.published = plan.version->manifest.time;
}

}  // namespace weightfs
