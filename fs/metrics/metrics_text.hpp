// MetricsText: writes Prometheus' text format (0.0.4): families, each with its help, its type and
// its samples.
//
// Why not prometheus-cpp: its registry has values that the program pushes, and what is shown here
// is pulled from the state that status shows too; what would be left of it is this file.
//
// Threads: one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "store/timing/timing_totals.hpp"

namespace weightfs::fs {

class MetricsText {
 public:
  /// Begins a family; the samples that follow are its own, and may be none.  The name of a counter
  /// ends in _total.
  void gauge(std::string_view name, std::string_view help) { begin(name, "gauge", help); }
  void counter(std::string_view name, std::string_view help) { begin(name, "counter", help); }
  void histogram(std::string_view name, std::string_view help) { begin(name, "histogram", help); }

  /// A family's samples differ in their labels.  Values of labels may have any bytes.
  using Labels = std::vector<std::pair<std::string_view, std::string_view>>;
  void add(const Labels& labels, std::uint64_t value);
  void add(const Labels& labels, double value);
  void add(const Labels& labels, const TimeHistogram& times);
  template <typename Value>
  void add(Value value) {
    if constexpr (std::is_integral_v<Value>) {
      add({}, static_cast<std::uint64_t>(value));
    } else {
      add({}, value);
    }
  }

  [[nodiscard]] const std::string& text() const noexcept { return text_; }

 private:
  void begin(std::string_view name, std::string_view type, std::string_view help);
  void line(std::string_view suffix, const Labels& labels, std::string_view value);

  std::string text_;
  std::string name_;  // of the family
};

}  // namespace weightfs::fs
