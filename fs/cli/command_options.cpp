#include "fs/cli/command_options.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "fs/metrics/metrics_address.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/readers/reader_record.hpp"

namespace weightfs::fs {
namespace {

constexpr NumberRange kGpus{0, 1023};
constexpr std::size_t kHooksMax = 64;  // each hook has a thread

Warm parse_warm(std::string_view text) {
  if (text == "auto") return Warm::automatic;
  if (text == "off") return Warm::off;
  throw Error(ErrorCode::invalid, fmt::format("'{}' is not auto or off", text));
}

LogFormat parse_log_format(std::string_view text) {
  if (text == "text") return LogFormat::text;
  if (text == "json") return LogFormat::json;
  throw Error(ErrorCode::invalid, fmt::format("'{}' is not text or json", text));
}

LogLevel parse_log_level(std::string_view text) {
  for (const LogLevel level :
       {LogLevel::debug, LogLevel::info, LogLevel::warning, LogLevel::error}) {
    if (text == to_string(level)) return level;
  }
  throw Error(ErrorCode::invalid, fmt::format("'{}' is not debug, info, warning or error", text));
}

/// The same hook twice would tell an engine everything twice.
void add_hook(Options& options, std::string_view text) {
  HookOptions spec = parse_hook(text);
  for (const HookOptions& other : options.host.hooks) {
    if (other.type == spec.type && other.url == spec.url && other.argv == spec.argv &&
        other.name == spec.name) {
      throw Error(ErrorCode::invalid,
                  fmt::format("{} {} is given twice", to_string(spec.type), spec.target()));
    }
  }
  if (options.host.hooks.size() >= kHooksMax) {
    throw Error(ErrorCode::invalid, fmt::format("there may be at most {} hooks", kHooksMax));
  }
  options.host.hooks.push_back(std::move(spec));
}

/// For a switch that turns something off.
bool is_off(std::string_view text) { return !parse_switch(text); }

/// For every command that takes a URL.
const std::vector<OptionSpec>& bucket_options() {
  static const std::vector<OptionSpec> rows{
      {.name = "endpoint-url",
       .value = "URL",
       .help = "the S3 service of s3://, if it is not AWS: https://host[:port]\n"
               "(default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, else the profile's, else AWS)",
       .set = into<parse_word, &Options::host, &HostOptions::bucket, &BucketOptions::endpoint_url>},
      {.name = "region",
       .value = "NAME",
       .help = "the bucket's region (default: AWS_REGION, AWS_DEFAULT_REGION, else the\n"
               "profile's, else us-east-1)",
       .set = into<parse_word, &Options::host, &HostOptions::bucket, &BucketOptions::region>},
      {.name = "profile",
       .value = "NAME",
       .help = "the profile of ~/.aws/config and ~/.aws/credentials that has the keys\n"
               "(default: AWS_PROFILE, else default; keys in the environment go first)",
       .set = into<parse_word, &Options::host, &HostOptions::bucket, &BucketOptions::profile>},
      {.name = "path-style",
       .help = "put the bucket's name in the path, not in the host name\n"
               "(default: only where the endpoint is not AWS's)",
       .set = into<parse_switch, &Options::host, &HostOptions::bucket, &BucketOptions::path_style>},
      {.name = "no-sign-request",
       .help = "send no credentials: a public bucket (default: sign every request)",
       .set = into<is_off, &Options::host, &HostOptions::bucket, &BucketOptions::sign>}};
  return rows;
}

std::uint64_t parse_history(std::string_view text) { return parse_number(text, {0, 10'000}); }

std::chrono::seconds parse_announce_every(std::string_view text) {
  return std::chrono::seconds(parse_number(text, {1, kReaderEveryMax}));
}

Poll parse_poll(std::string_view text) {
  if (text == "auto") return {};
  try {
    return {.interval = parse_seconds(text), .learns = false};
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}, or auto", error.what()));
  }
}

/// "2/4".
void set_part(Options& options, std::string_view text) {
  constexpr NumberRange kParts{1, kPartsMax};
  const std::size_t slash = text.find('/');
  if (slash == text.npos) {
    throw Error(ErrorCode::invalid,
                fmt::format("'{}' is not a part and the number of parts, such as 2/4", text));
  }
  options.part.part = number_in<kParts, unsigned>(text.substr(0, slash));
  options.part.parts = number_in<kParts, unsigned>(text.substr(slash + 1));
  if (options.part.part <= options.part.parts) return;
  throw Error(ErrorCode::invalid,
              fmt::format("there is no part {} of {}", options.part.part, options.part.parts));
}

std::chrono::milliseconds parse_part_wait(std::string_view text) {
  return text == "0" ? std::chrono::milliseconds(0) : parse_seconds(text);
}

}  // namespace

OptionSpec store_option() {
  return {.name = "store",
          .value = "DIR",
          .help =
              "directory for images and records on this host\n"
              "(default: /var/lib/weightfs/ID for root, else $XDG_CACHE_HOME/weightfs/ID)",
          .set = into<as_given, &Options::host, &HostOptions::store>};
}

OptionSpec seed_option() {
  return {.name = "seed",
          .value = "DIR",
          .help =
              "a checkpoint on this host, such as the base model from the Hub: bytes of a\n"
              "snapshot that its tensors have are copied from there and compared, and not\n"
              "fetched. DIR is never written to (default: all are fetched)",
          .set = into<as_given, &Options::host, &HostOptions::seed>};
}

OptionSpec gpu_option() {
  return {.name = "gpu",
          .value = "N",
          .help =
              "code and decode on this CUDA device; if it cannot be used, the CPU does the\n"
              "work, and weightfs says so (default: only the CPU)",
          .set = into<number_in<kGpus, int>, &Options::host, &HostOptions::gpu>};
}

OptionSpec part_option() {
  return {.name = "part",
          .value = "I/N",
          .help =
              "DIR has the files of host I of N, which publish this version together; --tag\n"
              "says which version. The last to come commits it (default: DIR has all)",
          .set = set_part};
}

OptionSpec run_option() {
  return {.name = "run",
          .value = "TOKEN",
          .help =
              "with --part: new for each start of the trainer, and the same on all its hosts,\n"
              "so that parts of two runs do not mix (default: what Slurm sets)",
          .set = into<parse_word, &Options::part, &PartChoice::run>};
}

OptionSpec part_wait_option() {
  return {.name = "part-wait",
          .value = "SECONDS",
          .help =
              "with --part: wait so long for the others, then fail with exit code 5 and name\n"
              "them; the own part stays. 0: do not wait, and succeed (default: 600)",
          .set = into<parse_part_wait, &Options::part_wait>};
}

OptionSpec poll_option() {
  return {.name = "poll",
          .value = "SECONDS|auto",
          .help = fmt::format(
              "how often to poll for a new version; fractions allowed. auto learns the pace\n"
              "of the run: every {} s, and up to 200 times a second when a version is due,\n"
              "where polls are that quick (default: auto)",
              seconds_text(Poll{}.interval)),
          .set = into<parse_poll, &Options::host, &HostOptions::follow, &FollowOptions::poll>};
}

OptionSpec follow_option() {
  return {.name = "follow",
          .value = "TAG|N|latest",
          .help = fmt::format(
              "what `latest` means here: the newest version that carries TAG (a canary),\n"
              "version N and no other (a freeze), or the newest. Waits for what does not\n"
              "exist yet. Digits are a version (default: {})",
              to_string(FollowOptions{}.what)),
          .set = into<parse_follow, &Options::host, &HostOptions::follow, &FollowOptions::what>};
}

OptionSpec store_size_option() {
  return {.name = "store-size",
          .value = "SIZE",
          .help =
              "bytes of old and new versions, and of what changed between them, to keep here,\n"
              "such as 500M or 10GiB (default: 3 times the newest version, and --history)",
          .set = into<parse_size, &Options::host, &HostOptions::limits, &StoreLimits::store_bytes>};
}

OptionSpec history_option() {
  return {.name = "history",
          .value = "N",
          .help = fmt::format(
              "versions that this host makes without the bucket, each of the newest N, and\n"
              "older ones by 64 while there is room: of the images here and of what changed.\n"
              "0: none, and with --images memory no more than a restart needs\n"
              "(default: {})",
              kHistoryVersions),
          .set = into<parse_history, &Options::host, &HostOptions::history>};
}

OptionSpec min_free_option() {
  return {
      .name = "min-free",
      .value = "SIZE",
      .help =
          "bytes to leave free on the store's file system\n"
          "(default: 5 % of it, at most 10 GiB)",
      .set = into<parse_size, &Options::host, &HostOptions::limits, &StoreLimits::free_bytes_min>};
}

OptionSpec hook_option() {
  return {.name = "hook",
          .value = "TYPE=WHERE",
          .is_list = true,
          .help =
              "update an engine to every new version: vllm=URL, sglang=URL, http=URL,\n"
              "vllm-lora=URL,name=NAME, or exec=COMMAND, which runs without a shell;\n"
              "after a URL also every=SECONDS, timeout=SECONDS, token-file=FILE;\n"
              "repeatable; docs/engines/hooks.md (default: none)",
          .set = add_hook};
}

OptionSpec warm_option() {
  return {.name = "warm",
          .value = "HOW",
          .help =
              "auto: prefetch the version of `latest` into the page cache, in the background,\n"
              "if the whole version fits into memory; off: leave that to the engine\n"
              "(default: auto)",
          .set = into<parse_warm, &Options::host, &HostOptions::warm>};
}

OptionSpec max_lag_option() {
  return {.name = "max-lag",
          .value = "SECONDS",
          .help =
              "say that this host has failed (weightfs status --check, .weightfs/health) when\n"
              "for so long there have been versions later than the one that is shown, or the\n"
              "bucket was not reached; only where `latest` is followed\n"
              "(default: no limit)",
          .set = into<parse_seconds, &Options::host, &HostOptions::max_lag>};
}

OptionSpec announce_option() {
  return {
      .name = "announce",
      .help =
          "say in the bucket, in readers/, what this host shows, for weightfs fleet and\n"
          "weightfs wait --replicas; needs permission to write there (default: off)",
      .set = into<parse_switch, &Options::host, &HostOptions::announce, &AnnounceOptions::is_on>};
}

OptionSpec announce_every_option() {
  return {.name = "announce-every",
          .value = "SECONDS",
          .needs = "announce",
          .help = fmt::format(
              "how often --announce says it, besides when something has changed; whole\n"
              "seconds, at most {} (default: {})",
              kReaderEveryMax, AnnounceOptions{}.every.count()),
          .set = into<parse_announce_every, &Options::host, &HostOptions::announce,
                      &AnnounceOptions::every>};
}

OptionSpec metrics_option() {
  return {.name = "metrics",
          .value = "ADDRESS",
          .help =
              "give out metrics for Prometheus, at http://ADDRESS/metrics, to all who can\n"
              "connect: 127.0.0.1:9090, [::1]:9090 or unix:PATH; port 0: any that is free,\n"
              "which weightfs status shows; docs/METRICS.md (default: none)",
          .set = into<parse_metrics_address, &Options::host, &HostOptions::metrics>};
}

OptionSpec log_format_option() {
  return {.name = "log-format",
          .value = "text|json",
          .help =
              "json: one object for each line. On stderr below systemd both have the level\n"
              "for journald in front (default: text)",
          .set = into<parse_log_format, &Options::host, &HostOptions::log, &LogOptions::format>};
}

OptionSpec log_level_option() {
  return {.name = "log-level",
          .value = "LEVEL",
          .help = "what to log: debug, info, warning or error, and what is worse (default: info)",
          .set = into<parse_log_level, &Options::host, &HostOptions::log, &LogOptions::least>};
}

OptionSpec include_option(Setter set) {
  return {.name = "include",
          .value = "GLOB",
          .is_list = true,
          .help =
              "also publish files that match; a GLOB with a '/' is compared with the\n"
              "whole path; repeatable (default: none)",
          .set = set};
}

OptionSpec snapshot_every_option(Setter set) {
  return {.name = "snapshot-every",
          .value = "N",
          .help =
              "write the full bytes of every version whose number N divides; 0: of none for\n"
              "its number. Versions divisible by 64 get them anyway once the way from the\n"
              "last ones is long (default: 0)",
          .set = set};
}

std::vector<OptionSpec> with_bucket(std::vector<OptionSpec> options) {
  options.insert(options.end(), bucket_options().begin(), bucket_options().end());
  return options;
}

OptionSpec version_option(std::string help) {
  return {.name = "version",
          .value = "VERSION",
          .is_typed = true,  // hooks have WEIGHTFS_VERSION (fs/hooks/exec.hpp)
          .help = std::move(help),
          .set = into<parse_follow, &Options::version>};
}

std::string seconds_text(std::chrono::milliseconds time) {
  return fmt::format("{:g}", std::chrono::duration<double>(time).count());
}

void take_target(Options& options, std::span<const std::string> operands) {
  if (!operands.empty()) options.target = operands[0];
}

void take_target_and_directory(Options& options, std::span<const std::string> operands) {
  options.target = operands[0];
  options.directory = operands[1];
}

bool is_bucket_option(std::string_view name) {
  return std::any_of(bucket_options().begin(), bucket_options().end(),
                     [&](const OptionSpec& option) { return option.name == name; });
}

std::span<const OptionSpec> common_options() {
  static const std::vector<OptionSpec> rows{
      {.name = "json",
       .help = "print JSON on stdout, errors too",
       .set = into<parse_switch, &Options::json>},
      {.name = "quiet",
       .help = "no progress (it is only shown on a terminal, after a second)",
       .set = into<parse_switch, &Options::quiet>},
      {.name = "config",
       .value = "FILE",
       .help = "read options from this TOML file (default: WEIGHTFS_CONFIG, else those that\n"
               "exist of $XDG_CONFIG_HOME/weightfs/config.toml (or ~/.config/...),\n"
               "/etc/weightfs/weightfs.toml and /etc/weightfs.toml; the first that has an\n"
               "option wins)"},
      {.name = "help", .help = "print this help; also -h"}};
  return rows;
}

}  // namespace weightfs::fs
