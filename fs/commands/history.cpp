// log, report, show, diff: information about versions.

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>

#include "fs/base/coder_choice.hpp"
#include "fs/base/format_values.hpp"
#include "fs/base/output_file.hpp"
#include "fs/base/parse_values.hpp"
#include "fs/base/text_table.hpp"
#include "fs/client/mount_control.hpp"
#include "fs/commands/command_context.hpp"
#include "fs/report/bar_text.hpp"
#include "fs/report/log_graph.hpp"
#include "fs/report/report_page.hpp"
#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/format/own_meta.hpp"
#include "store/format/pack_bytes.hpp"
#include "store/format/tensor.hpp"
#include "store/inspect/diff_versions.hpp"
#include "store/repository/gc_log.hpp"
#include "store/threads/parallel.hpp"

namespace weightfs::fs {
namespace {

using Align = TextTable::Align;

constexpr unsigned kLogRequests = 32;  // concurrent requests for manifests, which wait for the
                                       // bucket
constexpr std::uint64_t kLogAhead = 256;

std::string meta_text(const std::map<std::string, std::string>& meta) {
  std::string text;
  for (const auto& [key, value] : users_meta(meta)) {
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", key, value);
  }
  return text;
}

// ---- log ----

Json log_json(const Manifest& manifest, const Layout& layout, const GcLog& log) {
  Json json{{"version", manifest.version},
            {"time", manifest.time},
            {"tag", manifest.tag},
            {"meta", users_meta(manifest.meta)},
            {"elements", layout.element_count()},
            {"version_bytes", version_bytes(manifest, layout)},
            {"snapshot", manifest.snapshot.has_value()},
            {"retired", log.versions.contains(manifest.version)}};
  if (const auto early = find_early_bytes(manifest.meta)) json["early_bytes"] = *early;
  if (manifest.delta) {
    json["changed_elements"] = manifest.delta->changed_elements;
    json["delta_bytes"] = pack_bytes(*manifest.delta);
  }
  if (manifest.snapshot) {
    json["snapshot_bytes"] = layout.size_bytes();
    if (manifest.snapshot->base) json["snapshot_base"] = manifest.snapshot->base->text();
  }
  return json;
}

std::string snapshot_text(const Manifest& manifest, const Layout& layout) {
  if (!manifest.snapshot) return "-";
  return manifest.snapshot->base ? "on the Hub" : human_bytes(layout.size_bytes());
}

/// Long cells come last, so that they can continue on the next line.
std::vector<std::string> log_cells(const Manifest& manifest, const Layout& layout,
                                   const GcLog& log) {
  const std::string meta = meta_text(manifest.meta);
  const bool has_both = !manifest.tag.empty() && !meta.empty();
  const std::string_view retired = log.versions.contains(manifest.version) ? "(retired)  " : "";
  return {
      std::to_string(manifest.version),
      time_text(manifest.time),
      manifest.delta ? share_text(manifest.delta->changed_elements, layout.element_count()) : "-",
      manifest.delta ? human_bytes(pack_bytes(*manifest.delta)) : "-",
      snapshot_text(manifest, layout),
      human_bytes(version_bytes(manifest, layout)),
      fmt::format("{}{}{}{}", retired, manifest.tag, has_both ? "  " : "", meta)};
}

/// What is not in the bucket counts for nothing: a snapshot that lies on the Hub.
VersionPoint point_of(const Manifest& manifest, const Layout& layout, const GcLog& log) {
  VersionPoint point;
  point.number = manifest.version;
  point.time = static_cast<std::int64_t>(manifest.time);
  point.tag = manifest.tag;
  point.elements = layout.element_count();
  point.has_delta = manifest.delta.has_value();
  if (manifest.delta) {
    point.changed = manifest.delta->changed_elements;
    point.delta_bytes = pack_bytes(*manifest.delta);
  }
  if (manifest.snapshot && !manifest.snapshot->base) point.snapshot_bytes = layout.size_bytes();
  point.version_bytes = version_bytes(manifest, layout);
  point.is_retired = log.versions.contains(manifest.version);
  return point;
}

using EachVersion = std::function<void(const Manifest& manifest, const Layout& layout)>;

/// The newest ones, by --limit, the newest first.  Returns: the newest version; 0: there is none.
std::uint64_t for_each_version(Call& call, Reading& reading, const EachVersion& each) {
  const std::uint64_t newest = reading.repository->newest_version(0, reading.context);
  const std::uint64_t limit = call.options.look.limit == 0 ? newest : call.options.look.limit;
  const std::uint64_t oldest = newest > limit ? newest - limit + 1 : 1;
  for (std::uint64_t number = newest; number >= oldest; number--) {
    if ((newest - number) % kLogAhead == 0) {
      const std::uint64_t count = std::min(kLogAhead, number - oldest + 1);
      parallel_for(count, kLogRequests, reading.context,
                   [&](std::size_t i) { reading.history.get(number - i, reading.context); });
    }
    const auto version = reading.history.get(number, reading.context);
    const auto layout = reading.history.layout(*version, reading.context);
    each(version->manifest, *layout);
  }
  return newest;
}

/// The terminal's, or where there is none what COLUMNS says.
std::size_t graph_columns(const Output& output) {
  constexpr std::size_t kUsual = 80, kMost = 10'000;
  if (output.columns != 0) return output.columns;
  const char* const said = std::getenv("COLUMNS");
  if (said == nullptr) return kUsual;
  try {
    return static_cast<std::size_t>(parse_number(said, {1, kMost}));
  } catch (const Error&) {
    return kUsual;
  }
}

// ---- show ----

Json files_json(const Manifest& manifest, const Layout& layout) {
  std::map<std::string, Json> by_path;
  for (const LayoutFile& file : layout.files()) {
    const bool is_opaque = file.kind == LayoutFile::Kind::opaque;
    by_path[file.path] = {{"path", file.path},
                          {"size", file.size_bytes},
                          {"kind", is_opaque ? "opaque" : "safetensors"},
                          {"tensors", is_opaque ? 0 : file.tensor_count}};
  }
  for (const BlobRef& blob : manifest.blobs) {
    by_path[blob.path] = {
        {"path", blob.path}, {"size", blob.size_bytes}, {"kind", "blob"}, {"tensors", 0}};
  }
  Json files = Json::array();
  for (auto& [path, file] : by_path) files.push_back(std::move(file));
  return files;
}

/// "BF16 20.4 MiB, F32 48 B": bytes by dtype.
std::string dtypes_text(const Layout& layout) {
  std::map<Dtype, std::uint64_t> bytes;
  for (const LayoutTensor& tensor : layout.tensors()) bytes[tensor.dtype] += tensor.size_bytes;
  std::string text;
  for (const auto& [dtype, size] : bytes) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", to_string(dtype), human_bytes(size));
  }
  return text;
}

std::string show_text(const Version& version, const Layout& layout, const Json& files,
                      std::size_t columns) {
  const Manifest& manifest = version.manifest;
  TextTable fields({{}, {}});
  const auto add = [&](const char* name, std::string value) {
    fields.add({name, std::move(value)});
  };
  add("version", fmt::format("{} of repository {}", manifest.version, manifest.repository));
  add("tag", manifest.tag.empty() ? "-" : manifest.tag);
  add("time", time_text(manifest.time));
  const std::string meta = meta_text(manifest.meta);
  add("meta", meta.empty() ? "-" : meta);
  add("parent", manifest.parent == 0 ? "-"
                                     : fmt::format("{}, manifest {}", manifest.parent,
                                                   to_hex(manifest.parent_sha256)));
  add("manifest", to_hex(version.manifest_sha256));
  add("nonce", manifest.nonce);
  add("layout", fmt::format("{}, {}, {}", to_hex(manifest.layout.sha256),
                            count_text(layout.files().size(), "file"),
                            count_text(layout.tensors().size(), "tensor")));
  add("root", to_hex(manifest.root));
  add("size",
      fmt::format("{} ({})", human_bytes(version_bytes(manifest, layout)), dtypes_text(layout)));
  if (manifest.delta) {
    add("changed",
        fmt::format("{} of {} elements, {}", manifest.delta->changed_elements,
                    layout.element_count(),
                    share_text(manifest.delta->changed_elements, layout.element_count())));
    for (const PackRef& pack : manifest.delta->packs) {
      add("pack", fmt::format("{}.safetensors, {}", pack.name, human_bytes(pack.size_bytes)));
    }
  }
  if (manifest.snapshot) {
    const auto& base = manifest.snapshot->base;
    add("snapshot", fmt::format("{}, {}", base ? base->text() : manifest.snapshot->nonce,
                                human_bytes(layout.size_bytes())));
  }

  TextTable table({{"FILE"}, {"KIND"}, {"TENSORS", Align::right}, {"BYTES", Align::right}});
  for (const Json& file : files) {
    const auto tensors = file["tensors"].get<std::uint64_t>();
    table.add({file["path"], file["kind"], tensors == 0 ? "" : std::to_string(tensors),
               std::to_string(file["size"].get<std::uint64_t>())});
  }
  return fields.text(columns) + "\n" + table.text();
}

// ---- diff ----

std::string to_text(TensorDiff::Change change) {
  switch (change) {
    case TensorDiff::Change::same:
      return "same";
    case TensorDiff::Change::changed:
      return "changed";
    case TensorDiff::Change::added:
      return "added";
    case TensorDiff::Change::removed:
      return "removed";
    case TensorDiff::Change::reshaped:
      return "reshaped";
    case TensorDiff::Change::retyped:
      return "retyped";
  }
  return "";
}

double share_of(const TensorDiff& tensor) {
  return tensor.elements == 0
             ? 0
             : static_cast<double>(tensor.changed) / static_cast<double>(tensor.elements);
}

/// What a largest difference was found by.  Patches know differences modulo the width of an
/// element, which is the shorter way round: the largest one is as large, or larger.
enum class ComparedBy { bytes, patches };

Json to_json(const TensorDiff& tensor) {
  return {{"name", tensor.name},         {"file", tensor.file},
          {"dtype", tensor.dtype},       {"change", to_text(tensor.change)},
          {"elements", tensor.elements}, {"changed", tensor.changed},
          {"share", share_of(tensor)}};
}

bool is_exact(std::uint64_t largest_ulp, ComparedBy by) {
  return by == ComparedBy::bytes || largest_ulp == 0;
}

/// Nothing is claimed that is not known.
Json with_largest(Json json, std::uint64_t largest_ulp, ComparedBy by) {
  json["largest_ulp"] = is_exact(largest_ulp, by) ? Json(largest_ulp) : Json(nullptr);
  json["largest_ulp_min"] = largest_ulp;
  return json;
}

std::string largest_text(std::uint64_t largest_ulp, ComparedBy by) {
  return (is_exact(largest_ulp, by) ? "" : ">=") + std::to_string(largest_ulp);
}

struct DiffTotal {
  explicit DiffTotal(const std::vector<TensorDiff>& tensors) : count(tensors.size()) {
    for (const TensorDiff& tensor : tensors) {
      elements += tensor.elements;
      changed += tensor.changed;
      largest_ulp = std::max(largest_ulp, tensor.largest_ulp);
      if (tensor.change == TensorDiff::Change::same) same++;
    }
  }
  std::size_t count, same = 0;
  std::uint64_t elements = 0, changed = 0, largest_ulp = 0;
};

std::string diff_text(const std::vector<TensorDiff>& tensors, const DiffTotal& total,
                      ComparedBy by) {
  TextTable table({{"SHARE", Align::right},
                   {"CHANGED", Align::right},
                   {"ELEMENTS", Align::right},
                   {"MAX ULP", Align::right},
                   {"DTYPE"},
                   {"CHANGE"},
                   {"TENSOR"}});
  for (const TensorDiff& tensor : tensors) {
    if (tensor.change == TensorDiff::Change::same) continue;
    table.add({share_text(tensor.changed, tensor.elements), std::to_string(tensor.changed),
               std::to_string(tensor.elements), largest_text(tensor.largest_ulp, by), tensor.dtype,
               to_text(tensor.change), tensor.name.empty() ? tensor.file : tensor.name});
  }
  const std::string rows = total.same == total.count ? "" : table.text() + "\n";
  return rows + fmt::format(
                    "{} of {} elements changed ({}) in {} of {} tensors, the largest by {} ulp{}\n",
                    total.changed, total.elements, share_text(total.changed, total.elements),
                    total.count - total.same, total.count, total.largest_ulp,
                    is_exact(total.largest_ulp, by) ? "" : " or more");
}

struct Compared {
  VersionPair versions;
  std::vector<TensorDiff> tensors;
};

/// What the daemon of a mount, or of a sync, finds in its patches; nullopt, after a line that says
/// why, if the bucket must be read.
std::optional<Compared> compare_at(Call& call, const Target& target) {
  // Before the signals: what asks the bucket for a tag has its own, and only one may wait for them.
  const VersionPair versions{number_shown(call, target, call.options.look.from.value()),
                             number_shown(call, target, call.options.look.to.value())};
  const StopSignals signals;
  const Context context{.stop = signals.token()};
  try {
    const MountControl mount(target.mount_point);
    return Compared{versions, mount.diff(versions, context, call.progress())};
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported && error.code() != ErrorCode::unavailable) throw;
    log_warning(fmt::format("{}: comparing both versions as the bucket has them", error.what()));
    return std::nullopt;
  }
}

