#include "store/retention/collect.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/base/sha256.hpp"
#include "store/repository/skips.hpp"
#include "store/threads/parallel.hpp"

namespace weightfs {
namespace {

constexpr unsigned kTriesMax = 100;  // each adds a record, or finds that another gc added one

using Time = Bucket::Time;

std::int64_t seconds_of(Time time) {
  return std::chrono::duration_cast<std::chrono::seconds>(time.time_since_epoch()).count();
}

class Collector {
 public:
  Collector(Repository& repository, const CollectOptions& options, const SkipWork& skips,
            const Context& context)
      : repository_(repository), options_(options), skip_work_(skips), context_(context) {}

  CollectReport plan() {
    read();
    report_.retired =
        plan_retirement(report_.inventory, report_.log, options_.keep, {}, kUnlimited);
    note_waiting();
    return std::move(report_);
  }

  CollectReport run() {
    // First what needs no room: the rest fails where the bucket is full.
    read();
    remove_due();
    remove_hints(ObjectKind::part);
    remove_hints(ObjectKind::early);
    make_skips();
    retire();
    remove_due();
    note_waiting();
    return std::move(report_);
  }

 private:
  static constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};

  /// The log is read each time, and the records of skips that it needs; the rest again if the log
  /// was computed from newer versions.
  void read() {
    wait_turn();
    report_.log = read_gc_log(repository_, context_);
    std::uint64_t head = 0;
    for (const GcRecord& record : report_.log.records) head = std::max(head, record.head);
    if (!is_read_ || head > report_.inventory.head()) {
      report_.inventory = read_inventory(repository_, context_, options_.wait_turn);
    }
    is_read_ = true;
    if (head <= report_.inventory.head()) return read_needed_skips();
    throw Error(ErrorCode::corrupt,
                fmt::format("the log of retired objects of {} knows version {}, but the newest "
                            "version there is {}: versions were lost",
                            repository_.url(), head, report_.inventory.head()));
  }

  void read_needed_skips() {
    for (const auto& [versions, sha256] : report_.log.needs) {
      if (report_.inventory.skips.contains(versions)) continue;  // a lagging LIST hid it
      wait_turn();
      (void)read_skip(report_.inventory, repository_, versions, context_);
    }
  }

  void wait_turn() const {
    if (options_.wait_turn) options_.wait_turn(context_);
  }

  // ---- skips ----

  /// Makes what is missing, each once.
  void make_skips() {
    if (!skip_work_.make || !skip_work_.check) return;
    for (;;) {
      read();
      const auto missing = next_retirement().missing;
      if (missing.empty()) return;
      for (const VersionPair& versions : missing) make_skip(versions);
    }
  }

  void make_skip(const VersionPair& versions) {
    const bool is_made = is_done_for(versions, "cannot be made", [&] {
      return skip_work_.make(versions, context_) &&
             read_skip(report_.inventory, repository_, versions, context_);
    });
    if (is_made) {
      report_.made.push_back(versions);
    } else {
      unusable_.skips.insert(versions);
    }
  }

  /// Runs `body`.  Returns: what it returns, or false if it throws an error that concerns this skip
  /// only: then deltas stay.
  template <typename Body>
  bool is_done_for(const VersionPair& versions, std::string_view what, Body&& body) {
    wait_turn();
    try {
      return body();
    } catch (const Error& error) {
      const bool is_of_skip =
          error.code() == ErrorCode::corrupt || error.code() == ErrorCode::not_found ||
          error.code() == ErrorCode::unsupported || error.code() == ErrorCode::no_space;
      if (!is_of_skip) throw;
      log_warning(fmt::format("gc keeps deltas, since the skip delta from version {} to {} {}: {}",
                              versions.from, versions.to, what, error.what()));
      return false;
    }
  }

  /// Whether all are fit that a record would need; otherwise those that are not are noted.
  bool check_needs(const NeededSkips& needs) {
    bool are_fit = true;
    for (const auto& [versions, sha256] : needs) {
      if (fit_.contains(versions)) continue;
      const bool is_fit = is_fit_skip(versions);
      (is_fit ? fit_ : unusable_.skips).insert(versions);
      are_fit &= is_fit;
    }
    return are_fit;
  }

