#include <fmt/format.h>

#include <array>
#include <chrono>

#include "fs/cli/command_options.hpp"
#include "fs/cli/command_specs.hpp"
#include "store/base/error.hpp"

namespace weightfs::fs {
namespace {

/// --keep-tagged replaces the default with what is given; an empty one keeps no tag.
void add_kept_tag(Options& options, std::string_view glob) {
  if (!options.gc.tags_given) options.gc.keep.tags.clear();
  options.gc.tags_given = true;
  if (!glob.empty()) options.gc.keep.tags.emplace_back(glob);
}

/// "24h", "90m", "2d", "0s": a whole number and its unit.
std::chrono::seconds parse_time(std::string_view text) {
  constexpr std::string_view kUnits = "smhd";
  constexpr std::array<std::int64_t, 4> kSeconds{1, 60, 3600, 24 * 3600};
  const std::size_t unit = text.empty() ? kUnits.npos : kUnits.find(text.back());
  if (unit == kUnits.npos) {
    throw Error(ErrorCode::invalid, fmt::format("'{}' must be a time like 24h, 90m or 2d", text));
  }
  const std::uint64_t count = parse_number(text.substr(0, text.size() - 1), {0, 3650});
  return std::chrono::seconds(static_cast<std::int64_t>(count) * kSeconds.at(unit));
}

/// How the options are called on one command.
struct KeepNames {
  std::string_view keep = "keep", tagged = "keep-tagged", every = "keep-every", grace = "grace";
  std::string_view needs = {};  // the switch without which they mean nothing
};

std::vector<OptionSpec> keep_options(const KeepNames& names = {}) {
  return {{.name = names.keep,
           .value = "N",
           .needs = names.needs,
           .help = "keep the newest N versions (default: 100)",
           .set = into<number_in<kVersions>, &Options::gc, &GcFlags::keep, &KeepPolicy::newest>},
          {.name = names.tagged,
           .value = "GLOB",
           .is_list = true,
           .needs = names.needs,
           .help = "keep versions with a tag like 'best-*'; repeatable; '' keeps none for its tag\n"
                   "(default: '*', every tagged version)",
           .set = add_kept_tag},
          {.name = names.every,
           .value = "N",
           .needs = names.needs,
           .help = "keep versions whose number N divides (default: none)",
           .set = into<number_in<kVersions>, &Options::gc, &GcFlags::keep, &KeepPolicy::every>}};
}

OptionSpec grace_option(const KeepNames& names = {}) {
  return {.name = names.grace,
          .value = "TIME",
          .needs = names.needs,
          .help = "how long what is retired now stays: 24h, 90m, 2d (default: 24h)",
          .set = into<parse_time, &Options::gc, &GcFlags::grace>};
}

}  // namespace

std::vector<OptionSpec> background_gc_options() {
  constexpr KeepNames kNames{.keep = "gc-keep",
                             .tagged = "gc-keep-tagged",
                             .every = "gc-keep-every",
                             .grace = "gc-grace",
                             .needs = "gc"};
  std::vector<OptionSpec> options{
      {.name = "gc",
       .needs = "writer",
       .help = "with --writer: retire and remove old versions from the bucket now and then, as\n"
               "`weightfs gc --delete` does (default: never)",
       .set = into<parse_switch, &Options::gc, &GcFlags::in_background>}};
  for (OptionSpec& option : keep_options(kNames)) options.push_back(std::move(option));
  options.push_back(grace_option(kNames));
  options.push_back({.name = "gc-interval",
                     .value = "TIME",
                     .needs = "gc",
                     .help = "how long to wait at least between two runs (default: 6h)",
                     .set = into<parse_time, &Options::gc, &GcFlags::interval>});
  return options;
}

CommandSpec du_command() {
  return {
      .command = Command::du,
      .name = "du",
      .operands = "URL|MOUNTPOINT",
      .summary = "what a bucket holds, by kind and version",
      .description =
          "Prints objects and bytes in the bucket by kind and by version, what gc with these\n"
          "options would retire, and what no version names: orphans, left by publishers that were\n"
          "killed or lost a race. Those above the newest version may belong to a publish that\n"
          "goes on. It reads every manifest and lists the bucket, and changes nothing.",
      .example = "weightfs du s3://models/run-7 --keep 50",
      .options = with_bucket(keep_options()),
      .take = take_target,
  };
}

CommandSpec gc_command() {
  std::vector<OptionSpec> options = keep_options();
  options.push_back(grace_option());
  options.push_back(
      {.name = "delete",
       .is_typed = true,
       .help = "do it (default: only say what would be done); on the command line only",
       .set = into<parse_switch, &Options::gc, &GcFlags::deletes>});
  options.push_back(store_option());
  options.push_back(gpu_option());
  return {
      .command = Command::gc,
      .name = "gc",
      .operands = "URL",
      .summary = "retire old versions, and remove what they alone need",
      .description =
          "Says what a bucket need not keep; with --delete it retires that: it is named in the\n"
          "bucket's log, gc/, at once, and removed by the first run of gc --delete after --grace.\n"
          "So run it daily, or let a mount --writer --gc do it. A version is kept as the options\n"
          "say; what a kept version is built from stays too: a snapshot, and the deltas or skip\n"
          "deltas after it. Orphans of published versions go as well; nothing above the newest\n"
          "version does. Retired versions never come back. Skip deltas that replace deltas are\n"
          "made first, as `weightfs skip` makes them, in --store.\n"
          "\n"
          "From the first --delete on, releases before 0.6.0 refuse the repository.",
      .example = "weightfs gc s3://models/run-7 --keep 100 --keep-every 64 --delete",
      .options = with_bucket(std::move(options)),
      .take = take_target,
  };
}

CommandSpec skip_command() {
  return {
      .command = Command::skip,
      .name = "skip",
      .operands = "URL",
      .summary = "make the skip deltas that a bucket lacks",
      .description =
          "Makes skip deltas, from one version to a later one over several, by which hosts that\n"
          "are far behind fetch less: to versions divisible by 8, from 8 before, and from the\n"
          "newest snapshot to every 16th; to those divisible by 64 also from 64 before. What is\n"
          "there is not made again. A writer's mount makes them by itself (--skips).\n"
          "\n"
          "The older version of each is made in the store, where neither images nor patches lead\n"
          "to it. It may run anywhere, be stopped at any time, and beside others.",
      .example = "weightfs skip s3://models/run-7 --newest 128",
      .options = with_bucket({
          {.name = "newest",
           .value = "N",
           .help = "only skips to the newest N versions (default: to all)",
           .set = into<number_in<kVersions>, &Options::skip, &SkipFlags::newest>},
          {.name = "dry-run",
           .help = "only say which ones are missing (default: make them)",
           .set = into<parse_switch, &Options::skip, &SkipFlags::dry_run>},
          store_option(),
          gpu_option(),
      }),
      .take = take_target,
  };
}

}  // namespace weightfs::fs
