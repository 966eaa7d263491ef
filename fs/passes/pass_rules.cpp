// The rules of fs/passes/passes.hpp: conclusions from passes, members and the time.  Nothing here
// changes any state.
#include <algorithm>

#include "fs/passes/passes.hpp"

namespace weightfs::fs {
namespace {

bool is_invisible(const ProcessId& process) noexcept { return process.pid == 0; }

}  // namespace

bool Passes::has_opened(const Member& member, const PassOpen& open) noexcept {
  return (open.kind == PassFile::small ? member.small_files : member.weights).has(open.file);
}

/// Whether an OPEN, by which a process joins another pass, still belongs to its last load: it reads
/// a small file that it had not needed before, as generation_config.json when all weights are
/// there.
bool Passes::is_tail(const Member& before, const PassOpen& open) noexcept {
  const bool has_loaded = before.is_after_load || before.weights.count() > 0;
  return open.kind == PassFile::small && has_loaded && !before.small_names.contains(open.name);
}

bool Passes::has_all(const Pass& pass, const Member& member) noexcept {
  return member.weights.count() + (member.wants_all ? 0 : pass.absent_count) >= pass.weights_count;
}

/// Whether the member may begin again without leaving.
bool Passes::is_part_loader(const Pass& pass, const Member& member) noexcept {
  return member.weights.count() > 0 && !has_all(pass, member) && (member.small || member.round);
}

bool Passes::is_live(const Pass& pass, BootTime now) const noexcept {
  if (pass.weights.count() == 0) return now - pass.began < times_.grace;
  if (pass.progress_open > 0) return true;
  if (now - pass.progress >= times_.most) return false;
  if (pass.full) return now - pass.progress < times_.grace;
  return pass.open > 0 || now - std::max(pass.progress, pass.in_use) < times_.grace;
}

/// Whether a newcomer of the pass's session may join it.  A file that stays mapped is open for as
/// long as the model is served; it keeps the pass for its members, but not for newcomers.
bool Passes::takes(const Pass& pass, const Reader& reader, BootTime now) const noexcept {
  if (!is_live(pass, now)) return false;
  if (pass.weights.count() > 0 && now - pass.progress >= times_.most) return false;
  if (pass.closed && reader.started > *pass.closed) return false;
  if (pass.weights.count() == 0) return reader.started <= pass.began;
  return !pass.full || reader.started <= *pass.full;
}

bool Passes::is_member(const Pass& pass, const MemberKey& key, const Member& member,
                       BootTime now) const noexcept {
  if (member.open > 0 && now - member.loaded < times_.most) return true;
  if (is_in_waited_load(member, now)) return true;
  if (member.weights.count() == 0) return member.small && now - *member.small < times_.most;
  if (now - member.loaded < times_.grace) return true;
  if (is_invisible(key.process)) return false;
  if (is_live(pass, now)) return true;
  const bool begins_again = member.is_load_decided && has_all(pass, member);
  if (begins_again && now - member.used < times_.grace) return true;
  return (!has_all(pass, member) || pass.has_part_loader) && now - member.loaded < times_.most;
}

/// Whether a small file that a member with all files opens is not of its load any more.  Config and
/// index are of one load, also if the grace ends between them; but who polls them must move on.
bool Passes::is_load_over(const Member& member, BootTime now) const noexcept {
  const BootTime since = now - member.loaded;
  if (since < times_.grace) return false;
  return now - member.used >= times_.quiet || since >= times_.grace + times_.quiet;
}

/// What a look is told is what an open of a small file that the member knows gets after it.
bool Passes::is_told_newest(const Pass& pass, const MemberKey& key, const Member& member,
                            LinkUse use, BootTime now) const noexcept {
  if (is_invisible(key.process)) return false;
  const bool has_none = member.weights.count() == 0;
  if (use == LinkUse::look) {
    if (has_none) return now - member.joined >= times_.grace;
    if (waits(pass, member, now)) return false;
    if (!has_all(pass, member)) return wants_no_more(pass, member, now);
    return (member.knows_newer && is_at_rest(pass, member, now)) || is_load_over(member, now);
  }
  if (has_none) return now - member.used >= times_.quiet;
  const BootTime quiet = now - member.loaded;
  if (quiet >= times_.grace) return true;
  return quiet >= times_.quiet && member.open == 0 && has_all(pass, member);
}

/// Whether the member's next OPEN may begin a new load.  What it keeps open, or mapped, after it
/// has loaded all that it wants says nothing.
bool Passes::is_at_rest(const Pass& pass, const Member& member, BootTime now) const noexcept {
  const BootTime quiet = now - member.used;
  if (quiet < times_.quiet) return false;
  if (member.open == 0 || quiet >= times_.most) return true;
  return quiet >= times_.grace && has_all(pass, member);
}

bool Passes::is_at_long_rest(const Pass& pass, const Member& member, BootTime now) const noexcept {
  return is_at_rest(pass, member, now) && now - member.used >= times_.grace;
}

/// Whether an OPEN by a member that stays begins a round.  A small file always does: who looks into
/// the index before each file never has a whole round, in whatever order it opens them.
bool Passes::begins_round(const Pass& pass, const Member& member, const PassOpen& open,
                          BootTime now) const noexcept {
  return is_at_long_rest(pass, member, now) && has_opened(member, open) &&
         (open.kind == PassFile::small || !member.round);
}

/// Whether a member without all files wants no others: it has loaded the same ones again.  After
/// `most` nobody is in the middle of a load.
bool Passes::wants_no_more(const Pass& pass, const Member& member, BootTime now) const noexcept {
  if (!is_at_long_rest(pass, member, now)) return false;
  const bool is_whole = member.round && member.round->count() == member.weights.count();
  return is_whole || now - member.used >= times_.most;
}

/// Whether an OPEN by a member with all files is of the load that it stayed for, however long it
/// pauses in that.  The file that it began with comes last in such a load, or it is the next one.
bool Passes::goes_on(const Member& member, const PassOpen& open, BootTime now) const noexcept {
  if (open.kind != PassFile::weights || !is_in_waited_load(member, now)) return false;
  if (member.round->has(open.file)) return false;
  return open.file != member.first_weights || member.round->count() + 1 == member.weights.count();
}

/// Whether an OPEN starts the load over.
/// Returns: nullopt if not; true if the member leaves its pass for that; false if it stays.
std::optional<bool> Passes::leaves(const Pass& pass, const Member& member, const PassOpen& open,
                                   BootTime now) const noexcept {
  if (!is_at_rest(pass, member, now) || is_invisible(open.reader.process)) return {};
  if (member.weights.count() == 0) return {};
  const bool is_done = has_all(pass, member), is_again = has_opened(member, open);
  if (is_done && !member.knows_newer && goes_on(member, open, now)) return {};
  if (is_done ? member.knows_newer : is_again && wants_no_more(pass, member, now)) return true;
  const bool is_long = is_at_long_rest(pass, member, now);
  if (is_done && is_long && (member.open == 0 || now - member.used >= times_.most)) return true;
  const bool is_first = open.kind == PassFile::weights && open.file == member.first_weights &&
                        (is_long || !member.is_load_decided);
  const bool is_small_again = open.kind == PassFile::small && is_again && is_done;
  if (!is_first && !is_small_again) return {};
  return is_long || member.repetitions > 0;
}

/// Whether a member that opens a small file is done with its pass.  If it has opened no weights, it
/// is if it opens a file again: another one, such as the index after the config, is of one load.
/// But not if what it has opened was the tail of its last load.
bool Passes::has_moved_on(const Pass& pass, const Member& member, std::uint32_t file,
                          BootTime now) const noexcept {
  if (member.weights.count() == 0) {
    const bool is_again = member.is_after_load || member.small_files.has(file);
    return is_again && now - member.joined >= times_.grace;
  }
  return has_all(pass, member) && is_load_over(member, now);
}

/// Whether others of its pass stay because this one would, or does.
bool Passes::is_waited_for(const Pass& pass, const Member& member, BootTime now) const noexcept {
  if (member.pass != pass.id) return false;
  if (member.waited && now - *member.waited < times_.grace) return true;
  return is_part_loader(pass, member) && !wants_no_more(pass, member, now);
}

/// Whether a member has not opened all its weights files in the load that it waited with, within
/// `most` of the last of them, or, if it has opened only small files in that, of its beginning.
/// What may have been a look, and no load, is over after the grace.
bool Passes::is_in_waited_load(const Member& member, BootTime now) const noexcept {
  if (!member.waited || !member.round) return false;
  if (member.round->count() >= member.weights.count()) return false;
  const BootTime since = member.round->count() == 0 ? *member.waited : member.loaded;
  return now - since < (member.is_look ? times_.grace : times_.most);
}

/// Whether a member that would leave stays for the sake of others.  Only once: who loads layer by
/// layer for hours holds nobody up for longer than a load.
bool Passes::waits(const Pass& pass, const Member& member, BootTime now) const noexcept {
  if (member.waited) {
    if (now - *member.waited < times_.grace) return true;
    if (!is_in_waited_load(member, now)) return false;
    return member.round->count() == 0 || now - member.loaded < times_.grace;
  }
  if (member.weights.count() == 0 || !is_at_long_rest(pass, member, now)) return false;
  return has_to_wait_for_others(pass, member, true, now);
}

/// `for_looks`: also for those that may only have looked again at some shards.
bool Passes::has_to_wait_for_others(const Pass& pass, const Member& member, bool for_looks,
                                    BootTime now) const noexcept {
  return std::any_of(members_.begin(), members_.end(), [&](const auto& item) {
    const Member& other = item.second;
    return &other != &member && (for_looks || !other.is_look) && is_waited_for(pass, other, now);
  });
}

/// Whether an OPEN by a member that has all may be of a second look at some shards, which all ranks
/// take when the last of them is ready.
bool Passes::is_look_of_all(const Pass& pass, const Member& member, const PassOpen& open,
                            BootTime now) const noexcept {
  return open.kind == PassFile::weights && open.file != member.first_weights &&
         has_all(pass, member) && !member.knows_newer && !member.waited &&
         now - member.used < times_.most && is_live(pass, now);
}

/// The process that began the pass is gone if it is no longer remembered.
bool Passes::is_short_lived(const Pass& pass, const PassOpen& open, BootTime now) const {
  return open.kind == PassFile::weights && !is_invisible(open.reader.process) &&
         pass.first_file == open.file && pass.open == 0 && open.reader.started > pass.first_open &&
         now - last_use(pass.session) >= times_.quiet &&
         !members_.contains({pass.first_process, pass.link});
}

BootTime Passes::last_use(const std::string& session) const noexcept {
  BootTime last{};
  for (const auto& [id, pass] : passes_) {
    if (pass.session == session) last = std::max(last, pass.touched);
  }
  return last;
}

const Passes::Pass* Passes::pass_of(const MemberKey& key, BootTime now) const {
  const auto member = members_.find(key);
  if (member == members_.end()) return nullptr;
  const auto pass = passes_.find(member->second.pass);
  if (pass == passes_.end() || !is_member(pass->second, key, member->second, now)) return nullptr;
  return &pass->second;
}

/// The pass for which an ancestor of the newcomer has read config or index; nullptr: none.
const Passes::Pass* Passes::find_inherited(const std::string& link, const Reader& reader,
                                           const std::vector<ProcessId>& ancestors,
                                           BootTime now) const {
  for (const ProcessId& ancestor : ancestors) {
    const auto member = members_.find({ancestor, link});
    if (member == members_.end() || !member->second.small) continue;
    const auto pass = passes_.find(member->second.pass);
    if (pass == passes_.end() || now - *member->second.small >= times_.most) continue;
    if (!pass->second.full || reader.started <= *pass->second.full) return &pass->second;
  }
  return nullptr;
}

/// The pass that a newcomer joins; nullptr: it begins a new one.
const Passes::Pass* Passes::find_pass(const std::string& link, const Reader& reader,
                                      const std::vector<ProcessId>& ancestors, BootTime now) const {
  const auto before = members_.find({reader.process, link});
  const std::uint64_t oldest = before == members_.end() ? 0 : before->second.version;
  const Pass* inherited = find_inherited(link, reader, ancestors, now);
  if (inherited != nullptr && inherited->version >= oldest) return inherited;
  for (const auto& [id, pass] : passes_) {
    if (pass.session == reader.session && pass.link == link && pass.version >= oldest &&
        takes(pass, reader, now)) {
      return &pass;
    }
  }
  return nullptr;
}

/// Where a member goes when it leaves the pass.
Passes::Target Passes::follow(const Pass& pass, std::uint64_t newest, BootTime now) const {
  for (auto next = passes_.rbegin(); next != passes_.rend() && next->first > pass.id; ++next) {
    const Pass& other = next->second;
    if (other.line == pass.line && other.version >= pass.version && is_live(other, now)) {
      return {.pass = other.id, .version = other.version};
    }
  }
  return {.version = newest, .left = pass.id};
}

Passes::Target Passes::decide(const PassOpen& open, const std::vector<ProcessId>& ancestors,
                              BootTime now) const {
  const MemberKey key{open.reader.process, open.link};
  if (const Pass* own = pass_of(key, now)) {
    const Member& member = members_.at(key);
    const auto repetition = leaves(*own, member, open, now);
    const bool has_done =
        open.kind == PassFile::small && has_moved_on(*own, member, open.file, now);
    const bool would_leave = has_done || (repetition && *repetition);
    const bool waits_for_others = would_leave && waits(*own, member, now);
    const bool is_look = would_leave && is_look_of_all(*own, member, open, now) &&
                         !has_to_wait_for_others(*own, member, false, now);
    if (would_leave && !waits_for_others && !is_look) return follow(*own, open.newest, now);
    return {.pass = own->id,
            .version = own->version,
            .is_repetition = repetition.has_value(),
            .waits = waits_for_others || is_look,
            .is_look = is_look};
  }
  const Pass* pass = find_pass(open.link, open.reader, ancestors, now);
  if (pass == nullptr) return {.version = open.newest};
  if (is_short_lived(*pass, open, now)) return {.version = open.newest, .closed = pass->id};
  return {.pass = pass->id, .version = pass->version};
}

}  // namespace weightfs::fs