  bool is_fit_skip(const VersionPair& versions) {
    if (!skip_work_.check) return false;
    return is_done_for(versions, "cannot be used", [&] {
      skip_work_.check(report_.inventory.skips.at(versions).record, context_);
      return true;
    });
  }

  // ---- retiring ----

  Retirement next_retirement() {
    try {
      return plan_retirement(report_.inventory, report_.log, options_.keep, unusable_);
    } catch (const Error& error) {
      if (lost_.empty()) throw;
      throw Error(error.code(), fmt::format("{}; {}", error.what(), lost_));
    }
  }

  /// Adds records until nothing is left to retire.
  void retire() {
    for (unsigned tries = 0; tries < kTriesMax; tries++) {
      read();
      Retirement next = next_retirement();
      while (!check_needs(next.needs) || (!next.empty() && !check_starts(next.starts))) {
        next = next_retirement();  // with fewer skips or snapshots each time
      }
      if (next.empty()) return;
      wait_turn();
      repository_.require_feature(kFeatureRetired, context_);
      if (append_gc_record(record_of(next), repository_, context_)) note_retired(next);
    }
    throw Error(ErrorCode::conflict,
                fmt::format("others add to the log of retired objects of {} all the time; run it "
                            "again",
                            repository_.url()));
  }

  /// Whether the snapshots that stay are there: one of which objects were lost seems cheap, and
  /// what would still lead to a version must not be retired for it.  If one is not, it is noted.
  bool check_starts(const VersionRanges& starts) {
    std::shared_ptr<const Layout> layout;
    for (const auto& [first, last] : starts.ranges()) {
      for (std::uint64_t number = first; number <= last; number++) {
        if (whole_.contains(number)) continue;
        if (!is_whole(report_.inventory.versions[number - 1], layout)) return false;
        whole_.add(number);
      }
    }
    return true;
  }

  /// `layout`: any, or none; becomes the version's.
  bool is_whole(const VersionFacts& version, std::shared_ptr<const Layout>& layout) {
    wait_turn();
    const bool is_known = layout && layout->id() == version.layout.sha256;
    if (!is_known) layout = repository_.get_layout(version.layout, context_);
    try {
      check_snapshot(version, *layout, report_.inventory, repository_, context_,
                     options_.wait_turn);
      return true;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::corrupt) throw;
      lost_ = error.what();
      log_warning(fmt::format("gc builds nothing from the snapshot of version {}: {}",
                              version.number, lost_));
      unusable_.snapshots.add(version.number);
      return false;
    }
  }

  GcRecord record_of(const Retirement& next) {
    GcRecord record;
    record.repository = repository_.id();
    record.number = report_.log.records.size() + 1;
    record.previous_sha256 = report_.log.last_sha256;
    record.head = report_.inventory.head();
    record.time = seconds_of(repository_.bucket(context_).now(context_));
    record.grace_s = static_cast<std::uint64_t>(options_.grace.count());
    record.deltas = next.deltas;
    record.snapshots = next.snapshots;
    record.skips = next.skips;
    record.needs = next.needs;
    record.versions = next.versions;
    record.objects.assign(next.objects.begin(), next.objects.end());
    record.nonce = random_hex(kNonceDigits / 2);
    return record;
  }

  void note_retired(const Retirement& next) {
    Retirement& all = report_.retired;
    all.deltas.add(next.deltas);
    all.snapshots.add(next.snapshots);
    all.skips.insert(next.skips.begin(), next.skips.end());
    all.needs.insert(next.needs.begin(), next.needs.end());
    all.versions.add(next.versions);
    all.objects.insert(next.objects.begin(), next.objects.end());
    all.bytes += next.bytes;
    all.orphans += next.orphans;
    all.orphan_bytes += next.orphan_bytes;
  }

  // ---- removing ----

