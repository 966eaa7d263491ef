#include "fs/passes/link_passes.hpp"

#include <algorithm>
#include <utility>

namespace weightfs::fs {
namespace {

constexpr std::chrono::seconds kLinkLookMost{10};

}  // namespace

bool LinkPasses::is_over(const Pass& pass, BootTime now) const noexcept {
  return now - pass.used >= times_.grace || now - pass.progress >= times_.most;
}

bool LinkPasses::has_room(uid_t uid) const {
  if (passes_.size() < kPassesMax) return true;
  return std::count_if(passes_.begin(), passes_.end(), [uid](const auto& item) {
           return item.second.uid == uid;
         }) < static_cast<std::ptrdiff_t>(kPassesMax);
}

std::uint64_t LinkPasses::told(const std::string& link, const Reader& reader, std::uint64_t newest,
                               BootTime now) {
  const std::lock_guard lock(mutex_);
  const auto found = passes_.find({reader.session, link});
  if (found != passes_.end() && !is_over(found->second, now)) {
    found->second.asked = now;
    return found->second.version;
  }
  if (found != passes_.end()) passes_.erase(found);
  if (!has_room(reader.uid)) {
    refused_[reader.uid]++;
    return newest;
  }
  refused_.erase(reader.uid);
  passes_[{reader.session, link}] = {.version = newest,
                                     .command = reader.command,
                                     .uid = reader.uid,
                                     .began = now,
                                     .asked = now,
                                     .used = now,
                                     .progress = now,
                                     .looked = now,
                                     .files = {}};
  return newest;
}

void LinkPasses::opened(std::uint64_t version, const std::string& file, BootTime within,
                        BootTime now) {
  const std::lock_guard lock(mutex_);
  for (auto& [key, pass] : passes_) {
    if (pass.version != version || now - pass.asked > within) continue;
    pass.used = now;
    if (pass.files.insert(file).second) pass.progress = now;
  }
}

void LinkPasses::sweep(BootTime now) {
  const BootTime interval = std::min<BootTime>(kLinkLookMost, times_.grace / 6);
  std::vector<std::pair<Key, std::uint64_t>> questions;
  std::set<std::string> sessions;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [key, pass] : passes_) {
      if (now - std::max(pass.used, pass.looked) < interval) continue;
      pass.looked = now;
      sessions.insert(key.first);
      questions.emplace_back(key, pass.version);
    }
  }
  std::erase_if(questions,
                [this](const auto& one) { return !processes_.uses(one.first.first, one.second); });
  const auto dead = processes_.find_dead(std::move(sessions));
  const std::lock_guard lock(mutex_);
  for (const auto& [key, version] : questions) {
    const auto pass = passes_.find(key);
    if (pass != passes_.end() && pass->second.version == version) pass->second.used = now;
  }
  std::erase_if(passes_, [&](const auto& item) {
    return is_over(item.second, now) || dead.contains(item.first.first);
  });
}

template <typename Condition>
std::size_t LinkPasses::end_if(Condition&& condition) {
  const std::lock_guard lock(mutex_);
  return std::erase_if(passes_, condition);
}

std::size_t LinkPasses::end_session(const std::string& session) {
  return end_if([&](const auto& item) { return item.first.first == session; });
}

std::size_t LinkPasses::end_version(std::uint64_t version) {
  return end_if([version](const auto& item) { return item.second.version == version; });
}

std::size_t LinkPasses::end_all() {
  return end_if([](const auto&) { return true; });
}

bool LinkPasses::has(std::uint64_t version) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(passes_.begin(), passes_.end(),
                     [version](const auto& item) { return item.second.version == version; });
}

bool LinkPasses::is_empty() const {
  const std::lock_guard lock(mutex_);
  return passes_.empty();
}

std::vector<PassState> LinkPasses::list(BootTime now) const {
  std::vector<PassState> states;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, pass] : passes_) {
      if (is_over(pass, now)) continue;
      states.push_back({.session = key.first,
                        .link = key.second,
                        .version = pass.version,
                        .age = now - pass.began,
                        .command = pass.command});
    }
  }
  std::stable_sort(states.begin(), states.end(),
                   [](const PassState& a, const PassState& b) { return a.age > b.age; });
  return states;
}

std::vector<FullTable> LinkPasses::full_tables() const {
  const std::lock_guard lock(mutex_);
  std::vector<FullTable> tables;
  for (const auto& [uid, refused] : refused_) {
    if (!has_room(uid)) tables.push_back({.uid = uid, .refused = refused});
  }
  return tables;
}

}  // namespace weightfs::fs
