// Passes: which version a symlink (`latest`, a tag) means for each process, and until when.
//
// A loader opens many files through a symlink, one path after another, in several processes, and
// closes each at once.  A pass is what keeps it together: the processes of one session
// (fs/passes/reader_session.hpp) that load one version through one symlink.
//
//     begins    with the first OPEN through the symlink: on the newest version
//     full      when its processes together have opened every weights file
//     newcomer  a process that is in no pass.  It joins the oldest live pass of its session that
//               was not full when the process was started; else it begins one.  Before a weights
//               file of it was opened (config and index come first) a pass takes only processes
//               that were started before it began, and descendants of its members.
//     live      a pass takes newcomers until `grace` after its last progress, while a file that was
//               progress is open, and, until it is full, while one is open or mapped; `most` at
//               most
//     progress  an OPEN of a weights file that neither the opener nor any process that is gone had
//               opened
//     member    a process stays in its pass while that is live, until `grace` after its own last
//               OPEN or RELEASE of a weights file, and, if it has not opened all of them, until
//               `most` after; with small files alone, until `most` after the last of them
//     leaves    a member that begins again, and was quiet: it opens the weights file that it began
//               with, or, when it has all, a small file that it has opened before.  It must have
//               nothing open, and have been quiet for `grace` when it does so for the first time
//               since it opened a weights file that it had not opened; later for `quiet`.  Who has
//               all and was quiet for `grace` may have files open; who has all and was told in
//               words (readlink(2)) that there is another version leaves with the first OPEN after
//               the quiet.  It goes to the pass that the first who left began, if that is live;
//               else to a new one.  A process never goes to an older version.
//     short     a newcomer begins a new pass, and the old one takes nobody who was started after
//     its
//               last use, if he opens the very weights file that it began with, the process that
//               began it is gone, he was started after that, nothing of it is open, and the session
//               was quiet
//
// READLINK changes nothing.  It tells a member its pass's version, but one that is done (has opened
// all, has nothing open, was quiet) or was quiet for `grace` the newest: so who polls a symlink
// sees what is new.  The OPEN is what counts.  One that was led to another version than its pass
// allows is told to look again (ESTALE; the kernel repeats the walk), and its next READLINK must
// tell the version that Opened::wanted names.
//
// Processes that cannot be seen (pid 0) are one for each uid: a member that stays until `grace`
// after the last OPEN or RELEASE.
//
// Threads: all calls may run in parallel.  Processes is asked under no lock.
// Errors: none.  Time: all that is said of time is given with the calls, in CLOCK_BOOTTIME, in
// which the kernel tells when a process was started.
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

/// How long a loader keeps its version after it last opened or closed a file, by default.
inline constexpr std::chrono::seconds kPinGrace{60};

struct PassTimes {
  BootTime grace = kPinGrace;
  BootTime quiet = std::chrono::seconds(2);
  BootTime most = std::chrono::minutes(15);

  /// For --pin-grace: quiet is at most a third of the grace, and `most` at least the grace.
  static PassTimes of(BootTime grace) noexcept;
};

enum class PassFile : std::uint8_t { weights /* *.safetensors */, small };
/// By the path of a file of a version.
PassFile pass_file_of(std::string_view path) noexcept;

/// An OPEN of a file of a version.
struct PassOpen {
  Reader reader = {};
  std::string link = {};  // that the walk went through; empty: none, the version was named
  std::uint64_t version = 0;
  std::uint32_t file = 0;  // number of the entry
  PassFile kind = PassFile::small;
  std::size_t weights_count = 0;  // files of that kind that the version has
  std::size_t absent_count = 0;   // those of them that this host does not keep
  bool is_absent = false;         // this is one of those
  std::uint64_t newest = 0;       // what the symlink leads to now
  bool was_newest = false;        // `version` was that when READLINK told it
  bool is_retry = false;          // it was told to look again, and is not to be told so twice
};

