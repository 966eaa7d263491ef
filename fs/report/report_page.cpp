#include "fs/report/report_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <vector>

#include "fs/base/format_values.hpp"
#include "store/base/bytes.hpp"

namespace weightfs::fs {
namespace {

constexpr std::size_t kBarsMost = 400;
constexpr std::size_t kRowsMost = 1'000;
constexpr double kPlotWidth = 900, kPlotHeight = 180;
constexpr double kLeft = 76, kBottom = 22, kTop = 8;

constexpr std::string_view kStyle = R"css(
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #6a737d; --line: #d8dee4; --page: #fff;
  --bar: #1f6feb; --mark: #bf5700; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --soft: #9aa4ae; --line: #30363d; --page: #0d1117; --bar: #58a6ff;
    --mark: #f0883e; } }
body { background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif;
  max-width: 960px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; overflow-wrap: anywhere; } h2 { font-size: 1.1em; margin: 2em 0 .3em; }
p, dt, .soft { color: var(--soft); } svg { width: 100%; height: auto; display: block; }
dl { display: flex; flex-wrap: wrap; gap: .5em 2.5em; } dd { margin: 0; font-size: 1.2em; }
svg text { fill: var(--soft); font-size: 12px; } .bar { fill: var(--bar); }
.mark { fill: var(--mark); } .axis { stroke: var(--line); }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: 14px;
  font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .25em .7em; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th:last-child, td:last-child { text-align: left; white-space: normal; overflow-wrap: anywhere; }
)css";

/// The length of the character of UTF-8 at the begin of `text`; 0: it is none.
std::size_t character_at(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t size = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < size) return 0;
  for (std::size_t i = 1; i < size; i++) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const bool is_overlong = (first == 0xE0 && byte(1) < 0xA0) || (first == 0xF0 && byte(1) < 0x90);
  const bool is_beyond = (first == 0xED && byte(1) > 0x9F) || (first == 0xF4 && byte(1) > 0x8F);
  return is_overlong || is_beyond ? 0 : size;
}

