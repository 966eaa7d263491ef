// Text table: aligned columns for people.
//
// Threads: a value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weightfs::fs {

class TextTable {
 public:
  enum class Align { left, right };
  struct Column {
    std::string title;
    Align align = Align::left;
  };

  /// A column whose titles are all empty makes no heading line.
  explicit TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {}

  /// Requires: one cell for each column.
  void add(std::vector<std::string> cells);

  /// The lines, columns two spaces apart, without trailing spaces.  Control characters of cells,
  /// which may come from a bucket, are shown as '?', so that they cannot act on a terminal.
  /// `width`: of the terminal; the last column's words then go on in the next lines, below each
  /// other, or further left if one is too long.  0: there is none, and every row is one line.
  [[nodiscard]] std::string text(std::size_t width = 0) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// `text` with control characters, line ends too, shown as '?'.
std::string printable(std::string text);

}  // namespace weightfs::fs