/// What is known of processes.  Calls may take long.
class Processes {
 public:
  virtual ~Processes() = default;
  [[nodiscard]] virtual bool is_gone(const ProcessId& process) const = 0;
  /// The nearest first.
  [[nodiscard]] virtual std::vector<ProcessId> ancestors(const ProcessId& process) const = 0;
  /// Those of the sessions of which no process is left.
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
  bool is_loading = false;   // a member has opened some weights files and not all
  std::string command = {};  // of the process that began it
  std::vector<PassMember> members = {};
};

/// Of one uid, at a time: beyond, nobody gets a pass, and reads what is newest.
inline constexpr std::size_t kPassesMax = 1024;
inline constexpr std::size_t kPassMembersMax = 16384;

/// A uid that has no room left for passes.
struct FullTable {
  uid_t uid = 0;
  std::uint64_t refused = 0;  // OPENs, since it last had room
};

/// What an OPEN is for its pass, until its RELEASE.
struct PassHold {
  std::uint64_t pass = 0;  // 0: none
  std::string link = {};
  ProcessId process = {};
  bool is_progress = false;
};

class Passes {
 public:
  /// `processes`: outlives it.
  Passes(PassTimes times, const Processes& processes) noexcept
      : times_(times), processes_(processes) {}

  /// READLINK.  `newest`: what the symlink leads to; `in_words`: for readlink(2).
  /// Returns: the version to tell.
  std::uint64_t told(const std::string& link, const Reader& reader, std::uint64_t newest,
                     bool in_words, BootTime now);

  struct Opened {
    std::uint64_t wanted = 0;  // not 0: nothing was counted, the caller is to look again
    PassHold hold = {};        // for hold()
    bool is_refused = false;   // no room: it belongs to no pass
  };
  Opened opened(const PassOpen& open, BootTime now);

  /// The file of an OPEN is about to be handed out.  Returns: a handle for released(); 0: none.
  std::uint64_t hold(const PassHold& hold);
  /// RELEASE.  Unknown handles are ignored.
  void released(std::uint64_t handle, BootTime now);

  /// Looks at processes, and ends what is over.
  void sweep(BootTime now);

  /// Ends passes: of a session, of a version, or all.  Returns: how many.
  std::size_t end_session(const std::string& session);
  std::size_t end_version(std::uint64_t version);
  std::size_t end_all();

  /// True if a pass has the version.
  [[nodiscard]] bool has(std::uint64_t version) const;
  [[nodiscard]] bool is_empty() const;  // no pass, and no member is remembered
  /// Oldest first.
  [[nodiscard]] std::vector<PassState> list(BootTime now) const;
  [[nodiscard]] std::vector<FullTable> full_tables() const;

 private:
  /// Files by their number.
  class Files {
   public:
    bool add(std::uint32_t file);  // false: it was there
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
    bool wants_all = false;        // somebody has opened a file that is not kept
    Files weights, gone_weights;   // opened by anybody; by processes that are gone
    ProcessId first_process = {};  // that opened a weights file, and which, and when
    std::optional<std::uint32_t> first_file = {};
    BootTime first_open{};
    std::optional<BootTime> full = {};
    std::optional<BootTime> closed = {};  // takes nobody who was started after this
    BootTime progress{};
    BootTime in_use{}, looked{};  // seen open or mapped; last look
    BootTime asked{};             // last time that somebody looked whether the session is dead
    BootTime touched{};           // last OPEN or RELEASE of a weights file
    std::size_t open = 0, progress_open = 0;
    std::size_t members = 0;
    std::uint64_t successor = 0;  // the pass that the first who left began
  };
  struct MemberKey {
    ProcessId process;
    std::string link;
    friend auto operator<=>(const MemberKey&, const MemberKey&) = default;
  };
  struct Member {
    uid_t uid = 0;
    std::string command;
    std::uint64_t pass = 0;     // 0: in none any more
    std::uint64_t version = 0;  // of its last pass
    Files weights;
    bool wants_all = false;
    Files small_files;
    std::optional<std::uint32_t> first_weights = {};
    unsigned repetitions = 0;
    bool is_round_decided = false;  // it stays, also when it opens first_weights next
    bool knows_newer = false;       // it was told in words
    std::size_t open = 0;
    BootTime joined{};
    BootTime loaded{};                   // last OPEN or RELEASE of a weights file
    BootTime used{};                     // last OPEN or RELEASE of any
    std::optional<BootTime> small = {};  // last OPEN of a small file
    BootTime checked{};                  // last time that somebody looked whether it is gone
  };
  /// Where an OPEN belongs.
  struct Target {
    std::uint64_t pass = 0;  // 0: to a new one
    std::uint64_t version = 0;
    std::uint64_t left = 0;    // the pass that is left for a new one
    std::uint64_t closed = 0;  // the pass that takes nobody any more
    bool is_repetition = false;
  };
  struct PassQuestion {
    std::uint64_t pass = 0;
    std::string session;
    std::uint64_t version = 0;
  };
  struct Questions {
    std::vector<MemberKey> members;
    std::vector<PassQuestion> in_use;
    std::set<std::string> sessions;  // without members
  };

