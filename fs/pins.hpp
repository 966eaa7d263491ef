// Pins: which version `latest` means for each reader session, and until when.
//
// A loader opens many shards through `latest`, one path after another.  So an OPEN that ends a walk
// through `latest` pins the version for the session (fs/reader_session.hpp), and READLINK tells the
// session that one until the pin ends:
//
//     grace    after the last OPEN or RELEASE of one of the version's weights files, if the load is
//              complete: each process that opened one has opened all, or is gone
//     grace    the same for a load whose processes are gone and none of which had opened all, but
//              not as long as a file of the version is open or mapped in the session
//     grace    after the first OPEN, where no weights file was opened; other files prolong nothing
//     at once  when a new load begins: after `quiet` without an OPEN or RELEASE of a weights file,
//              a process that had opened all of them opens one again through `latest`, or their
//              index, and the load was complete.  Loaders go over the files twice, or open each
//              twice, and may be slow about it: whoever has opened some files more often than
//              others is in the middle of that, and begins nothing
//     at most  after the last OPEN of a weights file
//     at once  when it is taken away by hand
//
// On a host that keeps only some of the weights files "all" means these, to a process that has
// opened no other.
//
// In bind mode (fs/bound_versions.hpp) the kernel does not tell of OPENs.  So READLINK itself pins
// what it tells, and such a pin ends
//
//     grace    after it began, or after the last time that a weights file of the version was opened
//              by somebody within a second of a READLINK of the session (fs/image_watch.hpp), or
//              was seen open or mapped in it, by a look every `quiet`
//     at most  after the last such OPEN
//     at once  when it is taken away by hand
//
// The OPEN with which a new load begins was led to the old version: it is told to look again
// (ESTALE; the kernel repeats the walk), and so is one whose walk was told another version than its
// session has pinned meanwhile.  So two processes of a session that begin at the same moment get
// one version.
//
// The clock and the look at processes are given with each call, so a test of any rule takes no
// time.
//
// Threads: all calls may run in parallel.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fs/reader_session.hpp"
#include "store/context.hpp"

namespace weightfs::fs {

struct PinTimes {
  Clock::duration grace = std::chrono::seconds(60);
  Clock::duration quiet = std::chrono::seconds(10);
  Clock::duration most = std::chrono::minutes(15);

  /// For --pin-grace: quiet is at most a sixth of the grace, and `most` at least the grace.
  static PinTimes of(Clock::duration grace) noexcept;
};

enum class PinFile : std::uint8_t {
  weights,  // *.safetensors
  index,    // *.safetensors.index.json
  other
};
/// By the path of a file of a version.
PinFile pin_file_of(std::string_view path) noexcept;

/// An OPEN of a file of a version.
struct PinOpen {
  Reader reader;
  std::uint64_t version = 0;
  std::uint32_t file = 0;  // number of the entry
  PinFile kind = PinFile::other;
  std::size_t weights_count = 0;  // files of that kind that the version has
  std::size_t absent_count = 0;   // those of them that this host does not keep
  bool is_absent = false;         // this is one of those
  bool through_latest = false;    // it ends a walk
  std::uint64_t latest = 0;       // what the host shows now
};

/// What the watch looks at.  May take long; called without any lock.
struct PinView {
  std::function<bool(const ProcessId&)> is_gone;
  /// True if a process of the session has a file of the version open or mapped.
  std::function<bool(const std::string& session, std::uint64_t version)> has_files;
};

/// For `status`.
struct PinState {
  std::string session;
  std::string command;  // of the process that opened first; may be empty
  std::uint64_t version = 0;
  Clock::duration age{};    // since the load began
  bool is_loading = false;  // some process of it has opened some weights files and not all
};

/// Sessions with a pin at the same time.  A session beyond gets none, and reads what is newest.
inline constexpr std::size_t kPinsMax = 16384;
/// Processes of one pin that are told apart; more count as gone and incomplete.
inline constexpr std::size_t kPinProcessesMax = 1024;

class Pins {
 public:
  explicit Pins(PinTimes times = {}) noexcept : times_(times) {}

