#include <fmt/format.h>

#include "fs/cli/command_options.hpp"
#include "fs/cli/command_specs.hpp"
#include "store/base/error.hpp"
#include "store/format/hub_base.hpp"

namespace weightfs::fs {
namespace {

using Operands = std::span<const std::string>;

void add_meta(Options& options, std::string_view text) {
  const auto [key, value] = parse_pair(text);
  if (!options.publish.meta.emplace(key, value).second) {
    throw Error(ErrorCode::invalid, fmt::format("the key '{}' is given twice", key));
  }
}

std::optional<HubBase> parse_base(std::string_view text) {
  auto base = HubBase::parse(text);
  if (base) return base;
  throw Error(ErrorCode::invalid, fmt::format("'{}' is not {}", text, kHubBaseForm));
}

void take_publish(Options& options, Operands operands) {
  take_target_and_directory(options, operands);
  const bool is_for_part = !options.part.run.empty() || options.part_wait != kPartWait;
  if (options.part.is_part() || !is_for_part) return;
  throw Error(ErrorCode::invalid, "--run and --part-wait are for --part: give it too");
}

/// Typed each time: from a file it would keep everybody from publishing.
OptionSpec dry_run_option() {
  return {.name = "dry-run",
          .is_typed = true,
          .help = "only check what would be published, and say it; of a URL (default: publish)",
          .set = into<parse_switch, &Options::dry_run>};
}

void take_rollback(Options& options, Operands operands) {
  options.target = operands[0];
  options.version = parse_follow(operands[1]);
}

void take_export(Options& options, Operands operands) {
  options.target = operands[0];
  options.directory = operands[1];
  if (options.look.from.has_value() != options.look.to.has_value()) {
    throw Error(ErrorCode::invalid, "export takes --from and --to together");
  }
  if (options.look.from && options.version) {
    throw Error(ErrorCode::invalid, "export takes either --version or --from and --to");
  }
}

}  // namespace

CommandSpec init_command() {
  return {
      .command = Command::init,
      .name = "init",
      .operands = "URL",
      .summary = "create a repository",
      .description =
          "Creates an empty repository at URL, and its directory. Proves that the bucket really\n"
          "refuses to write an object twice, which is what keeps two publishers apart. An "
          "existing\n"
          "repository is left as it is, with exit code 0.\n"
          "\n"
          "URL is file:///DIRECTORY, a path that starts with '/' or '.', s3://BUCKET/PREFIX, or\n"
          "hf://ORG/BUCKET/PREFIX. An S3 bucket must exist: only directories are created.",
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
      .summary = "publish a checkpoint directory as a version",
      .description =
          "Publishes the checkpoint in DIR as the next version: the first one whole, later ones "
          "as\n"
          "the change from the newest version. It publishes safetensors, JSON, text, tokenizer "
          "and\n"
          "template files, in sub-directories too; pickles, optimizer state and code only if\n"
          "--include names them. Success means that the version is in the bucket.\n"
          "\n"
          "With the MOUNTPOINT of a writer's mount the daemon publishes: the files to publish are\n"
          "copied into staging, unless DIR is there already, and handed over; the command waits\n"
          "until versions/N opens there. --store and --gpu are then those of the mount.\n"
          "\n"
          "If another writer publishes meanwhile, the command fails with exit code 3; run it "
          "again,\n"
          "or use --rebase.",
      .example = "weightfs publish file:///srv/runs/a out/step-42 --tag step-42 --meta reward=0.7",
      .options = with_bucket({
          {.name = "tag",
           .value = "TAG",
           .is_typed = true,  // hooks have WEIGHTFS_TAG
           .help = "a name for the version; tags/TAG leads to the newest version that carries\n"
                   "it (default: none)",
           .set = into<as_given, &Options::publish, &VersionWishes::tag>},
          {.name = "meta",
           .value = "KEY=VALUE",
           .is_list = true,
           .help = "metadata to store with the version; repeatable (default: none)",
           .set = add_meta},
          include_option(append<as_given, &Options::publish, &VersionWishes::include>),
          {.name = "snapshot",
           .help = "write the full bytes too, so that readers can start here (default: only\n"
                   "version 1, and as --snapshot-every says)",
           .set = into<parse_switch, &Options::publish, &VersionWishes::snapshot>},
          {.name = "base",
           .value = "hub:ORG/MODEL@COMMIT",
           .help = "DIR is this commit of a model on the Hugging Face Hub: a snapshot of which\n"
                   "no weights file is uploaded; readers fetch them from there. Each is\n"
                   "compared with the Hub's first. HF_ENDPOINT and HF_TOKEN are used as\n"
                   "huggingface_hub does (default: the bucket has all bytes)",
           .set = into<parse_base, &Options::base>},
          snapshot_every_option(
              into<number_in<kEvery>, &Options::snapshots, &SnapshotPolicy::every>),
          {.name = "rebase",
           .help = "if somebody else publishes meanwhile, code again on top of that version, a\n"
                   "few times (default: fail with exit code 3)",
           .set = into<parse_switch, &Options::publish, &VersionWishes::rebase>},
          part_option(),
          run_option(),
          part_wait_option(),
          dry_run_option(),
          store_option(),
          gpu_option(),
      }),
      .take = take_publish,
  };
}

CommandSpec rollback_command() {
  return {
      .command = Command::rollback,
      .name = "rollback",
      .operands = "URL|MOUNTPOINT VERSION",
      .summary = "publish an older version's content again, as the newest version",
      .description =
          "Publishes a version with exactly the files of VERSION (a number, a tag, or latest), as "
          "a\n"
          "delta after the newest one; what lies between stays in the history. Only what differs "
          "is\n"
          "read, and made from patches of the store where it has them. The metadata of the "
          "version\n"
          "note rollback=N. VERSION may be the newest one: that costs a delta without changes.\n"
          "\n"
          "With the MOUNTPOINT of a writer's mount the daemon publishes it, in its turn with the\n"
          "hand-overs; the command waits until versions/N opens there. --store and --gpu are then\n"
          "those of the mount.\n"
          "\n"
          "If another writer publishes meanwhile, the command fails with exit code 3; look at "
          "what\n"
          "came, then run it again, or use --rebase.",
      .example = "weightfs rollback file:///srv/runs/a 41 --tag stable",
      .options = with_bucket({
          {.name = "tag",
           .value = "TAG",
           .is_typed = true,  // hooks have WEIGHTFS_TAG
           .help = "a name for the new version; the tag of VERSION is not taken over\n"
                   "(default: none)",
           .set = into<as_given, &Options::publish, &VersionWishes::tag>},
          {.name = "meta",
           .value = "KEY=VALUE",
           .is_list = true,
           .help = "metadata to store with the version; repeatable (default: rollback=N alone)",
           .set = add_meta},
          {.name = "rebase",
           .help = "if somebody else publishes meanwhile, do it again on top of that version, a\n"
                   "few times (default: fail with exit code 3)",
           .set = into<parse_switch, &Options::publish, &VersionWishes::rebase>},
          dry_run_option(),
          store_option(),
          gpu_option(),
      }),
      .take = take_rollback,
  };
}

CommandSpec export_command() {
  return {
      .command = Command::export_,
      .name = "export",
      .operands = "URL|MOUNTPOINT DIR|FILE",
      .summary = "write a version as ordinary files, or a change as one file",
      .description =
          "Writes the files of a version, byte for byte as they were published, into DIR, which\n"
          "must be absent or empty.\n"
          "\n"
          "With --from and --to it writes FILE, which must be absent: the exact change between "
          "two\n"
          "versions, in either direction, as safetensors: NAME.indices and NAME.values for each\n"
          "tensor that changed, the new values. Both versions must have the same tensors. A mount\n"
          "shows these changes in its directory deltas.\n"
          "\n"
          "With a MOUNTPOINT both are copied from there, without the bucket; what the mount "
          "cannot\n"
          "give is exported from the bucket, and the command says so.",
      .example = "weightfs export file:///srv/runs/a /models/step-42 --version 42",
      .options = with_bucket({
          version_option("this version: a number, a tag, or latest (default: the newest, of a\n"
                         "mount the one that its latest shows)"),
          {.name = "from",
           .value = "VERSION",
           .help = "with --to: the change from this version (default: none)",
           .set = into<parse_follow, &Options::look, &LookFlags::from>},
          {.name = "to",
           .value = "VERSION",
           .help = "with --from: the change to this version (default: none)",
           .set = into<parse_follow, &Options::look, &LookFlags::to>},
          gpu_option(),
      }),
      .take = take_export,
  };
}

CommandSpec verify_command() {
  return {
      .command = Command::verify,
      .name = "verify",
      .operands = "URL|MOUNTPOINT",
      .summary = "re-hash everything",
      .description =
          "URL: checks every object of every version in the bucket, and that each version can be\n"
          "built from them, in a temporary directory below $TMPDIR or /var/tmp, with room for "
          "two.\n"
          "MOUNTPOINT: checks every file that the mount shows. Prints a line for each problem and\n"
          "continues; exit code 4 if there was one.",
      .example = "weightfs verify file:///srv/runs/a",
      .options = with_bucket({
          version_option("only this version: a number, a tag, or latest (default: all); with a\n"
                         "URL its own objects, and that it can be built"),
          {.name = "deep",
           .help = "compare bytes, not only hashes, of versions that can be built both from a\n"
                   "snapshot and from the version before: whoever can write the bucket can make\n"
                   "chunks with equal hashes; for a URL (default: hashes)",
           .set = into<parse_switch, &Options::look, &LookFlags::deep>},
          gpu_option(),
      }),
      .take = take_target,
  };
}

}  // namespace weightfs::fs
