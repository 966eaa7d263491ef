// du, gc: what a bucket holds, and what it need not keep.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "fs/base/coder_choice.hpp"
#include "fs/base/format_values.hpp"
#include "fs/base/text_table.hpp"
#include "fs/commands/command_context.hpp"
#include "fs/commands/skip_store.hpp"
#include "store/base/bytes.hpp"
#include "store/inspect/check_skip.hpp"
#include "store/readers/reader_list.hpp"
#include "store/retention/collect.hpp"
#include "store/skips/make_skip.hpp"

namespace weightfs::fs {
namespace {

using Align = TextTable::Align;
using Place = HeldObject::Place;

Json to_json(const ObjectTotal& total) {
  return {{"objects", total.objects}, {"bytes", total.bytes}};
}

Json to_json(const VersionRanges& set) {
  Json json = Json::array();
  for (const auto& [first, last] : set.ranges()) json.push_back({first, last});
  return json;
}

template <typename Skips>
Json skips_json(const Skips& skips) {
  Json json = Json::array();
  for (const VersionPair& skip : skips) json.push_back({skip.from, skip.to});
  return json;
}

std::string text_of(const ObjectTotal& total) {
  return fmt::format("{} in {}", human_bytes(total.bytes), count_text(total.objects, "object"));
}

// ---- what there is ----

struct Usage {
  explicit Usage(const Inventory& inventory) {
    for (const HeldObject& object : inventory.objects) {
      kinds[static_cast<std::size_t>(object.kind)].add(object.size_bytes);
      all.add(object.size_bytes);
      if (object.place == Place::orphan) orphans.add(object.size_bytes);
      if (object.place == Place::above_head) above_head.add(object.size_bytes);
      if (object.place == Place::unfinished) unfinished.add(object.size_bytes);
      if (object.place == Place::named) total_of(object).add(object.size_bytes);
    }
  }
  struct Version {
    ObjectTotal packs, snapshot, skips;  // these lead to it
  };
  ObjectTotal& total_of(const HeldObject& object) {
    Version& version = versions[object.version];
    if (object.kind == ObjectKind::pack) return version.packs;
    return object.kind == ObjectKind::snapshot ? version.snapshot : version.skips;
  }
  std::array<ObjectTotal, kObjectKinds> kinds{};
  ObjectTotal all, orphans, above_head, unfinished;
  std::map<std::uint64_t, Version> versions;
};

/// "kept", "needed" by a kept one, "old": gc would retire it; "retired".
std::string state_of(const VersionFacts& version, const CollectReport& report,
                     const KeepPolicy& policy) {
  if (report.log.versions.contains(version.number)) return "retired";
  if (report.retired.versions.contains(version.number)) return "old";
  switch (reason_to_keep(version, report.inventory.head(), policy)) {
    case KeepReason::newest:
      return "kept";
    case KeepReason::every:
      return "kept: every";
    case KeepReason::tag:
      return "kept: tag";
    case KeepReason::none:
      break;
  }
  return "needed";
}

Json du_json(const CollectReport& report, const Usage& usage, const KeepPolicy& policy) {
  Json kinds = Json::object();
  for (std::size_t i = 0; i < kObjectKinds; i++) {
    kinds[std::string(plural_of(static_cast<ObjectKind>(i)))] = to_json(usage.kinds[i]);
  }
  Json versions = Json::array();
  for (const VersionFacts& version : report.inventory.versions) {
    const auto found = usage.versions.find(version.number);
    const Usage::Version held = found == usage.versions.end() ? Usage::Version{} : found->second;
    versions.push_back({{"version", version.number},
                        {"tag", version.tag},
                        {"state", state_of(version, report, policy)},
                        {"packs", to_json(held.packs)},
                        {"skips", to_json(held.skips)},
                        {"snapshot", to_json(held.snapshot)}});
  }
  return {{"head", report.inventory.head()},
          {"total", to_json(usage.all)},
          {"kinds", std::move(kinds)},
          {"versions", std::move(versions)},
          {"orphans", to_json(usage.orphans)},
          {"above_head", to_json(usage.above_head)},
          {"unfinished_skips", to_json(usage.unfinished)},
          {"retired",
           {{"versions", to_json(report.log.versions)}, {"waiting", to_json(report.waiting)}}},
          {"gc",
           {{"objects", report.retired.objects.size()},
            {"bytes", report.retired.bytes},
            {"versions", to_json(report.retired.versions)}}}};
}

std::string du_text(const CollectReport& report, const Usage& usage, const KeepPolicy& policy,
                    std::size_t columns) {
  TextTable kinds({{"KIND"}, {"OBJECTS", Align::right}, {"BYTES", Align::right}});
  for (std::size_t i = 0; i < kObjectKinds; i++) {
    if (usage.kinds[i].objects == 0) continue;
    kinds.add({std::string(plural_of(static_cast<ObjectKind>(i))),
               std::to_string(usage.kinds[i].objects), human_bytes(usage.kinds[i].bytes)});
  }
  kinds.add({"all", std::to_string(usage.all.objects), human_bytes(usage.all.bytes)});
  TextTable versions({{"VERSION", Align::right},
                      {"PACKS", Align::right},
                      {"SNAPSHOT", Align::right},
                      {"SKIPS", Align::right},
                      {"STATE"},
                      {"TAG"}});
  for (auto version = report.inventory.versions.rbegin();
       version != report.inventory.versions.rend(); ++version) {
    const auto found = usage.versions.find(version->number);
    const Usage::Version held = found == usage.versions.end() ? Usage::Version{} : found->second;
    const auto cell = [](const ObjectTotal& total) {
      return total.objects == 0 ? std::string("-") : human_bytes(total.bytes);
    };
    versions.add({std::to_string(version->number), cell(held.packs), cell(held.snapshot),
                  cell(held.skips), state_of(*version, report, policy), version->tag});
  }
  std::string text = kinds.text(columns);
  if (report.inventory.head() != 0) text += "\n" + versions.text(columns);
  text += fmt::format("\norphans of published versions: {}\n", text_of(usage.orphans));
  text += fmt::format("above the newest version: {}; a publisher may still need them\n",
                      text_of(usage.above_head));
  if (usage.unfinished.objects != 0) {
    text += fmt::format("skip deltas without a record: {}; their maker may still be at work\n",
                        text_of(usage.unfinished));
  }
  if (report.waiting.objects != 0) {
    text += fmt::format("retired, not removed yet: {}\n", text_of(report.waiting));
  }
  return text + fmt::format("gc would retire {}\n",
                            text_of({report.retired.objects.size(), report.retired.bytes}));
}

// ---- gc ----

/// Skips that versions are built from, with those of a dry run.
Json needs_json(const CollectReport& report) {
  NeededSkips needs = report.log.needs;
  needs.insert(report.retired.needs.begin(), report.retired.needs.end());
  Json json = Json::array();
  for (const auto& [skip, sha256] : needs) {
    if (!report.retired.skips.contains(skip)) json.push_back({skip.from, skip.to});
  }
  return json;
}

Json gc_json(const CollectReport& report, const ObjectTotal& readers, bool deletes) {
  Json json{{"head", report.inventory.head()},
            {"dry_run", !deletes},
            {"records", report.log.records.size()},
            {"retired",
             {{"objects", report.retired.objects.size()},
              {"bytes", report.retired.bytes},
              {"orphans", report.retired.orphans},
              {"versions", to_json(report.retired.versions)},
              {"skips", skips_json(report.retired.skips)},
              {"keys", report.retired.objects}}},
            {"skips_made", skips_json(report.made)},
            {"skips_missing", skips_json(report.retired.missing)},
            {"skips_needed", needs_json(report)},
            {"removed", to_json(report.removed)},
            {"readers", to_json(readers)},
            {"waiting", to_json(report.waiting)}};
  if (report.next_due) json["next_due"] = *report.next_due;
  return json;
}

std::string kept_text(const CollectReport& report, const KeepPolicy& policy) {
  std::map<KeepReason, VersionRanges> kept;
  VersionRanges needed;
  for (const VersionFacts& version : report.inventory.versions) {
    const std::uint64_t number = version.number;
    if (report.log.versions.contains(number) || report.retired.versions.contains(number)) continue;
    const KeepReason reason = reason_to_keep(version, report.inventory.head(), policy);
    reason == KeepReason::none ? needed.add(number) : kept[reason].add(number);
  }
  std::string text;
  const auto add = [&](const VersionRanges& versions, std::string_view why) {
    if (!versions.empty()) text += fmt::format("stays: {}: {}\n", versions.text(), why);
  };
  add(kept[KeepReason::newest], "the newest");
  add(kept[KeepReason::every], "divisible by --keep-every");
  add(kept[KeepReason::tag], "tagged");
  add(needed, "a version that stays is built from them");
  return text;
}

std::string gc_text(const CollectReport& report, const ObjectTotal& readers,
                    const KeepPolicy& policy, bool deletes) {
  std::string text = kept_text(report, policy);
  const Retirement& retired = report.retired;
  const std::string_view verb = deletes ? "retired" : "would retire";
  if (!retired.versions.empty()) {
    text += fmt::format("{}: versions {}\n", verb, retired.versions.text());
  }
  text += fmt::format("{}: {}, {} of them orphans\n", verb,
                      text_of({retired.objects.size(), retired.bytes}), retired.orphans);
  if (!report.made.empty()) {
    text += fmt::format("made: {}\n", count_text(report.made.size(), "skip delta"));
  }
  if (!deletes && !retired.missing.empty()) {
    text += fmt::format("would first make {}, which may replace more deltas\n",
                        count_text(retired.missing.size(), "skip delta"));
  }
  if (!retired.needs.empty()) {
    text += fmt::format("{}: {}\n", deletes ? "now needed" : "would be needed",
                        count_text(retired.needs.size(), "skip delta"));
  }
  if (deletes) text += fmt::format("removed: {}\n", text_of(report.removed));
  if (readers.objects != 0) {
    text +=
        fmt::format("{}: {} of readers that were not heard of for 7 days\n",
                    deletes ? "removed" : "would remove", count_text(readers.objects, "record"));
  }
  if (report.waiting.objects != 0) {
    text += fmt::format("waiting for their grace to end: {}", text_of(report.waiting));
    text += report.next_due ? fmt::format(", the first from {} on\n", time_text(*report.next_due))
                            : "\n";
  }
  if (!deletes) text += "nothing was changed; --delete does it\n";
  return text;
}

/// Counts records of readers that are gone, and removes them if `deletes`.
ObjectTotal take_old_readers(Reading& reading, bool deletes) {
  ObjectTotal total;
  const auto old = deletes ? remove_old_readers(*reading.repository, reading.context)
                           : find_old_readers(*reading.repository, reading.context);
  for (const ObjectInfo& object : old) total.add(object.size_bytes);
  return total;
}

}  // namespace

int run_du(Call& call) {
  Reading reading(call);
  const CollectReport report =
      plan_collection(*reading.repository, {call.options.gc.keep, {}, {}}, reading.context);
  const Usage usage(report.inventory);
  const KeepPolicy& policy = call.options.gc.keep;
  call.print(du_json(report, usage, policy), du_text(report, usage, policy, call.output.columns));
  return 0;
}

int run_gc(Call& call) {
  Reading reading(call);
  const GcFlags& flags = call.options.gc;
  const CollectOptions options{flags.keep, flags.grace, {}};
  const CoderChoice choice(call.options.host.gpu);
  std::optional<SkipStore> opened;
  SkipWork skips;
  skips.make = [&](const VersionPair& versions, const Context& context) {
    if (!opened) opened.emplace(reading, call.options.host.store, call.progress());
    MakeSkipOptions how;
    how.may_materialize = true;
    how.coder = choice.coder();
    return make_skip(opened->store(), opened->history(), versions, how, context, call.progress())
        .has_value();
  };
  skips.check = [&](const SkipRecord& record, const Context& context) {
    (void)check_skip(reading.history, record, context);
  };
  const CollectReport report = flags.deletes
                                   ? collect(*reading.repository, options, skips, reading.context)
                                   : plan_collection(*reading.repository, options, reading.context);
  const ObjectTotal readers = take_old_readers(reading, flags.deletes);
  call.print(gc_json(report, readers, flags.deletes),
             gc_text(report, readers, flags.keep, flags.deletes));
  if (opened) call.sync_kept(opened->store().images(), reading.context);
  return 0;
}

}  // namespace weightfs::fs
