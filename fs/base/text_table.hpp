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

  /// If all titles are empty there is no heading line.
  explicit TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {}

  /// Requires: one cell for each column.
  void add(std::vector<std::string> cells);

  /// The lines, columns two spaces apart, without trailing spaces.  Control characters in cells,
  /// which may come from a bucket, are shown as '?', so that they cannot affect a terminal.
  /// `width`: of the terminal.  The last column is wrapped to it, its lines aligned, or further
  /// left if a word is too long. 0: no limit, every row is one line.
  [[nodiscard]] std::string text(std::size_t width = 0) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// `text` with control characters, including line ends, shown as '?'.
std::string printable(std::string text);

}  // namespace weightfs::fs
