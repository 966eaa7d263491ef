// Bars of bytes go by the largest delta, not by the largest version: beside a snapshot, which is a
// hundred times as large, no delta would be seen.  A longer bar is cut, and says so.

#include "fs/report/log_graph.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "fs/base/format_values.hpp"
#include "fs/report/bar_text.hpp"
#include "store/base/bytes.hpp"

namespace weightfs::fs {
namespace {

constexpr std::size_t kBarLeast = 4;  // columns: a shorter one says nothing
constexpr std::size_t kBarMost = 40;

struct GraphRow {
  std::string version, uploaded, changed;
  double uploaded_share = 0, changed_share = 0;
};

/// Where all columns but the bars are as wide as their widest cell.
struct GraphColumns {
  std::size_t version = 7, uploaded = 8, changed = 7;
  std::size_t uploaded_bar = 0, changed_bar = 0;
};

double share_of_change(const VersionPoint& version) {
  if (version.elements == 0) return 0;
  return static_cast<double>(version.changed) / static_cast<double>(version.elements);
}

std::vector<GraphRow> rows_of(std::span<const VersionPoint> versions) {
  std::uint64_t most_bytes = 0, most_in_all = 0;
  double most_change = 0;
  for (const VersionPoint& version : versions) {
    most_bytes = std::max(most_bytes, version.delta_bytes);
    most_in_all = std::max(most_in_all, version.uploaded_bytes());
    most_change = std::max(most_change, share_of_change(version));
  }
  if (most_bytes == 0) most_bytes = std::max<std::uint64_t>(most_in_all, 1);
  std::vector<GraphRow> rows;
  for (const VersionPoint& version : versions) {
    GraphRow row;
    row.version = std::to_string(version.number);
    row.uploaded = human_bytes(version.uploaded_bytes());
    row.changed = version.has_delta ? share_text(version.changed, version.elements) : "-";
    row.uploaded_share =
        static_cast<double>(version.uploaded_bytes()) / static_cast<double>(most_bytes);
    if (version.has_delta && most_change > 0) {
      row.changed_share = share_of_change(version) / most_change;
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

GraphColumns columns_for(const std::vector<GraphRow>& rows, std::size_t width) {
  GraphColumns columns;
  for (const GraphRow& row : rows) {
    columns.version = std::max(columns.version, row.version.size());
    columns.uploaded = std::max(columns.uploaded, row.uploaded.size());
    columns.changed = std::max(columns.changed, row.changed.size());
  }
  // Two spaces before each column but the first, one before a bar.
  const std::size_t text = columns.version + 2 + columns.uploaded + 2 + columns.changed;
  const std::size_t left = width > text ? width - text : 0;
  if (left >= 2 * (kBarLeast + 1)) {
    columns.uploaded_bar = columns.changed_bar = std::min(left / 2 - 1, kBarMost);
  } else if (left >= kBarLeast + 1) {
    columns.uploaded_bar = left - 1;
  }
  return columns;
}

std::string with_bar(std::size_t columns, const std::string& bar) {
  return columns == 0 ? std::string() : " " + bar;
}

}  // namespace

std::string log_graph(std::span<const VersionPoint> versions, std::size_t columns, bool is_utf8) {
  const std::vector<GraphRow> rows = rows_of(versions);
  const GraphColumns at = columns_for(rows, columns);
  std::string text = cut_line(
      fmt::format("{:>{}}  {:>{}}{}  {:>{}}", "VERSION", at.version, "UPLOADED", at.uploaded,
                  with_bar(at.uploaded_bar, std::string(at.uploaded_bar, ' ')), "CHANGED",
                  at.changed),
      columns);
  for (const GraphRow& row : rows) {
    text += cut_line(
        fmt::format(
            "{:>{}}  {:>{}}{}  {:>{}}{}", row.version, at.version, row.uploaded, at.uploaded,
            with_bar(at.uploaded_bar, bar_text(row.uploaded_share, at.uploaded_bar, is_utf8)),
            row.changed, at.changed,
            with_bar(at.changed_bar, bar_text(row.changed_share, at.changed_bar, is_utf8))),
        columns);
  }
  return text;
}

}  // namespace weightfs::fs
