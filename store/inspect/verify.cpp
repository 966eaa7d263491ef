// Objects are checked first, each on its own, so that every damaged one is named.  Then the version
// is decoded from the one before it, which proves that packs, hashes and roots agree. If an object
// needed for that is damaged, decoding is skipped until the next snapshot.  A version with a
// snapshot is also decoded from that.

#include "store/inspect/verify.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string_view>

#include "store/base/bytes.hpp"
#include "store/base/log.hpp"
#include "store/base/path_rules.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/inspect/check_skip.hpp"
#include "store/materialize/plan.hpp"
#include "store/materialize/write_version.hpp"
#include "store/os/file.hpp"
#include "store/os/scratch_directory.hpp"
#include "store/repository/gc_log.hpp"
#include "store/repository/pieces.hpp"
#include "store/repository/skips.hpp"
#include "store/retention/inventory.hpp"
#include "store/retention/keep.hpp"
#include "store/threads/parallel.hpp"
#include "store/threads/progress_counter.hpp"

namespace weightfs {
namespace {

using VersionPtr = std::shared_ptr<const Version>;
using LayoutPtr = std::shared_ptr<const Layout>;

/// Whether the error is a verdict on an object; any other error ends the verification.
bool is_verdict(const Error& error) {
  switch (error.code()) {
    case ErrorCode::corrupt:
    case ErrorCode::not_found:
    case ErrorCode::unsupported:
      return true;
    default:
      return false;
  }
}

/// The objects of a version whose pieces are to be fetched, and the owners of their hashes.
struct Runs {
  std::vector<PieceRun> runs;
  std::vector<std::shared_ptr<const PackIndex>> indexes;
  SnapshotHashes snapshot;
};

constexpr unsigned kManifestReads = 32;  // in parallel, since latency is the limit
constexpr std::uint64_t kManifestsAhead = 64;

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
        deep_(deep) {}

  VerifyReport run() {
    report_.objects++;  // the repository's record, which was checked when the bucket was opened
    judge(std::string(keys::kGc), [&] { log_ = read_gc_log(repository_, context_); });
    report_.objects += log_.records.size();
    const std::uint64_t newest = newest_version();
    std::vector<Known> versions;
    for (std::uint64_t number = 1; number <= newest; number++) {
      context_.check("verifying");
      if (ahead_.empty()) fetch_manifests(number, std::min(newest, number + kManifestsAhead - 1));
      versions.push_back(check_records(number));
    }
    find_skips();
    ProgressCounter counter(progress_, "verifying", bytes_to_check_);
    for (Known& known : versions) {
      check_version(known, counter);
      check_skips_from(known, versions, counter);
      known = {};
      report_.versions++;
    }
    for (const auto& [skip, sha256] : log_.needs) check_needed_skip(skip, sha256, counter);
    find_orphans();
    return std::move(report_);
  }

  /// Checks one version only: its own objects, and that it can be built with whatever that needs.
  VerifyReport run(std::uint64_t only) {
    static_cast<void>(history_.get(only, context_));
    throw_if_retired(repository_, only, context_);
    judge(std::string(keys::kGc), [&] { log_ = read_gc_log(repository_, context_); });
    report_.objects++;
    fetch_manifests(only, only);
    const Known known = check_records(only);
    ProgressCounter counter(progress_, "verifying", bytes_to_check_);
    is_alone_ = true;
    check_version(known, counter);
    report_.versions++;
    return std::move(report_);
  }

 private:
  // ---- which versions exist ----

