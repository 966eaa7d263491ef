// Objects are checked first, each by itself, so that every damaged one is named.  Then the version
// is decoded from the one before, which proves that packs, hashes and roots fit together; that is
// left out where an object it needs is damaged already, and taken up again at the next snapshot.

#include "store/verify.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>

#include "store/bytes.hpp"
#include "store/parallel.hpp"
#include "store/pieces.hpp"
#include "store/plan.hpp"
#include "store/progress_counter.hpp"
#include "store/scratch_directory.hpp"

namespace weightfs {
namespace {

using VersionPtr = std::shared_ptr<const Version>;
using LayoutPtr = std::shared_ptr<const Layout>;

/// A verdict on an object; anything else ends the verification.
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

/// Objects of a version whose pieces are to be fetched, and what their hashes belong to.
struct Runs {
  std::vector<PieceRun> runs;
  std::vector<std::shared_ptr<const PackIndex>> indexes;
  SnapshotHashes snapshot;
};

/// A version's records; what is damaged is nullptr.
struct Known {
  VersionPtr version;
  LayoutPtr layout;
};

/// A version that was decoded into scratch.
struct Decoded {
  ScratchDirectory directory;
  Base base;
};

class RepositoryVerifier {
 public:
  RepositoryVerifier(History& history, const std::filesystem::path& scratch, const Context& context,
                     const Progress& progress, const kernels::SharedCoder& coder)
      : history_(history),
        repository_(history.repository()),
        scratch_(scratch),
        context_(context),
        progress_(progress),
        coder_(coder) {}

  VerifyReport run() {
    report_.objects++;  // the repository's record: it was checked when the bucket was opened
    const std::uint64_t newest = newest_version();
    std::uint64_t total = 0;
    std::vector<Known> versions;
    for (std::uint64_t number = 1; number <= newest; number++) {
      context_.check("verifying");
      versions.push_back(check_records(number));
      total += bytes_to_check(versions.back());
    }
    ProgressCounter counter(progress_, "verifying", total);
    for (Known& known : versions) {
      check_version(known, counter);
      known = {};
      report_.versions++;
    }
    return std::move(report_);
  }

 private:
  // ---- what is there ----

  /// The newest version, also behind a manifest that is missing.
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

  /// 0 for a key that is no manifest's.
  static std::uint64_t number_of(const std::string& key) {
    std::uint64_t number = 0;
    const char* begin = key.data() + std::min(key.size(), keys::kVersions.size());
    std::from_chars(begin, key.data() + key.size(), number);
    return number <= kVersionMax && keys::manifest(number) == key ? number : 0;
  }

  Known check_records(std::uint64_t number) {
    Known known;
    known.version = check_manifest(number);
    if (known.version) known.layout = check_layout(*known.version);
    return known;
  }

  /// Data of packs, the snapshot, and the version's own bytes that are decoded from them.
  static std::uint64_t bytes_to_check(const Known& known) {
    if (!known.layout) return 0;
    const Manifest& manifest = known.version->manifest;
    std::uint64_t total = known.layout->size_bytes();
    if (manifest.snapshot) total += known.layout->size_bytes();
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
    if (!known.layout) {
      decoded_.reset();
      return;
    }
    const Manifest& manifest = known.version->manifest;
    const bool packs = manifest.delta && check_packs(*known.version, *known.layout, counter);
    const bool snapshot =
        manifest.snapshot && check_snapshot(*known.version, *known.layout, counter);
    check_decoding(known.version, packs, snapshot);
    counter.add(known.layout->size_bytes());
  }

  // ---- objects ----

  /// Runs `body`.  Returns: false if it found `key` damaged; that is reported then.
  template <typename Body>
  bool judge(const std::string& key, Body&& body) {
    try {
      body();
      return true;
    } catch (const ObjectError& error) {
      add_problem(error.key(), error.what());
    } catch (const BaseDamaged&) {
      throw;  // this host, not the bucket
    } catch (const Error& error) {
      if (!is_verdict(error)) throw;
      add_problem(key, error.what());
    }
    return false;
  }

  void add_problem(const std::string& object, const std::string& message) {
    if (reported_.insert(object).second) report_.problems.push_back({object, message});
  }

