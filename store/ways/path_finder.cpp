#include "store/ways/path_finder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/base/log.hpp"
#include "store/format/pack_bytes.hpp"
#include "store/repository/pieces.hpp"
#include "store/threads/parallel.hpp"

namespace weightfs {
namespace {

constexpr unsigned kRecordsAtOnce = 32;  // requests in parallel, since latency is the limit
constexpr std::array<std::uint64_t, 4> kLookedBackAtOnce{1, 4, 16, 64};
constexpr std::uint64_t kFetchBytes = kPiecesPerFetch * kPieceBytes;

bool is_about_an_object(const Error& error) {
  return error.code() == ErrorCode::corrupt || error.code() == ErrorCode::not_found ||
         error.code() == ErrorCode::unsupported;
}

std::uint64_t fetches_of(std::uint64_t bytes) { return (bytes + kFetchBytes - 1) / kFetchBytes; }

/// `records`: manifest, record of a skip.
WayCost cost_of(const DeltaRef& delta, std::uint64_t records) {
  WayCost cost{pack_bytes(delta), records};
  for (const PackRef& pack : delta.packs) {
    cost.requests += 1 + fetches_of(pack.size_bytes - std::min(pack.size_bytes, pack.head_bytes));
  }
  return cost;
}

/// A guess, before the record is read: one pack.
WayCost cost_of(const ListedSkip& skip) { return {skip.bytes, 3 + fetches_of(skip.bytes)}; }

WayCost cost_of_snapshot(const Layout& layout) {
  WayCost cost{layout.size_bytes(), 1};
  for (const LayoutFile& file : layout.files()) cost.requests += fetches_of(file.size_bytes);
  return cost;
}

}  // namespace

PathFinder::PathFinder(VersionSource& source, SkipBook& skips,
                       std::shared_ptr<const Version> wanted,
                       std::span<const std::shared_ptr<const Version>> here, const Context& context)
    : source_(source),
      skips_(skips),
      wanted_(std::move(wanted)),
      context_(context),
      back_(wanted_->number()) {
  for (const auto& version : here) {
    const bool is_other = version->number() == wanted_->number() &&
                          version->manifest_sha256 != wanted_->manifest_sha256;
    if (version->number() > wanted_->number() || is_other) continue;
    here_.emplace(version->number(), version);
    map_.set_start(version->number(), {});
  }
}

FoundWay PathFinder::find() {
  if (map_.has_start(wanted_->number())) return found({wanted_->number(), {}});
  if (!read_.contains(wanted_->number())) note(*wanted_);
  for (;;) {
    context_.check("planning the way to a version");
    const std::optional<Way> way = map_.find(wanted_->number());
    if (!way) {
      if (look_back()) continue;
      if (!has_listed_ && uses_skips_) {
        list_skips();
      } else if (has_read_log_) {
        throw_no_way();
      } else {
        read_log();
      }
    } else if (way->hops.size() > kDeltasWithoutSkips && !has_listed_ && uses_skips_) {
      list_skips();
    } else if (!fetch_missing(*way) && !price_start(*way) && check_hops(*way)) {
      return found(*way);
    }
  }
}

void PathFinder::leave_out_start(const FoundWay& way) {
  map_.remove_start(way.start->number());
  unstarted_.insert(way.start->number());
  here_.erase(way.start->number());
}

void PathFinder::leave_out(const FoundHop& hop) {
  if (hop.skip) {
    map_.remove_skip(hop.versions);
    note_damage(hop.versions);
  } else {
    map_.set_delta(hop.versions.to, std::nullopt);
  }
}

void PathFinder::leave_out_skips() {
  uses_skips_ = false;
  map_.remove_skips_but(needed_);
}

// ---- what is known ----

/// Takes what a manifest says.
void PathFinder::note(const Version& version) {
  const std::uint64_t number = version.number();
  const Manifest& manifest = version.manifest;
  read_.insert(number);
  std::optional<WayCost> delta;
  if (manifest.delta) {
    delta = cost_of(*manifest.delta, 1);
    known_deltas_.bytes += delta->bytes;
    known_deltas_.requests += delta->requests;
    known_delta_count_++;
    map_.guess_deltas(
        {known_deltas_.bytes / known_delta_count_, known_deltas_.requests / known_delta_count_});
  }
  map_.set_delta(number, delta);
  if (!is_here(number)) {
    if (manifest.snapshot) {
      note_snapshot(number);
    } else {
      map_.remove_start(number);  // another manifest was wrong about it
    }
  }
  const std::uint64_t before = manifest.snapshot_before.value_or(0);
  if (before != 0 && !read_.contains(before)) note_snapshot(before);
}

/// Its price is a guess until its layout is read.
void PathFinder::note_snapshot(std::uint64_t version) {
  if (unstarted_.contains(version) || map_.has_start(version)) return;
  if (!snapshot_cost_) snapshot_cost_ = guess_snapshots();
  map_.set_start(version, *snapshot_cost_);
}

/// By a layout that is here: that of the wanted version, or of one to start from.  If there is
/// none, there is nothing but snapshots to start from, and a guess of any size does.
WayCost PathFinder::guess_snapshots() {
  auto layout = source_.find_layout(*wanted_);
  for (auto version = here_.rbegin(); !layout && version != here_.rend(); ++version) {
    layout = source_.find_layout(*version->second);
  }
  return layout ? cost_of_snapshot(*layout) : WayCost{};
}

/// Looks for a snapshot before those that are known.  Returns: false if there is none, or no way
/// leads from there.
bool PathFinder::look_back() {
  if (back_ <= 1 || !map_.reaches_back(wanted_->number(), back_ - 1)) return false;
  if (unreadable_.contains(back_)) return false;
  const auto version = get(back_);
  const std::optional<std::uint64_t> named = version->manifest.snapshot_before;
  const std::uint64_t next = named.value_or(back_ - 1);
  if (next == 0) return false;
  std::vector<std::uint64_t> unread;
  if (!read_.contains(next)) {
    const std::size_t looks = named ? 0 : looks_back_++;
    const std::uint64_t count =
        std::min(next, kLookedBackAtOnce[std::min(looks, kLookedBackAtOnce.size() - 1)]);
    for (std::uint64_t number = next; number > next - count; number--) {
      if (!read_.contains(number)) unread.push_back(number);
    }
  }
  fetch(unread, {});
  back_ = next;
  return true;
}

void PathFinder::list_skips() {
  has_listed_ = true;
  const std::uint64_t wanted = wanted_->number();
  const std::uint64_t lowest = map_.starts().empty() ? 0 : map_.starts().begin()->first;
  const std::uint64_t after = std::max(lowest, wanted - std::min(wanted, kSkipsListedBack));
  try {
    for (const ListedSkip& skip : skips_.list(wanted, after, context_)) {
      map_.set_skip(skip.versions, cost_of(skip));
    }
  } catch (const Error& error) {
    if (error.code() == ErrorCode::cancelled || error.code() == ErrorCode::timed_out) throw;
    log_debug(fmt::format("skip deltas are not used: {}", error.what()));
  }
}

/// gc may have replaced deltas by skips, which LIST need not show.  A log that cannot be read says
/// nothing.
void PathFinder::read_log() {
  has_read_log_ = true;
  try {
    for (const auto& [versions, sha256] : skips_.needed(context_)) {
      if (versions.to > wanted_->number()) continue;
      map_.set_skip(versions, {0, 4});
      needed_.insert(versions);
    }
  } catch (const Error& error) {
    if (error.code() == ErrorCode::cancelled || error.code() == ErrorCode::timed_out) throw;
    log_debug(fmt::format("the log of retired objects is not used: {}", error.what()));
  }
}

/// Of a skip that is of no use.
void PathFinder::note_damage(const VersionPair& versions) {
  if (needed_.contains(versions) && !damaged_need_) damaged_need_ = skips_.find_reason(versions);
}

// ---- what is on the way ----

/// Returns: whether something was missing; then another way may be cheaper.
bool PathFinder::fetch_missing(const Way& way) {
  std::vector<std::uint64_t> versions;
  std::vector<VersionPair> skips;
  const bool has_snapshot = !is_here(way.start);
  if (has_snapshot && !read_.contains(way.start)) versions.push_back(way.start);
  for (const WayHop& hop : way.hops) {
    if (!read_.contains(hop.versions.to)) versions.push_back(hop.versions.to);
    if (hop.is_skip && !records_.contains(hop.versions)) skips.push_back(hop.versions);
  }
  if (versions.empty() && skips.empty()) return false;
  fetch(versions, skips);
  return true;
}

/// All at the same time.
void PathFinder::fetch(std::span<const std::uint64_t> versions,
                       std::span<const VersionPair> skips) {
  struct Fetched {
    std::shared_ptr<const Version> version;
    std::shared_ptr<const SkipRecord> skip;
    std::exception_ptr error;
  };
  std::vector<Fetched> fetched(versions.size() + skips.size());
  parallel_for(fetched.size(), kRecordsAtOnce, context_, [&](std::size_t i) {
    if (i >= versions.size()) {
      fetched[i].skip = skips_.find(skips[i - versions.size()], context_);
      return;
    }
    try {
      fetched[i].version = source_.get(versions[i], context_);
    } catch (const Error& error) {
      if (!is_about_an_object(error)) throw;
      fetched[i].error = std::current_exception();
    }
  });
  for (std::size_t i = 0; i < versions.size(); i++) {
    fetched[i].version ? note(*fetched[i].version) : note_unreadable(versions[i], fetched[i].error);
  }
  for (std::size_t i = 0; i < skips.size(); i++) {
    take_record(skips[i], std::move(fetched[versions.size() + i].skip));
  }
}

/// No way leads through it.
void PathFinder::note_unreadable(std::uint64_t version, const std::exception_ptr& error) {
  if (!first_error_) first_error_ = error;
  read_.insert(version);
  unreadable_.insert(version);
  map_.set_delta(version, std::nullopt);
  map_.remove_skips_to(version);
  if (!is_here(version)) map_.remove_start(version);
}

/// `record`: nullptr if it is of no use.
void PathFinder::take_record(const VersionPair& versions,
                             std::shared_ptr<const SkipRecord> record) {
  if (!record) {
    map_.remove_skip(versions);
    return note_damage(versions);
  }
  // It may be unreadable where it leads to.
  if (!unreadable_.contains(versions.to)) map_.set_skip(versions, cost_of(record->delta, 2));
  records_.emplace(versions, std::move(record));
}

/// Returns: whether it is dearer than it was guessed, or of no use.
bool PathFinder::price_start(const Way& way) {
  const bool has_choice = map_.starts().size() > 1;
  if (!has_choice || is_here(way.start) || !priced_.insert(way.start).second) return false;
  try {
    const auto version = get(way.start);
    const WayCost cost = cost_of_snapshot(*source_.layout(*version, context_));
    if (cost == *snapshot_cost_) return false;
    map_.set_start(way.start, cost);
  } catch (const Error& error) {
    if (!is_about_an_object(error)) throw;
    if (!first_error_) {
      const bool names_object = dynamic_cast<const ObjectError*>(&error) != nullptr;
      first_error_ =
          names_object
              ? std::current_exception()
              : std::make_exception_ptr(error.within(fmt::format("version {}", way.start)));
    }
    map_.remove_start(way.start);
    unstarted_.insert(way.start);
  }
  return true;
}

/// Whether each hop begins at the version that the hop before it leads to; one that does not is
/// left out.
bool PathFinder::check_hops(const Way& way) {
  return std::ranges::all_of(way.hops, [&](const WayHop& hop) {
    return hop.is_skip ? check_record(hop.versions) : check_delta(hop.versions, way);
  });
}

/// Manifests of a way need not have been compared with each other before.
bool PathFinder::check_delta(const VersionPair& versions, const Way& way) {
  const Sha256 named = get(versions.to)->manifest.parent_sha256;
  const Sha256 known = get(versions.from)->manifest_sha256;
  if (named == known) return true;
  if (!first_error_) {
    const std::string key = keys::manifest(versions.to);
    first_error_ = std::make_exception_ptr(ObjectError(
        ErrorCode::corrupt, key,
        fmt::format("version {} ({}) does not follow version {}: it names the parent {}, expected "
                    "{}",
                    versions.to, key, versions.from, to_hex(named), to_hex(known))));
  }
  // What is here may be of another history.
  const bool is_start = is_here(versions.from) && versions.from == way.start;
  is_start ? leave_out_start({get(way.start)}) : leave_out({versions});
  return false;
}

bool PathFinder::check_record(const VersionPair& versions) {
  const SkipRecord& record = *records_.at(versions);
  for (const auto& [number, named] :
       {std::pair(versions.from, record.from_sha256), std::pair(versions.to, record.to_sha256)}) {
    const Sha256 known = get(number)->manifest_sha256;
    if (known == named) continue;
    skips_.leave_out(
        versions,
        Error(ErrorCode::corrupt,
              fmt::format("object {} names the manifest {} of version {}, which has {}",
                          keys::skip_record(versions), to_hex(named), number, to_hex(known))));
    map_.remove_skip(versions);
    note_damage(versions);
    return false;
  }
  return true;
}

FoundWay PathFinder::found(const Way& way) {
  FoundWay found{get(way.start), is_here(way.start)};
  if (!found.is_here) found.fetch_bytes = source_.layout(*found.start, context_)->size_bytes();
  for (const WayHop& hop : way.hops) {
    const auto skip = hop.is_skip ? records_.at(hop.versions) : nullptr;
    const auto version = skip ? nullptr : get(hop.versions.to);
    const DeltaRef& delta = skip ? skip->delta : *version->manifest.delta;
    found.fetch_bytes += pack_bytes(delta);
    found.hops.push_back({hop.versions, skip});
  }
  return found;
}

void PathFinder::throw_no_way() {
  skips_.forgive();
  if (first_error_) std::rethrow_exception(first_error_);
  if (damaged_need_) throw NeededSkipDamaged(*damaged_need_);
  const std::string key = keys::manifest(wanted_->number());
  throw ObjectError(ErrorCode::corrupt, key,
                    fmt::format("version {} ({}): neither a snapshot nor a delta leads to it",
                                wanted_->number(), key));
}

std::shared_ptr<const Version> PathFinder::get(std::uint64_t version) {
  if (version == wanted_->number()) return wanted_;
  const auto here = here_.find(version);
  return here != here_.end() ? here->second : source_.get(version, context_);
}

}  // namespace weightfs
