// doctor: what is in use on this host, and what is broken.

#include "fs/doctor/doctor.hpp"

#include <fmt/format.h>

#include <optional>

#include "fs/base/output_file.hpp"
#include "fs/base/text_table.hpp"
#include "fs/cache/cache_advice.hpp"
#include "fs/client/mount_status.hpp"
#include "fs/commands/command_context.hpp"
#include "fs/commands/host_choice.hpp"
#include "fs/doctor/bucket.hpp"
#include "fs/doctor/bundle.hpp"
#include "fs/doctor/hooks.hpp"
#include "fs/passes/pass_findings.hpp"
#include "store/base/bytes.hpp"
#include "store/repository/open_bucket.hpp"
#include "store/s3/bucket_options.hpp"

namespace weightfs::fs {
namespace {

namespace stdfs = std::filesystem;

/// Why this variant is in use.
std::string reason_text(const Options& options) {
  return options.kernels.empty() ? "default" : "WEIGHTFS_KERNELS=" + options.kernels;
}

Json gpus_json(const kernels::GpuDevices& gpus) {
  Json list = Json::array();
  for (const kernels::GpuDevice& gpu : gpus.devices) {
    list.push_back({{"device", gpu.number},
                    {"name", gpu.name},
                    {"memory_bytes", gpu.memory_bytes},
                    {"usable", gpu.why_not.empty()},
                    {"why", gpu.why_not}});
  }
  return list;
}

Json to_json(const Diagnosis& found, const std::vector<std::string>& warnings,
             const Options& options) {
  Json operations;
  for (const OperationUse& use : found.operations) operations[use.operation] = use.variant;
  return {{"weightfs", found.weightfs},
          {"libfuse", found.libfuse},
          {"kernel", found.kernel},
          {"fuse", {{"usable", !found.is_broken()}, {"why", found.fuse_problem}}},
          {"passthrough",
           {{"possible", found.passthrough.available}, {"why", found.passthrough.why_not}}},
          {"kernels",
           {{"variant", found.variant},
            {"why", reason_text(options)},
            {"variants", found.variants},
            {"operations", std::move(operations)}}},
          {"gpus", gpus_json(found.gpus)},
          {"gpus_why", found.gpus.why},
          {"warnings", warnings}};
}

/// "scalar, avx2, [avx3_dl] (default)".
std::string variants_text(const Diagnosis& found, const Options& options) {
  std::string text;
  for (const std::string& variant : found.variants) {
    if (!text.empty()) text += ", ";
    text += variant == found.variant ? fmt::format("[{}]", variant) : variant;
  }
  return fmt::format("{} ({})", text, reason_text(options));
}

/// "avx3_dl: diff, encode; scalar: patch".
std::string operations_text(const Diagnosis& found) {
  std::string text;
  for (auto variant = found.variants.rbegin(); variant != found.variants.rend(); ++variant) {
    std::string operations;
    for (const OperationUse& use : found.operations) {
      if (use.variant == *variant) operations += (operations.empty() ? "" : ", ") + use.operation;
    }
    if (operations.empty()) continue;
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", *variant, operations);
  }
  return text;
}

std::string to_text(const Diagnosis& found, const std::vector<std::string>& warnings,
                    const Call& call) {
  const Options& options = call.options;
  TextTable table({{}, {}});
  table.add({"weightfs", found.weightfs});
  table.add({"kernel", found.kernel});
  table.add({"libfuse", found.libfuse});
  table.add({"/dev/fuse", found.is_broken() ? found.fuse_problem : "usable"});
  table.add({"passthrough", found.passthrough.available ? "possible; a mount tries it"
                                                        : found.passthrough.why_not});
  table.add({"CPU variants", variants_text(found, options)});
  table.add({"operations", operations_text(found)});
  for (const kernels::GpuDevice& gpu : found.gpus.devices) {
    table.add({fmt::format("GPU {}", gpu.number),
               fmt::format("{}, {}; {}", gpu.name, human_bytes(gpu.memory_bytes),
                           gpu.why_not.empty() ? fmt::format("--gpu {} uses it", gpu.number)
                                               : "cannot be used: " + gpu.why_not)});
  }
  if (found.gpus.devices.empty()) table.add({"GPU", "none: " + found.gpus.why});
  for (const std::string& warning : warnings) table.add({"warning", warning});
  return table.text(call.output.columns);
}

/// Findings about the memory and the engines at a mount or a sync's directory.
struct MountDiagnosis {
  std::filesystem::path mount_point;
  std::vector<Finding> findings;
};

MountDiagnosis find_out_about_mount(const Target& target) {
  const std::string what = target.mount_point.string();
  const Json status = parse_json(read_status(get_served(target.mount_point)), what);
  MountDiagnosis found{target.mount_point, findings_of(status)};
  for (Finding& finding : pass_findings(status)) found.findings.push_back(std::move(finding));
  for (Finding& finding : advise_here(status, find_memory_room())) {
    found.findings.push_back(std::move(finding));
  }
  return found;
}

BucketDiagnosis find_out_about_bucket(Call& call, const Target& target) {
  const StopSignals signals;
  call.watch_bucket();
  return diagnose_bucket(target.url, bucket_options_for(call.options, target),
                         Context{.stop = signals.token()}, target.repository);
}

Json findings_json(const std::vector<Finding>& findings) {
  Json json = Json::object();
  for (const Finding& finding : findings) {
    json[finding.what] = {{"state", to_string(finding.state)}, {"text", finding.text}};
  }
  return json;
}

std::string findings_text(const std::string& title, const std::vector<Finding>& findings,
                          std::size_t columns) {
  TextTable table({{}, {}});
  for (const Finding& finding : findings) {
    table.add({"  " + finding.what, fmt::format("{}{}", prefix_of(finding.state), finding.text)});
  }
  return fmt::format("{}\n{}", title, table.text(columns));
}

/// A bundle is wanted most where the daemon answers no more: then `no_answer` says why.  Nothing is
/// taken of what belongs to another user.
Target find_target(const Options& options, std::string& no_answer) {
  try {
    return resolve_target(options.target);
  } catch (const Error& error) {
    const auto served =
        options.look.output.empty() ? std::nullopt : find_served_around(options.target);
    if (!served || error.code() == ErrorCode::permission) throw;
    no_answer = error.what();
    return {.url = canonical_url(served->source), .mount_point = served->path, .bucket = {}};
  }
}

std::string write_bundle(Call& call, const Target& target, const Json& json,
                         const std::string& text) {
  const stdfs::path& path = call.options.look.output;
  const BundleFiles files =
      collect_bundle({.doctor_text = text,
                      .doctor_json = json.dump(2, ' ', false, Json::error_handler_t::replace),
                      .mount_point = target.mount_point,
                      .url = target.url,
                      .configs = call.options.configs});
  const std::string archive = pack_bundle(files, "weightfs-bundle", seconds_now());
  write_output(path, archive, 0600);
  return fmt::format(
      "{}: {}, {}; without keys and tokens of this host: look at it before you send "
      "it\n",
      path.string(), count_text(files.size(), "file"), human_bytes(archive.size()));
}

}  // namespace

int run_doctor(Call& call) {
  const Options& options = call.options;
  const bool has_bundle = !options.look.output.empty();
  const Diagnosis found = diagnose();
  Target target;
  std::optional<BucketDiagnosis> bucket;
  std::optional<MountDiagnosis> mount;
  if (!options.target.empty()) {
    std::string no_answer;
    target = find_target(options, no_answer);
    if (!no_answer.empty()) {
      mount = {target.mount_point, {{"daemon", Finding::State::bad, no_answer}}};
    } else if (!target.mount_point.empty()) {
      mount = find_out_about_mount(target);
    }
    bucket = find_out_about_bucket(call, target);
  }
  const std::vector<std::string> warnings = find_hook_warnings(options.target);
  Json json = to_json(found, warnings, options);
  std::string text = to_text(found, warnings, call);
  json["mount"] = json["bucket"] = nullptr;
  if (mount) {
    json["mount"] = {{"mountpoint", mount->mount_point.string()},
                     {"findings", findings_json(mount->findings)}};
    text += findings_text("mount " + printable(mount->mount_point.string()), mount->findings,
                          call.output.columns);
  }
  if (bucket) {
    json["bucket"] = {{"url", bucket->url},
                      {"usable", !bucket->is_broken()},
                      {"findings", findings_json(bucket->findings)}};
    text +=
        findings_text("bucket " + printable(bucket->url), bucket->findings, call.output.columns);
  }
  if (has_bundle) {
    text += write_bundle(call, target, json, text);
    json["bundle"] = options.look.output.string();
  }
  call.print(json, text);
  return found.is_broken() || (bucket && bucket->is_broken()) ? 1 : 0;
}

}  // namespace weightfs::fs
