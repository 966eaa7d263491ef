#include <fmt/format.h>

#include "fs/cli/command_options.hpp"
#include "fs/cli/command_specs.hpp"
#include "store/base/error.hpp"
#include "store/readers/reader_list.hpp"

namespace weightfs::fs {
namespace {

using Operands = std::span<const std::string>;

constexpr NumberRange kReaders{1, kReadersMax};

void take_show(Options& options, Operands operands) {
  options.target = operands[0];
  if (operands.size() > 1) options.version = parse_follow(operands[1]);
}

void take_log(Options& options, Operands operands) {
  options.target = operands[0];
  if (options.look.graph && options.look.timing) {
    throw Error(ErrorCode::invalid, "log takes --graph or --timing, not both");
  }
}

void take_report(Options& options, Operands operands) {
  options.target = operands[0];
  if (!options.look.output.empty()) return;
  throw Error(ErrorCode::invalid, "report needs -o FILE, the page that it writes: -o report.html");
}

void take_diff(Options& options, Operands operands) {
  options.target = operands[0];
  options.look.from = parse_follow(operands[1]);
  options.look.to = parse_follow(operands[2]);
}

}  // namespace

CommandSpec status_command() {
  return {
      .command = Command::status,
      .name = "status",
      .operands = "[MOUNTPOINT|DIR]",
      .summary = "what is mounted, how fresh, how served",
      .description =
          "Prints the state of the mount at MOUNTPOINT: its version, how far it is behind the "
          "bucket,\n"
          "how files are served and why, the last error. Without MOUNTPOINT it lists all mounts "
          "of\n"
          "this host, including those whose daemon is gone. DIR is the directory of a sync.\n"
          "\n"
          "With --check it prints one line, and ends with 0: healthy, 1: degraded (it works, and\n"
          "something needs a look), 2: failed (somebody must act); without MOUNTPOINT the line is\n"
          "that of the worst mount, and a host without mounts has failed.",
      .example = "weightfs status /mnt/w --json",
      .options = {{.name = "check",
                   .help = "print one line, for monitoring (default: the whole state)",
                   .set = into<parse_switch, &Options::look, &LookFlags::check>}},
      .take = take_target,
  };
}

CommandSpec top_command() {
  return {
      .command = Command::top,
      .name = "top",
      .operands = "[MOUNTPOINT|DIR]",
      .summary = "the mounts of this host, as a table that is redrawn",
      .description =
          "Shows, every second, for each mount of this host, or that at MOUNTPOINT: its version\n"
          "and lag, its health and state, bytes fetched and reads answered by the daemon a "
          "second,\n"
          "open files, loaders (passes), and the version and state of each engine. q or Ctrl-C\n"
          "ends it. Without a terminal, --once.",
      .example = "weightfs top --once",
      .options = {{.name = "once",
                   .help = "print the table once, after a second (default: until q)",
                   .set = into<parse_switch, &Options::look, &LookFlags::once>}},
      .take = take_target,
  };
}

CommandSpec fleet_command() {
  return {
      .command = Command::fleet,
      .name = "fleet",
      .operands = "URL|MOUNTPOINT",
      .summary = "who reads a repository, and how far behind",
      .description =
          "Prints a line for each reader that announces itself (mount and sync with --announce):\n"
          "host, place, the version of `latest` there, how far that is behind the newest version,\n"
          "the versions of its engines, its health, and how old that information is. A reader "
          "that\n"
          "has ended is `left`; one that was not heard of for three intervals is `gone`, and a\n"
          "record of more than 7 days is removed by gc.",
      .example = "weightfs fleet s3://models/run-7",
      .options = with_bucket({
          {.name = "limit",
           .value = "N",
           .help = fmt::format("only the N heard of last (default: {})", kReadersMax),
           .set = into<number_in<kReaders>, &Options::look, &LookFlags::limit>},
      }),
      .take = take_target,
  };
}

CommandSpec log_command() {
  return {
      .command = Command::log,
      .name = "log",
      .operands = "URL|MOUNTPOINT|STORE",
      .summary = "the versions, newest first",
      .description =
          "Prints a line for each version: number, time, share of elements that changed, bytes of\n"
          "its delta and its snapshot in the bucket, its size, tag and metadata.\n"
          "\n"
          "With --timing it prints how long versions took on this host. Where the time went from\n"
          "the moment the manifest was seen until `latest` showed it: WAIT, PLAN, ROOM, BUILD,\n"
          "RECORD, FLIP; TOTAL is their sum. A BUILD with a + came after that. UNSEEN: so long it\n"
          "may have been in the bucket before. SYNC: so long after it was on the disk. Below each\n"
          "line is where the version came from, and the time of all threads in BUILD. A hand-over\n"
          "has SEAL, WAIT, CODE, UPLOAD, COMMIT, ADOPT. A store remembers the last 1024 versions.\n"
          "STORE is its directory; with a URL it is this user's default one. docs/OPERATIONS.md\n"
          "tells more.",
      .example = "weightfs log /mnt/w --limit 5",
      .options = with_bucket({
          {.name = "limit",
           .value = "N",
           .help = "only the newest N (default: all)",
           .set = into<number_in<kVersions>, &Options::look, &LookFlags::limit>},
          {.name = "timing",
           .help = "how long versions took on this host (default: what the bucket has)",
           .set = into<parse_switch, &Options::look, &LookFlags::timing>},
          {.name = "graph",
           .help = "bars of what each version took in the bucket, by the largest delta, and of\n"
                   "what changed in it, as wide as the terminal (default: a table)",
           .set = into<parse_switch, &Options::look, &LookFlags::graph>},
      }),
      .take = take_log,
  };
}

CommandSpec report_command() {
  return {
      .command = Command::report,
      .name = "report",
      .operands = "URL|MOUNTPOINT",
      .summary = "a run as one page for a browser",
      .description =
          "Writes one HTML file, which needs no other file, no script and no network: what each\n"
          "change took in the bucket, which share of the elements changed, how much time passed\n"
          "between versions, how large they are, and a table of the newest 1,000. A FILE that is\n"
          "there is replaced.",
      .example = "weightfs report s3://models/run-7 -o report.html",
      .options = with_bucket({
          {.name = "output",
           .value = "FILE",
           .is_typed = true,
           .help = "the file to write; also -o (default: none, it must be given)",
           .set = into<as_given, &Options::look, &LookFlags::output>},
          {.name = "limit",
           .value = "N",
           .help = "only the newest N (default: all)",
           .set = into<number_in<kVersions>, &Options::look, &LookFlags::limit>},
      }),
      .take = take_report,
  };
}

CommandSpec show_command() {
  return {
      .command = Command::show,
      .name = "show",
      .operands = "URL|MOUNTPOINT [VERSION]",
      .summary = "one version: its files and what is in the bucket",
      .description =
          "Prints everything that the bucket records about VERSION: a number, a tag, or latest\n"
          "(default: the newest).",
      .example = "weightfs show file:///srv/runs/a 42",
      .options = with_bucket({}),
      .take = take_show,
  };
}

CommandSpec diff_command() {
  return {
      .command = Command::diff,
      .name = "diff",
      .operands = "URL|MOUNTPOINT A B",
      .summary = "what changed between two versions, by tensor",
      .description =
          "Prints for each tensor the share of elements that differ between the versions A and B\n"
          "(numbers, tags, or latest), and the largest difference in units of the last place.\n"
          "\n"
          "With a MOUNTPOINT, or the DIR of a sync, the daemon answers from the patches of its "
          "store,\n"
          "at once and without the bucket. Of the largest difference they know only what it is at\n"
          "least. Where they do not lead from A to B, the command says so and does what it does\n"
          "with a URL: both versions are built in a temporary directory below $TMPDIR or "
          "/var/tmp,\n"
          "which needs room for them.",
      .example = "weightfs diff file:///srv/runs/a 41 42",
      .options = with_bucket({gpu_option()}),
      .take = take_diff,
  };
}

CommandSpec doctor_command() {
  return {
      .command = Command::doctor,
      .name = "doctor",
      .operands = "[URL|MOUNTPOINT]",
      .summary = "what is in use on this host, and what is missing",
      .description =
          "Prints versions, whether FUSE and its passthrough can be used, the variants of the\n"
          "codec with the one in use in brackets, the GPUs, and a warning for each engine of a\n"
          "mount's --hook that listens beyond this host's loopback. Exit code 1 if nothing can be\n"
          "mounted here; it says what to do. WEIGHTFS_KERNELS in the environment chooses a\n"
          "variant: scalar, simd (the fastest), its name, or cuda, which means --gpu 0.\n"
          "\n"
          "With a URL it also checks that bucket: where it is, whose keys are used\n"
          "(never the secret), whether it can be read, listed and written, whether it keeps two\n"
          "publishers apart, and how far this host's clock is off. Exit code 1 if a mount of it\n"
          "would not work. Write access is tested with one object, .probe-*, which is then "
          "removed.\n"
          "\n"
          "With a MOUNTPOINT, or the DIR of a sync, it also checks whether its version is in the "
          "page\n"
          "cache and fits into memory and the cgroup limits, there and where doctor runs, and\n"
          "recommends options for engines.",
      .example = "weightfs doctor s3://models/run-7 --endpoint-url https://s3.example.com",
      .options = with_bucket({
          {.name = "bundle",
           .value = "FILE",
           .is_typed = true,
           .help = "also write what it found, with the status, the command line, the end of the\n"
                   "log and the configuration of a MOUNTPOINT, to an archive (.tar.gz) for\n"
                   "whoever helps; keys, tokens and passwords are taken out (default: none)",
           .set = into<as_given, &Options::look, &LookFlags::output>},
      }),
      .take = take_target,
  };
}

}  // namespace weightfs::fs
