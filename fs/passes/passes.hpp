// Passes: which version a symlink (`latest`, a tag) means for each process, and until when.
//
// A loader opens many files through a symlink, one path after another, in several processes, and
// closes each at once.  A pass keeps such a load on one version: it consists of the processes of
// one session (fs/passes/reader_session.hpp) that load one version through one symlink.
//
//     begins    with the first OPEN through the symlink, on the newest version
//     full      when its processes together have opened every weights file
//     newcomer  a process that is in no pass.  It joins the oldest live pass of its session that
//               was not yet full when the process was started; otherwise it begins one.  Until a
//               weights file has been opened (config and index come first) a pass takes only
//               processes that were started before it began, and descendants of its members.
//     live      a pass takes newcomers until `grace` after its last progress, as long as a file
//               whose OPEN was progress is open, and, until it is full, as long as any file is
//               open, or was seen open or mapped within `grace`, but at most `most` after its last
//               progress
//     progress  an OPEN of a weights file that neither the opener nor a process that is gone had
//               opened before
//     member    a process stays in its pass as long as that is live, until `grace` after its own
//               last OPEN or RELEASE of a weights file, and, if it has not opened all of them or
//               has one open, or a part loader is in its pass, until `most` after; if it has opened
//               only small files, until `most` after the last of them; if it has all, and opened a
//               small file at rest, until `grace` after that; and while it waits
//     rest      a member is at rest if it has used no file for `quiet`, and has none open.  It may
//               have files open, or mapped, after `grace` if it has opened all weights files, and
//               after `most` in any case.  It is at long rest if it has used none for `grace`, too.
//     round     a load that may be a repetition.  A member begins a round when it is at long rest
//               and opens a file that it has opened before: always with a small one, with a
//               weights file only if it is in no round.  A weights file that is new to it ends the
//               round.  A round is whole when the member has opened all its weights files in it.
//     part      a part loader is a member that has opened weights files, not all of them, and has
//     loader    opened a small file or begun a round.  It may begin again without leaving.
//     leaves    a member with weights files leaves when its OPEN begins another load, that is with
//                 - the weights file that it began with, or, if it has all, a small file that it
//                   has opened before: at long rest, or, from the second time on since it opened a
//                   weights file that was new to it, at rest.  After a small file that it opened at
//                   rest, the weights file must come at long rest
//                 - any file, at rest, if it has all and has seen another version by readlink(2)
//                 - any file, at long rest, if it has all, and has none open or was quiet for
//                   `most`
//                 - any small file, if it has all and has used no weights file for `grace`, and no
//                   file for `quiet`, or no weights file for `quiet` more
//                 - a file that it has opened before, at long rest, if it has not all, and its
//                   round is whole, or it was quiet for `most`.  Otherwise it may be in the middle
//                   of its load, where some look into the index before each file.
//               A member without weights files leaves, `grace` after it joined, with a small file
//               that it has opened before, or with any if it had joined after a load.
//               It joins the youngest live pass that a member began that had left this pass, or had
//               gone on from there; otherwise it begins one.  A process never goes back to an older
//               version.
//     waits     so that ranks which begin again in different ways do it together, a member with
//               weights files that would leave at long rest stays for that load, once in each pass,
//               if another member has begun to wait within `grace`, or is a part loader that would
//               not leave: it is not at long rest, or its round is not whole.  So does, while the
//               pass is live, a member that has all and has seen no other version, if it opens a
//               weights file other than the one that it began with: all ranks may look again at
//               some.  A member waits for `grace`, and on until it has opened all its weights files
//               again, or has used none for `grace`; if it has opened only small files, for `most`.
//               A weights file that it has not opened again since does not end its load within
//               `most` of its last weights file (after a look: within `grace`), unless it has seen
//               another version, but that with which it began does, if it is not the last one
//     short     a newcomer begins a new pass, and the old one takes no process that was started
//               after its session's last use, if the newcomer opens the weights file that the old
//               pass began with, the process that began it is gone, the newcomer was started after
//               that OPEN, nothing of the pass is open, and the session was quiet
//
// READLINK does not change a pass.  It returns a member's pass's version, but the newest version
// for a member that is done (has opened all, has nothing open, was quiet), and for one that was
// quiet for `grace`, or, if it has opened only small files, for `quiet`: so a process that polls a
// symlink sees new versions.  A look (stat) is told what an OPEN of a small file then gets.  Only
// OPEN counts.  An OPEN that was led to another version than its pass allows fails with ESTALE; the
// kernel repeats the walk, and the next READLINK must return the version in Opened::wanted.
//
// Invisible processes (pid 0) of a uid count as one process: a member that stays until `grace`
// after the last OPEN or RELEASE.
//
// Threads: all calls may run in parallel.  Processes is called without a lock.
// Errors: none.
// Time: passed in with each call, as CLOCK_BOOTTIME, the clock of the kernel's process start times.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "fs/passes/reader_session.hpp"
#include "store/base/ranked_mutex.hpp"

