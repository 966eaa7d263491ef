#include "store/readers/reader_gate.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace weightfs {
namespace {

constexpr std::size_t kBehindShown = 5;

bool has_version(const ReaderEngine& engine, std::uint64_t least) {
  const bool is_known = engine.state == "current" || engine.state == "telling";
  return is_known && engine.version >= least;
}

std::string version_text(std::uint64_t version) {
  return version == 0 ? "no version yet" : fmt::format("version {}", version);
}

}  // namespace

std::string why_behind(const ReaderRecord& record, std::uint64_t least) {
  if (record.version < least) {
    const bool is_frozen = record.follow != "latest";
    return fmt::format("shows {}{}", version_text(record.version),
                       is_frozen ? fmt::format(" (it follows {})", record.follow) : "");
  }
  if (!record.is_whole) return fmt::format("is still fetching version {}", record.version);
  for (const ReaderEngine& engine : record.engines) {
    if (has_version(engine, least)) continue;
    return fmt::format("its engine {} is {}, with {}", engine.name, engine.state,
                       version_text(engine.version));
  }
  return {};
}

GateCount count_readers(const ReaderList& list, const GateWish& wish) {
  GateCount count;
  count.unreadable = list.unreadable;
  for (const ListedReader& one : list.readers) {
    if (one.presence == Presence::gone) count.gone++;
    if (one.presence == Presence::left) count.left++;
    if (one.presence != Presence::live) continue;
    const std::string why = why_behind(one.record, wish.least());
    if (why.empty()) {
      count.ready++;
    } else {
      count.behind.push_back(fmt::format("{}:{} {}", one.record.host, one.record.place, why));
    }
  }
  return count;
}

std::string gate_text(const GateCount& count, const GateWish& wish) {
  std::string text =
      fmt::format("{} of {} reader{} {} version {} or later", count.ready, wish.replicas,
                  wish.replicas == 1 ? "" : "s", wish.replicas == 1 ? "has" : "have", wish.least());
  std::string more;
  const auto add = [&](const std::string& part) { more += (more.empty() ? ": " : "; ") + part; };
  for (std::size_t i = 0; i < std::min(count.behind.size(), kBehindShown); i++) {
    add(count.behind[i]);
  }
  if (count.behind.size() > kBehindShown) {
    add(fmt::format("{} more are behind", count.behind.size() - kBehindShown));
  }
  if (count.gone != 0) add(fmt::format("{} gone", count.gone));
  if (count.left != 0) add(fmt::format("{} left", count.left));
  if (!count.unreadable.empty()) {
    add(fmt::format("{} cannot be read ({})", count.unreadable.size(), count.unreadable.front()));
  }
  return text + more;
}

}  // namespace weightfs