std::string duration_text(double seconds) {
  if (seconds < 120) return fmt::format("{:.0f} s", seconds);
  if (seconds < 7'200) return fmt::format("{:.1f} min", seconds / 60);
  if (seconds < 172'800) return fmt::format("{:.1f} h", seconds / 3'600);
  return fmt::format("{:.1f} days", seconds / 86'400);
}

std::string bytes_label(double bytes) { return human_bytes(static_cast<std::uint64_t>(bytes)); }

std::string percent_label(double share) { return fmt::format("{:.3g} %", 100 * share); }

// ---- plots ----

struct Plot {
  std::string title, note;
  std::function<std::optional<double>(std::size_t index)> value;  // nullopt: there is none
  std::function<std::string(double)> label;
};

/// One bar for each version, or for a few: then the largest of them.
struct PlotBar {
  std::size_t index = 0;  // of the version that it shows
  double value = 0;
};

std::vector<PlotBar> bars_of(const Plot& plot, std::size_t count) {
  std::vector<PlotBar> bars;
  const std::size_t each = std::max<std::size_t>(1, (count + kBarsMost - 1) / kBarsMost);
  for (std::size_t begin = 0; begin < count; begin += each) {
    PlotBar bar{begin, 0};
    for (std::size_t i = begin; i < std::min(begin + each, count); i++) {
      const double value = plot.value(i).value_or(0);
      if (value > bar.value) bar = {i, value};
    }
    bars.push_back(bar);
  }
  return bars;
}

std::string plot_svg(const Plot& plot, std::span<const VersionPoint> versions) {
  const std::vector<PlotBar> bars = bars_of(plot, versions.size());
  double most = 0;
  for (const PlotBar& bar : bars) most = std::max(most, bar.value);
  const double floor = kPlotHeight - kBottom, height = floor - kTop;
  const double step = (kPlotWidth - kLeft) / static_cast<double>(bars.size());
  std::string svg = fmt::format("<svg viewBox=\"0 0 {:g} {:g}\" role=\"img\" aria-label=\"{}\">\n",
                                kPlotWidth, kPlotHeight, escape_html(plot.title));
  for (const double part : {0.0, 0.5, 1.0}) {
    const double y = floor - part * height;
    svg += fmt::format(
        "<line class=\"axis\" x1=\"{0:g}\" x2=\"{1:g}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>"
        "<text x=\"{3:g}\" y=\"{4:.1f}\" text-anchor=\"end\">{5}</text>\n",
        kLeft, kPlotWidth, y, kLeft - 6, y + 4, escape_html(plot.label(part * most)));
  }
  for (std::size_t i = 0; i < bars.size(); i++) {
    if (bars[i].value <= 0) continue;
    const VersionPoint& version = versions[bars[i].index];
    const double tall = std::max(1.0, bars[i].value / most * height);
    svg += fmt::format(
        "<rect class=\"{}\" x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\">"
        "<title>version {}: {}</title></rect>\n",
        version.snapshot_bytes != 0 ? "mark" : "bar", kLeft + step * static_cast<double>(i),
        floor - tall, std::max(0.5, step * 0.8), tall, version.number,
        escape_html(plot.label(bars[i].value)));
  }
  return svg + fmt::format(
                   "<text x=\"{:g}\" y=\"{:g}\">version {}</text><text x=\"{:g}\" y=\"{:g}\" "
                   "text-anchor=\"end\">{}</text>\n</svg>\n",
                   kLeft, kPlotHeight - 5, versions.front().number, kPlotWidth, kPlotHeight - 5,
                   versions.back().number);
}

double share_of_point(const VersionPoint& version) {
  if (version.elements == 0) return 0;
  return static_cast<double>(version.changed) / static_cast<double>(version.elements);
}

std::vector<Plot> plots_of(std::span<const VersionPoint> versions) {
  std::vector<Plot> plots;
  plots.push_back({"What each change takes in the bucket",
                   "packs; a version with a snapshot as well "
                   "has another colour",
                   [versions](std::size_t i) -> std::optional<double> {
                     if (!versions[i].has_delta) return std::nullopt;
                     return static_cast<double>(versions[i].delta_bytes);
                   },
                   bytes_label});
  plots.push_back({"Share of elements that changed", "against the version before",
                   [versions](std::size_t i) -> std::optional<double> {
                     if (!versions[i].has_delta) return std::nullopt;
                     return share_of_point(versions[i]);
                   },
                   percent_label});
  plots.push_back({"Time between versions", "from one publication to the next",
                   [versions](std::size_t i) -> std::optional<double> {
                     if (i == 0) return std::nullopt;
                     const std::int64_t took = versions[i].time - versions[i - 1].time;
                     return static_cast<double>(std::max<std::int64_t>(took, 0));
                   },
                   duration_text});
  plots.push_back({"Size of a version", "all of its files",
                   [versions](std::size_t i) -> std::optional<double> {
                     return static_cast<double>(versions[i].version_bytes);
                   },
                   bytes_label});
  return plots;
}

// ---- the rest of the page ----

std::string facts_html(const ReportPage& page) {
  std::uint64_t uploaded = 0, full = 0;
  for (const VersionPoint& version : page.versions) {
    uploaded += version.uploaded_bytes();
    full += version.version_bytes;
  }
  const VersionPoint& last = page.versions.back();
  const auto took = static_cast<double>(last.time - page.versions.front().time);
  std::string html = "<dl>\n";
  const auto add = [&](std::string_view name, const std::string& value) {
    html += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", name, escape_html(value));
  };
  add("versions", std::to_string(page.versions.size()));
  add("over", duration_text(std::max(took, 0.0)));
  add("a version", human_bytes(last.version_bytes));
  add("uploaded", human_bytes(uploaded));
  if (uploaded != 0) {
    add("whole checkpoints would be",
        fmt::format("{} ({:.3g} times)", human_bytes(full),
                    static_cast<double>(full) / static_cast<double>(uploaded)));
  }
  return html + "</dl>\n";
}

std::string table_html(std::span<const VersionPoint> versions) {
  std::string html =
      "<h2>Versions</h2>\n<div class=\"wide\"><table>\n<thead><tr><th>version</th><th>time</th>"
      "<th>changed</th><th>delta</th><th>snapshot</th><th>size</th><th>tag</th></tr></thead>\n"
      "<tbody>\n";
  const std::size_t shown = std::min(versions.size(), kRowsMost);
  for (std::size_t i = 0; i < shown; i++) {
    const VersionPoint& version = versions[versions.size() - 1 - i];
    html += fmt::format(
        "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}{}</td>"
        "</tr>\n",
        version.number, escape_html(time_text(version.time)),
        version.has_delta ? escape_html(share_text(version.changed, version.elements)) : "-",
        version.has_delta ? human_bytes(version.delta_bytes) : "-",
        version.snapshot_bytes != 0 ? human_bytes(version.snapshot_bytes) : "-",
        human_bytes(version.version_bytes),
        version.is_retired ? "<span class=\"soft\">(retired)</span> " : "",
        escape_html(version.tag));
  }
  html += "</tbody>\n</table></div>\n";
  if (shown < versions.size()) {
    html +=
        fmt::format("<p>{} older versions are not in this table.</p>\n", versions.size() - shown);
  }
  return html;
}

}  // namespace

std::string escape_html(std::string_view text) {
  constexpr std::string_view kUnknown = "\uFFFD";
  std::string html;
  while (!text.empty()) {
    const std::size_t size = character_at(text);
    const char c = text.front();
    const bool is_control = static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
    if (size == 0 || is_control) {
      html += kUnknown;
    } else if (c == '&') {
      html += "&amp;";
    } else if (c == '<') {
      html += "&lt;";
    } else if (c == '>') {
      html += "&gt;";
    } else if (c == '"') {
      html += "&quot;";
    } else if (c == '\'') {
      html += "&#39;";
    } else {
      html += text.substr(0, size);
    }
    text.remove_prefix(std::max<std::size_t>(size, 1));
  }
  return html;
}

std::string report_page(const ReportPage& page) {
  std::string html = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'\">\n"
      "<meta name=\"viewport\" content=\"width=device-width\">\n<title>{0}</title>\n"
      "<style>{1}</style>\n</head>\n<body>\n<h1>{0}</h1>\n"
      "<p>repository {2}, {3}</p>\n",
      escape_html(page.url), kStyle, escape_html(page.repository),
      escape_html(time_text(page.made)));
  if (page.versions.empty()) {
    html += "<p>There are no versions yet.</p>\n";
  } else {
    html += facts_html(page);
    if (page.versions.size() < page.newest) {
      html += fmt::format("<p>Of {} versions the newest {} are shown.</p>\n", page.newest,
                          page.versions.size());
    }
    for (const Plot& plot : plots_of(page.versions)) {
      html += fmt::format("<h2>{}</h2>\n<p>{}</p>\n{}", escape_html(plot.title),
                          escape_html(plot.note), plot_svg(plot, page.versions));
    }
    html += table_html(page.versions);
  }
  return html + "</body>\n</html>\n";
}

}  // namespace weightfs::fs
