#include "fs/base/timing_text.hpp"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "fs/base/format_values.hpp"
#include "fs/base/text_table.hpp"
#include "store/base/bytes.hpp"

namespace weightfs::fs {
namespace {

using std::chrono::nanoseconds;
using Align = TextTable::Align;
using Phases = std::vector<std::pair<const char*, nanoseconds>>;

constexpr int kTellsAbove = 20;  // a phase that takes less than one part in so many is not told

/// "build 480ms, flip 29ms".
std::string phases_text(const Phases& phases, nanoseconds total) {
  std::string text;
  for (const auto& [name, time] : phases) {
    if (time * kTellsAbove < total || time == nanoseconds(0)) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, duration_text(time));
  }
  return text.empty() ? "" : fmt::format(" ({})", text);
}

std::string attempts_text(unsigned attempts) {
  return attempts > 1 ? fmt::format("; {} attempts", attempts) : "";
}

std::string cell(const std::optional<nanoseconds>& time) {
  return time ? duration_text(*time) : "-";
}

constexpr std::int64_t kNsPerSecond = 1'000'000'000;

/// A table whose rows each have a line below.
class DetailedTable {
 public:
  explicit DetailedTable(std::vector<std::string> titles) {
    std::vector<TextTable::Column> columns;
    for (std::string& title : titles) {
      columns.push_back({std::move(title), columns.size() == 1 ? Align::left : Align::right});
    }
    table_.emplace(std::move(columns));
  }

  void add(std::vector<std::string> cells, std::string detail) {
    table_->add(std::move(cells));
    details_.push_back(printable(std::move(detail)));
  }

  [[nodiscard]] bool is_empty() const { return details_.empty(); }

  [[nodiscard]] std::string text() const {
    const std::string rows = table_->text();
    std::string text;
    std::size_t line = 0;
    for (std::size_t at = 0; at < rows.size(); line++) {
      const std::size_t end = rows.find('\n', at) + 1;
      text += rows.substr(at, end - at);
      if (line > 0) text += "  " + details_[line - 1] + "\n";
      at = end;
    }
    return text;
  }

 private:
  std::optional<TextTable> table_;
  std::vector<std::string> details_;
};

}  // namespace

std::string duration_text(nanoseconds time) {
  const double ms = static_cast<double>(time.count()) / 1e6;
  if (ms < 9.95) return fmt::format("{:.1f}ms", ms);
  if (ms < 999.5) return fmt::format("{:.0f}ms", ms);
  const double seconds = ms / 1000;
  if (seconds < 99.95) return fmt::format("{:.1f}s", seconds);
  if (seconds < 5970) return fmt::format("{:.0f}m", seconds / 60);
  return fmt::format("{:.0f}h", seconds / 3600);
}

std::string shown_text(const VersionTiming& timing) {
  Phases phases{{"wait", timing.wait}, {"plan", timing.plan}, {"room", timing.room}};
  if (!timing.is_streamed) phases.emplace_back("build", timing.build);
  phases.emplace_back("record", timing.record);
  phases.emplace_back("flip", timing.flip);
  std::string text = fmt::format("{} after its manifest was seen{}", duration_text(timing.total()),
                                 phases_text(phases, timing.total()));
  if (timing.is_streamed) {
    text += fmt::format("; all of it was here {} later", duration_text(timing.build));
  }
  return text + attempts_text(timing.attempts);
}

std::string build_text(const VersionTiming& timing) {
  const BuildTiming& work = timing.work;
  const std::string start = timing.base != 0 ? fmt::format("version {}", timing.base)
                                             : fmt::format("snapshot {}", timing.snapshot);
  const std::string patches =
      timing.patches == 0 ? "" : fmt::format(" + {}", count_text(timing.patches, "span"));
  const std::string deltas =
      timing.deltas == 0 ? "" : fmt::format(" + {}", count_text(timing.deltas, "delta"));
  const std::string skips =
      timing.skips == 0 ? "" : fmt::format(" + {}", count_text(timing.skips, "skip delta"));
  const std::string seed =
      work.seeded_bytes == 0 ? "" : fmt::format("seed {}, ", human_bytes(work.seeded_bytes));
  const std::string early = timing.early_bytes == 0
                                ? ""
                                : fmt::format("{} made early, ", human_bytes(timing.early_bytes));
  return fmt::format("{}{}{}{}: {}{}fetch {} in {}; stall {}, decode {}, write {}", start, patches,
                     skips, deltas, early, seed, human_bytes(work.fetched_bytes),
                     duration_text(work.fetch), duration_text(work.stalled),
                     duration_text(work.decode), duration_text(work.write));
}

std::string shown_text(const HandOverTiming& timing) {
  const Phases phases{{"seal", timing.seal},     {"wait", timing.wait},
                      {"code", timing.code},     {"upload", timing.upload},
                      {"commit", timing.commit}, {"adopt", timing.adopt}};
  return fmt::format("{}{}{}", duration_text(timing.total()), phases_text(phases, timing.total()),
                     attempts_text(timing.attempts));
}

std::string coded_text(const HandOverTiming& timing) {
  return fmt::format("{}{}, {} of it coded early; {} uploaded{}",
                     timing.name.empty() ? "" : timing.name + ": ", human_bytes(timing.bytes),
                     human_bytes(timing.early_bytes), human_bytes(timing.uploaded_bytes),
                     attempts_text(timing.attempts));
}

std::string timing_tables(const std::vector<TimingRecord>& records) {
  DetailedTable brought({"VERSION", "SEEN", "UNSEEN", "TOTAL", "WAIT", "PLAN", "ROOM", "BUILD",
                         "RECORD", "FLIP", "SYNC"});
  DetailedTable handed_over(
      {"VERSION", "HANDED OVER", "TOTAL", "SEAL", "WAIT", "CODE", "UPLOAD", "COMMIT", "ADOPT"});
  for (auto record = records.rbegin(); record != records.rend(); ++record) {
    const std::string number = std::to_string(record->version);
    if (const auto& one = record->brought) {
      brought.add({number, time_text(one->seen_ns / kNsPerSecond), cell(one->unseen),
                   cell(one->total()), cell(one->wait), cell(one->plan), cell(one->room),
                   (one->is_streamed ? "+" : "") + cell(one->build), cell(one->record),
                   cell(one->flip), cell(one->sync)},
                  build_text(*one) + attempts_text(one->attempts));
    }
    if (const auto& one = record->handed_over) {
      handed_over.add({number, time_text(one->begun_ns / kNsPerSecond), cell(one->total()),
                       cell(one->seal), cell(one->wait), cell(one->code), cell(one->upload),
                       cell(one->commit), cell(one->adopt)},
                      coded_text(*one));
    }
  }
  std::string text = brought.is_empty() ? "" : brought.text();
  if (!handed_over.is_empty()) text += (text.empty() ? "" : "\n") + handed_over.text();
  return text;
}

}  // namespace weightfs::fs