  /// When the bucket wrote each record, by number; those that LIST does not show are missing.
  std::map<std::uint64_t, Time> times_of_records() {
    std::map<std::string, std::uint64_t, std::less<>> numbers;
    for (const GcRecord& record : report_.log.records) {
      numbers.emplace(keys::gc_record(record.number), record.number);
    }
    std::map<std::uint64_t, Time> times;
    Bucket& bucket = repository_.bucket(context_);
    for (std::string after;;) {
      wait_turn();
      const auto page = bucket.list_objects(keys::kGc, after, context_);
      if (page.empty() || page.back().key <= after) return times;
      after = page.back().key;
      for (const ObjectInfo& object : page) {
        const auto known = numbers.find(object.key);
        if (known != numbers.end()) times.emplace(known->second, object.written);
      }
    }
  }

  /// Whether the grace of a record is over.  A time in the future is a clock that cannot be
  /// trusted.
  static bool is_due(const GcRecord& record, Time written, Time now) {
    return written <= now && now - written >= std::chrono::seconds(record.grace_s);
  }

  /// Throws if a record names an object that may not be removed: then nothing is.
  void check_may_go(const std::string& key) const {
    const auto skip = find_skip_key(key);
    if (skip ? may_go(*skip) : may_go(find_version_key(key).value())) return;
    throw Error(ErrorCode::corrupt,
                fmt::format("the log of retired objects names {}, which is still needed or of no "
                            "known version; nothing is removed",
                            key));
  }

  [[nodiscard]] bool may_go(const VersionKey& key) const {
    if (key.version > report_.inventory.head()) return false;
    if (!report_.inventory.versions[key.version - 1].names(key)) return true;
    const bool is_pack = key.kind == VersionKey::Kind::pack;
    return (is_pack ? report_.log.deltas : report_.log.snapshots).contains(key.version);
  }

  [[nodiscard]] bool may_go(const SkipKey& key) const {
    if (key.versions.to > report_.inventory.head()) return false;
    if (report_.log.skips.contains(key.versions)) return true;
    const auto skip = report_.inventory.skips.find(key.versions);
    return !key.pack.empty() && skip != report_.inventory.skips.end() &&
           !std::ranges::binary_search(skip->second.packs, key.pack);
  }

  /// Whether what the whole log leaves is enough for the newest version and all that no record
  /// retired.
  void check_log() const {
    check_needed_skips();
    const BuildableVersions left(report_.inventory.versions, report_.log.deltas,
                                 report_.log.snapshots, report_.log.needs);
    for (const VersionFacts& version : report_.inventory.versions) {
      const bool is_retired = report_.log.versions.contains(version.number);
      if (is_retired != left.can_build(version.number)) continue;
      throw Error(ErrorCode::corrupt,
                  fmt::format("the log of retired objects contradicts itself about version {}; "
                              "nothing is removed",
                              version.number));
    }
  }

  /// Whether what replaces deltas is there: as long as they are, it can be made good.
  void check_needed_skips() const {
    for (const auto& [versions, sha256] : report_.log.needs) {
      const auto skip = report_.inventory.skips.find(versions);
      if (skip != report_.inventory.skips.end() && skip->second.sha256 == sha256) continue;
      throw Error(ErrorCode::corrupt,
                  fmt::format("object {}: versions are built from this skip delta, but its record "
                              "is missing, damaged or another one; nothing is removed. Restore it",
                              keys::skip_record(versions)));
    }
  }

  void remove_due() {
    if (report_.log.records.empty()) return;
    const std::map<std::uint64_t, Time> times = times_of_records();
    const Time now = repository_.bucket(context_).now(context_);
    std::set<std::string, std::less<>> due;
    for (const GcRecord& record : report_.log.records) {
      const auto written = times.find(record.number);
      if (written == times.end() || !is_due(record, written->second, now)) continue;
      due.insert(record.objects.begin(), record.objects.end());
    }
    std::erase_if(due, [&](const std::string& key) { return is_undecided(key); });
    std::vector<const HeldObject*> first, then;
    for (const HeldObject& object : report_.inventory.objects) {
      if (!due.contains(object.key) || removed_.contains(object.key)) continue;
      (goes_first(object.key) ? first : then).push_back(&object);
    }
    if (first.empty() && then.empty()) return;
    check_log();
    for (const std::string& key : due) check_may_go(key);
    repository_.require_feature(kFeatureRetired, context_);
    remove_heads(then, due);
    remove_all(first);
    remove_all(then);
  }

