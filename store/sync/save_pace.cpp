#include "store/sync/save_pace.hpp"

#include <algorithm>
#include <chrono>

namespace weightfs {

SaveProgress progress_of(const EarlyRecord& record, const Layout& parent) {
  SaveProgress progress{record.version, 0, 0};
  for (const LayoutFile& file : parent.files()) {
    if (file.size_bytes >= kEarlyBytesMin) progress.all_bytes += file.size_bytes;
  }
  for (const EarlyRecord::File& file : record.files) {
    const LayoutFile* const known = parent.find_file(file.path);
    if (known == nullptr) continue;
    progress.done_bytes +=
        std::min(known->size_bytes, file.coded_bytes.value_or(known->size_bytes));
  }
  return progress;
}

Clock::time_point SavePace::note(const SaveProgress& progress, Clock::time_point now) {
  const Seen seen{progress.done_bytes, now};
  if (progress.version != version_ || seen.done_bytes < last_.done_bytes) {
    version_ = progress.version;
    first_ = last_ = seen;
  }
  if (seen.done_bytes > last_.done_bytes) last_ = seen;
  if (progress.done_bytes >= progress.all_bytes || last_.done_bytes == first_.done_bytes) {
    return last_.at;
  }
  const double pace = static_cast<double>(last_.done_bytes - first_.done_bytes) /
                      std::chrono::duration<double>(last_.at - first_.at).count();
  const double left_bytes = static_cast<double>(progress.all_bytes - last_.done_bytes);
  // A version is not waited for longer than that, and no clock overflows.
  constexpr std::chrono::duration<double> kMost = std::chrono::hours(24);
  const auto left = std::min(kMost, std::chrono::duration<double>(left_bytes / pace));
  return last_.at + std::chrono::duration_cast<Clock::duration>(left);
}

}  // namespace weightfs
