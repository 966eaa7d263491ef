#include "store/inspect/delta_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/materialize/bases.hpp"

namespace weightfs {
namespace {

constexpr std::size_t kRemembered = 4096;  // deltas; facts about others are computed again

VersionPair pair_of(std::uint64_t version) { return {version - 1, version}; }

/// Stores the facts about `version`, and drops those of older versions.
template <typename Facts>
void remember(std::map<std::uint64_t, Facts>& known, std::uint64_t version, Facts facts) {
  known.insert_or_assign(version, std::move(facts));
  while (known.size() > kRemembered) {
    const bool is_oldest = known.begin()->first == version;
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

std::optional<DeltaFacts> DeltaFiles::find_facts(std::uint64_t version) const {
  const std::lock_guard lock(mutex_);
  const auto found = facts_.find(version);
  return found == facts_.end() ? std::nullopt : std::optional(found->second);
}

DeltaFacts DeltaFiles::facts(std::uint64_t version, const Context& context) {
  if (const auto known = find_facts(version)) return *known;
  {
    const std::lock_guard lock(mutex_);
    if (const auto refused = refusals_.find(version); refused != refusals_.end()) {
      throw Error(ErrorCode::unsupported, refused->second);
    }
  }
  try {
    const Promise promised = promise(version, context);
    return {promised.layout.size_bytes(), promised.time};
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported) throw;
    const std::lock_guard lock(mutex_);
    remember(refusals_, version, std::string(error.what()));
    throw;
  }
}

// ---- facts, before the file is made ----

DeltaFiles::Promise DeltaFiles::promise(std::uint64_t version, const Context& context) {
  const auto get = [&](std::uint64_t number) {
    return read_versions([&] { return history_.get(number, context); });
  };
  const auto layout_of = [&](const Version& one) {
    return read_versions([&] { return history_.layout(one, context); });
  };
  const auto newer = get(version);
  const auto older = get(version - 1);
  const auto layout = layout_of(*newer);
  match_tensors(*layout_of(*older), *layout, pair_of(version));
  auto counts = read_versions([&] {
    auto found = counts_of_packs(*newer, *layout, context);
    return found ? std::move(found) : counts_of_images(version, context);
  });
  SparseLayout sparse(*layout, *counts, pair_of(version));
  {
    const std::lock_guard lock(mutex_);
    remember(facts_, version, DeltaFacts{sparse.size_bytes(), newer->manifest.time});
  }
  return {std::move(*counts), std::move(sparse), newer->manifest.time};
}

/// nullopt: count the changes from the images instead.
std::optional<ChangedCounts> DeltaFiles::counts_of_packs(const Version& version,
                                                         const Layout& layout,
                                                         const Context& context) {
  try {
    return find_changed_counts(history_, version, layout, context);
  } catch (const Error& error) {
    const bool is_stop =
        error.code() == ErrorCode::cancelled || error.code() == ErrorCode::timed_out;
    if (is_stop || !has_images_of(pair_of(version.number()))) throw;
    log_warning(fmt::format("comparing the images of version {} with those before it: {}",
                            version.number(), error.what()));
    return std::nullopt;
  }
}

bool DeltaFiles::has_images_of(VersionPair versions) const {
  return store_.images().has_all_files(versions.from) && store_.images().has_all_files(versions.to);
}

ChangedCounts DeltaFiles::counts_of_images(std::uint64_t version, const Context& context) {
  if (!has_images_of(pair_of(version))) {
    throw Error(
        ErrorCode::unavailable,
        fmt::format(
            "version {0} has no delta in the bucket, and this host has no images "
            "of versions {1} and {0} to compare; weightfs export --from {1} --to {0} writes the "
            "file",
            version, version - 1));
  }
  const auto plan =
      make_sparse_plan(history_, pair_of(version), bases(version, {}, context), context);
  return SparseDeltaReader(plan, history_.repository(), store_.temporary_directory(),
                           options_.coder, context, {})
      .count();
}

/// Complete local versions from which this version and the one before it can be built.
std::vector<Base> DeltaFiles::bases(std::uint64_t version, const std::set<std::uint64_t>& bad,
                                    const Context& context) {
  return usable_bases(store_, history_, version + 1, bad, context);
}

// ---- making it ----

std::filesystem::path DeltaFiles::build(std::uint64_t version, const Context& context) {
  for (;;) {
    if (const auto file = store_.deltas().find(version)) return *file;
    if (!begin(version, context)) continue;  // another caller has finished
    try {
      if (!store_.deltas().find(version)) make(version, context);
    } catch (...) {
      end(version);
      throw;
    }
    end(version);
  }
}

/// True: this caller makes it.  False: another caller made it, or gave up.
bool DeltaFiles::begin(std::uint64_t version, const Context& context) {
  constexpr auto kLookAgain = std::chrono::hours(1);  // the deadline may be infinite
  std::unique_lock lock(mutex_);
  if (building_.insert(version).second) return true;
  while (!ended_.wait_until(lock, context.stop,
                            std::min(context.deadline, Clock::now() + kLookAgain),
                            [&] { return !building_.contains(version); })) {
    context.check("waiting for a delta that is being built");
  }
  return false;
}

void DeltaFiles::end(std::uint64_t version) {
  const std::lock_guard lock(mutex_);
  building_.erase(version);
  ended_.notify_all();
}

void DeltaFiles::make(std::uint64_t version, const Context& context) {
  const Promise promised = promise(version, context);
  // Reserves the images it may be made from.
  Eviction& eviction = store_.eviction();
  const auto from = eviction.reserve(version - 1, Eviction::Claim::stays, context);
  const auto to = eviction.reserve(version, Eviction::Claim::stays, context);
  std::filesystem::path file;
  {
    // A caller that brings in a version relies on its base, and on the room that it made.
    const ImagesLock lock = store_.images().lock_images(context);
    store_.evictor().evict_for_delta(promised.layout.size_bytes());
    file = store_.deltas().begin(version, promised.layout.size_bytes());
  }
  try {
    if (options_.building) options_.building(version);
    read_versions([&] { write(version, promised, file, context); });
    store_.deltas().complete(version, file);
  } catch (...) {
    store_.deltas().abandon(version, file);
    throw;
  }
}

/// Uses the images if they are here; else, or if they are damaged, other images or the bucket.
void DeltaFiles::write(std::uint64_t version, const Promise& promised,
                       const std::filesystem::path& file, const Context& context) {
  std::set<std::uint64_t> bad;
  for (;;) {
    try {
      const SparsePlan plan =
          make_sparse_plan(history_, pair_of(version), bases(version, bad, context), context);
      SparseDeltaReader reader(plan, history_.repository(), store_.temporary_directory(),
                               options_.coder, context, {});
      return reader.write(promised.layout, promised.changed, file);
    } catch (const BaseDamaged& damaged) {
      if (!bad.insert(damaged.version()).second) throw;
      log_warning(fmt::format("building the delta of version {} without the images: {}", version,
                              damaged.what()));
      std::error_code ignored;
      std::filesystem::remove(file, ignored);
    }
  }
}

}  // namespace weightfs