  // The rules, in fs/passes/pass_rules.cpp.  Require: mutex_ is held, as all that follows but the
  // looks.
  static bool has_all(const Pass& pass, const Member& member) noexcept;
  [[nodiscard]] bool is_live(const Pass& pass, BootTime now) const noexcept;
  [[nodiscard]] bool takes(const Pass& pass, const Reader& reader, BootTime now) const noexcept;
  [[nodiscard]] bool is_member(const Pass& pass, const MemberKey& key, const Member& member,
                               BootTime now) const noexcept;
  [[nodiscard]] bool is_told_newest(const Pass& pass, const MemberKey& key, const Member& member,
                                    BootTime now) const noexcept;
  [[nodiscard]] bool is_at_rest(const Pass& pass, const Member& member,
                                BootTime now) const noexcept;
  [[nodiscard]] std::optional<bool> leaves(const Pass& pass, const Member& member,
                                           const PassOpen& open, BootTime now) const noexcept;
  [[nodiscard]] bool has_moved_on(const Pass& pass, const Member& member,
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

  Opened opened_by_name(const PassOpen& open, BootTime now);  // takes mutex_
  Opened accept(const MemberKey& key, const PassOpen& open, const Target& target, BootTime now);
  Pass* begin(const PassOpen& open, std::uint64_t version, BootTime now);
  Member* join(Pass& pass, const MemberKey& key, const Reader& reader, BootTime now);
  static bool count_weights(Pass& pass, Member& member, const PassOpen& open, BootTime now);
  [[nodiscard]] bool has_room(uid_t uid) const;
  [[nodiscard]] bool has_room_for_member(uid_t uid) const;
  void detach(Member& member);
  void remove(const MemberKey& key);
  void end_members(BootTime now);
  void end_passes(BootTime now);

  // Looks at processes: these take mutex_ for moments.
  [[nodiscard]] std::vector<ProcessId> ancestors_of_newcomer(const MemberKey& key) const;
  void look_at_session(const MemberKey& key, const Reader& reader, BootTime now);
  void look(BootTime now, bool all);
  Questions take_questions(BootTime now, bool all);
  template <typename Condition>
  std::size_t end_if(Condition&& condition);

  const PassTimes times_;
  const Processes& processes_;
  mutable RankedMutex mutex_{LockRank::passes, "Passes::mutex_"};  // guards what follows
  std::map<std::uint64_t, Pass> passes_;                           // by id: oldest first
  std::map<MemberKey, Member> members_;
  std::map<std::uint64_t, PassHold> holds_;
  std::map<uid_t, std::uint64_t> refused_;
  std::uint64_t last_id_ = 0, last_handle_ = 0;
  BootTime looked_for_room_{};
};

}  // namespace weightfs::fs
