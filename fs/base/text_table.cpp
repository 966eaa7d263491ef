#include "fs/base/text_table.hpp"

#include <algorithm>
#include <cassert>
#include <cstddef>

#include "store/base/controls.hpp"

namespace weightfs::fs {
namespace {

constexpr std::size_t kIndentMin = 4;  // of continuation lines

/// Characters of UTF-8 text: counts the bytes that are not continuation bytes.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string padded(const std::string& text, std::size_t width, TextTable::Align align) {
  const std::string spaces(width - width_of(text), ' ');
  return align == TextTable::Align::left ? text + spaces : spaces + text;
}

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    if (end > at) words.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

/// The words in lines of at most `width`; all but the first line are indented.
std::string filled(const std::vector<std::string>& words, std::size_t width, std::size_t indent) {
  std::string text;
  std::size_t used = 0;
  for (const std::string& word : words) {
    if (used > 0 && used + 1 + width_of(word) > width) {
      text += "\n" + std::string(indent, ' ');
      used = 0;
    }
    text += (used > 0 ? " " : "") + word;
    used += (used > 0 ? 1 : 0) + width_of(word);
  }
  return text;
}

/// The last cell of a row, which begins at column `left`.
std::string wrapped(const std::string& cell, std::size_t left, std::size_t width) {
  if (left + width_of(cell) <= width) return cell;
  const std::vector<std::string> words = words_of(cell);
  std::size_t longest = 0;
  for (const std::string& word : words) longest = std::max(longest, width_of(word));
  if (left + longest <= width) return filled(words, width - left, left);
  const std::size_t indent = std::max(kIndentMin, width - std::min(width, width_of(cell)));
  return "\n" + std::string(indent, ' ') + filled(words, width - indent, indent);
}

}  // namespace

std::string printable(std::string text) {
  std::size_t end = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t size = control_size(std::string_view(text).substr(at));
    text[end++] = size == 0 ? text[at] : '?';
    at += std::max<std::size_t>(size, 1);
  }
  text.resize(end);
  return text;
}

void TextTable::add(std::vector<std::string> cells) {
  assert(cells.size() == columns_.size());
  for (std::string& cell : cells) cell = printable(std::move(cell));
  rows_.push_back(std::move(cells));
}

std::string TextTable::text(std::size_t width) const {
  std::vector<std::vector<std::string>> lines;
  std::vector<std::string> titles;
  for (const Column& column : columns_) titles.push_back(column.title);
  const bool has_titles =
      std::any_of(titles.begin(), titles.end(), [](const auto& title) { return !title.empty(); });
  if (has_titles) lines.push_back(titles);
  lines.insert(lines.end(), rows_.begin(), rows_.end());

  std::vector<std::size_t> widths(columns_.size(), 0);
  for (const auto& line : lines) {
    for (std::size_t i = 0; i < line.size(); i++)
      widths[i] = std::max(widths[i], width_of(line[i]));
  }
  std::string text;
  for (const auto& line : lines) {
    std::size_t left = 0;
    for (std::size_t i = 0; i + 1 < line.size(); i++) {
      text += padded(line[i], widths[i], columns_[i].align) + "  ";
      left += widths[i] + 2;
    }
    const bool wraps = width > kIndentMin && columns_.back().align == Align::left;
    const std::string last = wraps ? wrapped(line.back(), left, width)
                                   : padded(line.back(), widths.back(), columns_.back().align);
    if (last.starts_with('\n')) text.erase(text.find_last_not_of(' ') + 1);
    text += last;
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
  }
  return text;
}

}  // namespace weightfs::fs
