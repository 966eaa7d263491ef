#include "fs/cli/progress_line.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>

#include "store/base/bytes.hpp"

namespace weightfs::fs {
namespace {

constexpr auto kSilence = std::chrono::seconds(1);
constexpr auto kPatience = std::chrono::seconds(3);
constexpr auto kInterval = std::chrono::milliseconds(100);
constexpr std::string_view kEraseLine = "\r\x1b[K";

double seconds_of(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

std::string duration_text(double seconds) {
  const auto s = static_cast<std::uint64_t>(seconds + 0.5);
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{}:{:02} min", s / 60, s % 60);
  return fmt::format("{}:{:02} h", s / 3600, s % 3600 / 60);
}

}  // namespace

std::string progress_text(std::string_view phase, std::uint64_t done_bytes,
                          std::uint64_t total_bytes, Clock::duration elapsed) {
  const double done = static_cast<double>(done_bytes);
  const double rate = done / std::max(seconds_of(elapsed), 0.001);
  const std::string rate_text = human_bytes(static_cast<std::uint64_t>(rate)) + "/s";
  if (total_bytes == 0 && done_bytes == 0) return std::string(phase);
  if (total_bytes == 0) {
    return fmt::format("{:<11} {}  {}", phase, human_bytes(done_bytes), rate_text);
  }
  const double total = static_cast<double>(std::max(total_bytes, done_bytes));
  std::string text = fmt::format("{:<11} {:3.0f} %  {} of {}  {}", phase, 100 * done / total,
                                 human_bytes(done_bytes), human_bytes(total_bytes), rate_text);
  if (done_bytes != 0 && done_bytes < total_bytes) {
    text += fmt::format("  {} left", duration_text((total - done) / rate));
  }
  return text;
}

ProgressLine::ProgressLine(std::ostream& out, std::size_t columns,
                           std::function<Clock::time_point()> now)
    : out_(out), columns_(columns), now_(std::move(now)), started_(now_()), updated_(started_) {}

void ProgressLine::update(std::string_view phase, std::uint64_t done_bytes,
                          std::uint64_t total_bytes) {
  const std::lock_guard lock(mutex_);
  const Clock::time_point now = now_();
  const bool is_new_phase = phase != phase_;
  if (is_new_phase) {
    phase_ = phase;
    phase_started_ = now;
  }
  updated_ = now;
  if (now - started_ < kSilence) return;
  if (visible_ && !is_new_phase && now - shown_ < kInterval) return;
  show(progress_text(phase, done_bytes, total_bytes, now - phase_started_));
  shown_ = now;
}

void ProgressLine::tell_silence() {
  const std::lock_guard lock(mutex_);
  const Clock::duration silence = now_() - updated_;
  if (silence < kPatience) return;
  show(fmt::format("{}waiting for the bucket: no answer for {}",
                   phase_.empty() ? "" : phase_ + ", ", duration_text(seconds_of(silence))));
}

/// Requires: mutex_ is held.
void ProgressLine::show(std::string text) {
  constexpr std::string_view kCut = "...";
  if (columns_ > kCut.size() && text.size() > columns_) {
    text.resize(columns_ - kCut.size());
    text += kCut;
  }
  out_ << kEraseLine << text << std::flush;
  visible_ = true;
}

void ProgressLine::clear() {
  const std::lock_guard lock(mutex_);
  if (!visible_) return;
  out_ << kEraseLine << std::flush;
  visible_ = false;
}

}  // namespace weightfs::fs
