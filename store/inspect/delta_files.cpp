#include "store/inspect/delta_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/inspect/patch_diff.hpp"
#include "store/materialize/bases.hpp"
#include "store/materialize/patched_base.hpp"
#include "store/repository/pieces.hpp"

namespace weightfs {
namespace {

constexpr std::size_t kRemembered = 4096;  // deltas; facts about others are computed again

/// Stores the facts about a delta, and drops those of older versions.
template <typename Key, typename Facts>
void remember(std::map<Key, Facts>& known, const Key& key, Facts facts) {
  known.insert_or_assign(key, std::move(facts));
  while (known.size() > kRemembered) {
    const bool is_oldest = known.begin()->first == key;
    known.erase(is_oldest ? std::next(known.begin()) : known.begin());
  }
}

/// Only a definite "there is no such file" may be reported as `unsupported`, because that is
/// remembered. If this host cannot read a version (too much memory, or a newer format), that is
/// `io`.
template <typename Body>
auto read_versions(Body&& body) {
  try {
    return body();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported) throw;
    throw Error(ErrorCode::io, error.what());
  }
}

}  // namespace

struct DeltaFiles::Promise {
  ChangedCounts changed;
  SparseLayout layout;
  std::int64_t time = 0;
};

DeltaFiles::DeltaFiles(Store& store, History& history, DeltaFilesOptions options)
    : store_(store), history_(history), options_(std::move(options)) {}

std::optional<DeltaFacts> DeltaFiles::find_facts(const DeltaId& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = facts_.find(id);
  return found == facts_.end() ? std::nullopt : std::optional(found->second);
}

DeltaFacts DeltaFiles::facts(const DeltaId& id, const Context& context) {
  if (const auto known = find_facts(id)) return *known;
  const VersionPair versions = id.versions;
  {
    const std::lock_guard lock(mutex_);
    if (const auto refused = refusals_.find(versions); refused != refusals_.end()) {
      throw Error(ErrorCode::unsupported, refused->second);
    }
  }
  store_.deltas().wait_begun(id, context);
  if (const auto bytes = store_.deltas().find_bytes(id)) {
    const DeltaFacts made{*bytes, history_.get(versions.to, context)->manifest.time};
    const std::lock_guard lock(mutex_);
    remember(facts_, id, made);
    return made;
  }
  try {
    const Promise promised = promise(id, context);
    return {promised.layout.size_bytes(), promised.time};
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported) throw;
    const std::lock_guard lock(mutex_);
    remember(refusals_, versions, std::string(error.what()));
    throw;
  }
}

// ---- facts, before the file is made ----

DeltaFiles::Promise DeltaFiles::promise(const DeltaId& id, const Context& context) {
  const VersionPair versions = id.versions;
  const auto get = [&](std::uint64_t number) {
    return read_versions([&] { return history_.get(number, context); });
  };
  const auto layout_of = [&](const Version& one) {
    return read_versions([&] { return history_.layout(one, context); });
  };
  const auto to = get(versions.to);
  const auto from = get(versions.from);
  const auto layout = layout_of(*to);
  match_tensors(*layout_of(*from), *layout, versions);
  auto counts = read_versions([&] { return count(versions, *to, *layout, context); });
  SparseLayout sparse(*layout, counts, versions,
                      id.with_old ? OldValues::with : OldValues::without);
  {
    const std::lock_guard lock(mutex_);
    remember(facts_, id, DeltaFacts{sparse.size_bytes(), to->manifest.time});
  }
  return {std::move(counts), std::move(sparse), to->manifest.time};
}

ChangedCounts DeltaFiles::count(VersionPair versions, const Version& to, const Layout& layout,
                                const Context& context) {
  if (auto counts = count_by_patches(store_, history_, versions, context)) {
    return std::move(*counts);
  }
  if (versions.is_step()) {
    if (auto counts = counts_of_packs(to, layout, context)) return std::move(*counts);
  }
  return counts_by_comparing(versions, context);
}

/// nullopt: compare the versions instead.
std::optional<ChangedCounts> DeltaFiles::counts_of_packs(const Version& version,
                                                         const Layout& layout,
                                                         const Context& context) {
  try {
    return find_changed_counts(history_, version, layout, context);
  } catch (const Error& error) {
    const bool is_stop =
        error.code() == ErrorCode::cancelled || error.code() == ErrorCode::timed_out;
    if (is_stop || !can_compare(step_to(version.number()), context)) throw;
    log_warning(fmt::format("comparing the images of version {} with those before it: {}",
                            version.number(), error.what()));
    return std::nullopt;
  }
}

/// Whether images here, perhaps with patches, are that version.
bool DeltaFiles::can_make(std::uint64_t version, const Context& context) {
  if (store_.images().has_all_files(version)) return true;
  const auto patched = find_sound_patched_base(store_, history_, version, {}, context);
  return patched && patched->version->number() == version;
}

bool DeltaFiles::can_compare(VersionPair versions, const Context& context) {
  return can_make(versions.from, context) && can_make(versions.to, context);
}

