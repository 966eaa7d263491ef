#include "store/local/manual_pins.hpp"

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"

namespace weightfs {
namespace {

constexpr std::string_view kManualPinsKey = "pins";
constexpr std::size_t kHandPinBytes = 16;

std::map<std::uint64_t, std::int64_t> parse_manual_pins(std::string_view text) {
  std::map<std::uint64_t, std::int64_t> pins;
  if (text.size() % kHandPinBytes != 0) return pins;
  for (; !text.empty(); text.remove_prefix(kHandPinBytes)) {
    pins[load_be(text.substr(0, 8))] = static_cast<std::int64_t>(load_be(text.substr(8, 8)));
  }
  return pins;
}

}  // namespace

ManualPins::ManualPins(Db& db)
    : db_(db),
      pins_(parse_manual_pins(db.find(ColumnFamily::store, kManualPinsKey).value_or(""))) {}

std::map<std::uint64_t, std::int64_t> ManualPins::list() const {
  const std::lock_guard lock(mutex_);
  return pins_;
}

bool ManualPins::contains(std::uint64_t version) const {
  const std::lock_guard lock(mutex_);
  return pins_.contains(version);
}

void ManualPins::add(std::uint64_t version, std::int64_t time) {
  const std::lock_guard change(change_mutex_);
  auto pins = list();
  if (!pins.emplace(version, time).second) return;
  if (pins.size() > kManualPinsMax) {
    throw Error(ErrorCode::busy,
                fmt::format("version {} cannot be pinned: {} versions already are; unpin some",
                            version, kManualPinsMax));
  }
  write(pins);
}

bool ManualPins::remove(std::uint64_t version) {
  const std::lock_guard change(change_mutex_);
  auto pins = list();
  if (pins.erase(version) == 0) return false;
  write(pins);
  return true;
}

void ManualPins::write(const std::map<std::uint64_t, std::int64_t>& pins) {
  std::string text;
  for (const auto& [version, time] : pins) {
    append_be64(text, version);
    append_be64(text, static_cast<std::uint64_t>(time));
  }
  db_.write({{ColumnFamily::store, std::string(kManualPinsKey), text}});
  const std::lock_guard lock(mutex_);
  pins_ = pins;
}

}  // namespace weightfs