  /// nullptr if it is damaged.
  VersionPtr check_manifest(std::uint64_t number) {
    const VersionPtr before = std::exchange(previous_, nullptr);
    const std::string key = keys::manifest(number);
    report_.objects++;
    judge(key, [&] {
      std::optional<Version> found = repository_.find_version(number, context_);
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
    const auto [place, is_new] = layouts_.try_emplace(ref.sha256);
    if (!is_new) return place->second;
    report_.objects++;
    if (judge(keys::layout(ref.sha256),
              [&] { place->second = repository_.get_layout(ref, context_); })) {
      report_.bytes += ref.size_bytes;
    }
    return place->second;
  }

  void check_blob(const BlobRef& blob) {
    if (!blobs_.insert(blob.sha256).second) return;
    report_.objects++;
    if (judge(keys::blob(blob.sha256),
              [&] { static_cast<void>(repository_.get_blob(blob, context_)); })) {
      report_.bytes += blob.size_bytes;
    }
  }

  bool check_packs(const Version& version, const Layout& layout, ProgressCounter& counter) {
    Runs runs;
    bool whole = true;
    for (const PackRef& ref : version.manifest.delta->packs) {
      std::string key = keys::pack(version.number(), ref.name);
      report_.objects++;
      whole &= judge(key, [&] {
        auto index = repository_.get_pack_index(version.number(), ref, layout, context_);
        runs.runs.push_back(
            {key, index->data_offset_bytes(), index->data_size_bytes(), index->pieces()});
        runs.indexes.push_back(std::move(index));
        report_.bytes += ref.head_bytes;
      });
    }
    return check_runs(runs, counter) && whole;
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
      runs.runs.push_back({keys::snapshot_file(version.number(), ref.nonce, file.path), 0,
                           file.size_bytes, runs.snapshot.pieces[i]});
    }
    return check_runs(runs, counter);
  }

  /// Fetches and hashes every piece; reports each object that is damaged, once.
  bool check_runs(const Runs& runs, ProgressCounter& counter) {
    struct Part {
      std::size_t run;
      std::uint64_t first;
    };
    std::vector<Part> parts;
    for (std::size_t i = 0; i < runs.runs.size(); i++) {
      const std::size_t pieces = runs.runs[i].hashes.size();
      // An object without data has one part too: the look behind its end.
      for (std::uint64_t first = 0; first == 0 || first < pieces; first += kPiecesPerFetch) {
        parts.push_back({i, first});
      }
    }
    std::vector<std::string> failures(runs.runs.size());
    std::mutex mutex;  // guards `failures` and the count of bytes
    const unsigned threads = request_threads(repository_.bucket(context_), 0);
    parallel_for(parts.size(), threads, context_, [&](std::size_t i) {
      const PieceRun& run = runs.runs[parts[i].run];
      try {
        const std::uint64_t bytes = check_part(run, parts[i].first);
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

  /// Returns: the bytes that were fetched.
  std::uint64_t check_part(const PieceRun& run, std::uint64_t first) {
    Bucket& bucket = repository_.bucket(context_);
    if (first == 0) check_end(bucket, run);
    if (run.size_bytes == 0) return 0;
    const auto size = static_cast<std::size_t>(run.bytes_of(first, kPiecesPerFetch));
    const auto buffer = std::make_unique_for_overwrite<std::byte[]>(size);
    fetch_pieces(bucket, run, first, {buffer.get(), size}, context_);
    return size;
  }

  void check_end(Bucket& bucket, const PieceRun& run) {
    std::array<std::byte, 1> byte{};
    const std::uint64_t end = run.offset_bytes + run.size_bytes;
    std::size_t behind = 0;
    try {
      behind = bucket.get(run.key, end, byte, context_);
    } catch (const Error& error) {
      if (!is_verdict(error)) throw;
      throw ObjectError(error.code(), run.key, error.what());
    }
    if (behind == 0) return;
    throw ObjectError(ErrorCode::corrupt, run.key,
                      fmt::format("{} goes on behind its end at byte {}", run.key, end));
  }

  // ---- decoding ----

  void check_decoding(const VersionPtr& version, bool packs, bool snapshot) {
    std::optional<Decoded> by_delta, by_snapshot;
    if (packs && decoded_)
      by_delta = decode({decoded_->base.version, &decoded_->base, 0, 1}, version);
    if (snapshot) by_snapshot = decode({version, nullptr, 0, 0}, version);
    decoded_ = by_delta ? std::move(by_delta) : std::move(by_snapshot);
  }

  /// nullopt if it does not decode; that is reported then.
  std::optional<Decoded> decode(const Way& way, const VersionPtr& version) {
    std::optional<Decoded> result;
    judge(keys::manifest(version->number()), [&] {
      Plan plan = make_plan_by(way, history_, version, context_);
      plan.version = without_blobs(*version);
      Decoded decoded{ScratchDirectory(scratch_, "verify-"), {}};
      WriteOptions options;
      options.directory = decoded.directory.path();
      options.spool = scratch_;
      options.sync = false;
      options.coder = coder_;
      write_version(plan, repository_, options, context_, {});
      decoded.base = {version, plan.layout, decoded.directory.path(), std::move(plan.hashes)};
      result = std::move(decoded);
    });
    return result;
  }

  /// Blobs are checked by themselves; a damaged one must not keep the tensors from being checked.
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

  VerifyReport report_;
  std::set<std::string> reported_;
  std::map<Sha256, LayoutPtr> layouts_;  // nullptr: damaged
  std::set<Sha256> blobs_;
  VersionPtr previous_;
  std::optional<Decoded> decoded_;  // the version before
};

}  // namespace

VerifyReport verify_repository(History& history, const std::filesystem::path& scratch,
                               const Context& context, const Progress& progress,
                               const kernels::SharedCoder& coder) {
  return RepositoryVerifier(history, scratch, context, progress, coder).run();
}

}  // namespace weightfs