ChangedCounts DeltaFiles::counts_by_comparing(VersionPair versions, const Context& context) {
  if (!can_compare(versions, context)) {
    const std::string what =
        versions.is_step()
            ? fmt::format("version {} has no delta in the bucket", versions.to)
            : fmt::format("no patches lead from version {} to {}", versions.from, versions.to);
    throw Error(ErrorCode::unavailable,
                fmt::format("{0}, and this host has no images of versions {1} and {2} to compare; "
                            "weightfs export --from {1} --to {2} writes the file",
                            what, versions.from, versions.to));
  }
  ChangedCounts counts;
  with_plan(versions, context, [&](const SparsePlan& plan) {
    counts = SparseDeltaReader(plan, history_.repository(), store_.temporary_directory(),
                               options_.coder, context, {})
                 .count();
  });
  return counts;
}

// ---- plans ----

/// Complete versions, of images or of images and patches, from which both versions can be built.
std::vector<Base> DeltaFiles::bases(VersionPair versions, const std::set<std::uint64_t>& bad,
                                    const Context& context) {
  std::vector<Base> all = usable_bases(store_, history_, versions.from + 1, bad, context);
  for (Base& base : usable_bases(store_, history_, versions.to + 1, bad, context)) {
    const auto is_it = [&](const Base& one) {
      return one.version->number() == base.version->number();
    };
    if (std::ranges::none_of(all, is_it)) all.push_back(std::move(base));
  }
  for (const std::uint64_t version : {versions.from, versions.to}) {
    auto patched = find_sound_patched_base(store_, history_, version, bad, context);
    if (patched) all.push_back(std::move(*patched));
  }
  return all;
}

/// Calls body(plan), again if what the plan was made of turns out to be damaged: then of something
/// else.
template <typename Body>
void DeltaFiles::with_plan(VersionPair versions, const Context& context, const Body& body) {
  std::set<std::uint64_t> bad;
  for (;;) {
    try {
      const SparsePlan plan =
          make_sparse_plan(history_, versions, bases(versions, bad, context), context);
      const auto from = reserve_base(store_, plan.from, Eviction::Claim::stays, context);
      const auto to = reserve_base(store_, plan.to, Eviction::Claim::stays, context);
      if (from && to) return body(plan);
    } catch (const BaseDamaged& damaged) {
      if (!bad.insert(damaged.version()).second) throw;
      log_warning(fmt::format("comparing versions {} and {} without these images: {}",
                              versions.from, versions.to, damaged.what()));
    } catch (const PatchDamaged& damaged) {
      if (!drop_damaged_patches(store_, damaged)) throw;
    } catch (const ObjectError& error) {
      if (!history_.skips().leave_out_cause(error)) throw;
    }
    context.check("comparing versions");
  }
}

// ---- making it ----

std::filesystem::path DeltaFiles::build(const DeltaId& id, const Context& context) {
  store_.wanted_deltas().note_opened(id);
  for (;;) {
    store_.deltas().wait_begun(id, context);  // with its version, or by another caller
    if (const auto file = store_.deltas().find_to_read(id)) return *file;
    if (!begin(id, context)) continue;  // another caller has finished
    try {
      make(id, context);
    } catch (...) {
      end(id);
      throw;
    }
    end(id);
  }
}

/// True: this caller makes it.  False: another caller made it, or gave up.
bool DeltaFiles::begin(const DeltaId& id, const Context& context) {
  constexpr auto kLookAgain = std::chrono::hours(1);  // the deadline may be infinite
  std::unique_lock lock(mutex_);
  if (building_.insert(id).second) return true;
  while (!ended_.wait_until(lock, context.stop,
                            std::min(context.deadline, Clock::now() + kLookAgain),
                            [&] { return !building_.contains(id); })) {
    context.check("waiting for a delta that is being built");
  }
  return false;
}

void DeltaFiles::end(const DeltaId& id) {
  const std::lock_guard lock(mutex_);
  building_.erase(id);
  ended_.notify_all();
}

void DeltaFiles::make(const DeltaId& id, const Context& context) {
  const Promise promised = promise(id, context);
  // Reserves the images it may be made from.
  Eviction& eviction = store_.eviction();
  const auto from = eviction.reserve(id.versions.from, Eviction::Claim::stays, context);
  const auto to = eviction.reserve(id.versions.to, Eviction::Claim::stays, context);
  std::optional<std::filesystem::path> file;
  {
    // A caller that brings in a version relies on its base, and on the room that it made.
    const ImagesLock lock = store_.images().lock_images(context);
    store_.evictor().evict_for_delta(promised.layout.size_bytes());
    file = store_.deltas().begin(id, promised.layout.size_bytes());
  }
  if (!file) return;  // it is made with its version, or was made
  try {
    if (options_.building) options_.building(id);
    read_versions([&] { write(id, promised, *file, context); });
    store_.deltas().complete(id, *file);
  } catch (...) {
    store_.deltas().abandon(id, *file);
    throw;
  }
}

void DeltaFiles::write(const DeltaId& id, const Promise& promised,
                       const std::filesystem::path& file, const Context& context) {
  with_plan(id.versions, context, [&](const SparsePlan& plan) {
    std::error_code ignored;
    std::filesystem::remove(file, ignored);  // of an earlier try
    SparseDeltaReader reader(plan, history_.repository(), store_.temporary_directory(),
                             options_.coder, context, {});
    reader.write(promised.layout, promised.changed, file);
  });
}

}  // namespace weightfs