  /// What `latest` means for the session; nullopt: the newest.
  std::optional<std::uint64_t> find(const std::string& session, Clock::time_point now);

  /// READLINK in bind mode told the session this version.
  /// Returns: false if it has another one pinned by now.
  bool told(const Reader& reader, std::uint64_t version, Clock::time_point now);

  /// In bind mode, somebody has opened a weights file of the version: it counts for all sessions
  /// that were told it within `within`.
  void opened_by_somebody(std::uint64_t version, Clock::duration within, Clock::time_point now);

  struct Opened {
    bool look_again = false;   // nothing was counted: the caller is to walk again
    std::uint64_t handle = 0;  // for released()
  };
  Opened opened(const PinOpen& open, Clock::time_point now);

  /// A RELEASE of what opened() gave this handle to.  Unknown ones are ignored.
  void released(std::uint64_t handle, Clock::time_point now);

  /// Ends what is over, also what takes a look at processes to know.
  void sweep(const PinView& view, Clock::time_point now);

  /// Ends pins: of a session, of a version, or all.  Returns: how many.
  std::size_t end_session(const std::string& session);
  std::size_t end_version(std::uint64_t version);
  std::size_t end_all();

  [[nodiscard]] bool is_pinned(std::uint64_t version) const;
  [[nodiscard]] bool is_empty() const;
  /// Oldest first.
  [[nodiscard]] std::vector<PinState> list(Clock::time_point now) const;

 private:
  /// What one process has opened.
  struct Process {
    std::map<std::uint32_t, std::uint32_t> opens;  // of each weights file
    std::uint32_t last = 0;                        // file
    bool wants_all = false;                        // it has opened one that is not kept
  };
  struct Pin {
    std::uint64_t id = 0;
    std::uint64_t version = 0;
    std::string command;
    Clock::time_point since;  // first OPEN of the load
    std::size_t weights_count = 0, absent_count = 0;
    bool has_weights = false;        // one was opened
    Clock::time_point used, opened;  // if so: last OPEN or RELEASE, last OPEN
    std::map<ProcessId, Process> processes;
    bool is_abandoned = false;      // a process is gone without having opened all
    bool is_by_link = false;        // in bind mode
    Clock::time_point asked = {};   // if so: last READLINK
    Clock::time_point looked = {};  // likewise: last look at what is open or mapped
  };
  struct Question {
    std::string session;
    std::uint64_t id = 0, version = 0;
    bool is_by_link = false;
    std::vector<ProcessId> processes;  // that are in the middle of it
  };

  static bool has_all(const Pin& pin, const Process& process) noexcept;
  static bool is_going_over(const Process& process) noexcept;
  static bool is_behind(const Process& process, std::uint32_t file) noexcept;
  static bool is_complete(const Pin& pin) noexcept;  // as to the processes that are not gone
  static bool is_broken_off(const Pin& pin) noexcept;
  bool is_over(const Pin& pin, Clock::time_point now) const noexcept;
  bool begins_load(const Pin& pin, const PinOpen& open, Clock::time_point now) const noexcept;
  Pin* find_pin(const std::string& session, Clock::time_point now);
  static void begin(Pin& pin, const PinOpen& open, Clock::time_point now);
  static void count(Pin& pin, const PinOpen& open, Clock::time_point now);
  std::vector<Question> take_questions(Clock::time_point now);
  void settle(const Question& question, const std::vector<ProcessId>& gone);
  bool asks_for_files(const Question& question, Clock::time_point now) const;
  bool prolong_if_used(const PinView& view, const Question& question, Clock::time_point now);
  template <typename Condition>
  std::size_t end_if(Condition&& condition);

  const PinTimes times_;
  mutable std::mutex mutex_;         // guards what follows
  std::map<std::string, Pin> pins_;  // by session
  std::uint64_t last_id_ = 0;
};

}  // namespace weightfs::fs
