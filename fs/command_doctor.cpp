// doctor: what is in use on this host, and what is broken.

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "fs/bucket_doctor.hpp"
#include "fs/bucket_options.hpp"
#include "fs/doctor.hpp"
#include "fs/doctor_hooks.hpp"
#include "fs/text_table.hpp"
#include "fs/verbs.hpp"
#include "store/bytes.hpp"

namespace weightfs::fs {
namespace {

/// Why the variant is in use.
std::string reason_text(const Options& options) {
  return options.kernels.empty() ? "default" : "WEIGHTFS_KERNELS=" + options.kernels;
}

Json gpus_json(const kernels::GpuDevices& gpus) {
  Json list = Json::array();
  for (const kernels::GpuDevice& gpu : gpus.devices) {
    list.push_back(
        {{"device", gpu.number}, {"name", gpu.name}, {"memory_bytes", gpu.memory_bytes}});
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
                    const Options& options) {
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
               fmt::format("{}, {}; --gpu {} uses it", gpu.name, human_bytes(gpu.memory_bytes),
                           gpu.number)});
  }
  if (found.gpus.devices.empty()) table.add({"GPU", "none: " + found.gpus.why});
  for (const std::string& warning : warnings) table.add({"warning", warning});
  return table.text();
}

/// nullopt: nobody asked about one.
std::optional<BucketDiagnosis> find_out_about_bucket(Call& call) {
  if (call.options.target.empty()) return std::nullopt;
  const Target target = resolve_target(call.options.target);
  const StopSignals signals;
  call.watch_bucket();
  return diagnose_bucket(target.url, bucket_options_for(call.options, target),
                         Context{.stop = signals.token()});
}

Json bucket_json(const BucketDiagnosis& bucket) {
  Json findings;
  for (const Finding& finding : bucket.findings) {
    findings[finding.what] = {{"state", to_string(finding.state)}, {"text", finding.text}};
  }
  return {{"url", bucket.url}, {"usable", !bucket.is_broken()}, {"findings", std::move(findings)}};
}

std::string bucket_text(const BucketDiagnosis& bucket) {
  TextTable table({{}, {}});
  for (const Finding& finding : bucket.findings) {
    const bool is_bad = finding.state == Finding::State::bad;
    table.add({"  " + finding.what, (is_bad ? "BAD: " : "") + finding.text});
  }
  return fmt::format("bucket {}\n{}", printable(bucket.url), table.text());
}

}  // namespace

int run_doctor(Call& call) {
  const Diagnosis found = diagnose();
  const auto bucket = find_out_about_bucket(call);
  const std::vector<std::string> warnings = find_hook_warnings(call.options.target);
  Json json = to_json(found, warnings, call.options);
  json["bucket"] = bucket ? bucket_json(*bucket) : Json(nullptr);
  call.print(json, to_text(found, warnings, call.options) + (bucket ? bucket_text(*bucket) : ""));
  return found.is_broken() || (bucket && bucket->is_broken()) ? 1 : 0;
}

}  // namespace weightfs::fs
