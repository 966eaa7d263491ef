// Objects are checked first, each on its own, so that every damaged one is named.  Then the version
// is decoded from the one before it, which proves that packs, hashes and roots agree. If an object
// needed for that is damaged, decoding is skipped until the next snapshot.  A version with a
// snapshot is also decoded from that, and one to which gc left nothing but a skip delta by that.

#include "store/inspect/verify.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string_view>

#include "store/base/bytes.hpp"
#include "store/base/path_rules.hpp"
#include "store/inspect/check_objects.hpp"
#include "store/inspect/check_skip.hpp"
#include "store/inspect/orphans.hpp"
#include "store/materialize/plan.hpp"
#include "store/materialize/write_version.hpp"
#include "store/os/file.hpp"
#include "store/os/scratch_directory.hpp"
#include "store/repository/gc_log.hpp"
#include "store/repository/skips.hpp"
#include "store/retention/inventory.hpp"
#include "store/retention/keep.hpp"
#include "store/threads/parallel.hpp"
#include "store/threads/progress_counter.hpp"

namespace weightfs {
namespace {

using VersionPtr = std::shared_ptr<const Version>;
using LayoutPtr = std::shared_ptr<const Layout>;

constexpr unsigned kManifestReads = 32;  // in parallel, since latency is the limit
constexpr std::uint64_t kManifestsAhead = 64;
/// So many manifests may be missing, and what lies behind them is still checked: there is an entry
/// in memory for each version, while one object with a high number is made in a moment.
constexpr std::uint64_t kMissingMax = 65'536;

struct ReadManifest {
  std::optional<Version> version;
  std::exception_ptr error;
};

/// A version's manifest (nullptr if it is damaged), and whether its layout is whole.  Layouts are
/// not kept: in a long history, where each version may have another, they would not fit into
/// memory.
struct Known {
  VersionPtr version;
  bool has_layout = false;
};

/// A version decoded into scratch.
struct Decoded {
  ScratchDirectory directory;
  Base base;
};

class RepositoryVerifier {
 public:
  RepositoryVerifier(History& history, const std::filesystem::path& scratch, const Context& context,
                     const Progress& progress, const kernels::SharedCoder& coder, bool deep)
      : history_(history),
        repository_(history.repository()),
        scratch_(scratch),
        context_(context),
        progress_(progress),
        coder_(coder),
        deep_(deep),
        objects_(repository_, verdicts_, context_) {}

  VerifyReport run() {
    verdicts_.report
        .objects++;  // the repository's record, which was checked when the bucket was opened
    read_log();
    verdicts_.report.objects += log_.records.size();
    const std::uint64_t newest = newest_version();
    std::vector<Known> versions;
    for (std::uint64_t number = 1; number <= newest; number++) {
      context_.check("verifying");
      if (ahead_.empty()) fetch_manifests(number, std::min(newest, number + kManifestsAhead - 1));
      versions.push_back(check_records(number));
    }
    report_missing();
    find_skips();
    ProgressCounter counter(progress_, "verifying", bytes_to_check_);
    for (Known& known : versions) {
      check_needed_skips_to(verdicts_.report.versions + 1, counter);
      check_version(known, counter);
      check_skips_from(known, versions, counter);
      known = {};
      verdicts_.report.versions++;
    }
    check_needed_skips_to(kVersionMax, counter);
    verdicts_.report.orphans = orphans_.find(repository_, log_.objects, context_);
    return std::move(verdicts_.report);
  }

  /// Checks one version only: its own objects, and that it can be built with whatever that needs.
  VerifyReport run(std::uint64_t only) {
    static_cast<void>(history_.get(only, context_));
    throw_if_retired(repository_, only, context_);
    read_log();
    verdicts_.report.objects++;
    is_alone_ = true;
    fetch_manifests(only, only);
    const Known known = check_records(only);
    report_missing();
    ProgressCounter counter(progress_, "verifying", bytes_to_check_);
    check_version(known, counter);
    verdicts_.report.versions++;
    return std::move(verdicts_.report);
  }

 private:
  void read_log() {
    verdicts_.judge(std::string(keys::kGc), [&] { log_ = read_gc_log(repository_, context_); });
    verdicts_.note_needed(log_.needs);
  }

  // ---- which versions exist ----

