// A pass ends when it is not live and has no members, so every pass's version is in use.  A member
// is remembered until its process is gone, or has been quiet for `most`: a process that has left or
// lost a pass must not go back to an older version.
#include "fs/passes/passes.hpp"

#include <algorithm>
#include <utility>

namespace weightfs::fs {
namespace {

/// The interval for checking whether a session has something open or mapped, and whether it has
/// ended.
constexpr std::chrono::seconds kPassLookMost{10};
/// The interval for checking all processes to make room.
constexpr std::chrono::milliseconds kRoomLook{100};

}  // namespace

PassTimes PassTimes::of(BootTime grace) noexcept {
  const PassTimes usual;
  return {.grace = grace,
          .quiet = std::min(usual.quiet, grace / 3),
          .most = std::max(usual.most, grace)};
}

PassFile pass_file_of(std::string_view path) noexcept {
  return path.ends_with(".safetensors") ? PassFile::weights : PassFile::small;
}

bool Passes::Files::add(std::uint32_t file) {
  if (has(file)) return false;
  if (file >= has_.size()) has_.resize(file + 1);
  has_[file] = true;
  count_++;
  return true;
}

void Passes::Files::add(const Files& others) {
  for (std::uint32_t file = 0; file < others.has_.size(); file++) {
    if (others.has_[file]) add(file);
  }
}

bool Passes::Files::has(std::uint32_t file) const noexcept {
  return file < has_.size() && has_[file];
}

// ---- READLINK and OPEN ----

std::uint64_t Passes::told(const std::string& link, const Reader& reader, std::uint64_t newest,
                           LinkUse use, BootTime now) {
  const MemberKey key{reader.process, link};
  const auto ancestors = ancestors_of_newcomer(key);
  const std::lock_guard lock(mutex_);
  if (const Pass* own = pass_of(key, now)) {
    Member& member = members_.at(key);
    if (!is_told_newest(*own, key, member, use, now)) return own->version;
    member.knows_newer = member.knows_newer || (use == LinkUse::text && newest != own->version);
    return newest;
  }
  const Pass* pass = find_pass(link, reader, ancestors, now);
  return pass == nullptr ? newest : pass->version;
}

Passes::Opened Passes::opened(const PassOpen& open, BootTime now) {
  if (open.link.empty()) return opened_by_name(open, now);
  const MemberKey key{open.reader.process, open.link};
  const auto ancestors = ancestors_of_newcomer(key);
  look_at_session(key, open.reader, now);
  const std::lock_guard lock(mutex_);
  Target target = decide(open, ancestors, now);
  const bool is_new = target.pass == 0;
  if (open.version != target.version) {
    if (!(is_new && open.was_newest) && !open.is_retry) return {.wanted = target.version};
    target = {.version = open.version, .left = target.left, .closed = target.closed};
  }
  return accept(key, open, target, now);
}

/// Counts for the process's pass of that version.
Passes::Opened Passes::opened_by_name(const PassOpen& open, BootTime now) {
  if (open.kind != PassFile::weights) return {};
  const std::lock_guard lock(mutex_);
  const ProcessId& process = open.reader.process;
  for (auto each = members_.lower_bound({process, ""});
       each != members_.end() && each->first.process == process; ++each) {
    if (each->second.version != open.version || pass_of(each->first, now) == nullptr) continue;
    Pass& pass = passes_.at(each->second.pass);
    const bool is_progress = count_weights(pass, each->second, open, now);
    return {.hold = {pass.id, each->first.link, process, is_progress}};
  }
  return {};
}

Passes::Opened Passes::accept(const MemberKey& key, const PassOpen& open, const Target& target,
                              BootTime now) {
  Pass* pass = target.pass != 0 ? &passes_.at(target.pass) : begin(open, target.version, now);
  Member* member = pass == nullptr ? nullptr : join(*pass, key, open, now);
  if (member == nullptr) {
    refused_[open.reader.uid]++;
    return {.is_refused = true};
  }
  if (const auto left = passes_.find(target.left); left != passes_.end()) {
    pass->line = left->second.line;
  }
  if (const auto closed = passes_.find(target.closed); closed != passes_.end()) {
    closed->second.closed = last_use(open.reader.session);  // before this OPEN counts
  }
  if (target.is_repetition && !target.waits) member->repetitions++;
  if (target.waits && !member->waited) {
    member->waited = now;
    member->is_look = target.is_look;
    member->repetitions = 0;  // it goes on with this load even if it pauses in it
    member->knows_newer = false;
    member->round = Files();
  } else if (begins_round(*pass, *member, open, now)) {
    member->round = Files();
  }
  if (open.kind == PassFile::weights) {
    return {.hold = {pass->id, key.link, key.process, count_weights(*pass, *member, open, now)}};
  }
  if (member->weights.count() > 0 && is_at_rest(*pass, *member, now)) {
    member->is_load_decided = true;
  }
  member->small = member->used = now;
  member->small_files.add(open.file);
  member->small_names.insert(open.name);
  return {};
}

Passes::Pass* Passes::begin(const PassOpen& open, std::uint64_t version, BootTime now) {
  if (!has_room(open.reader.uid)) return nullptr;
  refused_.erase(open.reader.uid);
  Pass& pass = passes_[++last_id_];
  pass.id = pass.line = last_id_;
  pass.session = open.reader.session;
  pass.link = open.link;
  pass.command = open.reader.command;
  pass.uid = open.reader.uid;
  pass.version = version;
  pass.began = pass.progress = now;
  pass.weights_count = open.weights_count;
  pass.absent_count = open.absent_count;
  return &pass;
}

/// Returns: nullptr if the tables are full.
Passes::Member* Passes::join(Pass& pass, const MemberKey& key, const PassOpen& open, BootTime now) {
  const Reader& reader = open.reader;
  const auto known = members_.find(key);
  if (known == members_.end() && !has_room_for_member(reader.uid)) {
    if (pass.members == 0) passes_.erase(pass.id);
    return nullptr;
  }
  Member& member = members_[key];
  if (member.pass == pass.id) return &member;
  detach(member);
  Member before = std::exchange(member, {});
  if (is_tail(before, open)) {
    member.is_after_load = true;
    member.small_names = std::move(before.small_names);
  }
  member.uid = reader.uid;
  member.command = reader.command;
  member.pass = pass.id;
  member.version = pass.version;
  member.joined = member.checked = now;
  pass.members++;
  return &member;
}

/// Returns: whether the OPEN was progress.
bool Passes::count_weights(Pass& pass, Member& member, const PassOpen& open, BootTime now) {
  member.wants_all = member.wants_all || open.is_absent;
  pass.wants_all = pass.wants_all || open.is_absent;
  pass.touched = member.used = member.loaded = now;
  if (!pass.first_file) {
    pass.first_process = open.reader.process;
    pass.first_file = open.file;
    pass.first_open = now;
  }
  if (!member.first_weights) member.first_weights = open.file;
  if (open.file == member.first_weights) member.is_load_decided = false;
  const bool is_own = member.weights.add(open.file);
  if (is_own) {
    member.repetitions = 0;
    member.round.reset();
  } else if (member.round) {
    member.round->add(open.file);
  }
  const bool is_progress = is_own && !pass.gone_weights.has(open.file);
  if (is_progress) pass.progress = now;
  pass.weights.add(open.file);
  const std::size_t absent = pass.wants_all ? 0 : pass.absent_count;
  if (!pass.full && pass.weights.count() + absent >= pass.weights_count) pass.full = now;
  return is_progress;
}

std::uint64_t Passes::hold(const PassHold& hold) {
  if (hold.pass == 0) return 0;
  const std::lock_guard lock(mutex_);
  const auto pass = passes_.find(hold.pass);
  if (pass == passes_.end()) return 0;
  const auto member = members_.find({hold.process, hold.link});
  holds_.emplace(last_handle_ + 1, hold);  // may fail: nothing is counted yet
  pass->second.open++;
  if (hold.is_progress) pass->second.progress_open++;
  if (member != members_.end() && member->second.pass == hold.pass) member->second.open++;
  return ++last_handle_;
}

void Passes::released(std::uint64_t handle, BootTime now) {
  if (handle == 0) return;
  const std::lock_guard lock(mutex_);
  const auto found = holds_.find(handle);
  if (found == holds_.end()) return;
  const PassHold hold = found->second;
  holds_.erase(found);
  const auto pass = passes_.find(hold.pass);
  if (pass == passes_.end()) return;
  pass->second.open--;
  pass->second.touched = now;
  if (hold.is_progress) {
    pass->second.progress_open--;
    pass->second.progress = now;
  }
  const auto member = members_.find({hold.process, hold.link});
  if (member == members_.end() || member->second.pass != hold.pass) return;
  if (member->second.open > 0) member->second.open--;
  member->second.used = member->second.loaded = now;
}

// ---- room ----

bool Passes::has_room(uid_t uid) const {
  if (passes_.size() < kPassesMax) return true;
  return std::count_if(passes_.begin(), passes_.end(), [uid](const auto& item) {
           return item.second.uid == uid;
         }) < static_cast<std::ptrdiff_t>(kPassesMax);
}

bool Passes::has_room_for_member(uid_t uid) const {
  if (members_.size() < kPassMembersMax) return true;
  return std::count_if(members_.begin(), members_.end(), [uid](const auto& item) {
           return item.second.uid == uid;
         }) < static_cast<std::ptrdiff_t>(kPassMembersMax);
}

// ---- checks of processes ----

/// The ancestors of a process that is in no pass.  Empty if no member has read small files through
/// the symlink: then no ancestor matters.
std::vector<ProcessId> Passes::ancestors_of_newcomer(const MemberKey& key) const {
  {
    const std::lock_guard lock(mutex_);
    const auto known = members_.find(key);
    if (known != members_.end() && known->second.pass != 0) return {};
    if (std::none_of(members_.begin(), members_.end(), [&](const auto& item) {
          return item.second.small && item.first.link == key.link;
        })) {
      return {};
    }
  }
  return processes_.ancestors(key.process);
}

/// Removes members of the newcomer's session that are gone, before its OPEN is judged.
void Passes::look_at_session(const MemberKey& key, const Reader& reader, BootTime now) {
  std::vector<MemberKey> members;
  bool needs_room = false;
  {
    const std::lock_guard lock(mutex_);
    if (pass_of(key, now) != nullptr) return;
    for (const auto& [other, member] : members_) {
      const auto pass = passes_.find(member.pass);
      if (pass != passes_.end() && pass->second.session == reader.session) {
        members.push_back(other);
      }
    }
    needs_room = (!has_room(reader.uid) || !has_room_for_member(reader.uid)) &&
                 now - looked_for_room_ >= kRoomLook;
    if (needs_room) looked_for_room_ = now;
  }
  if (needs_room) return look(now, true);
  std::erase_if(members, [this](const MemberKey& one) { return !processes_.is_gone(one.process); });
  const std::lock_guard lock(mutex_);
  for (const MemberKey& one : members) remove(one);
}

void Passes::sweep(BootTime now) { look(now, false); }

/// `all`: a request waits for room.  Then all processes are checked, even those that were checked a
/// moment ago, but not what they have mapped: reading that waits for page faults, which may wait
/// for the daemon.
void Passes::look(BootTime now, bool all) {
  Questions questions = take_questions(now, all);
  std::erase_if(questions.members,
                [this](const MemberKey& one) { return !processes_.is_gone(one.process); });
  std::erase_if(questions.in_use, [this](const PassQuestion& one) {
    return !processes_.uses(one.session, one.version);
  });
  const auto dead = processes_.find_dead(std::move(questions.sessions));
  const std::lock_guard lock(mutex_);
  for (const MemberKey& one : questions.members) remove(one);
  for (const PassQuestion& one : questions.in_use) {
    if (const auto pass = passes_.find(one.pass); pass != passes_.end()) pass->second.in_use = now;
  }
  std::erase_if(passes_, [&](const auto& item) {
    return item.second.members == 0 && dead.contains(item.second.session);
  });
  end_members(now);
  end_passes(now);
}

Passes::Questions Passes::take_questions(BootTime now, bool all) {
  const std::lock_guard lock(mutex_);
  Questions questions;
  for (auto& [key, member] : members_) {
    if (!all && now - member.checked < times_.quiet) continue;
    member.checked = now;
    questions.members.push_back(key);
  }
  const BootTime interval = std::min<BootTime>(kPassLookMost, times_.grace / 6);
  for (auto& [id, pass] : passes_) {
    if (pass.members == 0 && (all || now - pass.asked >= interval)) {
      pass.asked = now;
      questions.sessions.insert(pass.session);
    }
    if (all || pass.full || pass.weights.count() == 0 || now - pass.progress >= times_.most)
      continue;
    if (now - std::max({pass.progress, pass.in_use, pass.looked}) < interval) continue;
    pass.looked = now;
    questions.in_use.push_back({id, pass.session, pass.version});
  }
  return questions;
}

/// Those who have all stay for as long as these.
void Passes::find_part_loaders(BootTime now) {
  for (auto& [id, pass] : passes_) pass.has_part_loader = false;
  for (const auto& [key, member] : members_) {
    const auto found = passes_.find(member.pass);
    if (found == passes_.end()) continue;
    Pass& pass = found->second;
    if (is_part_loader(pass, member) && is_member(pass, key, member, now))
      pass.has_part_loader = true;
  }
}

void Passes::end_members(BootTime now) {
  find_part_loaders(now);
  for (auto each = members_.begin(); each != members_.end();) {
    const auto one = each++;
    if (one->second.pass != 0 && pass_of(one->first, now) == nullptr) detach(one->second);
    if (one->second.pass == 0 && now - one->second.used >= times_.most) members_.erase(one);
  }
}

void Passes::end_passes(BootTime now) {
  std::erase_if(passes_, [&](const auto& item) {
    return item.second.members == 0 && !is_live(item.second, now);
  });
}

/// Removes a member whose process is gone.
void Passes::remove(const MemberKey& key) {
  const auto found = members_.find(key);
  if (found == members_.end()) return;
  const auto pass = passes_.find(found->second.pass);
  if (pass != passes_.end()) pass->second.gone_weights.add(found->second.weights);
  detach(found->second);
  members_.erase(found);
}

/// A pass without an OPEN of a weights file ends with its last member.
void Passes::detach(Member& member) {
  const auto pass = passes_.find(std::exchange(member.pass, 0));
  if (pass == passes_.end()) return;
  pass->second.members--;
  if (pass->second.members == 0 && pass->second.weights.count() == 0) passes_.erase(pass);
}

// ---- ended by hand, status ----

template <typename Condition>
std::size_t Passes::end_if(Condition&& condition) {
  const std::lock_guard lock(mutex_);
  const std::size_t ended =
      std::erase_if(passes_, [&](const auto& item) { return condition(item.second); });
  for (auto& [key, member] : members_) {
    if (!passes_.contains(member.pass)) member.pass = 0;
  }
  return ended;
}

std::size_t Passes::end_session(const std::string& session) {
  return end_if([&](const Pass& pass) { return pass.session == session; });
}

std::size_t Passes::end_version(std::uint64_t version) {
  return end_if([version](const Pass& pass) { return pass.version == version; });
}

std::size_t Passes::end_all() {
  return end_if([](const Pass&) { return true; });
}

bool Passes::has(std::uint64_t version) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(passes_.begin(), passes_.end(),
                     [version](const auto& item) { return item.second.version == version; });
}

