#include "fs/config_file.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "store/error.hpp"

namespace weightfs::fs {
namespace {

constexpr std::string_view kBlank = " \t\r";

bool is_key_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_';
}

class Parser {
 public:
  Parser(std::string_view text, std::string_view what) : rest_(text), what_(what) {}

  std::vector<ConfigEntry> parse() {
    while (skip_to_content(), !rest_.empty()) {
      if (rest_.front() == '[') {
        parse_table();
      } else {
        parse_entry();
      }
      end_line();
    }
    return std::move(entries_);
  }

 private:
  [[noreturn]] void refuse(std::string_view problem) const {
    throw Error(ErrorCode::invalid, fmt::format("{}, line {}: {}", what_, line_, problem));
  }

  bool take(char c) {
    if (rest_.empty() || rest_.front() != c) return false;
    if (c == '\n') line_++;
    rest_.remove_prefix(1);
    return true;
  }

  void skip_blanks() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(kBlank), rest_.size()));
  }

  void skip_comment() {
    if (!rest_.empty() && rest_.front() == '#') {
      rest_.remove_prefix(std::min(rest_.find('\n'), rest_.size()));
    }
  }

  /// Skips blanks, comments and line ends.
  void skip_to_content() {
    do {
      skip_blanks();
      skip_comment();
    } while (take('\n'));
  }

  void end_line() {
    skip_blanks();
    skip_comment();
    if (!rest_.empty() && !take('\n')) refuse("something stands behind the value");
  }

  std::string parse_key() {
    const auto end = std::find_if_not(rest_.begin(), rest_.end(), is_key_character);
    const std::string key(rest_.begin(), end);
    if (key.empty()) refuse("a key of letters, digits, '-' and '_' is expected");
    rest_.remove_prefix(key.size());
    return key;
  }

  void parse_table() {
    take('[');
    skip_blanks();
    table_ = parse_key();
    skip_blanks();
    if (!take(']')) refuse("a table is written [NAME]");
    if (std::find(tables_.begin(), tables_.end(), table_) != tables_.end()) {
      refuse(fmt::format("the table [{}] is there twice", table_));
    }
    tables_.push_back(table_);
  }

  void parse_entry() {
    ConfigEntry entry{.table = table_, .key = parse_key(), .values = {}};
    skip_blanks();
    if (!take('=')) refuse(fmt::format("'=' is expected behind '{}'", entry.key));
    skip_blanks();
    const auto same = [&](const ConfigEntry& other) {
      return other.table == entry.table && other.key == entry.key;
    };
    if (std::any_of(entries_.begin(), entries_.end(), same)) {
      refuse(fmt::format("'{}' is there twice", entry.key));
    }
    if (take('[')) {
      entry.is_array = true;
      entry.values = parse_array();
    } else {
      entry.values.push_back(parse_value());
    }
    entries_.push_back(std::move(entry));
  }

  std::vector<std::string> parse_array() {
    std::vector<std::string> values;
    while (skip_to_content(), !take(']')) {
      if (!values.empty()) {
        if (!take(',')) refuse("',' or ']' is expected in the array");
        skip_to_content();
        if (take(']')) break;
      }
      values.push_back(parse_value());
    }
    return values;
  }

  std::string parse_value() {
    if (take('"')) return parse_basic_string();
    if (take('\'')) return parse_literal_string();
    const auto end = std::min(rest_.find_first_of(" \t\r\n,]#"), rest_.size());
    const std::string value(rest_.substr(0, end));
    if (value != "true" && value != "false" && !is_number(value)) {
      refuse(fmt::format("'{}' is no number, boolean or string in quotes", value));
    }
    rest_.remove_prefix(end);
    return value;
  }

  static bool is_number(std::string_view value) {
    return !value.empty() && value.find_first_not_of("0123456789.+-") == std::string_view::npos;
  }

  std::string parse_literal_string() {
    const std::size_t end = rest_.find_first_of("'\n");
    if (end == std::string_view::npos || rest_[end] != '\'') refuse("the string does not end");
    const std::string value(rest_.substr(0, end));
    rest_.remove_prefix(end + 1);
    return value;
  }

  std::string parse_basic_string() {
    std::string value;
    while (!take('"')) {
      if (rest_.empty() || rest_.front() == '\n') refuse("the string does not end");
      const bool escaped = take('\\');
      if (escaped && rest_.empty()) refuse("the string does not end");
      value += escaped ? unescape(rest_.front()) : rest_.front();
      rest_.remove_prefix(1);
    }
    return value;
  }

  char unescape(char c) const {
    switch (c) {
      case '"':
      case '\\':
        return c;
      case 'n':
        return '\n';
      case 't':
        return '\t';
      default:
        refuse(R"(of the escapes only \" \\ \n \t are known here)");
    }
  }

  std::string_view rest_;
  std::string_view what_;
  unsigned line_ = 1;
  std::string table_;
  std::vector<std::string> tables_;
  std::vector<ConfigEntry> entries_;
};

}  // namespace

std::vector<ConfigEntry> parse_config(std::string_view text, std::string_view what) {
  return Parser(text, what).parse();
}

}  // namespace weightfs::fs