  /// The newest version to check, even beyond missing manifests, unless they are too many.
  std::uint64_t newest_version() {
    Bucket& bucket = repository_.bucket(context_);
    std::uint64_t newest = 0, missing = 0;
    for (std::string after;;) {
      const auto found = bucket.list(keys::kVersions, after, context_);
      if (found.empty() || found.back() <= after) break;
      for (const std::string& key : found) {
        const std::uint64_t number = number_of(key);
        if (number <= newest) continue;
        const std::uint64_t skipped = number - newest - 1;
        if (skipped != 0 && !has_object(bucket, key, context_)) continue;  // LIST lags
        missing += skipped;
        if (missing > kMissingMax) {
          note_unknown_from(newest + 1, number);
          return newest;
        }
        newest = number;
      }
      after = found.back();
    }
    while (has_object(bucket, keys::manifest(newest + 1), context_)) newest++;  // LIST lags
    return newest;
  }

  /// What lies behind a gap that is too large: what its manifests name is unknown.
  void note_unknown_from(std::uint64_t first, std::uint64_t next) {
    missing_.add({first, next - 1});
    orphans_.note_unknown({first, kVersionMax});
  }

  /// A gap is one problem, of its first manifest.
  void report_missing() {
    for (const auto& [first, last] : missing_.ranges()) {
      const std::string key = keys::manifest(first);
      const std::string what =
          first == last
              ? fmt::format("{} is missing", key)
              : fmt::format("versions {} to {} are missing, from {} on", first, last, key);
      const bool is_end = !is_alone_ && last > facts_.size();
      verdicts_.add(key, fmt::format("{}, but there are later versions{}", what,
                                     is_end ? ", which were not checked" : ""));
    }
  }

  /// 0 if the key is not that of a manifest.
  static std::uint64_t number_of(const std::string& key) {
    std::uint64_t number = 0;
    const char* begin = key.data() + std::min(key.size(), keys::kVersions.size());
    std::from_chars(begin, key.data() + key.size(), number);
    return number <= kVersionMax && keys::manifest(number) == key ? number : 0;
  }

  /// Reads manifests for check_manifest(), many at a time.
  void fetch_manifests(std::uint64_t first, std::uint64_t last) {
    std::vector<ReadManifest> read(static_cast<std::size_t>(last - first + 1));
    parallel_for(read.size(), kManifestReads, context_, [&](std::size_t i) {
      try {
        read[i].version = repository_.find_version(first + i, context_);
      } catch (const Error&) {
        read[i].error = std::current_exception();
      }
    });
    for (std::size_t i = 0; i < read.size(); i++) ahead_.emplace(first + i, std::move(read[i]));
  }

  Known check_records(std::uint64_t number) {
    Known known;
    known.version = check_manifest(number);
    orphans_.note(number, known.version.get());
    facts_.push_back(known.version ? facts_of(*known.version) : VersionFacts{});
    facts_.back().number = number;
    const LayoutPtr layout = known.version ? check_layout(*known.version) : nullptr;
    known.has_layout = layout != nullptr;
    if (layout) bytes_to_check_ += bytes_to_check(known.version->manifest, *layout);
    return known;
  }

  /// Data of packs and snapshot, plus the version's own bytes decoded from them.
  static std::uint64_t bytes_to_check(const Manifest& manifest, const Layout& layout) {
    std::uint64_t total = layout.size_bytes();
    if (manifest.snapshot) total += layout.size_bytes();
    if (manifest.delta) {
      for (const PackRef& pack : manifest.delta->packs) total += pack.size_bytes - pack.head_bytes;
    }
    return total;
  }

  void check_version(const Known& known, ProgressCounter& counter) {
    context_.check("verifying");
    if (known.version) {
      for (const BlobRef& blob : known.version->manifest.blobs) check_blob(blob);
    }
    const LayoutPtr layout = known.has_layout ? check_layout(*known.version) : nullptr;
    if (!layout) {
      decoded_.reset();
      return;
    }
    const Manifest& manifest = known.version->manifest;
    const bool has_packs = manifest.delta && !log_.deltas.contains(manifest.version);
    const bool has_snapshot = manifest.snapshot && !log_.snapshots.contains(manifest.version);
    const auto key_of = [&](const PackRef& pack) {
      return keys::pack(manifest.version, pack.name);
    };
    const bool packs = has_packs && objects_.check_packs(*manifest.delta, key_of, *layout, counter);
    const bool snapshot = has_snapshot && objects_.check_snapshot(*known.version, *layout, counter);
    check_decoding(known.version, packs, snapshot, counter);
    counter.add(layout->size_bytes());
  }

