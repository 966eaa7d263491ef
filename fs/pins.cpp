// A handle is the pin's id with a bit that says whether the file counts: only RELEASEs of weights
// files prolong anything.  A pin keeps its id when its session loads the same version again.
#include "fs/pins.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

namespace weightfs::fs {

/// The quiet is a twentieth less than what is promised: a RELEASE arrives after the close(2) from
/// which its caller counts.
PinTimes PinTimes::of(Clock::duration grace) noexcept {
  const PinTimes usual;
  return {.grace = grace,
          .quiet = std::min(usual.quiet, grace / 6) * 19 / 20,
          .most = std::max(usual.most, grace)};
}

PinFile pin_file_of(std::string_view path) noexcept {
  if (path.ends_with(".safetensors")) return PinFile::weights;
  return path.ends_with(".safetensors.index.json") ? PinFile::index : PinFile::other;
}

// ---- rules ----

bool Pins::has_all(const Pin& pin, const Process& process) noexcept {
  return process.opens.size() + (process.wants_all ? 0 : pin.absent_count) >= pin.weights_count;
}

/// In the middle of going over the files once more: the last one has more OPENs than some other.
/// Requires: it has opened all.
bool Pins::is_going_over(const Process& process) noexcept {
  const auto last = process.opens.find(process.last);
  return std::any_of(process.opens.begin(), process.opens.end(),
                     [&](const auto& file) { return file.second < last->second; });
}

/// The file is one that others are ahead of.
bool Pins::is_behind(const Process& process, std::uint32_t file) noexcept {
  const auto found = process.opens.find(file);
  return found != process.opens.end() &&
         std::any_of(process.opens.begin(), process.opens.end(),
                     [&](const auto& other) { return other.second > found->second; });
}

bool Pins::is_complete(const Pin& pin) noexcept {
  return std::all_of(pin.processes.begin(), pin.processes.end(),
                     [&](const auto& process) { return has_all(pin, process.second); });
}

/// Processes are gone that had opened some files, and none has opened all.
bool Pins::is_broken_off(const Pin& pin) noexcept {
  return pin.is_abandoned &&
         std::none_of(pin.processes.begin(), pin.processes.end(),
                      [&](const auto& process) { return has_all(pin, process.second); });
}

/// By the clock, and what is known of the processes.
bool Pins::is_over(const Pin& pin, Clock::time_point now) const noexcept {
  if (!pin.has_weights) return now - pin.since >= times_.grace;
  if (now - pin.opened >= times_.most) return true;
  return now - pin.used >= times_.grace && is_complete(pin) && !is_broken_off(pin);
}

/// The load that the pin was made for must be complete: a process that is in the middle of it must
/// not lose its version because another one, which was faster, begins again.
bool Pins::begins_load(const Pin& pin, const PinOpen& open, Clock::time_point now) const noexcept {
  if (!open.through_latest || open.kind == PinFile::other) return false;
  if (!pin.has_weights || now - pin.used < times_.quiet || !is_complete(pin)) return false;
  const auto process = pin.processes.find(open.reader.process);
  if (process == pin.processes.end() || is_behind(process->second, open.file)) return false;
  // Who has opened what is kept may go on to the rest.
  if (open.kind == PinFile::weights && !process->second.opens.contains(open.file)) return false;
  return std::none_of(pin.processes.begin(), pin.processes.end(),
                      [](const auto& each) { return is_going_over(each.second); });
}

// ---- OPEN and RELEASE ----

Pins::Pin* Pins::find_pin(const std::string& session, Clock::time_point now) {
  const auto found = pins_.find(session);
  if (found == pins_.end()) return nullptr;
  if (!is_over(found->second, now)) return &found->second;
  pins_.erase(found);
  return nullptr;
}

std::optional<std::uint64_t> Pins::find(const std::string& session, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  const Pin* pin = find_pin(session, now);
  return pin == nullptr ? std::nullopt : std::optional(pin->version);
}

void Pins::begin(Pin& pin, const PinOpen& open, Clock::time_point now) {
  pin = Pin{.id = pin.id,
            .version = open.version,
            .command = open.reader.command,
            .since = now,
            .weights_count = open.weights_count,
            .absent_count = open.absent_count,
            .has_weights = false,
            .used = now,
            .opened = now,
            .processes = {},
            .is_abandoned = false,
            .is_by_link = pin.is_by_link,
            .asked = pin.asked,
            .looked = pin.looked};
}

// ---- bind mode ----

bool Pins::told(const Reader& reader, std::uint64_t version, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  Pin* pin = find_pin(reader.session, now);
  if (pin == nullptr) {
    if (pins_.size() >= kPinsMax) return true;
    pin = &pins_[reader.session];
    *pin = Pin{.id = ++last_id_,
               .version = version,
               .command = reader.command,
               .since = now,
               .weights_count = 0,
               .has_weights = false,
               .used = now,
               .opened = now,
               .processes = {},
               .is_abandoned = false,
               .is_by_link = true,
               .asked = now,
               .looked = now};
  }
  pin->asked = now;
  return pin->version == version;
}

void Pins::opened_by_somebody(std::uint64_t version, Clock::duration within,
                              Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  for (auto& [session, pin] : pins_) {
    if (!pin.is_by_link || pin.version != version || now - pin.asked > within) continue;
    pin.has_weights = true;
    pin.used = pin.opened = now;
  }
}

/// A pin of bind mode whose session has a file of it in use.  Returns: false if it has not.
bool Pins::prolong_if_used(const PinView& view, const Question& question, Clock::time_point now) {
  if (!view.has_files(question.session, question.version)) return false;
  const std::lock_guard lock(mutex_);
  const auto found = pins_.find(question.session);
  if (found == pins_.end() || found->second.id != question.id) return true;
  Pin& pin = found->second;
  if (!pin.has_weights) pin.opened = now;
  pin.has_weights = true;
  pin.used = now;
  return true;
}

void Pins::count(Pin& pin, const PinOpen& open, Clock::time_point now) {
  if (open.kind != PinFile::weights) return;
  pin.has_weights = true;
  pin.used = pin.opened = now;
  const bool is_known = pin.processes.contains(open.reader.process);
  if (!is_known && pin.processes.size() >= kPinProcessesMax) {
    pin.is_abandoned = true;
    return;
  }
  Process& process = pin.processes[open.reader.process];
  process.opens[open.file]++;
  process.last = open.file;
  process.wants_all = process.wants_all || open.is_absent;
}

Pins::Opened Pins::opened(const PinOpen& open, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  Pin* pin = find_pin(open.reader.session, now);
  if (pin != nullptr && pin->version != open.version) {
    return {.look_again = open.through_latest, .handle = 0};
  }
  if (pin != nullptr && begins_load(*pin, open, now)) {
    if (open.latest != pin->version) {
      pins_.erase(open.reader.session);
      return {.look_again = true, .handle = 0};
    }
    begin(*pin, open, now);
  }
  if (pin == nullptr) {
    if (!open.through_latest || pins_.size() >= kPinsMax) return {};
    pin = &pins_[open.reader.session];
    pin->id = ++last_id_;
    begin(*pin, open, now);
  }
  count(*pin, open, now);
  return {.look_again = false,
          .handle = pin->id << 1 | static_cast<std::uint64_t>(open.kind == PinFile::weights)};
}

void Pins::released(std::uint64_t handle, Clock::time_point now) {
  if ((handle & 1) == 0) return;
  const std::lock_guard lock(mutex_);
  for (auto& [session, pin] : pins_) {
    if (pin.id == handle >> 1) pin.used = now;
  }
}

// ---- sweep ----

void Pins::sweep(const PinView& view, Clock::time_point now) {
  for (const Question& question : take_questions(now)) {
    if (question.is_by_link && prolong_if_used(view, question, now)) continue;
    std::vector<ProcessId> gone;
    std::copy_if(question.processes.begin(), question.processes.end(), std::back_inserter(gone),
                 view.is_gone);
    settle(question, gone);
    if (!asks_for_files(question, now) || view.has_files(question.session, question.version)) {
      continue;
    }
    const std::lock_guard lock(mutex_);
    const auto found = pins_.find(question.session);
    // Somebody may have opened another file while this looked.
    if (found != pins_.end() && found->second.id == question.id &&
        now - found->second.used >= times_.grace && is_complete(found->second)) {
      pins_.erase(found);
    }
  }
}

/// Ends what is over, and returns what only a look at the processes can tell.
std::vector<Pins::Question> Pins::take_questions(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  std::erase_if(pins_, [&](const auto& item) { return is_over(item.second, now); });
  std::vector<Question> questions;
  for (auto& [session, pin] : pins_) {
    if (now - std::max(pin.used, pin.looked) < times_.quiet) continue;
    if (pin.is_by_link) {
      pin.looked = now;
    } else if (!pin.has_weights) {
      continue;
    }
    Question question{.session = session,
                      .id = pin.id,
                      .version = pin.version,
                      .is_by_link = pin.is_by_link,
                      .processes = {}};
    for (const auto& [process, opens] : pin.processes) {
      if (!has_all(pin, opens) || is_going_over(opens)) question.processes.push_back(process);
    }
    if (!pin.is_by_link && question.processes.empty() && !is_broken_off(pin)) continue;
    questions.push_back(std::move(question));
  }
  return questions;
}

void Pins::settle(const Question& question, const std::vector<ProcessId>& gone) {
  const std::lock_guard lock(mutex_);
  const auto found = pins_.find(question.session);
  if (found == pins_.end() || found->second.id != question.id) return;
  for (const ProcessId& process : gone) {
    const auto ended = found->second.processes.find(process);
    if (ended == found->second.processes.end()) continue;
    if (!has_all(found->second, ended->second)) found->second.is_abandoned = true;
    found->second.processes.erase(ended);
  }
}

/// True for a load whose processes are gone, and which none of them has completed.
bool Pins::asks_for_files(const Question& question, Clock::time_point now) const {
  const std::lock_guard lock(mutex_);
  const auto found = pins_.find(question.session);
  if (found == pins_.end() || found->second.id != question.id) return false;
  const Pin& pin = found->second;
  return is_broken_off(pin) && now - pin.used >= times_.grace && is_complete(pin);
}

// ---- by hand, and for status ----

template <typename Condition>
std::size_t Pins::end_if(Condition&& condition) {
  const std::lock_guard lock(mutex_);
  return std::erase_if(pins_, condition);
}

std::size_t Pins::end_session(const std::string& session) {
  return end_if([&](const auto& item) { return item.first == session; });
}

std::size_t Pins::end_version(std::uint64_t version) {
  return end_if([version](const auto& item) { return item.second.version == version; });
}

std::size_t Pins::end_all() {
  return end_if([](const auto&) { return true; });
}

bool Pins::is_pinned(std::uint64_t version) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(pins_.begin(), pins_.end(),
                     [version](const auto& item) { return item.second.version == version; });
}

bool Pins::is_empty() const {
  const std::lock_guard lock(mutex_);
  return pins_.empty();
}

std::vector<PinState> Pins::list(Clock::time_point now) const {
  std::vector<PinState> states;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [session, pin] : pins_) {
      if (is_over(pin, now)) continue;
      states.push_back({.session = session,
                        .command = pin.command,
                        .version = pin.version,
                        .age = now - pin.since,
                        .is_loading = !is_complete(pin)});
    }
  }
  std::stable_sort(states.begin(), states.end(),
                   [](const PinState& a, const PinState& b) { return a.age > b.age; });
  return states;
}

}  // namespace weightfs::fs
