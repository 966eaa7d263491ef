// Command context: the function of each command, and what commands share.  Included by the files in
// fs/commands only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "fs/base/stop_signals.hpp"
#include "fs/cli/options.hpp"
#include "fs/cli/output.hpp"
#include "fs/cli/progress_line.hpp"
#include "fs/client/mount_status.hpp"
#include "store/base/context.hpp"
#include "store/base/json.hpp"
#include "store/local/image_table.hpp"
#include "store/materialize/history.hpp"
#include "store/os/scratch_directory.hpp"
#include "store/repository/repository.hpp"

namespace weightfs::fs {

/// What a command works with.
class Call {
 public:
  Call(const Options& options, const Output& output);

  const Options& options;
  const Output& output;

  /// A progress callback for a terminal; empty if nothing is shown.
  [[nodiscard]] Progress progress();

  /// Reports on the terminal when the bucket does not answer, until the result is printed or the
  /// call ends.  Starts a thread: nothing may fork after it.
  void watch_bucket();

  /// If the call has not ended after a second, prints what it waits for, even without a terminal,
  /// since nothing else would ever say so.  Starts a thread, as watch_bucket() does.
  void tell_wait(std::string what);

  /// Says how a wait goes on: on the terminal, or as a line for the log of who waits.
  void tell(const std::string& text);

  /// Prints the result: `json` with --json, else `text`.
  void print(const Json& json, const std::string& text);

  /// Then puts what the command leaves in its store on the disk, which may take minutes: whoever
  /// reads the result has it, and a stop ends it.  What is left is checked by who opens the store.
  void sync_kept(ImageTable& images, const Context& context) const;

 private:
  std::unique_ptr<ProgressLine> line_;
  std::jthread watcher_, teller_;  // last: they use line_
};

/// A repository that is only read, without a store, and the signals that stop the reading.
struct Reading {
  explicit Reading(Call& call);  // uses the call's target
  Reading(Call& call, const Target& target);

  StopSignals signals;
  Context context;
  std::string url;
  std::filesystem::path mount_point;  // empty: the target is a URL
  std::uint64_t latest = 0;           // the version that `latest` shows there
  std::unique_ptr<Repository> repository;
  History history;

  /// The version that a word names now.  At a mount point `latest` is the version shown there.
  /// nullopt: the newest version of the repository.
  /// Throws Error: not_found, as find_version() does.
  std::uint64_t number_of(const std::optional<Follow>& word);
};

/// The version that a word names at a mount of this host, where `latest` is the version `latest`.
/// A tag is looked up in the bucket: a sync's directory has no tags.
/// Throws Error: not_found, as find_version() does.
std::uint64_t number_at(Call& call, std::uint64_t latest, const Follow& word);

/// The same for who must do without the bucket: tags too are those that the mount shows, and only
/// one that it does not show is looked up there.
/// Throws Error: not_found, also if the mount shows no version yet.
std::uint64_t number_shown(Call& call, const Target& target, const Follow& word);

/// Makes a private directory for large temporary files, below $TMPDIR or /var/tmp.
ScratchDirectory make_scratch();

/// Bytes of all files of a version.
std::uint64_t version_bytes(const Manifest& manifest, const Layout& layout);

// All return the exit code and throw Error.

int run_init(Call& call);
int run_publish(Call& call);
/// For publish and rollback, at a writer's mount.
int run_hand_over(Call& call, const std::filesystem::path& mount_point,
                  const VersionWishes& wishes);
int run_rollback(Call& call);
int run_export(Call& call);
int run_verify(Call& call);

int run_log(Call& call);
int run_log_timing(Call& call);  // for log
int run_report(Call& call);
int run_show(Call& call);
int run_diff(Call& call);

int run_mount(Call& call);
int run_mount_again(Call& call);  // for mount
int run_sync(Call& call);
int run_umount(Call& call);
int run_wait(Call& call);
int run_wait_replicas(Call& call);  // for wait
int run_rebase(Call& call);
int run_pin(Call& call);
int run_unpin(Call& call);
int run_status(Call& call);
int run_fleet(Call& call);
int run_top(Call& call);

int run_doctor(Call& call);

int run_du(Call& call);
int run_gc(Call& call);
int run_skip(Call& call);

}  // namespace weightfs::fs