  // ---- skip deltas that nothing needs ----

  void find_skips() {
    for (const ListedSkip& skip : list_skips(repository_, 0, context_)) {
      if (log_.needs.contains(skip.versions)) continue;  // check_needed_skip()
      skips_[skip.versions.from].push_back(skip.versions);
      bytes_to_check_ += skip.bytes;
    }
  }

  /// Requires: later versions are in `versions`.
  void check_skips_from(const Known& from, std::span<const Known> versions,
                        ProgressCounter& counter) {
    if (!from.version) return;
    const auto skips = skips_.find(from.version->number());
    if (skips == skips_.end()) return;
    for (const VersionPair& skip : skips->second) {
      context_.check("verifying");
      if (skip.to > versions.size()) continue;  // published meanwhile
      check_skip(skip, *from.version, versions[skip.to - 1], counter);
    }
    skips_.erase(skips);
  }

  void check_skip(const VersionPair& versions, const Version& from, const Known& to,
                  ProgressCounter& counter) {
    const std::string key = keys::skip_record(versions);
    std::shared_ptr<const SkipRecord> record;
    const bool is_whole = verdicts_.judge(key, [&] {
      auto found = find_skip(repository_, versions, context_);
      if (found) record = std::make_shared<const SkipRecord>(std::move(*found));
    });
    if (is_whole && !record) return;  // removed meanwhile
    verdicts_.report.skips++;
    verdicts_.report.objects++;
    const LayoutPtr layout = record && to.has_layout ? check_layout(*to.version) : nullptr;
    if (!layout) return;
    const auto fits = [&] {
      if (record->from_sha256 == from.manifest_sha256 &&
          record->to_sha256 == to.version->manifest_sha256) {
        return;
      }
      throw Error(
          ErrorCode::corrupt,
          fmt::format("object {}: it is of other manifests than those of its versions", key));
    };
    const auto key_of = [&](const PackRef& pack) { return keys::skip_pack(versions, pack.name); };
    const bool is_sound =
        verdicts_.judge(key, fits) && objects_.check_packs(record->delta, key_of, *layout, counter);
    if (!is_sound || !is_decoded(versions.from)) return;
    const ReconstructionPath path{{decoded_->base.version, true, {{versions, record}}},
                                  &decoded_->base};
    const auto plan = [&] { return make_plan_by(path, history_, to.version, context_); };
    if (deep_) {
      decode(to.version, plan, counter);
    } else {
      verdicts_.judge(key, [&] { static_cast<void>(plan()); });
    }
  }

  // ---- skip deltas that the log needs ----

  /// Those up to a version that were not checked yet.
  void check_needed_skips_to(std::uint64_t version, ProgressCounter& counter) {
    auto skip = log_.needs.upper_bound(last_needed_);
    for (; skip != log_.needs.end() && skip->first.to <= version; ++skip) {
      last_needed_ = skip->first;
      if (check_needed_skip(skip->first, skip->second, counter)) sound_skips_.insert(skip->first);
    }
  }

  /// What is wrong with one also says which versions are built from it.
  /// Returns: false if anything is.
  bool check_needed_skip(const VersionPair& versions, const Sha256& sha256,
                         ProgressCounter& counter) {
    context_.check("verifying");
    const std::size_t before = verdicts_.report.problems.size();
    const std::string key = keys::skip_record(versions);
    verdicts_.report.objects++;
    bool is_whole = false;
    verdicts_.judge(key, [&] {
      const std::optional<SkipRecord> record = find_skip(repository_, versions, context_);
      if (!record) throw Error(ErrorCode::not_found, fmt::format("object {}: it is missing", key));
      if (weightfs::sha256(as_bytes(record->serialize())) != sha256) {
        throw Error(ErrorCode::corrupt,
                    fmt::format("object {}: it is not the one that gc checked", key));
      }
      ObjectRuns runs;
      runs.indexes = weightfs::check_skip(history_, *record, context_);
      for (std::size_t i = 0; i < runs.indexes.size(); i++) {
        const PackIndex& index = *runs.indexes[i];
        verdicts_.report.objects++;
        verdicts_.report.bytes += record->delta.packs[i].head_bytes;
        runs.runs.push_back({keys::skip_pack(versions, record->delta.packs[i].name),
                             index.data_offset_bytes(), index.data_size_bytes(), index.pieces()});
      }
      is_whole = objects_.check_runs(repository_.bucket(context_), runs, counter);
    });
    if (verdicts_.report.problems.size() == before) return is_whole;
    const std::string built = built_from(versions);
    for (std::size_t i = before; i < verdicts_.report.problems.size(); i++) {
      verdicts_.report.problems[i].message += fmt::format("; versions {} are built from it", built);
    }
    return is_whole;
  }

