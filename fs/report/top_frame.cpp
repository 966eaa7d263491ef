#include "fs/report/top_frame.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>

#include "fs/base/text_table.hpp"
#include "fs/report/bar_text.hpp"
#include "store/base/bytes.hpp"

namespace weightfs::fs {
namespace {

/// A daemon of another release may lack a field, or have another type there.
std::optional<std::uint64_t> number_in(const Json& status, const std::string& path) {
  const auto* found = &status;
  for (std::string_view rest = path; !rest.empty();) {
    const std::string name(rest.substr(0, rest.find('.')));
    rest.remove_prefix(std::min(rest.size(), name.size() + 1));
    if (!found->is_object() || !found->contains(name)) return std::nullopt;
    found = &found->at(name);
  }
  return found->is_number_unsigned() ? std::optional(found->get<std::uint64_t>()) : std::nullopt;
}

std::string word_in(const Json& status, const char* name) {
  if (!status.is_object() || !status.contains(name) || !status[name].is_string()) return "-";
  return status[name].get<std::string>();
}

std::string number_text(std::optional<std::uint64_t> number) {
  return number ? std::to_string(*number) : "-";
}

/// That of the same daemon in the other reading.
const Json* find_before(const TopReading& before, const Json& status) {
  const auto pid = number_in(status, "pid");
  const auto found = std::ranges::find_if(before.mounts, [&](const Json& one) {
    return pid && number_in(one, "pid") == pid &&
           word_in(one, "mountpoint") == word_in(status, "mountpoint");
  });
  return found == before.mounts.end() ? nullptr : &*found;
}

/// Per second; nullopt: it is not known.
std::optional<double> rate_of(const Json& status, const Json* before, const std::string& path,
                              double seconds) {
  const auto now = number_in(status, path);
  const auto then = before == nullptr ? std::nullopt : number_in(*before, path);
  if (!now || !then || *now < *then || seconds <= 0) return std::nullopt;
  return static_cast<double>(*now - *then) / seconds;
}

std::string lag_in(const Json& status) {
  const auto versions = number_in(status, "lag_versions");
  if (!versions || *versions == 0) return number_text(versions);
  return fmt::format("{} ({} s)", *versions, number_text(number_in(status, "lag_seconds")));
}

std::string health_in(const Json& status) {
  const std::string text = word_in(status, "health");
  return text.substr(0, text.find(':'));
}

std::uint64_t passes_in(const Json& status) {
  if (!status.contains("pins") || !status["pins"].is_array()) return 0;
  return static_cast<std::uint64_t>(std::ranges::count_if(
      status["pins"], [](const Json& pin) { return word_in(pin, "session") != "-"; }));
}

/// "42 current, 41 telling".
std::string hooks_in(const Json& status) {
  if (!status.contains("hooks") || !status["hooks"].is_array()) return "-";
  std::string text;
  for (const Json& hook : status["hooks"]) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ",
                        number_text(number_in(hook, "reported")), word_in(hook, "state"));
  }
  return text.empty() ? "-" : text;
}

std::vector<std::string> cells_of(const Json& status, const Json* before, double seconds) {
  const auto fetched = rate_of(status, before, "bytes.fetched", seconds);
  const auto reads = rate_of(status, before, "serve.daemon_reads", seconds);
  const auto passthrough = number_in(status, "serve.open_passthrough");
  const auto open = number_in(status, "serve.open_daemon");
  return {word_in(status, "mountpoint"),
          number_text(number_in(status, "version")),
          lag_in(status),
          health_in(status),
          word_in(status, "state"),
          fetched ? human_bytes(static_cast<std::uint64_t>(*fetched)) + "/s" : "-",
          reads ? fmt::format("{:.0f}/s", *reads) : "-",
          passthrough && open ? std::to_string(*passthrough + *open) : "-",
          std::to_string(passes_in(status)),
          hooks_in(status)};
}

}  // namespace

std::string top_frame(const TopReading& now, const TopReading& before, std::size_t columns,
                      std::size_t rows) {
  using Align = TextTable::Align;
  TextTable table({{"MOUNT POINT"},
                   {"VERSION", Align::right},
                   {"LAG", Align::right},
                   {"HEALTH"},
                   {"STATE"},
                   {"FETCHED", Align::right},
                   {"READS", Align::right},
                   {"OPEN", Align::right},
                   {"PASSES", Align::right},
                   {"HOOKS"}});
  for (const Json& status : now.mounts) {
    if (!status.is_object()) continue;
    table.add(cells_of(status, find_before(before, status), now.seconds - before.seconds));
  }
  const std::string text = now.mounts.empty() ? "nothing is mounted\n" : table.text();
  std::string frame;
  std::size_t lines = 0;
  for (std::size_t at = 0; at < text.size() && (rows == 0 || lines < rows); lines++) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    frame += columns == 0 ? line + "\n" : cut_line(line, columns);
    at = end + 1;
  }
  return frame;
}

}  // namespace weightfs::fs
