// Mount control: the control socket of a mount of this host, for the commands.
//
// Threads: one thread at a time.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fs/control/requests.hpp"
#include "fs/mount/mount_info.hpp"
#include "store/base/json.hpp"
#include "store/inspect/diff_versions.hpp"

namespace weightfs::fs {

class MountControl {
 public:
  /// Reads the status of the weightfs mount, or of a sync's directory, at `path`.
  /// Throws Error: see get_served(), read_status(); unavailable if it has no control socket.
  explicit MountControl(const std::filesystem::path& path);

  [[nodiscard]] const std::filesystem::path& mount_point() const noexcept { return mount_.path; }
  [[nodiscard]] const Json& status() const noexcept { return status_; }
  /// The version that `latest` showed when the status was read; 0: none.
  [[nodiscard]] std::uint64_t latest() const;
  [[nodiscard]] std::string path_of(std::uint64_t version) const;  // "/mnt/w/versions/42"

  /// Waits until the version is here.  `name`: describes it in messages.
  /// Throws Error: conflict; not_found (it is gone); cancelled (stopped, or it was taken back); io
  /// (it cannot be published or built); corrupt (it is damaged); timed_out, reporting the progress;
  /// unavailable (the daemon ended).
  [[nodiscard]] WaitEnd wait(const WaitFor& what, const std::string& name,
                             const Context& context) const;

  /// Fetches a version, or the one that `latest` shows, and waits until every byte is here.
  /// Reports progress.
  /// Throws Error: as wait().
  [[nodiscard]] WaitEnd wait_whole(std::optional<std::uint64_t> version, const Context& context,
                                   const Progress& progress) const;

  /// "step-42 at /mnt/w, which is at version 3": for messages about a wait for `name`.
  [[nodiscard]] std::string describe_wait(const std::string& name) const;

  /// Reports the progress of a hand-over, if the daemon knows it.
  void tell_progress(std::uint64_t order, const Progress& progress) const;

  /// Throws Error: as PublishQueue::hand_over, unavailable.
  [[nodiscard]] std::uint64_t hand_over(const HandOverRequest& request,
                                        const Context& context) const;

  /// Throws Error: as PublishQueue::rebase, permission, read_only.
  [[nodiscard]] PublishQueue::Rebased rebase(const Context& context) const;

  /// Throws Error: not_found, permission, unavailable.
  [[nodiscard]] std::uint64_t pin(const PinRequest& request, const Context& context) const;
  [[nodiscard]] std::uint64_t unpin(const UnpinRequest& request, const Context& context) const;

  /// Compares two versions by the patches of the daemon's store: as diff_versions(), but without
  /// images and bucket.
  /// Throws Error: unsupported (no patches lead from the one to the other, or the daemon is of an
  /// older release), not_found (no such version), unavailable (the daemon ended).
  [[nodiscard]] std::vector<TensorDiff> diff(VersionPair versions, const Context& context,
                                             const Progress& progress) const;

 private:
  /// As wait(), for who began at `begin`.
  [[nodiscard]] WaitEnd wait_since(Clock::time_point begin, const WaitFor& what,
                                   const std::string& name, const Context& context) const;
  /// Reports the progress of a version that is being filled; nullopt: the one that `latest` shows.
  void tell_partial(std::optional<std::uint64_t> version, const Progress& progress) const;
  [[nodiscard]] std::string progress_text(const WaitFor& waited) const;

  MountInfo mount_;
  Json status_;
  std::filesystem::path socket_;
};

}  // namespace weightfs::fs