  /// Versions that nothing else leads to.
  [[nodiscard]] std::string built_from(const VersionPair& skip) const {
    NeededSkips others = log_.needs;
    others.erase(skip);
    const BuildableVersions all(facts_, log_.deltas, log_.snapshots, log_.needs);
    const BuildableVersions without(facts_, log_.deltas, log_.snapshots, others);
    VersionRanges built;
    for (const VersionFacts& version : facts_) {
      const std::uint64_t number = version.number;
      if (all.can_build(number) && !without.can_build(number)) built.add(number);
    }
    return built.text();
  }

  // ---- objects ----

  /// nullptr if it is damaged.
  VersionPtr check_manifest(std::uint64_t number) {
    const VersionPtr before = std::exchange(previous_, nullptr);
    const std::string key = keys::manifest(number);
    verdicts_.report.objects++;
    verdicts_.judge(key, [&] {
      ReadManifest read = std::move(ahead_.extract(number).mapped());
      if (read.error) std::rethrow_exception(read.error);
      if (!read.version) return missing_.add(number);
      previous_ = std::make_shared<const Version>(std::move(*read.version));
    });
    if (!previous_) return nullptr;
    verdicts_.report.bytes += previous_->manifest_bytes.size();
    if (before) check_chain(*before, *previous_);
    return previous_;
  }

  void check_chain(const Version& before, const Version& after) {
    if (after.manifest.parent_sha256 == before.manifest_sha256) return;
    const std::string key = keys::manifest(before.number());
    verdicts_.add(key,
                  fmt::format("{} has the SHA-256 {}, but version {} was published on {}: one of "
                              "the two was replaced",
                              key, to_hex(before.manifest_sha256), after.number(),
                              to_hex(after.manifest.parent_sha256)));
  }

  /// nullptr if it is damaged.
  LayoutPtr check_layout(const Version& version) {
    const ObjectRef& ref = version.manifest.layout;
    const auto [place, is_new] = layouts_.try_emplace(ref.sha256, false);
    LayoutPtr layout;
    if (is_new) {
      verdicts_.report.objects++;
    } else if (!place->second) {
      return nullptr;
    }
    place->second = verdicts_.judge(keys::layout(ref.sha256), [&] {
      layout = layout_cache_.find(ref.sha256);
      if (!layout) layout = layout_cache_.put(repository_.get_layout(ref, context_));
    });
    if (is_new && place->second) verdicts_.report.bytes += ref.size_bytes;
    return layout;
  }

  void check_blob(const BlobRef& blob) {
    if (!blobs_.insert(blob.sha256).second) return;
    verdicts_.report.objects++;
    if (verdicts_.judge(keys::blob(blob.sha256),
                        [&] { static_cast<void>(repository_.get_blob(blob, context_)); })) {
      verdicts_.report.bytes += blob.size_bytes;
    }
  }

  // ---- decoding ----