namespace weightfs::fs {

/// The default time that a loader keeps its version after it last opened or closed a file.
inline constexpr std::chrono::seconds kPinGrace{60};

struct PassTimes {
  BootTime grace = kPinGrace;
  BootTime quiet = std::chrono::seconds(2);
  BootTime most = std::chrono::minutes(15);

  /// For --pin-grace: `quiet` is at most a third of the grace, and `most` at least the grace.
  static PassTimes of(BootTime grace) noexcept;
};

enum class PassFile : std::uint8_t { weights /* *.safetensors */, small };
/// By the path of the file within its version.
PassFile pass_file_of(std::string_view path) noexcept;

/// An OPEN of a file of a version.
struct PassOpen {
  Reader reader = {};
  std::string link = {};  // the symlink of the walk; empty: none, the version was named
  std::uint64_t version = 0;
  std::uint32_t file = 0;  // number of its entry
  std::size_t name = 0;    // hash of its path: the same in all versions
  PassFile kind = PassFile::small;
  std::size_t weights_count = 0;  // weights files of the version
  std::size_t absent_count = 0;   // weights files that this host does not keep
  bool is_absent = false;         // the file is one of those
  std::uint64_t newest = 0;       // where the symlink leads now
  bool was_newest = false;        // `version` was the newest at the READLINK
  bool is_retry = false;          // it was refused once, and must not be refused again
};

/// Information about processes.  Calls may take long.
class Processes {
 public:
  virtual ~Processes() = default;
  [[nodiscard]] virtual bool is_gone(const ProcessId& process) const = 0;
  /// Nearest first.
  [[nodiscard]] virtual std::vector<ProcessId> ancestors(const ProcessId& process) const = 0;
  /// Those of the sessions that have no process left.
  [[nodiscard]] virtual std::set<std::string> find_dead(std::set<std::string> sessions) const = 0;
  /// True if a process of the session has a file of the version open or mapped.
  [[nodiscard]] virtual bool uses(const std::string& session, std::uint64_t version) const = 0;
};

/// For `status`.
struct PassMember {
  pid_t pid = 0;
  std::string command = {};
};
struct PassState {
  std::string session = {};
  std::string link = {};
  std::uint64_t version = 0;
  BootTime age{};
  bool is_full = false;
  bool is_loading = false;   // a member has opened some weights files, but not all
  std::string command = {};  // the first process's
  std::vector<PassMember> members = {};
};

/// Limits per uid.  Beyond them a process gets no pass, and reads the newest version.
inline constexpr std::size_t kPassesMax = 1024;
inline constexpr std::size_t kPassMembersMax = 16384;

/// A uid that has reached a limit.
struct FullTable {
  uid_t uid = 0;
  std::uint64_t refused = 0;  // OPENs since it last had room
};

/// An OPEN's part in its pass, until its RELEASE.
struct PassHold {
  std::uint64_t pass = 0;  // 0: none
  std::string link = {};
  ProcessId process = {};
  bool is_progress = false;
};

class Passes {
 public:
  /// Requires: `processes` outlives this.
  Passes(PassTimes times, const Processes& processes) noexcept
      : times_(times), processes_(processes) {}

  /// A READLINK. `newest`: where the symlink leads.
  /// Returns: the version that it must return.
  std::uint64_t told(const std::string& link, const Reader& reader, std::uint64_t newest,
                     LinkUse use, BootTime now);

  struct Opened {
    std::uint64_t wanted = 0;  // if not 0, nothing was counted, and the caller must repeat its walk
    PassHold hold = {};        // for hold()
    bool is_refused = false;   // no room: it belongs to no pass
  };
  Opened opened(const PassOpen& open, BootTime now);

  /// The file of an OPEN is about to be handed out.
  /// Returns: a handle for released(); 0: none.
  std::uint64_t hold(const PassHold& hold);
  /// RELEASE.  Unknown handles are ignored.
  void released(std::uint64_t handle, BootTime now);

  /// Checks processes, and ends what is over.
  void sweep(BootTime now);