  /// What hosts told each other of versions before they existed: nothing names it, and nobody reads
  /// it any more.  Who may not remove it leaves it.
  void remove_hints(ObjectKind kind) {
    std::vector<const HeldObject*> hints;
    for (const HeldObject& object : report_.inventory.objects) {
      const bool is_left = object.version != 0 && object.version <= report_.inventory.head();
      if (object.kind == kind && is_left) hints.push_back(&object);
    }
    try {
      remove_all(hints);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::permission) throw;
      log_warning(fmt::format("{} of versions that exist stay: {}", plural_of(kind), error.what()));
    }
  }

  /// An orphan of a skip delta whose record cannot be read now: only that tells what is one.
  [[nodiscard]] bool is_undecided(const std::string& key) const {
    const auto skip = find_skip_key(key);
    return skip && !report_.log.skips.contains(skip->versions) &&
           report_.inventory.unfinished.contains(skip->versions);
  }

  static bool goes_first(std::string_view key) {
    if (const auto skip = find_skip_key(key)) return skip->pack.empty();
    return find_version_key(key).value().is_hashes;
  }

  /// The hashes of snapshots go before their files, and the records of skips before their packs,
  /// even if LIST did not show them: whoever finds the rest missing must not plan with it again.
  void remove_heads(const std::vector<const HeldObject*>& objects,
                    const std::set<std::string, std::less<>>& due) {
    std::set<std::string, std::less<>> heads;
    for (const HeldObject* object : objects) {
      std::string head;
      if (const auto skip = find_skip_key(object->key)) {
        head = keys::skip_record(skip->versions);
      } else if (object->kind == ObjectKind::snapshot) {
        const VersionKey place = find_version_key(object->key).value();
        head = keys::snapshot_hashes(place.version, place.name);
      }
      if (due.contains(head)) heads.insert(std::move(head));
    }
    for (const std::string& key : heads) {
      wait_turn();
      repository_.bucket(context_).remove(key, context_);
    }
  }

  void remove_all(const std::vector<const HeldObject*>& objects) {
    Bucket& bucket = repository_.bucket(context_);
    parallel_for(objects.size(), request_threads(bucket, 0), context_, [&](std::size_t i) {
      wait_turn();
      bucket.remove(objects[i]->key, context_);
    });
    for (const HeldObject* object : objects) {
      report_.removed.add(object->size_bytes);
      removed_.insert(object->key);
    }
  }

  void note_waiting() {
    for (const HeldObject& object : report_.inventory.objects) {
      if (!report_.log.objects.contains(object.key) || removed_.contains(object.key)) continue;
      report_.waiting.add(object.size_bytes);
    }
    if (report_.waiting.objects == 0) return;
    for (const GcRecord& record : report_.log.records) {
      const bool waits = std::ranges::any_of(record.objects, [&](const std::string& key) {
        return is_held(key) && !removed_.contains(key);
      });
      if (!waits) continue;
      const std::int64_t due = record.time + static_cast<std::int64_t>(record.grace_s);
      report_.next_due = std::min(report_.next_due.value_or(due), due);
    }
  }

  [[nodiscard]] bool is_held(const std::string& key) const {
    return std::ranges::binary_search(report_.inventory.objects, key, {}, &HeldObject::key);
  }

  Repository& repository_;
  const CollectOptions& options_;
  const SkipWork& skip_work_;
  const Context& context_;
  CollectReport report_;
  bool is_read_ = false;
  std::set<VersionPair> fit_;  // skips that were checked
  Unusable unusable_;
  std::string lost_;     // what unusable snapshots lack: the last one's error
  VersionRanges whole_;  // versions whose snapshots are there
  std::set<std::string, std::less<>> removed_;
};

}  // namespace

CollectReport plan_collection(Repository& repository, const CollectOptions& options,
                              const Context& context) {
  return Collector(repository, options, SkipWork{}, context).plan();
}

CollectReport collect(Repository& repository, const CollectOptions& options, const SkipWork& skips,
                      const Context& context) {
  if (options.grace.count() < 0 ||
      static_cast<std::uint64_t>(options.grace.count()) > kGraceSecondsMax) {
    throw Error(ErrorCode::invalid, "the grace must be between 0 seconds and 10 years");
  }
  return Collector(repository, options, skips, context).run();
}

}  // namespace weightfs
