#include "fs/client/status_lines.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "fs/base/coder_choice.hpp"
#include "fs/base/format_values.hpp"
#include "fs/base/text_table.hpp"
#include "fs/base/timing_text.hpp"
#include "fs/cache/cache_advice.hpp"
#include "fs/passes/pass_findings.hpp"
#include "store/base/bytes.hpp"
#include "store/parts/part_set.hpp"
#include "store/timing/version_timing.hpp"

namespace weightfs::fs {
namespace {

std::uint64_t number_of(const Json& json, const char* name) {
  return json.at(name).get<std::uint64_t>();
}
std::string text_of(const Json& json, const char* name) { return json.at(name).get<std::string>(); }

/// "for the bucket: it does not answer".
std::string waiting_text(const Json& error) {
  if (error.is_null()) return "";
  const std::string code = text_of(error, "code");
  const char* what = code == "unavailable" || code == "timed_out" ? " for the bucket"
                     : code == "no_space"                         ? " for room"
                                                                  : "";
  return fmt::format("{}: {}", what, text_of(error, "message"));
}

/// "3 min": the largest unit that fits.
std::string age_text(std::uint64_t seconds) {
  if (seconds < 60) return fmt::format("{} s", seconds);
  if (seconds < 3600) return fmt::format("{} min", seconds / 60);
  if (seconds < 86400) return fmt::format("{} h", seconds / 3600);
  return fmt::format("{} d", seconds / 86400);
}

std::string files_text(const Json& json) {
  return fmt::format("{}, {}", count_text(number_of(json, "files"), "file"),
                     human_bytes(number_of(json, "bytes")));
}

/// A name directly below staging/ or publish/.
std::string top_text(const Json& top) {
  std::string text =
      fmt::format("{}/{}: {}", top.at("handed_over").get<bool>() ? "publish" : "staging",
                  text_of(top, "name"), files_text(top));
  if (!top.at("age").is_null()) {
    text += fmt::format(", last changed {} ago", age_text(number_of(top, "age")));
  }
  return text;
}

/// Whether a hand-over ended in a conflict or a failure; a reader's mount cannot tell.
bool is_stuck(const Json& status, const Json& name) {
  const auto writer = status.find("writer");
  if (writer == status.end() || writer->is_null()) return false;
  for (const Json& one : writer->at("queue")) {
    if (one.at("name") != name) continue;
    const std::string state = text_of(one, "state");
    return state == "conflict" || state == "failed";
  }
  return false;
}

/// "version 42: session 4711 (python3, 8 processes), 3 min, loading"; for a tag its name is added.
std::string pin_text(const Json& pin) {
  std::string text = fmt::format("version {}: ", number_of(pin, "version"));
  if (pin.at("session").is_null())
    return text + "pinned by weightfs pin, " + age_text(number_of(pin, "age"));
  text += text_of(pin, "session");
  const std::size_t members = pin.at("members").size();
  std::string who = pin.at("command").is_null() ? "" : text_of(pin, "command");
  if (members > 1) who += fmt::format("{}{} processes", who.empty() ? "" : ", ", members);
  if (!who.empty()) text += fmt::format(" ({})", who);
  if (const std::string link = text_of(pin, "link"); link != "latest") text += " by " + link;
  text += ", " + age_text(number_of(pin, "age"));
  return pin.at("loading").get<bool>() ? text + ", loading" : text;
}

/// A row for each pin, up to a readable number.
void add_pins(const Json& status, TextTable& table) {
  constexpr std::size_t kPinsShown = 20;
  if (!status.contains("pins")) return;
  const Json& pins = status["pins"];
  for (std::size_t i = 0; i < std::min(pins.size(), kPinsShown); i++) {
    table.add({i == 0 ? "pins" : "", pin_text(pins[i])});
  }
  if (pins.size() > kPinsShown) {
    table.add({"", fmt::format("and {} more; --json lists all", pins.size() - kPinsShown)});
  }
}

/// Warnings about loaders that cannot be kept together.
void add_pass_findings(const Json& status, TextTable& table) {
  for (const Finding& finding : pass_findings(status)) {
    table.add({"warning", fmt::format("{}: {}", finding.what, finding.text)});
  }
}

/// No row if the host follows the newest version.
void add_follow(const Json& status, TextTable& table) {
  const auto found = status.find("follow");
  if (found == status.end() || text_of(*found, "what") == "latest") return;
  const std::string what = text_of(*found, "what");
  const Json& waiting = found->at("waiting");
  table.add(
      {"follows", waiting.is_null()
                      ? fmt::format("{}: version {}", what, number_of(*found, "version"))
                      : fmt::format("{}, which does not exist yet", text_of(*found, "waiting"))});
}

/// "version 65, the base, renewed once".
std::string base_text(const Json& images) {
  const Json& base = images.at("base");
  if (base.is_null()) return "no base yet";
  const auto renewals = images.value("base_renewals", std::uint64_t{0});
  std::string text = fmt::format("version {}, the base", base.get<std::uint64_t>());
  if (renewals == 1) text += ", renewed once";
  if (renewals > 1) text += fmt::format(", renewed {} times", renewals);
  return text;
}

/// No row if the images are on the disk.
void add_images(const Json& status, TextTable& table) {
  const auto found = status.find("images");
  if (found == status.end() || found->at("home") != "memory") return;
  table.add(
      {"images", fmt::format("{} in memory; on the disk {}",
                             human_bytes(number_of(*found, "memory_bytes")), base_text(*found))});
}

std::string patches_text(const Json& history) {
  std::uint64_t bytes = 0, spans = 0;
  for (const Json& level : history.at("levels")) {
    bytes += number_of(level, "bytes");
    spans += number_of(level, "spans");
  }
  std::string text;
  if (const Json first = history.value("first", Json()); !first.is_null()) {
    text = fmt::format("back to version {}: ", first.get<std::uint64_t>());
  }
  text +=
      fmt::format("{} of patches in {} span{}", human_bytes(bytes), spans, spans == 1 ? "" : "s");
  const Json& amplification = history.at("write_amplification");
  if (!amplification.is_null()) {
    text += fmt::format(", written {:.1f} times", amplification.get<double>());
  }
  return text;
}

/// No row if there are no patches, and nothing is wrong with that.
void add_history(const Json& status, TextTable& table) {
  const auto found = status.find("history");
  if (found == status.end() || found->is_null()) return;
  const Json& levels = found->at("levels");
  const bool has_patches = std::any_of(levels.begin(), levels.end(), [](const Json& level) {
    return number_of(level, "spans") > 0;
  });
  const Json off = found->value("off", Json());
  const Json& error = found->at("error");
  if (!has_patches && off.is_null() && error.is_null()) return;
  std::string text = has_patches ? patches_text(*found) : "none";
  if (!off.is_null()) text += fmt::format("; not kept: {}", off.get<std::string>());
  if (const auto backlog = number_of(*found, "backlog"); backlog > 0 && off.is_null()) {
    text += fmt::format("; {} version{} to be taken", backlog, backlog == 1 ? "" : "s");
  }
  if (!error.is_null()) text += fmt::format("; not kept: {}", error.get<std::string>());
  table.add({"history", text});
}

/// No row if the host keeps all files.
void add_kept(const Json& status, TextTable& table) {
  const auto found = status.find("kept");
  if (found == status.end() || found->is_null()) return;
  std::string globs;
  for (const Json& glob : found->at("only")) {
    globs += (globs.empty() ? "" : " ") + glob.get<std::string>();
  }
  table.add({"keeps", fmt::format("{}: {} of {}; {} of other files built for readers",
                                  globs.empty() ? "all files" : "only " + globs,
                                  human_bytes(number_of(*found, "kept_bytes")),
                                  human_bytes(number_of(*found, "version_bytes")),
                                  human_bytes(number_of(*found, "made_bytes")))});
}

/// No row if there is no seed.
void add_seed(const Json& status, TextTable& table) {
  const auto found = status.find("seed");
  if (found == status.end() || found->is_null()) return;
  table.add({"seed", fmt::format("{} taken from {} ({}, {}), not fetched",
                                 human_bytes(number_of(*found, "taken_bytes")),
                                 text_of(*found, "directory"),
                                 count_text(number_of(*found, "files"), "file"),
                                 count_text(number_of(*found, "tensors"), "tensor"))});
}

/// No row if nothing came from the Hub.
void add_hub(const Json& status, TextTable& table) {
  const auto bytes = status.find("bytes");
  const std::uint64_t hub = bytes == status.end() ? 0 : number_of(*bytes, "hub");
  if (hub == 0) return;
  table.add({"hub", fmt::format("{} of snapshots fetched from the Hub, not the bucket",
                                human_bytes(hub))});
}

/// A row for each version that is being filled.
void add_partial(const Json& status, TextTable& table) {
  if (!status.contains("partial")) return;
  const char* title = "streaming";
  for (const Json& one : status["partial"]) {
    std::string text =
        fmt::format("version {}: {} of {} here", number_of(one, "version"),
                    human_bytes(number_of(one, "here")), human_bytes(number_of(one, "bytes")));
    const Json& error = one.at("error");
    if (!error.is_null()) text += ": " + text_of(error, "message");
    table.add({title, std::move(text)});
    title = "";
  }
}

/// "version 42: step-42, 2.6 GiB, 2.5 GiB coded before the hand-over".
std::string published_text(const Json& one) {
  const std::string tag = text_of(one, "tag");
  return fmt::format("version {}: {}{}, {} coded before the hand-over", number_of(one, "version"),
                     tag.empty() ? "" : tag + ", ", human_bytes(number_of(one, "bytes")),
                     human_bytes(number_of(one, "early_bytes")));
}

/// Empty if nothing has been coded early, and nothing will be.
std::string early_text(const Json& writer) {
  const auto found = writer.find("early");
  if (found == writer.end()) return "";
  const std::uint64_t waiting = number_of(*found, "waiting_files");
  if (waiting == 0 && number_of(*found, "coded_files") == 0) return "";
  std::string text =
      fmt::format("{} coded, {} uploaded", human_bytes(number_of(*found, "coded_bytes")),
                  human_bytes(number_of(*found, "uploaded_bytes")));
  if (waiting > 0) text += fmt::format("; {} file{} to come", waiting, waiting == 1 ? "" : "s");
  return text;
}

std::string skip_text(const Json& skip) {
  return fmt::format("{}..{}", number_of(skip, "from"), number_of(skip, "to"));
}

/// Empty if none was made, and nothing is wrong with that.
std::string skips_text(const Json& writer) {
  const auto found = writer.find("skips");
  if (found == writer.end()) return "";
  if (const Json& off = found->at("off"); !off.is_null()) {
    return fmt::format("none are made: {}", off.get<std::string>());
  }
  std::vector<std::string> parts;
  if (const std::uint64_t made = number_of(*found, "made"); made > 0) {
    parts.push_back(fmt::format("{} made, {}, the last {}", made,
                                human_bytes(number_of(*found, "bytes")),
                                skip_text(found->at("last"))));
  }
  if (const Json& making = found->at("making"); !making.is_null()) {
    parts.push_back(fmt::format("making {}", skip_text(making)));
  }
  if (const std::size_t far = found->at("out_of_reach").size(); far > 0) {
    parts.push_back(fmt::format("{} out of reach of the history here", far));
  }
  if (const Json& error = found->at("error"); !error.is_null()) {
    parts.push_back(fmt::format("to be tried again: {}", error.get<std::string>()));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

/// Of a mount with --gc; empty: it has none.
std::string gc_text(const Json& writer) {
  const auto gc = writer.find("gc");
  if (gc == writer.end() || gc->is_null()) return "";
  const auto last = gc->find("last");
  std::string text = gc->value("running", false) ? "running" : "waiting";
  if (last != gc->end() && !last->is_null()) {
    text += fmt::format("; last {}", time_text(last->get<std::int64_t>()));
  }
  text +=
      fmt::format("; removed {} in {} objects", human_bytes(number_of(gc->at("removed"), "bytes")),
                  number_of(gc->at("removed"), "objects"));
  if (const std::uint64_t bytes = number_of(gc->at("waiting"), "bytes"); bytes != 0) {
    text += fmt::format("; {} wait for their grace to end", human_bytes(bytes));
  }
  const auto error = gc->find("error");
  if (error != gc->end() && error->is_string()) {
    text += fmt::format("; failed: {}", error->get<std::string>());
  }
  return text;
}

void add_writer(const Json& status, TextTable& table) {
  if (!status.contains("writer")) return;
  const Json& writer = status["writer"];
  if (writer.is_null()) {
    if (const std::string text = queued_text(status); !text.empty()) table.add({"queue", text});
    return;
  }
  if (const Json part = writer.value("part", Json()); !part.is_null()) {
    table.add({"part", fmt::format("{} of {}, run {}", part.get<unsigned>(),
                                   number_of(writer, "parts"), text_of(writer, "run"))});
  }
  const char* title = "queue";
  if (writer.at("queue").empty()) table.add({title, "empty"});
  for (const Json& one : writer.at("queue")) {
    table.add({title, hand_over_text(one)});
    title = "";
  }
  title = "published";
  for (const Json& one : writer.value("published", Json::object()).value("last", Json::array())) {
    table.add({title, published_text(one)});
    title = "";
  }
  if (const std::string text = skips_text(writer); !text.empty()) table.add({"skips", text});
  if (const std::string text = gc_text(writer); !text.empty()) table.add({"gc", text});
  const Json& staging = writer.at("staging");
  table.add({"staging", files_text(staging)});
  if (const std::string text = early_text(writer); !text.empty()) table.add({"", text});
  for (const Json& top : staging.at("tops")) table.add({"", top_text(top)});
}

void add_announce(const Json& status, TextTable& table) {
  const auto found = status.find("announce");
  if (found == status.end() || found->is_null()) return;
  if (!found->at("error").is_null()) {
    table.add({"announced", "not now: " + text_of(*found, "error")});
  } else if (found->at("last").is_null()) {
    table.add({"announced", "not yet"});
  } else {
    table.add({"announced", fmt::format("every {} s, as {}", number_of(*found, "every"),
                                        text_of(*found, "id"))});
  }
}

void add_hooks(const Json& status, TextTable& table) {
  if (!status.contains("hooks")) return;
  const char* title = "hooks";
  for (const Json& hook : status["hooks"]) {
    table.add({title, hook_text(hook)});
    title = "";
  }
}

/// How much of the version is cached, and warnings; advice for engines is in `doctor`.
void add_cache(const Json& status, TextTable& table) {
  const std::vector<Finding> findings = findings_of(status);
  if (findings.empty()) return;
  table.add({findings.front().what, findings.front().text});
  for (const Finding& finding : findings) {
    if (finding.state == Finding::State::warning) table.add({"warning", finding.text});
  }
}

/// How the version that is shown came here, and the last hand-over.
void add_timing(const Json& status, TextTable& table) {
  const auto find = [&](const char* name) -> std::optional<TimingRecord> {
    const Json timing = status.value("timing", Json::object()).value(name, Json());
    if (timing.is_null()) return std::nullopt;
    return parse_timing(timing.dump());
  };
  if (const auto latest = find("latest"); latest && latest->brought) {
    table.add({"shown", shown_text(*latest->brought)});
    table.add({"built from", build_text(*latest->brought)});
  }
  if (const auto last = find("hand_over"); last && last->handed_over) {
    table.add({"handed over",
               fmt::format("version {} in {}", last->version, shown_text(*last->handed_over))});
  }
}

/// "conflict: step-42"; details are in the rows of the queue, the hooks ...
std::string state_text(const Json& status) {
  std::string state = text_of(status, "state");
  const auto problems = status.find("problems");
  if (problems == status.end()) return state;
  std::vector<std::string> subjects;
  for (const Json& one : *problems) {
    if (one.at("what").is_null() || text_of(one, "state") == "missing") continue;
    const std::string kind = text_of(one, "state");
    subjects.push_back(kind == state ? text_of(one, "what")
                                     : fmt::format("{}: {}", kind, text_of(one, "what")));
  }
  return subjects.empty() ? state : fmt::format("{}: {}", state, fmt::join(subjects, ", "));
}

/// ", in place, paused for 0.052 s": how the version came.
std::string update_text(const Json& update) {
  const std::string how = text_of(update, "how");
  const bool is_proof = how == "proof";
  std::string text =
      fmt::format(", {}{}, paused for {:.3f} s", how == "reload" ? "reloaded" : "in place",
                  is_proof ? " and proven by a reload" : "", update.at("pause_s").get<double>());
  if (update.at("reason").is_null()) return text;
  return fmt::format("{} (not in place: {})", text, text_of(update, "reason"));
}

}  // namespace

std::string problem_lines(const Json& status) {
  const std::string place = text_of(status, "mountpoint");
  std::string lines;
  const auto add = [&](const std::string& message) {
    lines +=
        printable(message.starts_with(place) ? message : fmt::format("{}: {}", place, message)) +
        "\n";
  };
  const auto problems = status.find("problems");
  if (problems == status.end()) {  // an older daemon's
    if (const Json& error = status.at("error"); !error.is_null()) add(text_of(error, "message"));
    return lines;
  }
  for (const Json& one : *problems) {
    const std::string message = text_of(one, "message");
    const std::string what = one.at("what").is_null() ? "" : text_of(one, "what");
    add(message.starts_with(what) ? message : fmt::format("{}: {}", what, message));
  }
  return lines;
}

std::string health_text(const Json& status) {
  if (const auto health = status.find("health"); health != status.end()) return *health;
  const std::string lines = problem_lines(status);
  return lines.empty() ? "healthy" : "degraded: " + lines.substr(0, lines.find('\n'));
}

std::string health_word(const Json& status) {
  const std::string text = health_text(status);
  return text.substr(0, text.find(':'));
}

std::string hook_text(const Json& hook) {
  std::string text = fmt::format("{} {}: {}", text_of(hook, "type"), text_of(hook, "target"),
                                 text_of(hook, "state"));
  const Json& reported = hook.at("reported");
  if (hook.at("wanted").is_null()) return text + ", there is no version yet";
  const std::uint64_t wanted = number_of(hook, "wanted");
  if (reported.is_null()) {
    text += fmt::format(", should have version {}; the engine has no version of this repository",
                        wanted);
  } else {
    text += fmt::format(", version {}", reported.get<std::uint64_t>());
    if (reported != wanted) text += fmt::format(" instead of version {}", wanted);
    const Json update = hook.value("update", Json());
    if (reported == wanted && !update.is_null()) text += update_text(update);
  }
  if (hook.at("error").is_null()) return text;
  return fmt::format("{}: {}", text, text_of(hook.at("error"), "message"));
}

std::string hand_over_text(const Json& one) {
  const std::string name = text_of(one, "name");
  const std::string state = text_of(one, "state");
  if (state == "uploading") {
    const std::string phase = text_of(one, "phase");
    std::string text = fmt::format("{}: {}", name, phase.empty() ? state : phase);
    if (const std::uint64_t total = number_of(one, "total"); total > 0) {
      text += fmt::format(" {} of {}", human_bytes(number_of(one, "done")), human_bytes(total));
    }
    return text;
  }
  const std::vector<unsigned> missing = one.value("missing", std::vector<unsigned>());
  if (state == "waiting" && !missing.empty()) {
    return fmt::format("{}: waiting for part{} {} of {}", name, missing.size() == 1 ? "" : "s",
                       parts_text(missing), number_of(one, "parts"));
  }
  if (state == "waiting") return fmt::format("{}: waiting{}", name, waiting_text(one.at("error")));
  if (state == "committing" && !one.at("version").is_null()) {
    return fmt::format("{}: committing version {}", name, number_of(one, "version"));
  }
  if (one.at("error").is_null()) return fmt::format("{}: {}", name, state);
  return fmt::format("{}: {}: {}", name, state, text_of(one.at("error"), "message"));
}

Json queued_names(const Json& status) {
  const auto found = status.is_object() ? status.find("queued") : status.end();
  return found != status.end() && found->is_array() ? *found : Json::array();
}

std::string queued_text(const Json& status) {
  std::vector<std::string> waiting, stuck;
  for (const Json& name : queued_names(status)) {
    (is_stuck(status, name) ? stuck : waiting).push_back(printable(name.get<std::string>()));
  }
  std::string text;
  if (!waiting.empty()) {
    const bool is_one = waiting.size() == 1;
    text = fmt::format(
        "{} hand-over{} in the store: {}; the next mount --writer with --store {} continues "
        "{}",
        waiting.size(), is_one ? " waits" : "s wait", fmt::join(waiting, ", "),
        printable(text_of(status, "store")), is_one ? "it" : "them");
  }
  if (!stuck.empty()) {
    text += fmt::format("{}not published: {}; take {} back out of publish/ at that mount",
                        text.empty() ? "" : "\n", fmt::join(stuck, ", "),
                        stuck.size() == 1 ? "it" : "them");
  }
  return text;
}

std::string status_lines(const Json& status, std::size_t width) {
  TextTable table({{}, {}});
  const auto add = [&](const char* name, std::string value) {
    table.add({name, std::move(value)});
  };
  const auto number = [&](const char* name) { return status.at(name).get<std::uint64_t>(); };
  const auto text = [](const Json& json) { return json.get<std::string>(); };
  const Json& serve = status.at("serve");
  const Json& error = status.at("error");

  const bool is_directory = text(serve.at("mode")) == "directory";
  add(is_directory ? "directory" : "mount point", text(status.at("mountpoint")));
  add("repository", fmt::format("{} ({})", text(status.at("url")), text(status.at("repository"))));
  add("version", number("version") == 0 ? "none yet" : std::to_string(number("version")));
  add("newest",
      number("lag_versions") == 0
          ? std::to_string(number("newest"))
          : fmt::format("{}, {} and {} s ahead", number("newest"),
                        count_text(number("lag_versions"), "version"), number("lag_seconds")));
  add_follow(status, table);
  add("state", state_text(status));
  add("served by", is_directory ? "ordinary files" : text(serve.at("mode")));
  if (!text(serve.at("why")).empty()) {
    add(is_directory ? "" : "no passthrough", text(serve.at("why")));
  }
  if (serve.contains("bound") && !serve.at("bound").empty()) {
    std::string versions;
    for (const Json& version : serve.at("bound")) {
      versions += fmt::format("{}{}", versions.empty() ? "" : ", ", version.get<std::uint64_t>());
    }
    add("bind-mounted", versions);
  }
  if (status.contains("kernels")) add("kernels", coder_text(status["kernels"]));
  if (!is_directory) {
    add("open files",
        fmt::format("{} passthrough, {} daemon", serve.at("open_passthrough").get<std::uint64_t>(),
                    serve.at("open_daemon").get<std::uint64_t>()));
  }
  add("bytes", fmt::format("{} of images, {} fetched",
                           human_bytes(status.at("bytes").at("images").get<std::uint64_t>()),
                           human_bytes(status.at("bytes").at("fetched").get<std::uint64_t>())));
  add_seed(status, table);
  add_hub(status, table);
  add_images(status, table);
  add_history(status, table);
  add_timing(status, table);
  add_cache(status, table);
  add_kept(status, table);
  if (!status.at("offline_since").is_null()) {
    add("offline since", time_text(status.at("offline_since").get<std::int64_t>()));
  }
  if (!error.is_null()) add("error", text(error.at("message")));
  add_partial(status, table);
  add_pins(status, table);
  add_pass_findings(status, table);
  add_writer(status, table);
  add_hooks(status, table);
  add_announce(status, table);
  add("store", text(status.at("store")));
  add("log", status.at("log").is_null() ? "stderr" : text(status.at("log")));
  add("pid", std::to_string(status.at("pid").get<int>()));
  return table.text(width);
}

}  // namespace weightfs::fs