  /// Ends the passes of a session, of a version, or all.
  /// Returns: how many.
  std::size_t end_session(const std::string& session);
  std::size_t end_version(std::uint64_t version);
  std::size_t end_all();

  /// Whether a pass has the version.
  [[nodiscard]] bool has(std::uint64_t version) const;
  [[nodiscard]] bool is_empty() const;  // no pass, and no member remembered
  /// Oldest first.
  [[nodiscard]] std::vector<PassState> list(BootTime now) const;
  [[nodiscard]] std::vector<FullTable> full_tables() const;

 private:
  /// A set of files, by number.
  class Files {
   public:
    bool add(std::uint32_t file);  // false: it was in the set already
    void add(const Files& others);
    [[nodiscard]] bool has(std::uint32_t file) const noexcept;
    [[nodiscard]] std::size_t count() const noexcept { return count_; }

   private:
    std::vector<bool> has_;
    std::size_t count_ = 0;
  };
  struct Pass {
    std::uint64_t id = 0;
    std::string session, link, command;
    uid_t uid = 0;
    std::uint64_t version = 0;
    BootTime began{};
    std::size_t weights_count = 0, absent_count = 0;
    bool wants_all = false;        // a member has opened a file that is not kept
    Files weights, gone_weights;   // opened by any process; by processes that are gone
    ProcessId first_process = {};  // first OPEN of a weights file: process, file, time
    std::optional<std::uint32_t> first_file = {};
    BootTime first_open{};
    std::optional<BootTime> full = {};
    std::optional<BootTime> closed = {};  // takes no process that was started later
    BootTime progress{};
    BootTime in_use{}, looked{};   // last seen open or mapped; last checked
    BootTime asked{};              // last check whether the session is dead
    BootTime touched{};            // last OPEN or RELEASE of a weights file
    bool has_part_loader = false;  // as of the last sweep
    std::size_t open = 0, progress_open = 0;
    std::size_t members = 0;
    std::uint64_t line = 0;  // the first pass of those that members began when they left another
  };
  struct MemberKey {
    ProcessId process;
    std::string link;
    friend auto operator<=>(const MemberKey&, const MemberKey&) = default;
  };
  struct Member {
    uid_t uid = 0;
    std::string command;
    std::uint64_t pass = 0;     // 0: no longer in one
    std::uint64_t version = 0;  // its last pass's
    Files weights;
    bool wants_all = false;
    Files small_files;
    std::optional<std::uint32_t> first_weights = {};
    unsigned repetitions = 0;
    bool is_load_decided = false;            // by a small file: first_weights is no beginning
    std::optional<Files> round = {};         // the weights files that it has opened in its round
    std::optional<BootTime> waited = {};     // since when, for members that would not leave
    bool is_look = false;                    // or for a look of all ranks at some shards
    bool knows_newer = false;                // by readlink(2)
    bool is_after_load = false;              // it joined by the tail of its last load
    std::set<std::size_t> small_names = {};  // small files, also of loads whose tail this is
    std::size_t open = 0;
    BootTime joined{};
    BootTime loaded{};                   // last OPEN or RELEASE of a weights file
    BootTime used{};                     // last OPEN or RELEASE of any file
    std::optional<BootTime> small = {};  // last OPEN of a small file
    BootTime checked{};                  // last check whether it is gone
  };
  /// The pass that an OPEN belongs to.
  struct Target {
    std::uint64_t pass = 0;  // 0: a new one
    std::uint64_t version = 0;
    std::uint64_t left = 0;    // the pass that is left for a new one
    std::uint64_t closed = 0;  // the pass that takes no more processes
    bool is_repetition = false;
    bool waits = false, is_look = false;
  };
  struct PassQuestion {
    std::uint64_t pass = 0;
    std::string session;
    std::uint64_t version = 0;
  };
  struct Questions {
    std::vector<MemberKey> members;
    std::vector<PassQuestion> in_use;
    std::set<std::string> sessions;  // of passes without members
  };