  /// The newest version, even beyond a missing manifest.
  std::uint64_t newest_version() {
    std::uint64_t newest = repository_.newest_version(0, context_);
    Bucket& bucket = repository_.bucket(context_);
    std::string after = keys::manifest(newest);
    for (;;) {
      const auto found = bucket.list(keys::kVersions, after, context_);
      if (found.empty()) return newest;
      for (const std::string& key : found) newest = std::max(newest, number_of(key));
      after = found.back();
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
    note_names(number, known.version.get());
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
    const bool packs = has_packs && check_packs(*manifest.delta, key_of, *layout, counter);
    const bool snapshot = has_snapshot && check_snapshot(*known.version, *layout, counter);
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
    const bool is_whole = judge(key, [&] {
      auto found = find_skip(repository_, versions, context_);
      if (found) record = std::make_shared<const SkipRecord>(std::move(*found));
    });
    if (is_whole && !record) return;  // removed meanwhile
    report_.skips++;
    report_.objects++;
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
    const bool is_sound = judge(key, fits) && check_packs(record->delta, key_of, *layout, counter);
    const bool is_at_from = decoded_ && decoded_->base.version->number() == versions.from;
    if (!is_sound || !is_at_from) return;
    const ReconstructionPath path{{decoded_->base.version, true, {{versions, record}}},
                                  &decoded_->base};
    const auto plan = [&] { return make_plan_by(path, history_, to.version, context_); };
    if (deep_) {
      decode(to.version, plan, counter);
    } else {
      judge(key, [&] { static_cast<void>(plan()); });
    }
  }

  // ---- skip deltas that the log needs ----

  /// What is wrong with one also says which versions are built from it.
  void check_needed_skip(const VersionPair& versions, const Sha256& sha256,
                         ProgressCounter& counter) {
    context_.check("verifying");
    const std::size_t before = report_.problems.size();
    const std::string key = keys::skip_record(versions);
    report_.objects++;
    judge(key, [&] {
      const std::optional<SkipRecord> record = find_skip(repository_, versions, context_);
      if (!record) throw Error(ErrorCode::not_found, fmt::format("object {}: it is missing", key));
      if (weightfs::sha256(as_bytes(record->serialize())) != sha256) {
        throw Error(ErrorCode::corrupt,
                    fmt::format("object {}: it is not the one that gc checked", key));
      }
      Runs runs;
      runs.indexes = weightfs::check_skip(history_, *record, context_);
      for (std::size_t i = 0; i < runs.indexes.size(); i++) {
        const PackIndex& index = *runs.indexes[i];
        report_.objects++;
        report_.bytes += record->delta.packs[i].head_bytes;
        runs.runs.push_back({keys::skip_pack(versions, record->delta.packs[i].name),
                             index.data_offset_bytes(), index.data_size_bytes(), index.pieces()});
      }
      check_runs(repository_.bucket(context_), runs, counter);
    });
    if (report_.problems.size() == before) return;
    const std::string built = built_from(versions);
    for (std::size_t i = before; i < report_.problems.size(); i++) {
      report_.problems[i].message += fmt::format("; versions {} are built from it", built);
    }
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

  // ---- orphans ----

  /// Records what a version names; nullptr: unknown.
  void note_names(std::uint64_t number, const Version* version) {
    facts_.push_back(version != nullptr ? facts_of(*version) : VersionFacts{});
    facts_.back().number = number;
    if (version == nullptr) {
      unknown_.insert(number);
      return;
    }
    const Manifest& manifest = version->manifest;
    named_.insert(keys::layout(manifest.layout.sha256));
    for (const BlobRef& blob : manifest.blobs) named_.insert(keys::blob(blob.sha256));
    if (manifest.delta) {
      for (const PackRef& pack : manifest.delta->packs)
        named_.insert(keys::pack(number, pack.name));
    }
    if (manifest.snapshot) named_.insert(keys::snapshot_file(number, manifest.snapshot->nonce, ""));
  }

  [[nodiscard]] bool is_named(const std::string& key) const {
    // The manifest names a snapshot by its directory.
    const bool is_snapshot = key.starts_with(keys::kSnapshots);
    return named_.contains(is_snapshot ? below(key, 3) : key);
  }

  /// The first components of a key: "packs/7/" has two.
  static std::string below(std::string_view key, int components) {
    std::size_t end = 0;
    for (int i = 0; i < components && end != key.npos; i++) end = key.find('/', end) + 1;
    return std::string(key.substr(0, end));
  }

  void find_orphans() {
    try {
      for (const std::string_view prefix : {keys::kPacks, keys::kSnapshots}) {
        find_orphans_below(prefix, 2);
      }
      // Blobs and layouts may belong to a version that cannot be read.
      if (!unknown_.empty()) return;
      for (const std::string_view prefix : {keys::kBlobs, keys::kLayouts}) {
        find_orphans_below(prefix, 1);
      }
    } catch (const Error& error) {
      if (error.code() != ErrorCode::permission) throw;
      log_debug(fmt::format("cannot look for orphans: {}", error.what()));
    }
    std::ranges::sort(report_.orphans, {}, &Orphans::prefix);
  }

  /// `components`: how many components the reported prefixes have.
  void find_orphans_below(std::string_view prefix, int components) {
    Bucket& bucket = repository_.bucket(context_);
    std::map<std::string, Orphans> found;
    for (std::string after;;) {
      const auto page = bucket.list(prefix, after, context_);
      if (page.empty()) break;
      after = page.back();
      std::vector<std::string> keys;
      for (const std::string& key : page) {
        if (is_named(key) || is_of_unknown_version(key)) continue;
        if (!log_.objects.contains(key)) keys.push_back(key);
      }
      std::vector<std::uint64_t> sizes(keys.size());
      parallel_for(keys.size(), request_threads(bucket, 0), context_,
                   [&](std::size_t i) { sizes[i] = size_of(bucket, keys[i]); });
      for (std::size_t i = 0; i < keys.size(); i++) {
        Orphans& orphans = found[below(keys[i], components)];
        orphans.objects++;
        orphans.bytes += sizes[i];
      }
    }
    for (auto& [name, orphans] : found) {
      orphans.prefix = name;
      report_.orphans.push_back(std::move(orphans));
    }
  }

  [[nodiscard]] bool is_of_unknown_version(std::string_view key) const {
    const std::size_t slash = key.find('/') + 1;
    std::uint64_t number = 0;
    std::from_chars(key.data() + slash, key.data() + key.size(), number);
    return unknown_.contains(number);
  }

  /// The size of an object, 0 if it is gone.  Buckets have no call for that, so this searches for
  /// the end.
  [[nodiscard]] std::uint64_t size_of(Bucket& bucket, std::string_view key) const {
    const auto reaches = [&](std::uint64_t offset) {
      std::byte byte{};
      try {
        return bucket.get(key, offset, {&byte, 1}, context_) == 1;
      } catch (const Error& error) {
        if (error.code() != ErrorCode::not_found) throw;
        return false;
      }
    };
    std::uint64_t low = 0, high = 4096;
    for (; reaches(high); high *= 2) low = high + 1;
    while (low < high) {
      const std::uint64_t middle = low + (high - low) / 2;
      if (reaches(middle)) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  // ---- objects ----

  /// Runs `body`.  Returns: false if it found `key` damaged, which is then reported.
  template <typename Body>
  bool judge(const std::string& key, Body&& body) {
    try {
      body();
      return true;
    } catch (const ObjectError& error) {
      add_problem(error.key(), error.what());
    } catch (const BaseDamaged&) {
      throw;  // damage on this host, not in the bucket
    } catch (const Error& error) {
      if (!is_verdict(error)) throw;
      add_problem(key, error.what());
    }
    return false;
  }

  void add_problem(const std::string& object, const std::string& message) {
    const auto skip = find_skip_key(object);
    const std::string_view reach = skip && !log_.needs.contains(skip->versions)
                                       ? "; it is of a skip delta, and no version depends on it"
                                       : "";
    if (reported_.insert(object).second) {
      report_.problems.push_back({object, fmt::format("{}{}", message, reach)});
    }
  }

  /// nullptr if it is damaged.
  VersionPtr check_manifest(std::uint64_t number) {
    const VersionPtr before = std::exchange(previous_, nullptr);
    const std::string key = keys::manifest(number);
    report_.objects++;
    judge(key, [&] {
      ReadManifest read = std::move(ahead_.extract(number).mapped());
      if (read.error) std::rethrow_exception(read.error);
      std::optional<Version>& found = read.version;
      if (!found) {
        throw Error(ErrorCode::not_found,
                    fmt::format("{} is missing, but there are later versions", key));
      }
      previous_ = std::make_shared<const Version>(std::move(*found));
    });
    if (!previous_) return nullptr;
    report_.bytes += previous_->manifest_bytes.size();
    if (before) check_chain(*before, *previous_);
    return previous_;
  }

  void check_chain(const Version& before, const Version& after) {
    if (after.manifest.parent_sha256 == before.manifest_sha256) return;
    const std::string key = keys::manifest(before.number());
    add_problem(key,
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
      report_.objects++;
    } else if (!place->second) {
      return nullptr;
    }
    place->second = judge(keys::layout(ref.sha256), [&] {
      layout = layout_cache_.find(ref.sha256);
      if (!layout) layout = layout_cache_.put(repository_.get_layout(ref, context_));
    });
    if (is_new && place->second) report_.bytes += ref.size_bytes;
    return layout;
  }

  void check_blob(const BlobRef& blob) {
    if (!blobs_.insert(blob.sha256).second) return;
    report_.objects++;
    if (judge(keys::blob(blob.sha256),
              [&] { static_cast<void>(repository_.get_blob(blob, context_)); })) {
      report_.bytes += blob.size_bytes;
    }
  }

  template <typename KeyOf>
  bool check_packs(const DeltaRef& delta, const KeyOf& key_of, const Layout& layout,
                   ProgressCounter& counter) {
    Runs runs;
    MemoryBudget budget;
    PackRoom room(layout, budget);
    bool whole = true;
    for (const PackRef& ref : delta.packs) {
      const std::string key = key_of(ref);
      report_.objects++;
      whole &= judge(key, [&] {
        auto index = repository_.get_pack_index(key, ref, layout, context_, &room);
        runs.runs.push_back(
            {key, index->data_offset_bytes(), index->data_size_bytes(), index->pieces()});
        runs.indexes.push_back(std::move(index));
        report_.bytes += ref.head_bytes;
      });
    }
    return check_runs(repository_.bucket(context_), runs, counter) && whole;
  }

  bool check_snapshot(const Version& version, const Layout& layout, ProgressCounter& counter) {
    const SnapshotRef& ref = *version.manifest.snapshot;
    Runs runs;
    report_.objects++;
    const bool readable = judge(keys::snapshot_hashes(version.number(), ref.nonce), [&] {
      runs.snapshot = repository_.get_snapshot_hashes(version.number(), ref, layout, context_);
      report_.bytes += ref.hashes.size_bytes;
    });
    if (!readable) return false;
    for (std::size_t i = 0; i < layout.files().size(); i++) {
      const LayoutFile& file = layout.files()[i];
      report_.objects++;
      runs.runs.push_back(
          {snapshot_key(version, file.path), 0, file.size_bytes, runs.snapshot.pieces[i]});
    }
    return check_runs(repository_.snapshot_reader(version, context_), runs, counter);
  }

  /// Fetches and hashes every piece; reports each damaged object once.
  bool check_runs(BucketReader& from, const Runs& runs, ProgressCounter& counter) {
    struct Part {
      std::size_t run;
      std::uint64_t first;
    };
    std::vector<Part> parts;
    for (std::size_t i = 0; i < runs.runs.size(); i++) {
      const std::size_t pieces = runs.runs[i].hashes.size();
      // An object without data has one part too, to check where it ends.
      for (std::uint64_t first = 0; first == 0 || first < pieces; first += kPiecesPerFetch) {
        parts.push_back({i, first});
      }
    }
    std::vector<std::string> failures(runs.runs.size());
    // Guards `failures` and the byte count.
    RankedMutex mutex{LockRank::leaf, "check_runs::mutex"};
    const unsigned threads = request_threads(from, 0);
    parallel_for(parts.size(), threads, context_, [&](std::size_t i) {
      const PieceRun& run = runs.runs[parts[i].run];
      try {
        const std::uint64_t bytes = check_part(from, run, parts[i].first);
        counter.add(bytes);
        const std::lock_guard lock(mutex);
        report_.bytes += bytes;
      } catch (const ObjectError& error) {
        const std::lock_guard lock(mutex);
        failures[parts[i].run] = error.what();
      }
    });
    bool whole = true;
    for (std::size_t i = 0; i < failures.size(); i++) {
      if (failures[i].empty()) continue;
      whole = false;
      add_problem(runs.runs[i].key, failures[i]);
    }
    return whole;
  }

  /// Returns: the number of bytes fetched.
  std::uint64_t check_part(BucketReader& from, const PieceRun& run, std::uint64_t first) {
    if (first == 0) check_end(from, run);
    if (run.size_bytes == 0) return 0;
    const auto size = static_cast<std::size_t>(run.bytes_of(first, kPiecesPerFetch));
    const auto buffer = std::make_unique_for_overwrite<std::byte[]>(size);
    fetch_pieces(from, run, first, {buffer.get(), size}, context_);
    return size;
  }

  void check_end(BucketReader& from, const PieceRun& run) {
    std::array<std::byte, 1> byte{};
    const std::uint64_t end = run.offset_bytes + run.size_bytes;
    std::size_t behind = 0;
    try {
      behind = from.get(run.key, end, byte, context_);
    } catch (const Error& error) {
      if (!is_verdict(error)) throw;
      throw ObjectError(error.code(), run.key, error.what());
    }
    if (behind == 0) return;
    throw ObjectError(ErrorCode::corrupt, run.key,
                      fmt::format("{} continues after its expected end at byte {}", run.key, end));
  }

  // ---- decoding ----

  void check_decoding(const VersionPtr& version, bool packs, bool snapshot,
                      ProgressCounter& counter) {
    const auto by = [&](const ReconstructionPath& path) {
      return make_plan_by(path, history_, version, context_);
    };
    const bool has_parent = !log_.versions.contains(version->manifest.parent);
    if (deep_ && is_alone_ && packs && snapshot && has_parent) decoded_ = decode_parent(*version);
    std::optional<Decoded> by_delta, by_snapshot;
    if (packs && decoded_) {
      by_delta = decode(
          version, [&] { return by(path_of_deltas(decoded_->base, *version)); }, counter);
    } else if (packs && is_alone_) {
      by_delta = decode(
          version, [&] { return make_plan(history_, version, {}, context_, {}, SkipUse::none); },
          counter);
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
    decoded_ = by_delta ? std::move(by_delta) : std::move(by_snapshot);
  }

  /// Decodes the parent, as the base for checking a single version.
  std::optional<Decoded> decode_parent(const Version& version) {
    const VersionPtr parent = history_.get(version.manifest.parent, context_);
    const Progress nobody;
    ProgressCounter not_counted(nobody, "verifying", 0);
    return decode(
        parent, [&] { return make_plan(history_, parent, {}, context_, {}, SkipUse::none); },
        not_counted);
  }

  /// Compares the bytes; both have the right hashes.
  void compare(const Decoded& by_delta, const Decoded& by_snapshot) {
    const Layout& layout = *by_delta.base.layout;
    for (const LayoutFile& file : layout.files()) {
      const auto offset = first_difference(by_delta.base.directory / file.path,
                                           by_snapshot.base.directory / file.path, file.size_bytes);
      if (!offset) continue;
      const std::string key = keys::manifest(by_delta.base.version->number());
      return add_problem(
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
    judge(keys::manifest(version->number()), [&] {
      Plan plan = make_plan_now();
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
      result = std::move(decoded);
    });
    return result;
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

  VerifyReport report_;
  std::map<std::uint64_t, std::vector<VersionPair>> skips_;  // not checked yet, by `from`
  std::set<std::string> reported_;
  std::set<std::string> named_;                  // keys, and directories of snapshots
  std::vector<VersionFacts> facts_;              // of all versions, unless only one is checked
  std::set<std::uint64_t> unknown_;              // versions whose manifest cannot be read
  std::map<std::uint64_t, ReadManifest> ahead_;  // not checked yet
  std::map<Sha256, bool> layouts_;               // layouts checked -> whether they are whole
  LayoutCache layout_cache_{History::kLayoutBytesKept};
  std::uint64_t bytes_to_check_ = 0;
  std::set<Sha256> blobs_;
  VersionPtr previous_;
  std::optional<Decoded> decoded_;  // the previous version
  bool is_alone_ = false;           // no earlier version is checked
};

}  // namespace

VerifyReport verify_repository(History& history, const std::filesystem::path& scratch,
                               const Context& context, const Progress& progress,
                               const kernels::SharedCoder& coder, const VerifyOptions& options) {
  RepositoryVerifier verifier(history, scratch, context, progress, coder, options.deep);
  return options.only ? verifier.run(*options.only) : verifier.run();
}

}  // namespace weightfs