Compared compare_bytes(Call& call, const Target& target) {
  Reading reading(call, target);
  const VersionPair versions{reading.number_of(call.options.look.from.value()),
                             reading.number_of(call.options.look.to.value())};
  const ScratchDirectory scratch = make_scratch();
  const CoderChoice choice(call.options.host.gpu);
  return {versions, diff_versions(reading.history, versions.from, versions.to, scratch.path(),
                                  reading.context, call.progress(), choice.coder())};
}

}  // namespace

int run_log(Call& call) {
  if (call.options.look.timing) return run_log_timing(call);
  Reading reading(call);
  const GcLog log = read_gc_log(*reading.repository, reading.context);
  Json json = Json::array();
  TextTable table({{"VERSION", Align::right},
                   {"TIME"},
                   {"CHANGED", Align::right},
                   {"DELTA", Align::right},
                   {"SNAPSHOT", Align::right},
                   {"SIZE", Align::right},
                   {"TAG AND META"}});
  const bool is_graph = call.options.look.graph;
  std::vector<VersionPoint> points;
  const std::uint64_t newest =
      for_each_version(call, reading, [&](const Manifest& manifest, const Layout& layout) {
        json.push_back(log_json(manifest, layout, log));
        if (is_graph) points.push_back(point_of(manifest, layout, log));
        if (!is_graph) table.add(log_cells(manifest, layout, log));
      });
  const std::string empty =
      fmt::format("no versions yet; publish with: weightfs publish {} DIR\n", reading.url);
  const auto text = [&] {
    return is_graph ? log_graph(points, graph_columns(call.output), shows_utf8())
                    : table.text(call.output.columns);
  };
  call.print(json, newest == 0 ? empty : text());
  return 0;
}

