#include "fs/command_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "fs/values.hpp"
#include "store/error.hpp"
#include "store/manifest.hpp"
#include "store/path_rules.hpp"

namespace weightfs::fs {
namespace {

using Operands = std::span<const std::string>;

constexpr NumberRange kVersions{1, kVersionMax};
constexpr std::uint64_t kGpuMax = 1023;
constexpr std::size_t kHooksMax = 64;  // each has a thread

Serve parse_serve(std::string_view text) {
  if (text == "auto") return Serve::automatic;
  if (text == "passthrough") return Serve::passthrough;
  if (text == "bind") return Serve::bind;
  if (text == "daemon") return Serve::daemon;
  throw Error(ErrorCode::invalid, fmt::format("'{}' is not auto, passthrough, bind or daemon", text));
}

Warm parse_warm(std::string_view text) {
  if (text == "auto") return Warm::automatic;
  if (text == "off") return Warm::off;
  throw Error(ErrorCode::invalid, fmt::format("'{}' is not auto or off", text));
}

void add_meta(Options& options, std::string_view text) {
  const auto [key, value] = parse_pair(text);
  if (!options.meta.emplace(key, value).second) {
    throw Error(ErrorCode::invalid, fmt::format("the key '{}' is given twice", key));
  }
}

/// The same hook twice would tell an engine everything twice.
void add_hook(Options& options, std::string_view text) {
  HookSpec spec = parse_hook(text);
  for (const HookSpec& other : options.hooks) {
    if (other.type == spec.type && other.url == spec.url && other.argv == spec.argv &&
        other.name == spec.name) {
      throw Error(ErrorCode::invalid,
                  fmt::format("{} {} is given twice", to_string(spec.type), spec.target()));
    }
  }
  if (options.hooks.size() >= kHooksMax) {
    throw Error(ErrorCode::invalid, fmt::format("there may be at most {} hooks", kHooksMax));
  }
  options.hooks.push_back(std::move(spec));
}

void take_target(Options& options, Operands operands) {
  if (!operands.empty()) options.target = operands[0];
}

void take_target_and_directory(Options& options, Operands operands) {
  options.target = operands[0];
  options.directory = operands[1];
}

/// A writer's mount shows what it publishes.
void take_mount(Options& options, Operands operands) {
  take_target_and_directory(options, operands);
  if (options.writer && options.follow.kind != Follow::Kind::latest) {
    throw Error(ErrorCode::invalid,
                fmt::format("--follow {} is for readers: with --writer `latest` is the newest "
                            "version",
                            to_string(options.follow)));
  }
}

/// Nobody would look after the engine when the command has ended.
void take_sync(Options& options, Operands operands) {
  take_target_and_directory(options, operands);
  if (options.once && !options.hooks.empty()) {
    throw Error(ErrorCode::invalid,
                "--once has ended before a hook could see to its engine: leave --once out, or tell "
                "the engine when this command has ended");
  }
}

void take_show(Options& options, Operands operands) {
  options.target = operands[0];
  if (operands.size() > 1) options.version_a = parse_number(operands[1], kVersions);
}

void take_diff(Options& options, Operands operands) {
  options.target = operands[0];
  options.version_a = parse_number(operands[1], kVersions);
  options.version_b = parse_number(operands[2], kVersions);
}

void take_wait(Options& options, Operands operands) {
  options.target = operands[0];
  const int given = static_cast<int>(!options.tag.empty()) +
                    static_cast<int>(options.version_a != 0) +
                    static_cast<int>(options.newer_than.has_value());
  if (given > 1 || (given == 0 && !options.ready)) {
    throw Error(ErrorCode::invalid,
                fmt::format("wait needs exactly one of --tag, --version and --newer-than, or "
                            "--ready with at most one of them; {} are given",
                            given));
  }
}

void take_unpin(Options& options, Operands operands) {
  options.target = operands[0];
  if (options.version_a != 0 && !options.session.empty()) {
    throw Error(ErrorCode::invalid, "unpin takes --version or --session, not both");
  }
}

void take_export(Options& options, Operands operands) {
  options.target = operands[0];
  options.directory = operands[1];
  if ((options.version_from == 0) != (options.version_b == 0)) {
    throw Error(ErrorCode::invalid, "export takes --from and --to together");
  }
  if (options.version_from != 0 && options.version_a != 0) {
    throw Error(ErrorCode::invalid, "export takes either --version or --from and --to");
  }
}

void set_tag(Options& options, std::string_view text) {
  if (const std::string problem = tag_problem(text); !problem.empty()) {
    throw Error(ErrorCode::invalid, fmt::format("'{}' {}", escape_name(text), problem));
  }
  options.tag = text;
}

void take_help(Options& options, Operands operands) {
  if (operands.empty()) {
    options.text = help_text();
    return;
  }
  const CommandSpec* command = find_command(operands[0]);
  if (command == nullptr) {
    throw Error(ErrorCode::invalid, fmt::format("there is no command '{}'", operands[0]));
  }
  options.text = help_text(*command);
}

// ---- options that several commands have ----

const OptionSpec kStore{
    .name = "store",
    .value = "DIR",
    .help =
        "where this host keeps images and records\n"
        "(default: /var/lib/weightfs/ID for root, else $XDG_CACHE_HOME/weightfs/ID)",
    .set = [](Options& options, std::string_view value) { options.store = value; }};

const OptionSpec kGpu{
    .name = "gpu",
    .value = "N",
    .help =
        "code and decode on the CUDA device of this number; if it cannot be used the\n"
        "CPU does the work, and weightfs says so (default: only the CPU)",
    .set = [](Options& options, std::string_view value) {
      options.gpu = static_cast<int>(parse_number(value, {0, kGpuMax}));
    }};

// ---- options of whatever follows a repository ----

const OptionSpec kPoll{
    .name = "poll",
    .value = "SECONDS",
    .help = "how often to look for a new version; fractions allowed (default: 1)",
    .set = [](Options& options, std::string_view v) { options.poll = parse_seconds(v); }};

const OptionSpec kFollow{
    .name = "follow",
    .value = "TAG|N|latest",
    .help =
        "what `latest` means here: the newest version that carries TAG (a canary),\n"
        "version N and no other (a freeze), or the newest. What does not exist yet is\n"
        "waited for. Digits are a version (default: latest)",
    .set = [](Options& options, std::string_view v) { options.follow = parse_follow(v); }};

const OptionSpec kStoreSize{
    .name = "store-size",
    .value = "SIZE",
    .help =
        "bytes of old and new versions to keep here, such as 500M or 10GiB\n"
        "(default: 3 times the newest version)",
    .set = [](Options& options, std::string_view v) {
      options.limits.store_bytes = parse_size(v);
    }};

const OptionSpec kMinFree{.name = "min-free",
                          .value = "SIZE",
                          .help =
                              "bytes to leave free on the store's file system\n"
                              "(default: 5 % of it, at most 10 GiB)",
                          .set = [](Options& options, std::string_view v) {
                            options.limits.free_bytes_min = parse_size(v);
                          }};

const OptionSpec kHook{.name = "hook",
                       .value = "TYPE=WHERE",
                       .is_list = true,
                       .help =
                           "tell an engine every new version: vllm=URL, sglang=URL, http=URL,\n"
                           "vllm-lora=URL,name=NAME, or exec=COMMAND, which runs without a shell;\n"
                           "behind a URL also every=SECONDS, timeout=SECONDS, token-file=FILE;\n"
                           "repeatable; docs/engines/hooks.md (default: none)",
                       .set = add_hook};

const OptionSpec kWarm{
    .name = "warm",
    .value = "HOW",
    .help =
        "auto: read what `latest` shows into the page cache, in the background,\n"
        "if the whole version fits into memory; off: leave that to the engine\n"
        "(default: auto)",
    .set = [](Options& options, std::string_view v) { options.warm = parse_warm(v); }};

const OptionSpec kInclude{
    .name = "include",
    .value = "GLOB",
    .is_list = true,
    .help =
        "publish files of this name too; a GLOB with a '/' is compared with the\n"
        "whole path; repeatable (default: none)",
    .set = [](Options& options, std::string_view v) { options.include.emplace_back(v); }};

/// Of every command that takes a URL.
const std::array<OptionSpec, 5> kBucketOptions{{
    {.name = "endpoint-url",
     .value = "URL",
     .help = "the S3 service of s3://, for a store that is not AWS's: https://host[:port]\n"
             "(default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, else the profile's, else AWS)",
     .set = [](Options& options,
               std::string_view v) { options.bucket.endpoint_url = parse_word(v); }},
    {.name = "region",
     .value = "NAME",
     .help = "the bucket's region (default: AWS_REGION, AWS_DEFAULT_REGION, else the\n"
             "profile's, else us-east-1)",
     .set = [](Options& options, std::string_view v) { options.bucket.region = parse_word(v); }},
    {.name = "profile",
     .value = "NAME",
     .help = "the profile of ~/.aws/config and ~/.aws/credentials that has the keys\n"
             "(default: AWS_PROFILE, else default; keys in the environment go first)",
     .set = [](Options& options, std::string_view v) { options.bucket.profile = parse_word(v); }},
    {.name = "path-style",
     .help = "put the bucket's name into the path, not into the host name\n"
             "(default: only where the endpoint is not AWS's)",
     .set = [](Options& options,
               std::string_view v) { options.bucket.path_style = parse_switch(v); }},
    {.name = "no-sign-request",
     .help = "send no credentials: a public bucket (default: sign every request)",
     .set = [](Options& options, std::string_view v) { options.bucket.sign = !parse_switch(v); }},
}};

/// The command's own options, then those of a bucket.
std::vector<OptionSpec> with_bucket(std::vector<OptionSpec> options) {
  options.insert(options.end(), kBucketOptions.begin(), kBucketOptions.end());
  return options;
}

const std::array<OptionSpec, 4> kCommon{{
    {.name = "json",
     .help = "print JSON on stdout, errors too",
     .set = [](Options& options, std::string_view v) { options.json = parse_switch(v); }},
    {.name = "quiet",
     .help = "no progress (it is only shown on a terminal, after a second)",
     .set = [](Options& options, std::string_view v) { options.quiet = parse_switch(v); }},
    {.name = "config",
     .value = "FILE",
     .help = "take options from this TOML file (default: WEIGHTFS_CONFIG, else\n"
             "/etc/weightfs.toml and, stronger, $XDG_CONFIG_HOME/weightfs/config.toml)"},
    {.name = "help", .help = "print this help; also -h"},
}};

// ---- the commands ----

CommandSpec init_command() {
  return {
      .command = Command::init,
      .name = "init",
      .operands = "URL",
      .operands_min = 1,
      .operands_max = 1,
      .summary = "make a repository",
      .description =
          "Makes an empty repository at URL, and its directory. Proves that the bucket really\n"
          "refuses to write an object twice: that is what keeps two publishers apart. A "
          "repository\n"
          "that is there already is left as it is, and that is a success.\n"
          "\n"
          "URL is file:///DIRECTORY, a path that starts with '/' or '.', s3://BUCKET/PREFIX, or\n"
          "hf://ORG/BUCKET/PREFIX. A bucket of S3 must exist: only directories are made.",
      .example = "weightfs init file:///srv/runs/a",
      .options = with_bucket({}),
      .take = take_target,
  };
}

CommandSpec publish_command() {
  return {
      .command = Command::publish,
      .name = "publish",
      .operands = "URL|MOUNTPOINT DIR",
      .operands_min = 2,
      .operands_max = 2,
      .summary = "make a version out of a checkpoint directory",
      .description =
          "Publishes the checkpoint in DIR as the next version: the first one whole, later ones "
          "as\n"
          "the change from the newest version. Published are safetensors, JSON, text, tokenizer "
          "and\n"
          "template files, in sub-directories too; pickles, optimizer state and code only if\n"
          "--include names them. Success means that the version is in the bucket.\n"
          "\n"
          "With the MOUNTPOINT of a writer's mount the daemon does it: what is published of DIR "
          "is\n"
          "copied into staging, unless DIR lies there already, and handed over; the command waits\n"
          "until versions/N opens there. --store and --gpu are those of the mount then.\n"
          "\n"
          "If somebody else publishes meanwhile this one fails with exit code 3; run it again, or\n"
          "give --rebase.",
      .example = "weightfs publish file:///srv/runs/a out/step-42 --tag step-42 --meta reward=0.7",
      .options = with_bucket({
          {.name = "tag",
           .value = "TAG",
           .help = "a name for the version; tags/TAG leads to the newest version that carries\n"
                   "it (default: none)",
           .set = [](Options& options, std::string_view v) { options.tag = v; }},
          {.name = "meta",
           .value = "KEY=VALUE",
           .is_list = true,
           .help = "something to remember with the version; repeatable (default: nothing)",
           .set = add_meta},
          kInclude,
          {.name = "snapshot",
           .help = "write the full bytes too, so that readers can start here (default: only\n"
                   "version 1 has them)",
           .set = [](Options& options, std::string_view v) { options.snapshot = parse_switch(v); }},
          {.name = "rebase",
           .help = "if somebody else publishes meanwhile, code again on top of that version, a\n"
                   "few times (default: fail with exit code 3)",
           .set = [](Options& options, std::string_view v) { options.rebase = parse_switch(v); }},
          kStore,
          kGpu,
      }),
      .take = take_target_and_directory,
  };
}

OptionSpec writers_include() {
  OptionSpec option = kInclude;
  option.needs = "writer";
  return option;
}

std::vector<OptionSpec> mount_options() {
  return {
      {.name = "writer",
       .help = "a trainer's mount: staging/ takes files, and a directory that is moved from\n"
               "there to publish/ becomes the next version (default: read-only)",
       .set = [](Options& options, std::string_view v) { options.writer = parse_switch(v); }},
      {.name = "rebase",
       .needs = "writer",
       .help = "with --writer: if somebody else has published meanwhile, code again on top of\n"
               "that (default: a conflict)",
       .set = [](Options& options, std::string_view v) { options.rebase = parse_switch(v); }},
      writers_include(),
      kStore,
      {.name = "foreground",
       .help = "stay in the foreground and log to stderr (default: a daemon that logs to\n"
               "weightfs.log in its store)",
       .set = [](Options& options, std::string_view v) { options.foreground = parse_switch(v); }},
      kPoll,
      kFollow,
      kHook,
      {.name = "pin-grace",
       .value = "SECONDS",
       .help = "how long a loader keeps its version after it last opened or closed\n"
               "a file; fractions allowed (default: 60)",
       .set = [](Options& options, std::string_view v) { options.pin_grace = parse_seconds(v); }},
      {.name = "read-timeout",
       .value = "SECONDS",
       .help = "how long a reader waits for bytes that must come from the bucket first; then\n"
               "it gets an I/O error; fractions allowed (default: 60)",
       .set = [](Options& options,
                 std::string_view v) { options.read_timeout = parse_seconds(v); }},
      {.name = "serve",
       .value = "HOW",
       .help = "passthrough: the kernel reads the local files itself, an error if it cannot;\n"
               "bind: complete versions are bind-mounted from the store, which needs\n"
               "CAP_SYS_ADMIN; daemon: weightfs answers every read; auto: the first of\n"
               "these that can be had (default: auto)",
       .set = [](Options& options, std::string_view v) { options.serve = parse_serve(v); }},
      kStoreSize,
      kMinFree,
      kWarm,
      {.name = "uid",
       .value = "N",
       .help = "owner of all files (default: 0)",
       .set =
           [](Options& options, std::string_view v) {
             options.ownership.uid = static_cast<std::uint32_t>(parse_number(v, {0, 0xFFFFFFFE}));
           }},
      {.name = "gid",
       .value = "N",
       .help = "group of all files (default: 0)",
       .set =
           [](Options& options, std::string_view v) {
             options.ownership.gid = static_cast<std::uint32_t>(parse_number(v, {0, 0xFFFFFFFE}));
           }},
      {.name = "umask",
       .value = "OCTAL",
       .help = "permissions to take away from 0666 of files and 0777 of directories\n"
               "(default: 222, which shows 0444 and 0555)",
       .set = [](Options& options,
                 std::string_view v) { options.ownership.umask = parse_umask(v); }},
      kGpu,
  };
}

CommandSpec mount_command() {
  return {
      .command = Command::mount,
      .name = "mount",
      .operands = "URL MOUNTPOINT",
      .operands_min = 2,
      .operands_max = 2,
      .summary = "show the versions as directories, and follow the newest",
      .description =
          "Mounts the repository at MOUNTPOINT, an empty directory, for reading:\n"
          "\n"
          "    latest -> versions/42     the newest complete version\n"
          "    versions/42/              complete checkpoints; their bytes never change\n"
          "    tags/step-42              every tag\n"
          "    .weightfs/status          what `weightfs status` prints\n"
          "    .weightfs/advice          what engines should be started with here, and why\n"
          "\n"
          "With --writer also\n"
          "\n"
          "    staging/                  ordinary files and directories, to save into\n"
          "    publish/                  what was handed over: mv staging/X publish/X makes X the\n"
          "                              next version, with the tag X\n"
          "    .weightfs/last_error      why the last hand-over was refused\n"
          "\n"
          "Returns when `latest` exists or the repository is empty. On a host that has no version\n"
          "yet `latest` is there before its files: they stream in while they are read, what is "
          "asked\n"
          "for first. `weightfs wait --ready` waits for all of them. Any version opens by name, "
          "also\n"
          "one that is not here: versions/7. A loader that opens several\n"
          "files through `latest` gets one version: the first that it opens is pinned for it.\n"
          "With a store that has a version the bucket may be out of reach.",
      .example = "weightfs mount file:///srv/runs/a /mnt/w",
      .options = with_bucket(mount_options()),
      .take = take_mount,
  };
}

std::vector<OptionSpec> sync_options() {
  OptionSpec store = kStore;
  store.help =
      "where images and records are kept; versions are hard links if it lies on the\n"
      "file system of DIR, else copies (default: DIR/.weightfs/store)";
  return {
      kFollow,
      {.name = "once",
       .help = "bring DIR up to date, and end (default: follow, until SIGTERM or SIGINT)",
       .set = [](Options& options, std::string_view v) { options.once = parse_switch(v); }},
      kPoll,
      kHook,
      store,
      kStoreSize,
      kMinFree,
      kWarm,
      kGpu,
  };
}

CommandSpec sync_command() {
  return {
      .command = Command::sync,
      .name = "sync",
      .operands = "URL DIR",
      .operands_min = 2,
      .operands_max = 2,
      .summary = "the same as ordinary files, without FUSE or root",
      .description =
          "Keeps DIR, which must be absent, empty or made by an earlier sync, up to date:\n"
          "\n"
          "    latest -> versions/42     replaced at once, when that version is complete\n"
          "    versions/42/              complete checkpoints as ordinary files, read-only\n"
          "    .weightfs/status          what `weightfs status DIR` prints\n"
          "    .weightfs/advice          what engines should be started with here, and why\n"
          "\n"
          "Stays in the foreground and logs to stderr; any user can run it. `weightfs wait DIR`\n"
          "works as on a mount, and so do the other commands. Old versions go when --store-size\n"
          "asks for it and nobody has a file of them open. Files of others in DIR are left alone.",
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
      .operands_min = 1,
      .operands_max = 1,
      .summary = "end a mount and its daemon",
      .description =
          "Unmounts and waits until the daemon has ended. A mount that is in use is left alone, "
          "and\n"
          "the processes that use it are named.",
      .example = "weightfs umount /mnt/w",
      .options =
          {
              {.name = "lazy",
               .help = "take the mount away at once; what is open stays readable until it is\n"
                       "closed (default: refuse if it is in use)",
               .set = [](Options& options, std::string_view v) { options.lazy = parse_switch(v); }},
          },
      .take = take_target,
  };
}

CommandSpec wait_command() {
  return {
      .command = Command::wait,
      .name = "wait",
      .operands = "MOUNTPOINT|DIR",
      .operands_min = 1,
      .operands_max = 1,
      .summary = "wait until a version is in the bucket and opens here",
      .description =
          "Waits for exactly one of --tag, --version and --newer-than, on any mount and in the\n"
          "DIR of a running sync, and prints\n"
          "where the version is. A --tag that lies in MOUNTPOINT/publish means that hand-over:\n"
          "exit code 1 at once if it cannot be published or was taken back, 3 if another writer\n"
          "published first. A mount opens any version by name, also one whose files are not kept\n"
          "here any more; in the DIR of a sync such a version is exit code 1 at once.\n"
          "\n"
          "--ready waits until all files are here too, of the version that one of these names, or\n"
          "of what `latest` is; a version that is not here is brought. Exit code 4 if it is "
          "damaged.",
      .example = "weightfs wait /mnt/w --tag step-42 --timeout 600",
      .options =
          {
              {.name = "tag",
               .value = "TAG",
               .help = "the hand-over publish/TAG, else the newest version that carries it\n"
                       "(default: none)",
               .set = set_tag},
              {.name = "version",
               .value = "N",
               .help = "this version (default: none)",
               .set = [](Options& options,
                         std::string_view v) { options.version_a = parse_number(v, kVersions); }},
              {.name = "newer-than",
               .value = "N",
               .help = "any version above N; 0: any at all (default: none)",
               .set =
                   [](Options& options, std::string_view v) {
                     options.newer_than = parse_number(v, {0, kVersionMax});
                   }},
              {.name = "ready",
               .help = "until every byte of it is on this host (default: until it opens)",
               .set = [](Options& options,
                         std::string_view v) { options.ready = parse_switch(v); }},
              {.name = "timeout",
               .value = "SECONDS",
               .help = "give up after that long, with exit code 5; fractions allowed\n"
                       "(default: never)",
               .set = [](Options& options,
                         std::string_view v) { options.timeout = parse_seconds(v); }},
          },
      .take = take_wait,
  };
}

OptionSpec version_option(std::string_view help) {
  return {.name = "version",
          .value = "N",
          .help = help,
          .set = [](Options& options, std::string_view v) {
            options.version_a = parse_number(v, kVersions);
          }};
}

CommandSpec pin_command() {
  return {
      .command = Command::pin,
      .name = "pin",
      .operands = "MOUNTPOINT",
      .operands_min = 1,
      .operands_max = 1,
      .summary = "keep a version's files on this host",
      .description =
          "Keeps the files of a version in the store of this mount, whatever --store-size says,\n"
          "until `weightfs unpin`; also over restarts. `latest` goes on as before. `weightfs "
          "status`\n"
          "lists all pins, also those that loaders have while they load.",
      .example = "weightfs pin /mnt/w --version 42",
      .options = {version_option("this version, which must be here (default: the newest here)")},
      .take = take_target,
  };
}

CommandSpec unpin_command() {
  return {
      .command = Command::unpin,
      .name = "unpin",
      .operands = "MOUNTPOINT",
      .operands_min = 1,
      .operands_max = 1,
      .summary = "end pins",
      .description =
          "Ends pins at once: those of --version, the one of --session, or all; pins by hand and\n"
          "those of loaders. What a loader opens next through `latest` is the newest version, "
          "also\n"
          "in the middle of a load. Files that are open or mapped stay.",
      .example = "weightfs unpin /mnt/w --version 42",
      .options =
          {
              version_option("only pins of this version (default: all)"),
              {.name = "session",
               .value = "NAME",
               .help = "only the pin of this reader session, as `weightfs status` prints it\n"
                       "(default: all)",
               .set = [](Options& options, std::string_view v) { options.session = v; }},
          },
      .take = take_unpin,
  };
}

CommandSpec status_command() {
  return {
      .command = Command::status,
      .name = "status",
      .operands = "[MOUNTPOINT|DIR]",
      .operands_min = 0,
      .operands_max = 1,
      .summary = "what is mounted, how fresh, how served",
      .description =
          "Prints what the daemon of MOUNTPOINT says about itself: its version, how far behind "
          "the\n"
          "bucket it is, how files are served and why, the last error. Without MOUNTPOINT it "
          "lists\n"
          "all mounts of this host, also those whose daemon is gone. DIR is that of a sync.",
      .example = "weightfs status /mnt/w --json",
      .options = {},
      .take = take_target,
  };
}

CommandSpec log_command() {
  return {
      .command = Command::log,
      .name = "log",
      .operands = "URL|MOUNTPOINT",
      .operands_min = 1,
      .operands_max = 1,
      .summary = "the versions, newest first",
      .description =
          "Prints a line for each version: number, time, tag, share of elements that changed, "
          "bytes\n"
          "in the bucket, and what --meta said.",
      .example = "weightfs log /mnt/w --limit 5",
      .options = with_bucket({
          {.name = "limit",
           .value = "N",
           .help = "only the newest N (default: all)",
           .set = [](Options& options,
                     std::string_view v) { options.limit = parse_number(v, kVersions); }},
      }),
      .take = take_target,
  };
}

CommandSpec show_command() {
  return {
      .command = Command::show,
      .name = "show",
      .operands = "URL|MOUNTPOINT [N]",
      .operands_min = 1,
      .operands_max = 2,
      .summary = "one version: its files and what is in the bucket",
      .description =
          "Prints everything that the bucket records about version N, or the newest one.",
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
      .operands_min = 3,
      .operands_max = 3,
      .summary = "what changed between two versions, by tensor",
      .description =
          "Prints for each tensor the share of elements that differ between the versions A and B\n"
          "and the largest difference in units of the last place. Both versions are made in a\n"
          "temporary directory below $TMPDIR, or /var/tmp, which needs room for them.",
      .example = "weightfs diff file:///srv/runs/a 41 42",
      .options = with_bucket({kGpu}),
      .take = take_diff,
  };
}

CommandSpec export_command() {
  return {
      .command = Command::export_,
      .name = "export",
      .operands = "URL|MOUNTPOINT DIR|FILE",
      .operands_min = 2,
      .operands_max = 2,
      .summary = "write a version as ordinary files, or a change as one file",
      .description =
          "Writes the files of a version, byte for byte as they were published, into DIR, which\n"
          "must be absent or empty.\n"
          "\n"
          "With --from and --to it writes FILE, which must be absent: the exact change between "
          "two\n"
          "versions, in either direction, as safetensors: NAME.indices and NAME.values for each\n"
          "tensor that changed, the new values. Both versions must have the same tensors. A mount\n"
          "shows the changes from each version to the next in its directory deltas.",
      .example = "weightfs export file:///srv/runs/a /models/step-42 --version 42",
      .options = with_bucket({
          {.name = "version",
           .value = "N",
           .help = "which version (default: the newest)",
           .set = [](Options& options,
                     std::string_view v) { options.version_a = parse_number(v, kVersions); }},
          {.name = "from",
           .value = "A",
           .help = "with --to: the change from version A (default: none)",
           .set = [](Options& options,
                     std::string_view v) { options.version_from = parse_number(v, kVersions); }},
          {.name = "to",
           .value = "B",
           .help = "with --from: the change to version B (default: none)",
           .set = [](Options& options,
                     std::string_view v) { options.version_b = parse_number(v, kVersions); }},
          kGpu,
      }),
      .take = take_export,
  };
}

CommandSpec verify_command() {
  return {
      .command = Command::verify,
      .name = "verify",
      .operands = "URL|MOUNTPOINT",
      .operands_min = 1,
      .operands_max = 1,
      .summary = "hash everything again",
      .description =
          "URL: checks every object of every version in the bucket, and that each version can be\n"
          "made from them, in a temporary directory below $TMPDIR, or /var/tmp, with room for "
          "two.\n"
          "MOUNTPOINT: checks every file that the mount shows. Prints a line for each problem and\n"
          "goes on; exit code 4 if there was one.",
      .example = "weightfs verify file:///srv/runs/a",
      .options = with_bucket({kGpu}),
      .take = take_target,
  };
}

CommandSpec doctor_command() {
  return {
      .command = Command::doctor,
      .name = "doctor",
      .operands = "[URL|MOUNTPOINT]",
      .operands_min = 0,
      .operands_max = 1,
      .summary = "what is in use on this host, and what is missing",
      .description =
          "Prints versions, whether FUSE and its passthrough can be used, the variants of the\n"
          "codec with the one in use in brackets, the GPUs, and a warning for each engine of a\n"
          "mount's --hook that listens beyond this host's loopback. Exit code 1 if nothing can be\n"
          "mounted here; it says what to do. WEIGHTFS_KERNELS in the environment chooses a\n"
          "variant: scalar, simd (the fastest), its name, or cuda, which means --gpu 0.\n"
          "\n"
          "With a URL also what is found out about that bucket: where it is, whose keys are used\n"
          "(never the secret), whether it can be read, listed and written, whether it keeps two\n"
          "publishers apart, and how far this host's clock is off. Exit code 1 if a mount of it\n"
          "could not work. A key that may write is tried with one object, .probe-*, removed "
          "after.\n"
          "\n"
          "With a MOUNTPOINT, or the DIR of a sync, also whether its version is in the page "
          "cache,\n"
          "whether it fits into memory and the cgroups' limits, there and where doctor runs, and\n"
          "what engines should be started with.",
      .example = "weightfs doctor s3://models/run-7 --endpoint-url https://s3.example.com",
      .options = with_bucket({}),
      .take = take_target,
  };
}

CommandSpec help_command() {
  return {
      .command = Command::help,
      .name = "help",
      .operands = "[COMMAND]",
      .operands_min = 0,
      .operands_max = 1,
      .summary = "this list, or all about one command",
      .description = "Prints what a command does, its options and an example.",
      .example = "weightfs help mount",
      .options = {},
      .take = take_help,
  };
}

constexpr std::string_view kExitCodes =
    "Exit codes: 0 done, 1 failed, 2 usage, 3 conflict (somebody else published first),\n"
    "4 corrupt, 5 timed out.\n";

/// "  --tag TAG" and the help behind it, continued in the same column.
std::string option_lines(const OptionSpec& option) {
  constexpr std::size_t kColumn = 22;
  std::string left = fmt::format("  --{}", option.name);
  if (!option.value.empty()) left += fmt::format(" {}", option.value);
  std::string text = fmt::format("{:<{}}", left, kColumn);
  if (left.size() >= kColumn) text += "\n" + std::string(kColumn, ' ');
  for (const char c : option.help) {
    text += c;
    if (c == '\n') text.append(kColumn, ' ');
  }
  return text + "\n";
}

}  // namespace

std::span<const CommandSpec> all_commands() {
  static const std::array commands{
      init_command(),   publish_command(), mount_command(),  sync_command(),
      umount_command(), wait_command(),    pin_command(),    unpin_command(),
      status_command(), log_command(),     show_command(),   diff_command(),
      export_command(), verify_command(),  doctor_command(), help_command(),
  };
  return commands;
}

bool is_bucket_option(std::string_view name) {
  return std::any_of(kBucketOptions.begin(), kBucketOptions.end(),
                     [&](const OptionSpec& option) { return option.name == name; });
}

std::span<const OptionSpec> common_options() { return kCommon; }

const CommandSpec* find_command(std::string_view name) {
  for (const CommandSpec& command : all_commands()) {
    if (command.name == name) return &command;
  }
  return nullptr;
}

const OptionSpec* find_option(const CommandSpec& command, std::string_view name) {
  for (const OptionSpec& option : command.options) {
    if (option.name == name) return &option;
  }
  for (const OptionSpec& option : kCommon) {
    if (option.name == name) return &option;
  }
  return nullptr;
}

const OptionSpec* find_any_option(std::string_view name) {
  for (const CommandSpec& command : all_commands()) {
    if (const OptionSpec* option = find_option(command, name)) return option;
  }
  return nullptr;
}

std::string usage_line(const CommandSpec& command) {
  return fmt::format("weightfs {} {}{}[OPTION...]", command.name, command.operands,
                     command.operands.empty() ? "" : " ");
}

std::string help_text() {
  std::string text =
      "weightfs: a path that always holds a complete, immutable checkpoint\n"
      "\n"
      "usage: weightfs COMMAND OPERAND... [OPTION...]\n"
      "\n";
  for (const CommandSpec& command : all_commands()) {
    text += fmt::format("  {:<9} {:<20} {}\n", command.name, command.operands, command.summary);
  }
  text += "\nOptions of every command; --version prints the version of weightfs:\n";
  for (const OptionSpec& option : kCommon) text += option_lines(option);
  text +=
      "\n--option VALUE or --option=VALUE, before or after operands. An option that is not given "
      "is\n"
      "taken from the environment (WEIGHTFS_STORE_SIZE for --store-size; lists one entry a line),\n"
      "else from the configuration file, at its top or in the command's table:\n"
      "\n"
      "    store = \"/ssd/weightfs\"\n"
      "    [mount]\n"
      "    poll = 0.5\n"
      "\n";
  text += kExitCodes;
  text +=
      "\nExample:\n"
      "    weightfs init file:///srv/runs/a\n"
      "    weightfs publish file:///srv/runs/a out/step-0\n"
      "    weightfs mount file:///srv/runs/a /mnt/w\n"
      "    vllm serve /mnt/w/latest\n";
  return text;
}

std::string help_text(const CommandSpec& command) {
  std::string text = fmt::format("weightfs {}: {}\n\nusage: {}\n\n{}\n\nOptions:\n", command.name,
                                 command.summary, usage_line(command), command.description);
  for (const OptionSpec& option : command.options) text += option_lines(option);
  for (const OptionSpec& option : kCommon) text += option_lines(option);
  text += fmt::format("\n{}\nExample:\n    {}\n", kExitCodes, command.example);
  return text;
}

}  // namespace weightfs::fs
