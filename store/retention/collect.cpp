#include "store/retention/collect.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <utility>
#include <vector>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/sha256.hpp"
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
  Collector(Repository& repository, const CollectOptions& options, const Context& context)
      : repository_(repository), options_(options), context_(context) {}

  CollectReport plan() {
    read();
    report_.retired = plan_retirement(report_.inventory, report_.log, options_.keep, kUnlimited);
    note_waiting();
    return std::move(report_);
  }

  CollectReport run() {
    retire();
    remove_due();
    note_waiting();
    return std::move(report_);
  }

 private:
  static constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};

  /// The log is read each time; the rest again if the log was computed from newer versions.
  void read() {
    report_.log = read_gc_log(repository_, context_);
    std::uint64_t head = 0;
    for (const GcRecord& record : report_.log.records) head = std::max(head, record.head);
    if (is_read_ && head <= report_.inventory.head()) return;
    report_.inventory = read_inventory(repository_, context_);
    is_read_ = true;
    if (head <= report_.inventory.head()) return;
    throw Error(ErrorCode::corrupt,
                fmt::format("the log of retired objects of {} knows version {}, but the newest "
                            "version there is {}: versions were lost",
                            repository_.url(), head, report_.inventory.head()));
  }

  // ---- retiring ----

  /// Adds records until nothing is left to retire.
  void retire() {
    for (unsigned tries = 0; tries < kTriesMax; tries++) {
      read();
      const Retirement next = plan_retirement(report_.inventory, report_.log, options_.keep);
      if (next.empty()) return;
      repository_.require_feature(kFeatureRetired, context_);
      if (append_gc_record(record_of(next), repository_, context_)) note_retired(next);
    }
    throw Error(ErrorCode::conflict,
                fmt::format("others add to the log of retired objects of {} all the time; run it "
                            "again",
                            repository_.url()));
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
    record.versions = next.versions;
    record.objects.assign(next.objects.begin(), next.objects.end());
    record.nonce = random_hex(kNonceDigits / 2);
    return record;
  }

  void note_retired(const Retirement& next) {
    Retirement& all = report_.retired;
    all.deltas.add(next.deltas);
    all.snapshots.add(next.snapshots);
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
    const auto place = find_version_key(key);
    const bool exists = place && place->version <= report_.inventory.head();
    if (exists) {
      const bool is_named = report_.inventory.versions[place->version - 1].names(*place);
      const bool is_pack = place->kind == VersionKey::Kind::pack;
      const VersionRanges& retired = is_pack ? report_.log.deltas : report_.log.snapshots;
      if (!is_named || retired.contains(place->version)) return;
    }
    throw Error(ErrorCode::corrupt,
                fmt::format("the log of retired objects names {}, which is still needed or of no "
                            "known version; nothing is removed",
                            key));
  }

  /// Whether what the whole log leaves is enough for the newest version and all that no record
  /// retired.
  void check_log() const {
    const BuildableVersions left(report_.inventory.versions, report_.log.deltas,
                                 report_.log.snapshots);
    for (const VersionFacts& version : report_.inventory.versions) {
      const bool is_retired = report_.log.versions.contains(version.number);
      if (is_retired != left.can_build(version.number)) continue;
      throw Error(ErrorCode::corrupt,
                  fmt::format("the log of retired objects contradicts itself about version {}; "
                              "nothing is removed",
                              version.number));
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
    std::vector<const HeldObject*> first, then;
    for (const HeldObject& object : report_.inventory.objects) {
      if (!due.contains(object.key)) continue;
      const bool is_hashes = find_version_key(object.key).value().is_hashes;
      (is_hashes ? first : then).push_back(&object);
    }
    if (first.empty() && then.empty()) return;
    check_log();
    for (const std::string& key : due) check_may_go(key);
    repository_.require_feature(kFeatureRetired, context_);
    remove_hashes(then, due);
    remove_all(first);
    remove_all(then);
  }

  /// The hashes of snapshots go before their files, even if LIST did not show them: whoever finds a
  /// file missing must not plan with that snapshot again.
  void remove_hashes(const std::vector<const HeldObject*>& objects,
                     const std::set<std::string, std::less<>>& due) {
    std::set<std::string, std::less<>> hashes;
    for (const HeldObject* object : objects) {
      const auto place = find_version_key(object->key);
      if (!place || place->kind != VersionKey::Kind::snapshot) continue;
      std::string key = keys::snapshot_hashes(place->version, place->name);
      if (due.contains(key)) hashes.insert(std::move(key));
    }
    for (const std::string& key : hashes) repository_.bucket(context_).remove(key, context_);
  }

  void remove_all(const std::vector<const HeldObject*>& objects) {
    Bucket& bucket = repository_.bucket(context_);
    parallel_for(objects.size(), request_threads(bucket, 0), context_,
                 [&](std::size_t i) { bucket.remove(objects[i]->key, context_); });
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
  const Context& context_;
  CollectReport report_;
  bool is_read_ = false;
  std::set<std::string, std::less<>> removed_;
};

}  // namespace

CollectReport plan_collection(Repository& repository, const CollectOptions& options,
                              const Context& context) {
  return Collector(repository, options, context).plan();
}

CollectReport collect(Repository& repository, const CollectOptions& options,
                      const Context& context) {
  if (options.grace.count() < 0 ||
      static_cast<std::uint64_t>(options.grace.count()) > kGraceSecondsMax) {
    throw Error(ErrorCode::invalid, "the grace must be between 0 seconds and 10 years");
  }
  return Collector(repository, options, context).run();
}

}  // namespace weightfs