  void check_decoding(const VersionPtr& version, bool packs, bool snapshot,
                      ProgressCounter& counter) {
    const auto by = [&](const ReconstructionPath& path) {
      return make_plan_by(path, history_, version, context_);
    };
    const bool has_parent = !log_.versions.contains(version->manifest.parent);
    if (is_alone_ && packs && snapshot && has_parent) decoded_ = decode_parent(*version);
    std::optional<Decoded> by_delta, by_snapshot;
    const bool is_at_parent = is_decoded(version->manifest.parent);
    if (packs && is_at_parent) {
      by_delta = decode(
          version, [&] { return by(path_of_deltas(decoded_->base, *version)); }, counter);
    } else if (packs && is_alone_ && !snapshot) {
      by_delta = decode_by_any_way(version, counter);
    }
    if (snapshot) {
      by_snapshot = decode(
          version,
          [&] {
            return by({{version}, nullptr});
          },
          counter);
    }
    if (deep_ && by_delta && by_snapshot) compare(*by_delta, *by_snapshot);
    // What follows a skip delta begins at the last version before it that gc left.
    if (log_.versions.contains(version->number()) && !by_delta && !by_snapshot) return;
    if (!by_delta && !by_snapshot) by_delta = decode_by_skip(version, counter);
    decoded_ = by_delta ? std::move(by_delta) : std::move(by_snapshot);
  }

  [[nodiscard]] bool is_decoded(std::uint64_t version) const {
    return decoded_ && decoded_->base.version->number() == version;
  }

  /// Decodes the parent, as the base for checking a single version; nullopt if it cannot be built:
  /// the version has a snapshot, and does not need it.
  std::optional<Decoded> decode_parent(const Version& version) {
    const Progress nobody;
    ProgressCounter not_counted(nobody, "verifying", 0);
    try {
      const VersionPtr parent = history_.get(version.manifest.parent, context_);
      return decoded_by(make_plan(history_, parent, {}, context_, {.skips = SkipUse::none}), parent,
                        not_counted);
    } catch (const BaseDamaged&) {
      throw;
    } catch (const Error& error) {
      if (!is_verdict(error)) throw;
      return std::nullopt;
    }
  }

  /// Without skip deltas that the log does not need.
  std::optional<Decoded> decode_by_any_way(const VersionPtr& version, ProgressCounter& counter) {
    return decode(
        version,
        [&] { return make_plan(history_, version, {}, context_, {.skips = SkipUse::none}); },
        counter);
  }

  /// By a skip delta that the log needs; nullopt if none leads to the version, or all that do are
  /// damaged, which was reported.
  std::optional<Decoded> decode_by_skip(const VersionPtr& version, ProgressCounter& counter) {
    std::optional<VersionPair> found;
    for (const auto& [skip, sha256] : log_.needs) {
      if (skip.to != version->number()) continue;
      if (!is_alone_ && !sound_skips_.contains(skip)) continue;
      if (!found || is_decoded(skip.from)) found = skip;
    }
    if (!found) return std::nullopt;
    if (!is_decoded(found->from)) return decode_by_any_way(version, counter);
    return decode(
        version, [&] { return plan_by_skip(*found, version); }, counter);
  }

  /// From the version that was decoded last.
  Plan plan_by_skip(const VersionPair& versions, const VersionPtr& to) {
    const std::string key = keys::skip_record(versions);
    auto record = find_skip(repository_, versions, context_);
    if (!record) throw Error(ErrorCode::not_found, fmt::format("object {}: it is missing", key));
    const ReconstructionPath path{
        {decoded_->base.version,
         true,
         {{versions, std::make_shared<const SkipRecord>(std::move(*record))}}},
        &decoded_->base};
    return make_plan_by(path, history_, to, context_);
  }

  /// Compares the bytes; both have the right hashes.
  void compare(const Decoded& by_delta, const Decoded& by_snapshot) {
    const Layout& layout = *by_delta.base.layout;
    for (const LayoutFile& file : layout.files()) {
      const auto offset = first_difference(by_delta.base.directory / file.path,
                                           by_snapshot.base.directory / file.path, file.size_bytes);
      if (!offset) continue;
      const std::string key = keys::manifest(by_delta.base.version->number());
      return verdicts_.add(
          key,
          fmt::format(
              "{}: its delta and its snapshot give different bytes, first at byte {} of '{}' ({}), "
              "with the same hashes: this was done on purpose; do not use any version from here on",
              key, *offset, file.path, tensor_at(layout, file, *offset)));
    }
  }