bool Passes::is_empty() const {
  const std::lock_guard lock(mutex_);
  return passes_.empty() && members_.empty();
}

std::vector<PassState> Passes::list(BootTime now) const {
  const std::lock_guard lock(mutex_);
  std::map<std::uint64_t, PassState> states;
  for (const auto& [id, pass] : passes_) {
    states[id] = {.session = pass.session,
                  .link = pass.link,
                  .version = pass.version,
                  .age = now - pass.began,
                  .is_full = pass.full.has_value(),
                  .command = pass.command};
  }
  for (const auto& [key, member] : members_) {
    const auto state = states.find(member.pass);
    if (state == states.end() || pass_of(key, now) == nullptr) continue;
    state->second.members.push_back({key.process.pid, member.command});
    state->second.is_loading =
        state->second.is_loading ||
        (member.weights.count() > 0 && !has_all(passes_.at(member.pass), member));
  }
  std::vector<PassState> list;
  for (auto& [id, state] : states) {
    if (!state.members.empty() || is_live(passes_.at(id), now)) list.push_back(std::move(state));
  }
  return list;
}

std::vector<FullTable> Passes::full_tables() const {
  const std::lock_guard lock(mutex_);
  std::vector<FullTable> tables;
  for (const auto& [uid, refused] : refused_) {
    if (!has_room(uid) || !has_room_for_member(uid)) {
      tables.push_back({.uid = uid, .refused = refused});
    }
  }
  return tables;
}

}  // namespace weightfs::fs
