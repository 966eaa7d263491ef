// init, publish, rollback, verify: making a repository, and checking it.

#include <fmt/format.h>

#include "fs/base/coder_choice.hpp"
#include "fs/base/format_values.hpp"
#include "fs/base/text_table.hpp"
#include "fs/commands/command_context.hpp"
#include "fs/commands/host_choice.hpp"
#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/bucket/bucket.hpp"
#include "store/format/checkpoint.hpp"
#include "store/inspect/verify.hpp"
#include "store/inspect/verify_tree.hpp"
#include "store/materialize/check_images.hpp"
#include "store/publish/publish.hpp"
#include "store/publish/publish_part.hpp"
#include "store/publish/publish_store.hpp"
#include "store/publish/version_wishes.hpp"
#include "store/repository/gc_log.hpp"
#include "store/repository/open_bucket.hpp"
#include "store/s3/bucket_options.hpp"
#include "store/timing/phase_watch.hpp"

namespace weightfs::fs {
namespace {

Json to_json(const PublishResult& result, const std::string& url, const std::string& tag) {
  Json json{{"url", url},
            {"version", result.version},
            {"tag", tag},
            {"parent", result.parent},
            {"changed_elements", result.changed_elements},
            {"elements", result.elements},
            {"version_bytes", result.version_bytes},
            {"uploaded_bytes", result.uploaded_bytes},
            {"snapshot", result.snapshot},
            {"unpublished", result.unpublished}};
  if (result.base) json["base"] = result.base->text();
  if (const auto& chunks = result.rollback) {
    json["chunks"] = {
        {"equal", chunks->equal}, {"patched", chunks->patched}, {"other", chunks->other}};
  }
  return json;
}

std::string to_text(const PublishResult& result, const std::string& url, const std::string& tag) {
  std::string text = fmt::format("published version {}", result.version);
  if (!tag.empty()) text += fmt::format(" as {}", tag);
  if (!result.delta) {
    text += fmt::format(": {} uploaded\n", human_bytes(result.uploaded_bytes));
  } else {
    text += fmt::format(": {} of {} elements changed, {} uploaded for {}\n",
                        share_text(result.changed_elements, result.elements), result.elements,
                        human_bytes(result.uploaded_bytes), human_bytes(result.version_bytes));
  }
  if (result.base) text += fmt::format("readers fetch its snapshot from {}\n", result.base->text());
  for (const std::string& path : result.unpublished) {
    text += fmt::format("not published: {} (--include publishes it too)\n", printable(path));
  }
  return text + fmt::format("mount with: weightfs mount {} MOUNTPOINT\n", url);
}

Json to_json(const PartResult& result, const std::string& url, const PublishOptions& options) {
  return {{"url", url},
          {"version", result.version},
          {"tag", options.wishes.tag},
          {"parent", result.parent},
          {"part", options.part.part},
          {"parts", options.part.parts},
          {"missing", result.missing},
          {"committed_here", result.is_committed_here},
          {"changed_elements", result.changed_elements},
          {"elements", result.elements},
          {"part_bytes", result.part_bytes},
          {"version_bytes", result.part_bytes},
          {"uploaded_bytes", result.uploaded_bytes},
          {"snapshot", result.snapshot},
          {"unpublished", result.unpublished}};
}

std::string to_text(const PartResult& result, const std::string& url,
                    const PublishOptions& options) {
  const PartChoice& part = options.part;
  std::string text =
      fmt::format("part {} of {} is in the bucket: {} uploaded for {}\n", part.part, part.parts,
                  human_bytes(result.uploaded_bytes), human_bytes(result.part_bytes));
  for (const std::string& path : result.unpublished) {
    text += fmt::format("not published: {} (--include publishes it too)\n", printable(path));
  }
  if (!result.missing.empty()) {
    return text + fmt::format("version {} ({}) is not published yet: part{} {} missing\n",
                              result.version, options.wishes.tag,
                              result.missing.size() == 1 ? "" : "s", parts_text(result.missing));
  }
  return text +
         fmt::format("published version {} as {}\nmount with: weightfs mount {} MOUNTPOINT\n",
                     result.version, options.wishes.tag, url);
}

Json to_json(const VerifyReport& report) {
  Json problems = Json::array();
  for (const Problem& problem : report.problems) {
    problems.push_back({{"object", problem.object}, {"message", problem.message}});
  }
  Json orphans = Json::array();
  for (const Orphans& left : report.orphans) {
    orphans.push_back({{"prefix", left.prefix}, {"objects", left.objects}, {"bytes", left.bytes}});
  }
  return {{"versions", report.versions},     {"skips", report.skips},
          {"objects", report.objects},       {"bytes", report.bytes},
          {"problems", std::move(problems)}, {"orphans", std::move(orphans)},
          {"retired", report.retired}};
}

std::string to_text(const VerifyReport& report) {
  std::string text;
  for (const Problem& problem : report.problems) {
    text += printable(fmt::format("{}: {}", problem.object, problem.message)) + "\n";
  }
  for (const std::uint64_t version : report.retired) {
    text += fmt::format("versions/{}: retired, cannot be compared with the bucket\n", version);
  }
  for (const Orphans& left : report.orphans) {
    text += fmt::format("{}: {}, {}, not part of any version\n", printable(left.prefix),
                        count_text(left.objects, "object"), human_bytes(left.bytes));
  }
  if (!report.orphans.empty()) {
    text +=
        "left by an interrupted publish, or uploaded by one that is running, or early, of what "
        "lies in the staging/ of a writer's mount\n";
  }
  const std::string verdict =
      report.problems.empty() ? "no problems" : count_text(report.problems.size(), "problem");
  const std::string skips =
      report.skips == 0 ? "" : fmt::format(", {}", count_text(report.skips, "skip delta"));
  return text + fmt::format("verified {}{}, {}, {}: {}\n", count_text(report.versions, "version"),
                            skips, count_text(report.objects, "object"), human_bytes(report.bytes),
                            verdict);
}

VerifyReport verify(Call& call) {
  Reading reading(call);
  std::optional<std::uint64_t> only;
  if (call.options.version) only = reading.number_of(*call.options.version);
  if (!reading.mount_point.empty()) {
    if (call.options.look.deep) {
      throw Error(
          ErrorCode::invalid,
          fmt::format(
              "--deep compares both paths to a version in the bucket: use the URL, {}, instead of "
              "the mount",
              reading.url));
    }
    if (call.options.host.gpu)
      log_warning("--gpu has no effect here: verifying a mount only computes hashes, on the CPU");
    return verify_tree(reading.history, reading.mount_point, reading.context, call.progress(),
                       only);
  }
  const ScratchDirectory scratch = make_scratch();
  const CoderChoice choice(call.options.host.gpu);
  return verify_repository(reading.history, scratch.path(), reading.context, call.progress(),
                           choice.coder(), {.only = only, .deep = call.options.look.deep});
}

/// A mount, or a sync's directory, cannot be a repository.
void refuse_shown(const std::string& url) {
  const auto served = find_served_around(directory_of_url(url));
  if (!served) return;
  const bool is_directory = served->type == kDirectoryType;
  throw Error(ErrorCode::invalid,
              fmt::format("{} lies in {}, {} {}: no repository can be made there; publish to that "
                          "one with: weightfs publish {} DIR, or name a directory elsewhere",
                          url, served->path.string(),
                          is_directory ? "which weightfs sync keeps up to date with"
                                       : "where weightfs shows",
                          served->source, served->source));
}

}  // namespace

int run_init(Call& call) {
  const StopSignals signals;
  call.watch_bucket();
  bool created = false;
  const Target target{canonical_url(call.options.target), {}, {}};
  refuse_shown(target.url);
  const auto repository = Repository::init(target.url, created, Context{.stop = signals.token()},
                                           bucket_options_for(call.options, target));
  const std::string text =
      fmt::format("{}: {}\npublish with: weightfs publish {} DIR\n",
                  created ? "created the repository" : "the repository already exists",
                  repository->id(), repository->url());
  call.print({{"url", repository->url()}, {"repository", repository->id()}, {"created", created}},
             text);
  return 0;
}

namespace {

/// For logs: a process that waits for hours without a word looks dead.
void tell_missing(const std::vector<unsigned>& missing) {
  if (missing.empty()) return;
  log_warning(
      fmt::format("waiting for part{} {}", missing.size() == 1 ? "" : "s", parts_text(missing)));
}

int publish_to(Call& call, Reading& reading, const VersionWishes& wishes) {
  const Options& options = call.options;
  const std::string& id = reading.repository->id();
  const std::filesystem::path path = options.host.store.empty()
                                         ? Store::default_path(id)
                                         : std::filesystem::absolute(options.host.store);
  PublishStore publish_store = PublishStore::open(path, id, reading.url, StoreLimits{});
  History history(*reading.repository, &publish_store.store());
  check_images(publish_store.store(), history, reading.context, call.progress());
  const CoderChoice choice(options.host.gpu);
  HandOverWatch watch("");
  const PublishOptions publish_options{.directory = options.directory,
                                       .wishes = wishes,
                                       .snapshots = options.snapshots,
                                       .base = options.base,
                                       .part = part_choice(options),
                                       .part_wait = options.part_wait,
                                       .waiting = tell_missing,
                                       .coder = choice.coder(),
                                       .keeps_images = publish_store.is_kept(),
                                       .watch = &watch,
                                       .at = {}};
  if (publish_options.part.is_part()) {
    const PartResult result = publish_part(history, publish_store.store(), publish_options,
                                           reading.context, call.progress());
    call.print(to_json(result, reading.url, publish_options),
               to_text(result, reading.url, publish_options));
    return 0;
  }
  const PublishResult result =
      publish(history, publish_store.store(), publish_options, reading.context, call.progress());
  call.print(to_json(result, reading.url, wishes.tag), to_text(result, reading.url, wishes.tag));
  publish_store.store().timings().put(watch.timing);
  call.sync_kept(publish_store.store().images(), reading.context);
  return 0;
}

/// What a version would hold.
struct PlannedVersion {
  std::uint64_t files = 0, tensors = 0, bytes = 0;
  std::vector<std::string> unpublished;
};

PlannedVersion plan_files(const Checkpoint& checkpoint) {
  PlannedVersion plan{checkpoint.files.size(), 0, checkpoint.size_bytes(), checkpoint.unpublished};
  for (const CheckpointFile& file : checkpoint.files) plan.tensors += file.header.tensors.size();
  return plan;
}

PlannedVersion plan_rollback(Reading& reading, std::uint64_t number) {
  throw_if_retired(*reading.repository, number, reading.context);
  const auto version = reading.history.get(number, reading.context);
  const auto layout = reading.history.layout(*version, reading.context);
  return {layout->files().size() + version->manifest.blobs.size(),
          layout->tensors().size(),
          version_bytes(version->manifest, *layout),
          {}};
}

/// Checks what can be checked without coding and without writing anything.
int plan_to(Call& call, Reading& reading, const VersionWishes& wishes) {
  check_wishes(wishes);
  const PlannedVersion plan =
      wishes.rollback != 0 ? plan_rollback(reading, wishes.rollback)
                           : plan_files(scan_checkpoint(
                                 call.options.directory, wishes.include,
                                 call.options.part.is_part() ? ScanScope::part : ScanScope::whole));
  const std::uint64_t newest = reading.repository->newest_version(0, reading.context);
  std::string text = fmt::format(
      "would publish version {} of {}{}: {}, {}, {}\n", newest + 1, reading.url,
      wishes.rollback != 0 ? fmt::format(", with the content of version {}", wishes.rollback) : "",
      count_text(plan.files, "file"), count_text(plan.tensors, "tensor"), human_bytes(plan.bytes));
  for (const std::string& name : plan.unpublished) text += fmt::format("left out: {}\n", name);
  call.print({{"dry_run", true},
              {"url", reading.url},
              {"version", newest + 1},
              {"tag", wishes.tag},
              {"rollback", wishes.rollback == 0 ? Json(nullptr) : Json(wishes.rollback)},
              {"files", plan.files},
              {"tensors", plan.tensors},
              {"bytes", plan.bytes},
              {"unpublished", plan.unpublished}},
             text + "nothing was changed\n");
  return 0;
}

/// A mount's daemon has options and a queue of its own, which decide.
void check_dry_run(const Options& options, const Target& target) {
  if (!options.dry_run || target.mount_point.empty()) return;
  throw Error(
      ErrorCode::invalid,
      fmt::format("--dry-run is for a bucket, not for a mount: weightfs {} {} ... --dry-run",
                  options.command == Command::publish ? "publish" : "rollback", target.url));
}

}  // namespace

int run_publish(Call& call) {
  const Target target = resolve_target(call.options.target);
  check_dry_run(call.options, target);
  if (!target.mount_point.empty() && call.options.base) {
    throw Error(
        ErrorCode::invalid,
        fmt::format("--base is for a bucket, not for a mount: weightfs publish {} DIR --base "
                    "{}",
                    target.url, call.options.base->text()));
  }
  if (!target.mount_point.empty() && call.options.part.is_part()) {
    throw Error(ErrorCode::invalid,
                fmt::format("--part is for a bucket, not for a mount: weightfs publish {} DIR "
                            "--part {}/{}",
                            target.url, call.options.part.part, call.options.part.parts));
  }
  if (!target.mount_point.empty()) {
    return run_hand_over(call, target.mount_point, call.options.publish);
  }
  Reading reading(call, target);
  if (call.options.dry_run) return plan_to(call, reading, call.options.publish);
  return publish_to(call, reading, call.options.publish);
}

int run_rollback(Call& call) {
  const Target target = resolve_target(call.options.target);
  const Follow& word = call.options.version.value();
  VersionWishes wishes = call.options.publish;
  check_dry_run(call.options, target);
  if (!target.mount_point.empty()) {
    wishes.rollback = number_shown(call, target, word);
    return run_hand_over(call, target.mount_point, wishes);
  }
  Reading reading(call, target);
  wishes.rollback = reading.number_of(word);
  if (call.options.dry_run) return plan_to(call, reading, wishes);
  return publish_to(call, reading, wishes);
}

int run_verify(Call& call) {
  const VerifyReport report = verify(call);
  call.print(to_json(report), to_text(report));
  return report.problems.empty() ? 0 : 4;
}

}  // namespace weightfs::fs