  std::optional<std::uint64_t> first_difference(const std::filesystem::path& a,
                                                const std::filesystem::path& b,
                                                std::uint64_t size_bytes) {
    constexpr std::uint64_t kStepBytes = 4u << 20;
    const File in_a = File::open(a, O_RDONLY), in_b = File::open(b, O_RDONLY);
    std::vector<std::byte> of_a(kStepBytes), of_b(kStepBytes);
    for (std::uint64_t at = 0; at < size_bytes; at += kStepBytes) {
      context_.check("verifying");
      const auto size = static_cast<std::size_t>(std::min(kStepBytes, size_bytes - at));
      if (!read_at(in_a.fd(), at, std::span(of_a).first(size), a) ||
          !read_at(in_b.fd(), at, std::span(of_b).first(size), b)) {
        throw Error(ErrorCode::io, fmt::format("{} or {} was truncated while they were compared",
                                               a.string(), b.string()));
      }
      const auto [end, other] = std::mismatch(
          of_a.begin(), of_a.begin() + static_cast<std::ptrdiff_t>(size), of_b.begin());
      const auto same = static_cast<std::uint64_t>(end - of_a.begin());
      if (same < size) return at + same;
    }
    return std::nullopt;
  }

  static std::string tensor_at(const Layout& layout, const LayoutFile& file,
                               std::uint64_t offset_bytes) {
    for (const LayoutTensor& tensor : layout.tensors_of(file)) {
      if (offset_bytes < tensor.offset_bytes) break;
      if (offset_bytes - tensor.offset_bytes < tensor.size_bytes) {
        return fmt::format("tensor '{}'", escape_name(tensor.name));
      }
    }
    return "its header";
  }

  /// nullopt if it does not decode, which is then reported.
  template <typename MakePlan>
  std::optional<Decoded> decode(const VersionPtr& version, MakePlan&& make_plan_now,
                                ProgressCounter& counter) {
    std::optional<Decoded> result;
    verdicts_.judge(keys::manifest(version->number()),
                    [&] { result = decoded_by(make_plan_now(), version, counter); });
    return result;
  }

  /// Throws Error: what is wrong.
  Decoded decoded_by(Plan plan, const VersionPtr& version, ProgressCounter& counter) {
    plan.version = without_blobs(*version);
    Decoded decoded{ScratchDirectory(scratch_, "verify-"), {}};
    WriteOptions options;
    options.directory = decoded.directory.path();
    options.spool = scratch_;
    options.sync = false;
    options.coder = coder_;
    // The version counts when it is complete; until then this only shows activity.
    write_version(plan, repository_, options, context_,
                  [&](std::string_view, std::uint64_t, std::uint64_t) { counter.add(0); });
    decoded.base = {version, plan.layout, decoded.directory.path(), std::move(plan.hashes)};
    return decoded;
  }

  /// Blobs are checked separately; a damaged one must not prevent the check of the tensors.
  static VersionPtr without_blobs(const Version& version) {
    Version copy = version;
    copy.manifest.blobs.clear();
    return std::make_shared<const Version>(std::move(copy));
  }

  History& history_;
  Repository& repository_;
  const std::filesystem::path& scratch_;
  const Context& context_;
  const Progress& progress_;
  const kernels::SharedCoder& coder_;
  const bool deep_;
  GcLog log_;  // what it retired is not looked for

  Verdicts verdicts_;
  ObjectChecker objects_;
  OrphanFinder orphans_;
  std::map<std::uint64_t, std::vector<VersionPair>> skips_;  // not checked yet, by `from`
  VersionRanges missing_;                                    // without a manifest, but below others
  std::vector<VersionFacts> facts_;              // of all versions, unless only one is checked
  std::map<std::uint64_t, ReadManifest> ahead_;  // not checked yet
  std::map<Sha256, bool> layouts_;               // layouts checked -> whether they are whole
  LayoutCache layout_cache_{History::kLayoutBytesKept};
  std::uint64_t bytes_to_check_ = 0;
  std::set<Sha256> blobs_;
  VersionPtr previous_;
  VersionPair last_needed_;            // of the needed skips, up to which they were checked
  std::set<VersionPair> sound_skips_;  // of these
  std::optional<Decoded> decoded_;     // the previous version, or the last one before retired ones
  bool is_alone_ = false;              // no earlier version is checked
};

}  // namespace

VerifyReport verify_repository(History& history, const std::filesystem::path& scratch,
                               const Context& context, const Progress& progress,
                               const kernels::SharedCoder& coder, const VerifyOptions& options) {
  RepositoryVerifier verifier(history, scratch, context, progress, coder, options.deep);
  return options.only ? verifier.run(*options.only) : verifier.run();
}

}  // namespace weightfs
