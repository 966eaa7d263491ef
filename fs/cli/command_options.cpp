#include "fs/cli/command_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "store/base/error.hpp"

namespace weightfs::fs {
namespace {

constexpr std::uint64_t kGpuMax = 1023;
constexpr std::size_t kHooksMax = 64;  // each has a thread

Warm parse_warm(std::string_view text) {
  if (text == "auto") return Warm::automatic;
  if (text == "off") return Warm::off;
  throw Error(ErrorCode::invalid, fmt::format("'{}' is not auto or off", text));
}

/// The same hook twice would tell an engine everything twice.
void add_hook(Options& options, std::string_view text) {
  HookOptions spec = parse_hook(text);
  for (const HookOptions& other : options.hooks) {
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

/// Of every command that takes a URL.
const std::array<OptionSpec, 5> kBucketOptions{{
    {.name = "endpoint-url",
     .value = "URL",
     .help = "the S3 service of s3://, if it is not AWS: https://host[:port]\n"
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

}  // namespace

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

std::vector<OptionSpec> with_bucket(std::vector<OptionSpec> options) {
  options.insert(options.end(), kBucketOptions.begin(), kBucketOptions.end());
  return options;
}

OptionSpec version_option(std::string_view help) {
  return {.name = "version",
          .value = "VERSION",
          .help = help,
          .set = [](Options& options, std::string_view v) { options.version = parse_follow(v); }};
}

void take_target(Options& options, std::span<const std::string> operands) {
  if (!operands.empty()) options.target = operands[0];
}

void take_target_and_directory(Options& options, std::span<const std::string> operands) {
  options.target = operands[0];
  options.directory = operands[1];
}

bool is_bucket_option(std::string_view name) {
  return std::any_of(kBucketOptions.begin(), kBucketOptions.end(),
                     [&](const OptionSpec& option) { return option.name == name; });
}

std::span<const OptionSpec> common_options() { return kCommon; }

}  // namespace weightfs::fs
