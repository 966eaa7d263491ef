#include "fs/metrics/metrics_text.hpp"

#include <fmt/format.h>

#include <cmath>

#include "store/base/path_rules.hpp"

namespace weightfs::fs {
namespace {

/// The format has UTF-8 alone; what is not that is shown as in messages.
std::string label_value(std::string_view text) {
  std::string escaped;
  for (const char c : escape_name(text)) {
    if (c == '\\' || c == '"') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string number_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

}  // namespace

void MetricsText::begin(std::string_view name, std::string_view type, std::string_view help) {
  name_ = name;
  text_ += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, type);
}

void MetricsText::line(std::string_view suffix, const Labels& labels, std::string_view value) {
  text_ += name_;
  text_ += suffix;
  char before = '{';
  for (const auto& [name, label] : labels) {
    text_ += fmt::format("{}{}=\"{}\"", before, name, label_value(label));
    before = ',';
  }
  if (!labels.empty()) text_ += '}';
  text_ += fmt::format(" {}\n", value);
}

void MetricsText::add(const Labels& labels, std::uint64_t value) {
  line("", labels, std::to_string(value));
}

void MetricsText::add(const Labels& labels, double value) { line("", labels, number_text(value)); }

void MetricsText::add(const Labels& labels, const TimeHistogram& times) {
  Labels with_bound = labels;
  with_bound.emplace_back("le", "");
  for (std::size_t i = 0; i < TimeHistogram::kBounds.size(); i++) {
    const std::string bound = number_text(TimeHistogram::kBounds.at(i));
    with_bound.back().second = bound;
    line("_bucket", with_bound, std::to_string(times.count_to(i)));
  }
  with_bound.back().second = "+Inf";
  line("_bucket", with_bound, std::to_string(times.count()));
  line("_sum", labels, number_text(times.sum_seconds()));
  line("_count", labels, std::to_string(times.count()));
}

}  // namespace weightfs::fs
