#include <fmt/format.h>

#include "fs/cli/command_options.hpp"
#include "fs/cli/command_specs.hpp"
#include "store/base/error.hpp"
#include "store/base/path_rules.hpp"
#include "store/readers/reader_list.hpp"
#include "store/sync/base_renewal.hpp"

namespace weightfs::fs {
namespace {

using Operands = std::span<const std::string>;

constexpr NumberRange kReplicas{1, kReadersMax};
constexpr NumberRange kMaxLags{0, kVersionMax};
constexpr auto parse_id = number_in<NumberRange{0, 0xFFFFFFFE}, std::uint32_t>;

NonEmpty parse_nonempty(std::string_view text) {
  return parse_switch(text) ? NonEmpty::allowed : NonEmpty::refused;
}

Serve parse_serve(std::string_view text) {
  if (text == "auto") return Serve::automatic;
  if (text == "passthrough") return Serve::passthrough;
  if (text == "bind") return Serve::bind;
  if (text == "daemon") return Serve::daemon;
  throw Error(ErrorCode::invalid,
              fmt::format("'{}' is not auto, passthrough, bind or daemon", text));
}

ImagesHome parse_images(std::string_view text) {
  if (text == "disk") return ImagesHome::disk;
  if (text == "memory") return ImagesHome::memory;
  throw Error(ErrorCode::invalid, fmt::format("'{}' is not disk or memory", text));
}

void check_images_home(const MountOptions& mount) {
  if (mount.images == ImagesHome::disk) return;
  if (mount.writer) {
    throw Error(ErrorCode::invalid,
                "--images memory is for readers: with --writer staged files become the images as "
                "they lie on the disk; leave out --images");
  }
  if (mount.serve.how == Serve::bind) {
    throw Error(ErrorCode::invalid,
                "--images memory does not go with --serve bind: a bound directory would keep the "
                "memory when weightfs is gone; use --serve passthrough or daemon");
  }
}

/// A hand-over ends when its version exists, or when it has failed.
void check_part_wait(const Options& options) {
  if (!options.part.is_part() || options.part_wait.count() > 0) return;
  throw Error(
      ErrorCode::invalid,
      "--part-wait 0 is for publish: a hand-over waits for the other parts, and shows which "
      "are missing; give more than 0 seconds");
}

/// A writer's mount shows what it publishes.
void take_mount(Options& options, Operands operands) {
  take_target_and_directory(options, operands);
  check_part_wait(options);
  if (options.mount.writer && options.host.follow.what.kind != Follow::Kind::latest) {
    throw Error(ErrorCode::invalid,
                fmt::format("--follow {} is for readers: with --writer `latest` is the newest "
                            "version",
                            to_string(options.host.follow.what)));
  }
  if (options.mount.writer && !options.mount.only.empty()) {
    throw Error(ErrorCode::invalid,
                "--only is for readers: with --writer every version is coded against all files of "
                "the one before");
  }
  if (options.mount.writer && options.host.announce.is_on) {
    throw Error(ErrorCode::invalid,
                "--announce is for readers: with --writer `latest` is what this host publishes, "
                "which is no replica; leave it out (--announce=off)");
  }
  check_images_home(options.mount);
}

/// After the command has ended nothing would look after the engine, or could be asked.
void take_sync(Options& options, Operands operands) {
  take_target_and_directory(options, operands);
  if (options.sync.once && options.host.metrics) {
    throw Error(ErrorCode::invalid,
                "--once ends before its metrics could be asked for: leave out --once or --metrics");
  }
  if (options.sync.once && !options.host.hooks.empty()) {
    throw Error(
        ErrorCode::invalid,
        "--once ends before a hook could update its engine: leave out --once, or update the "
        "engine after this command");
  }
  if (options.sync.once && options.host.announce.is_on) {
    throw Error(ErrorCode::invalid,
                "--once ends before anybody could count on this reader: leave out --once, or "
                "--announce (--announce=off)");
  }
}

void check_gate(const Options& options) {
  const WaitFlags& wait = options.wait;
  if (options.version && wait.tag.empty() && !wait.newer_than && !wait.ready) return;
  throw Error(ErrorCode::invalid,
              "--replicas waits for readers to have --version, which may be a number, a tag or "
              "latest; it goes with --max-lag and --timeout, and with nothing else");
}

void take_wait(Options& options, Operands operands) {
  options.target = operands[0];
  if (options.wait.replicas != 0) return check_gate(options);
  if (options.target.find("://") != std::string::npos) {
    throw Error(ErrorCode::invalid,
                fmt::format("wait {} needs --replicas, the number of readers that are to have "
                            "--version; without it give a mount point of this host, or the "
                            "directory of a sync",
                            options.target));
  }
  const int given = static_cast<int>(!options.wait.tag.empty()) +
                    static_cast<int>(options.version.has_value()) +
                    static_cast<int>(options.wait.newer_than.has_value());
  if (given > 1 || (given == 0 && !options.wait.ready)) {
    throw Error(ErrorCode::invalid,
                fmt::format("wait needs exactly one of --tag, --version and --newer-than, or "
                            "--ready with at most one of them; {} are given",
                            given));
  }
}

void take_unpin(Options& options, Operands operands) {
  options.target = operands[0];
  if (options.version && !options.session.empty()) {
    throw Error(ErrorCode::invalid, "unpin takes --version or --session, not both");
  }
}

std::string parse_tag(std::string_view text) {
  if (const std::string problem = tag_problem(text); !problem.empty()) {
    throw Error(ErrorCode::invalid, fmt::format("'{}' {}", escape_name(text), problem));
  }
  return std::string(text);
}

/// 0 is below every version.
Follow parse_newer_than(std::string_view text) {
  if (text == "0") return {.kind = Follow::Kind::version, .version = 0};
  return parse_follow(text);
}

bool parse_yes(std::string_view text) {
  if (text == "yes") return true;
  if (text == "no") return false;
  throw Error(ErrorCode::invalid, fmt::format("'{}' must be yes or no", text));
}

OptionSpec writers_include() {
  OptionSpec option = include_option(
      append<as_given, &Options::mount, &MountOptions::writing, &WriterOptions::include>);
  option.needs = "writer";
  return option;
}

OptionSpec writers_snapshots() {
  OptionSpec option =
      snapshot_every_option(into<number_in<kEvery>, &Options::mount, &MountOptions::writing,
                                 &WriterOptions::snapshots, &SnapshotPolicy::every>);
  option.needs = "writer";
  return option;
}

/// --part, --run and --part-wait.
std::vector<OptionSpec> writers_parts() {
  OptionSpec part = part_option(), run = run_option(), wait = part_wait_option();
  part.needs = "writer";
  part.help =
      "with --writer: what is handed over are the files of host I of N, which publish\n"
      "each version together; its tag says which one. The last to come commits it\n"
      "(default: all files)";
  run.needs = wait.needs = "part";
  wait.help =
      "with --part: a hand-over waits so long for the others, then fails and names\n"
      "them; the own part stays (default: 600)";
  return {part, run, wait};
}

std::vector<OptionSpec> mount_options() {
  std::vector<OptionSpec> options = {
      {.name = "writer",
       .help = "a trainer's mount: staging/ takes files, and a directory that is moved from\n"
               "there to publish/ becomes the next version (default: read-only)",
       .set = into<parse_switch, &Options::mount, &MountOptions::writer>},
      {.name = "rebase",
       .needs = "writer",
       .help = "with --writer: if another writer has published meanwhile, code again on top of\n"
               "that version (default: a conflict)",
       .set = into<parse_switch, &Options::mount, &MountOptions::writing, &WriterOptions::rebase>},
      writers_include(),
      {.name = "staging-mode",
       .value = "OCTAL",
       .needs = "writer",
       .help = fmt::format(
           "permissions of staging/ and publish/. Whoever may write there publishes to all\n"
           "readers: 1777 means all users of this host, 2775 a group\n"
           "(default: {:o}, only the owner; see --uid and --gid)",
           WriterOptions{}.staging_mode),
       .set =
           into<parse_mode, &Options::mount, &MountOptions::writing, &WriterOptions::staging_mode>},
      writers_snapshots(),
      {.name = "skips",
       .value = "yes|no",
       .needs = "writer",
       .help = "with --writer: make the skip deltas by which hosts that are far behind catch\n"
               "up with less, after each 8th version, beside everything else. They need\n"
               "--history (default: yes)",
       .set = into<parse_yes, &Options::mount, &MountOptions::writing, &WriterOptions::skips>},
      store_option(),
      seed_option(),
      {.name = "again",
       .is_typed = true,
       .operands = "MOUNTPOINT",
       .beside = "foreground",
       .help = "what was mounted at MOUNTPOINT and whose daemon is gone, with the URL, options\n"
               "and environment that it had; open files live on. Where its daemon answers,\n"
               "nothing is done (default: what is given here)",
       .set = into<parse_switch, &Options::again>},
      {.name = "foreground",
       .help = "stay in the foreground and log to stderr (default: a daemon that logs to\n"
               "weightfs.log in its store)",
       .set = into<parse_switch, &Options::mount, &MountOptions::foreground>},
      poll_option(),
      follow_option(),
      {.name = "only",
       .value = "GLOB",
       .is_list = true,
       .help = "keep only matching weights files on this host, for one rank of several; the\n"
               "others are listed, and built from the bucket when they are read. A GLOB\n"
               "with a '/' is compared with the whole path; repeatable (default: keep all)",
       .set = append<parse_word, &Options::mount, &MountOptions::only>},
      hook_option(),
      {.name = "pin-grace",
       .value = "SECONDS",
       .help = fmt::format("how long a loader keeps its version after it last opened or closed\n"
                           "a file; fractions allowed (default: {})",
                           seconds_text(MountOptions{}.pin_grace)),
       .set = into<parse_seconds, &Options::mount, &MountOptions::pin_grace>},
      {.name = "read-timeout",
       .value = "SECONDS",
       .help =
           fmt::format("how long a reader waits for bytes from the bucket before it gets an I/O\n"
                       "error; fractions allowed (default: {})",
                       seconds_text(ServeOptions{}.read_timeout)),
       .set =
           into<parse_seconds, &Options::mount, &MountOptions::serve, &ServeOptions::read_timeout>},
      {.name = "serve",
       .value = "HOW",
       .help = "passthrough: the kernel reads the local files itself, an error if it cannot;\n"
               "bind: complete versions are bind-mounted from the store, which needs\n"
               "CAP_SYS_ADMIN; daemon: weightfs answers every read; auto: the first of\n"
               "these that is available (default: auto)",
       .set = into<parse_serve, &Options::mount, &MountOptions::serve, &ServeOptions::how>},
      {.name = "images",
       .value = "HOME",
       .help = fmt::format(
           "where new versions are made. disk: in the store. memory: in memory that only\n"
           "this mount has, two versions and what is in use; the disk then has one, the\n"
           "base, renewed every {} versions, from which a restart makes the newest again\n"
           "(default: disk)",
           kBaseVersions),
       .set = into<parse_images, &Options::mount, &MountOptions::images>},
      store_size_option(),
      history_option(),
      min_free_option(),
      warm_option(),
      max_lag_option(),
      announce_option(),
      announce_every_option(),
      metrics_option(),
      log_format_option(),
      log_level_option(),
      {.name = "uid",
       .value = "N",
       .help = fmt::format("owner of all files (default: {})", Ownership{}.uid),
       .set = into<parse_id, &Options::mount, &MountOptions::ownership, &Ownership::uid>},
      {.name = "gid",
       .value = "N",
       .help = fmt::format("group of all files (default: {})", Ownership{}.gid),
       .set = into<parse_id, &Options::mount, &MountOptions::ownership, &Ownership::gid>},
      {.name = "nonempty",
       .help = "mount over a directory that is not empty; its contents are hidden until umount\n"
               "(default: refuse, and name them)",
       .set = into<parse_nonempty, &Options::mount, &MountOptions::non_empty>},
      {.name = "umask",
       .value = "OCTAL",
       .help = fmt::format("permissions to remove from 0666 for files and 0777 for directories\n"
                           "(default: {:o}, which shows {:04o} and {:04o})",
                           Ownership{}.umask, 0666 & ~Ownership{}.umask, 0777 & ~Ownership{}.umask),
       .set = into<parse_umask, &Options::mount, &MountOptions::ownership, &Ownership::umask>},
      gpu_option(),
  };
  for (OptionSpec& option : writers_parts()) options.push_back(std::move(option));
  for (OptionSpec& option : background_gc_options()) options.push_back(std::move(option));
  return options;
}

std::vector<OptionSpec> sync_options() {
  OptionSpec store = store_option();
  store.help =
      "directory for images and records; versions are hard links if it is on the\n"
      "file system of DIR, else copies (default: DIR/.weightfs/store)";
  return {
      follow_option(),
      {.name = "once",
       .help = "bring DIR up to date, and end (default: follow, until SIGTERM or SIGINT)",
       .set = into<parse_switch, &Options::sync, &SyncServiceOptions::once>},
      poll_option(),
      hook_option(),
      store,
      seed_option(),
      store_size_option(),
      history_option(),
      min_free_option(),
      warm_option(),
      max_lag_option(),
      announce_option(),
      announce_every_option(),
      metrics_option(),
      log_format_option(),
      log_level_option(),
      gpu_option(),
  };
}

}  // namespace

CommandSpec mount_command() {
  return {
      .command = Command::mount,
      .name = "mount",
      .operands = "URL MOUNTPOINT",
      .summary = "show the versions as directories, and follow the newest",
      .description =
          "Mounts the repository at MOUNTPOINT, an empty directory, for reading:\n"
          "\n"
          "    latest -> versions/42     the newest complete version\n"
          "    versions/42/              complete checkpoints; their bytes never change\n"
          "    tags/step-42              every tag\n"
          "    .weightfs/status          what `weightfs status` prints\n"
          "    .weightfs/health          one line: healthy, degraded or failed, and why\n"
          "    .weightfs/advice          recommended engine options on this host, and why\n"
          "\n"
          "With --writer also\n"
          "\n"
          "    staging/                  ordinary files and directories, to save into\n"
          "    publish/                  what was handed over: mv staging/X publish/X makes X the\n"
          "                              next version, with the tag X\n"
          "    .weightfs/last_error      why the last hand-over was refused\n"
          "\n"
          "Returns when `latest` exists or the repository is empty. On a host without any version\n"
          "`latest` appears before its files, which stream in while they are read, requested "
          "bytes\n"
          "first; `weightfs wait --ready` waits for all of them. Any version opens by name, even "
          "if\n"
          "it is not on this host: versions/7. A loader that opens several files through `latest`\n"
          "gets one version: the first file that it opens decides which. If the store has a\n"
          "version, the bucket may be unreachable.",
      .example = "weightfs mount file:///srv/runs/a /mnt/w",
      .options = with_bucket(mount_options()),
      .take = take_mount,
  };
}

CommandSpec sync_command() {
  return {
      .command = Command::sync,
      .name = "sync",
      .operands = "URL DIR",
      .summary = "the same as ordinary files, without FUSE or root",
      .description =
          "Keeps DIR, which must be absent, empty or made by an earlier sync, up to date:\n"
          "\n"
          "    latest -> versions/42     replaced atomically, when that version is complete\n"
          "    versions/42/              complete checkpoints as ordinary files, read-only\n"
          "    .weightfs/status          what `weightfs status DIR` prints\n"
          "    .weightfs/health          one line: healthy, degraded or failed, and why\n"
          "    .weightfs/advice          recommended engine options on this host, and why\n"
          "\n"
          "Stays in the foreground and logs to stderr; any user can run it. `weightfs wait DIR`\n"
          "works as on a mount, and so do the other commands. Old versions are removed when "
          "--store-size\n"
          "requires it and no process has their files open. Other files in DIR are left alone.",
      .example = "weightfs sync s3://models/run-7 /models/run-7 --once",
      .options = with_bucket(sync_options()),
      .take = take_sync,
  };
}

CommandSpec umount_command() {
  return {
      .command = Command::umount,
      .name = "umount",
      .operands = "MOUNTPOINT",
      .summary = "end a mount and its daemon",
      .description =
          "Unmounts and waits until the daemon has ended. A mount that is in use is left alone, "
          "and\n"
          "the processes that use it are listed.",
      .example = "weightfs umount /mnt/w",
      .options =
          {
              {.name = "lazy",
               .help = "detach the mount at once; open files stay readable until they are closed\n"
                       "(default: refuse if it is in use)",
               .set = into<parse_switch, &Options::lazy>},
          },
      .take = take_target,
  };
}

CommandSpec wait_command() {
  return {
      .command = Command::wait,
      .name = "wait",
      .operands = "MOUNTPOINT|DIR|URL",
      .summary = "wait until a version opens here, or readers have it",
      .description =
          "Waits for exactly one of --tag, --version and --newer-than, on any mount and in the DIR "
          "of\n"
          "a running sync, and prints where the version is. If --tag is in MOUNTPOINT/publish, "
          "that\n"
          "hand-over is meant: exit code 1 at once if it failed or was taken back, 3 if another\n"
          "writer published first. A mount opens any version by name, also one whose files are not "
          "kept\n"
          "here any more; in the DIR of a sync such a version is exit code 1 at once.\n"
          "\n"
          "--ready also waits until all files are on this host, for the version that one of these\n"
          "names, or for `latest`; a version that is not here is fetched. Exit code 4 if it is "
          "damaged.\n"
          "\n"
          "--replicas waits, anywhere, until so many readers of a repository (URL, or that of\n"
          "MOUNTPOINT) have --version or a later one, of those that announce themselves (mount "
          "and\n"
          "sync with --announce). A reader counts when all bytes are on its host and its engines\n"
          "(--hook) have that version too. `weightfs fleet` lists them.",
      .example = "weightfs wait /mnt/w --tag step-42 --timeout 600",
      .options = with_bucket({
          {.name = "tag",
           .value = "TAG",
           .is_typed = true,  // hooks have WEIGHTFS_TAG
           .help = "the hand-over publish/TAG, else the newest version that carries it\n"
                   "(default: none)",
           .set = into<parse_tag, &Options::wait, &WaitFlags::tag>},
          version_option("this version; a tag is what --tag means, latest is the first one\n"
                         "that `latest` shows (default: none)"),
          {.name = "newer-than",
           .value = "VERSION",
           .help = "any version above this one; 0: any at all (default: none)",
           .set = into<parse_newer_than, &Options::wait, &WaitFlags::newer_than>},
          {.name = "ready",
           .help = "wait until every byte is on this host (default: until the version opens)",
           .set = into<parse_switch, &Options::wait, &WaitFlags::ready>},
          {.name = "timeout",
           .value = "SECONDS",
           .help = "give up after that long, with exit code 5; fractions allowed\n"
                   "(default: never)",
           .set = into<parse_seconds, &Options::wait, &WaitFlags::timeout>},
          {.name = "replicas",
           .value = "N",
           .is_typed = true,
           .help = "until N readers of the repository have --version (default: this host)",
           .set = into<number_in<kReplicas>, &Options::wait, &WaitFlags::replicas>},
          {.name = "max-lag",
           .value = "K",
           .needs = "replicas",
           .is_typed = true,
           .help = "with --replicas: a reader may be K versions before --version (default: 0)",
           .set = into<number_in<kMaxLags>, &Options::wait, &WaitFlags::max_lag>},
      }),
      .take = take_wait,
  };
}

CommandSpec rebase_command() {
  return {
      .command = Command::rebase,
      .name = "rebase",
      .operands = "MOUNTPOINT",
      .summary = "after a conflict: continue from the newest version",
      .description =
          "Accepts the newest version as the parent for this writer's mount. Hand-overs in "
          "conflict\n"
          "are retried, in their order, and future ones follow that version. Look at it first: a\n"
          "trainer that was preempted and woke up must not continue.",
      .example = "weightfs rebase /mnt/w",
      .options = {},
      .take = take_target,
  };
}

CommandSpec pin_command() {
  return {
      .command = Command::pin,
      .name = "pin",
      .operands = "MOUNTPOINT",
      .summary = "keep a version's files on this host",
      .description =
          "Keeps the files of a version in the store of this mount, whatever --store-size says,\n"
          "until `weightfs unpin`, also across restarts. A version that is not here is fetched "
          "first.\n"
          "`latest` still moves on. `weightfs status` lists all pins, including those of\n"
          "loaders.",
      .example = "weightfs pin /mnt/w --version 42",
      .options = {version_option("this version: a number, a tag, or latest (default: latest)")},
      .take = take_target,
  };
}

CommandSpec unpin_command() {
  return {
      .command = Command::unpin,
      .name = "unpin",
      .operands = "MOUNTPOINT",
      .summary = "end pins",
      .description =
          "Ends pins at once: those of --version, the one of --session, or all, both those made "
          "by\n"
          "`weightfs pin` and those of loaders. A loader then gets the newest version from its "
          "next\n"
          "open through `latest` on, even in the middle of a load. Files that are open or "
          "mapped stay.",
      .example = "weightfs unpin /mnt/w --version 42",
      .options =
          {
              version_option(
                  "only pins of this version: a number, a tag, or latest (default: all)"),
              {.name = "session",
               .value = "NAME",
               .help = "only the pin of this reader session, as `weightfs status` prints it\n"
                       "(default: all)",
               .set = into<as_given, &Options::session>},
          },
      .take = take_unpin,
  };
}

}  // namespace weightfs::fs
