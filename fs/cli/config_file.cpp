#include "fs/cli/config_file.hpp"

#include <fmt/format.h>
#include <toml++/toml.h>

#include "store/base/error.hpp"

namespace weightfs::fs {
namespace {

class ConfigReader {
 public:
  explicit ConfigReader(std::string_view what) : what_(what) {}

  std::vector<ConfigEntry> read(const toml::table& top) {
    for (const auto& [key, node] : top) {
      if (const toml::table* table = node.as_table()) {
        for (const auto& [inner, value] : *table) add(std::string(key.str()), inner.str(), value);
      } else {
        add("", key.str(), node);
      }
    }
    return std::move(entries_);
  }

 private:
  [[noreturn]] void refuse(const toml::node& node, std::string_view problem) const {
    throw Error(ErrorCode::invalid,
                fmt::format("{}, line {}: {}", what_, node.source().begin.line, problem));
  }

  void add(const std::string& table, std::string_view key, const toml::node& node) {
    ConfigEntry entry{.table = table, .key = std::string(key), .values = {}};
    if (const toml::array* array = node.as_array()) {
      entry.is_array = true;
      for (const toml::node& value : *array) entry.values.push_back(text_of(value));
    } else {
      entry.values.push_back(text_of(node));
    }
    entries_.push_back(std::move(entry));
  }

  /// The value as it would be given on the command line.
  std::string text_of(const toml::node& node) const {
    if (const auto* text = node.as_string()) return text->get();
    if (const auto* is_set = node.as_boolean()) return is_set->get() ? "true" : "false";
    if (const auto* number = node.as_floating_point()) return fmt::to_string(number->get());
    if (const auto* number = node.as_integer()) {
      if (number->flags() == toml::value_flags::none) return fmt::to_string(number->get());
      refuse(node, "a number that is not decimal must be quoted");
    }
    refuse(node, "a string, number, boolean or an array of them is expected");
  }

  std::string_view what_;
  std::vector<ConfigEntry> entries_;
};

}  // namespace

std::vector<ConfigEntry> parse_config(std::string_view text, std::string_view what) {
  try {
    return ConfigReader(what).read(toml::parse(text, what));
  } catch (const toml::parse_error& error) {
    throw Error(ErrorCode::invalid, fmt::format("{}, line {}: {}", what, error.source().begin.line,
                                                error.description()));
  }
}

}  // namespace weightfs::fs