  // The rules, in fs/passes/pass_rules.cpp.  These and the functions below, up to the checks,
  // require mutex_.
  static bool has_all(const Pass& pass, const Member& member) noexcept;
  static bool is_tail(const Member& before, const PassOpen& open) noexcept;
  static bool has_opened(const Member& member, const PassOpen& open) noexcept;
  static bool is_part_loader(const Pass& pass, const Member& member) noexcept;
  [[nodiscard]] bool is_live(const Pass& pass, BootTime now) const noexcept;
  [[nodiscard]] bool takes(const Pass& pass, const Reader& reader, BootTime now) const noexcept;
  [[nodiscard]] bool is_member(const Pass& pass, const MemberKey& key, const Member& member,
                               BootTime now) const noexcept;
  [[nodiscard]] bool is_load_over(const Member& member, BootTime now) const noexcept;
  [[nodiscard]] bool is_told_newest(const Pass& pass, const MemberKey& key, const Member& member,
                                    LinkUse use, BootTime now) const noexcept;
  [[nodiscard]] bool is_at_rest(const Pass& pass, const Member& member,
                                BootTime now) const noexcept;
  [[nodiscard]] bool is_at_long_rest(const Pass& pass, const Member& member,
                                     BootTime now) const noexcept;
  [[nodiscard]] bool begins_round(const Pass& pass, const Member& member, const PassOpen& open,
                                  BootTime now) const noexcept;
  [[nodiscard]] bool wants_no_more(const Pass& pass, const Member& member,
                                   BootTime now) const noexcept;
  [[nodiscard]] bool goes_on(const Member& member, const PassOpen& open,
                             BootTime now) const noexcept;
  [[nodiscard]] std::optional<bool> leaves(const Pass& pass, const Member& member,
                                           const PassOpen& open, BootTime now) const noexcept;
  [[nodiscard]] bool has_moved_on(const Pass& pass, const Member& member, std::uint32_t file,
                                  BootTime now) const noexcept;
  [[nodiscard]] bool is_waited_for(const Pass& pass, const Member& member,
                                   BootTime now) const noexcept;
  [[nodiscard]] bool is_in_waited_load(const Member& member, BootTime now) const noexcept;
  [[nodiscard]] bool waits(const Pass& pass, const Member& member, BootTime now) const noexcept;
  [[nodiscard]] bool has_to_wait_for_others(const Pass& pass, const Member& member, bool for_looks,
                                            BootTime now) const noexcept;
  [[nodiscard]] bool is_look_of_all(const Pass& pass, const Member& member, const PassOpen& open,
                                    BootTime now) const noexcept;
  [[nodiscard]] bool is_short_lived(const Pass& pass, const PassOpen& open, BootTime now) const;
  [[nodiscard]] BootTime last_use(const std::string& session) const noexcept;
  [[nodiscard]] const Pass* pass_of(const MemberKey& key, BootTime now) const;
  [[nodiscard]] const Pass* find_inherited(const std::string& link, const Reader& reader,
                                           const std::vector<ProcessId>& ancestors,
                                           BootTime now) const;
  [[nodiscard]] const Pass* find_pass(const std::string& link, const Reader& reader,
                                      const std::vector<ProcessId>& ancestors, BootTime now) const;
  [[nodiscard]] Target follow(const Pass& pass, std::uint64_t newest, BootTime now) const;
  [[nodiscard]] Target decide(const PassOpen& open, const std::vector<ProcessId>& ancestors,
                              BootTime now) const;

  Opened opened_by_name(const PassOpen& open, BootTime now);  // takes mutex_ itself
  Opened accept(const MemberKey& key, const PassOpen& open, const Target& target, BootTime now);
  Pass* begin(const PassOpen& open, std::uint64_t version, BootTime now);
  Member* join(Pass& pass, const MemberKey& key, const PassOpen& open, BootTime now);
  static bool count_weights(Pass& pass, Member& member, const PassOpen& open, BootTime now);
  [[nodiscard]] bool has_room(uid_t uid) const;
  [[nodiscard]] bool has_room_for_member(uid_t uid) const;
  void detach(Member& member);
  void remove(const MemberKey& key);
  void end_members(BootTime now);
  void find_part_loaders(BootTime now);
  void end_passes(BootTime now);

  // Checks of processes: these hold mutex_ only briefly.
  [[nodiscard]] std::vector<ProcessId> ancestors_of_newcomer(const MemberKey& key) const;
  void look_at_session(const MemberKey& key, const Reader& reader, BootTime now);
  void look(BootTime now, bool all);
  Questions take_questions(BootTime now, bool all);
  template <typename Condition>
  std::size_t end_if(Condition&& condition);

  const PassTimes times_;
  const Processes& processes_;
  mutable RankedMutex mutex_{LockRank::passes, "Passes::mutex_"};  // guards the fields below
  std::map<std::uint64_t, Pass> passes_;                           // by id, oldest first
  std::map<MemberKey, Member> members_;
  std::map<std::uint64_t, PassHold> holds_;
  std::map<uid_t, std::uint64_t> refused_;
  std::uint64_t last_id_ = 0, last_handle_ = 0;
  BootTime looked_for_room_{};
};

}  // namespace weightfs::fs