int run_report(Call& call) {
  Reading reading(call);
  const GcLog log = read_gc_log(*reading.repository, reading.context);
  std::vector<VersionPoint> points;
  const std::uint64_t newest =
      for_each_version(call, reading, [&](const Manifest& manifest, const Layout& layout) {
        points.push_back(point_of(manifest, layout, log));
      });
  std::ranges::reverse(points);
  const std::string page = report_page({.url = reading.url,
                                        .repository = reading.repository->id(),
                                        .made = seconds_now(),
                                        .versions = points,
                                        .newest = newest});
  const std::filesystem::path file = std::filesystem::absolute(call.options.look.output);
  write_output(file, page);
  call.print({{"file", file.string()}, {"versions", points.size()}, {"bytes", page.size()}},
             fmt::format("{}: {} of {}\n", file.string(), count_text(points.size(), "version"),
                         reading.url));
  return 0;
}

int run_show(Call& call) {
  Reading reading(call);
  const auto version =
      reading.history.get(reading.number_of(call.options.version), reading.context);
  const auto layout = reading.history.layout(*version, reading.context);
  const Json files = files_json(version->manifest, *layout);
  const GcLog log = read_gc_log(*reading.repository, reading.context);
  Json json = log_json(version->manifest, *layout, log);
  json["files"] = files;
  json["manifest_sha256"] = to_hex(version->manifest_sha256);
  json["manifest"] = parse_json(version->manifest_bytes, "manifest");
  call.print(json, show_text(*version, *layout, files, call.output.columns));
  return 0;
}

int run_diff(Call& call) {
  const Target target = resolve_target(call.options.target);
  std::optional<Compared> by_patches;
  if (!target.mount_point.empty()) by_patches = compare_at(call, target);
  auto [versions, tensors] = by_patches ? std::move(*by_patches) : compare_bytes(call, target);
  const auto [from, to] = versions;
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const auto& a, const auto& b) { return share_of(a) > share_of(b); });
  const ComparedBy by = by_patches ? ComparedBy::patches : ComparedBy::bytes;
  const DiffTotal total(tensors);
  Json list = Json::array();
  for (const TensorDiff& tensor : tensors)
    list.push_back(with_largest(to_json(tensor), tensor.largest_ulp, by));
  call.print(with_largest({{"from", from},
                           {"to", to},
                           {"elements", total.elements},
                           {"changed", total.changed},
                           {"compared", by == ComparedBy::patches ? "patches" : "bytes"},
                           {"tensors", std::move(list)}},
                          total.largest_ulp, by),
             diff_text(tensors, total, by));
  return 0;
}

}  // namespace weightfs::fs
