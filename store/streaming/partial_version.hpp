// PartialVersion: the images of one version, filled while they are read.
//
// The unit is a window: kWindowBytes of a weights file, or a whole blob.  Every window is made as
// in write_version() (store/materialize/segment_writer.hpp), so readers get only verified bytes.
// Workers take requested windows first, then the windows after those, then blobs and the weights
// files in order; there are as many workers as suit the bucket.  Packs are fetched piece by piece,
// as chunks need them.
//
//     absent --> being made --> here                    ask() returns true
//                          \--> failed --> being made   its object is missing or damaged: ask()
//                                                       throws that, and it is retried later
//
// If the object is of a skip delta, or gc removed it meanwhile, there is another way: it is
// planned, and all windows are made in that way from then on.
//
// While the bucket is unreachable a window stays absent and is retried with backoff; readers wait
// until their deadline.  No read ever returns fewer bytes instead.
//
// Files have their full size from the start and keep their names; only what is here may be read.
// When all windows are here, files get mode and time.  Nothing is synced
// (store/local/image_table.hpp).
//
// Memory: a SegmentWriter for each worker (about 20 MiB with a snapshot), a byte for each window.
//
// Threads: all calls may run in parallel; it has its own threads, which end with it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "kernels/block/chunk_coder.hpp"
#include "kernels/dispatch/cpu_coder.hpp"
#include "store/base/error.hpp"
#include "store/format/chunk_batches.hpp"
#include "store/materialize/plan.hpp"
#include "store/os/lease.hpp"
#include "store/repository/pieces.hpp"
#include "store/timing/build_meter.hpp"

namespace weightfs {

struct PartialVersionOptions {
  std::filesystem::path directory;  // must exist, without any of the files
  std::filesystem::path spool;      // for packs
  unsigned threads = 0;             // 0: as many as suit the bucket (request_threads())
  unsigned mode = 0444;             // of complete files
  kernels::SharedCoder coder = kernels::make_cpu_coder();
  /// Files of the layout to fill; empty: all.  Others are not created.
  FileSet files = {};
  std::shared_ptr<BuildMeter> meter = {};  // nullptr: nobody asks
  /// Fill all windows in the background; false: only those that are requested.
  bool in_background = true;
  /// How long callers get the error of a failed window before it is retried.
  std::chrono::milliseconds tell_failures_for{30'000};
  /// Gives another plan for the same version and files, from the same base or from none, after an
  /// object (ObjectError), the base (BaseDamaged) or a patch (PatchDamaged) was found missing or
  /// damaged; nullopt: there is no other.  May throw Error.  Called by one thread at a time,
  /// without locks.  Empty: there never is.
  std::function<std::optional<Plan>(const Error& cause, const Context& context)> plan_again = {};
  /// A file or the version has become complete, or the error changed.  Called from any thread,
  /// without locks; must be quick and call only const functions of the PartialVersion.
  std::function<void()> changed = {};
};

/// For `status`.
struct PartialProgress {
  std::uint64_t bytes = 0;          // of all files that it fills
  std::uint64_t bytes_here = 0;     // verified and readable
  std::uint64_t fetched_bytes = 0;  // of packs, and of windows of the snapshot
  std::optional<Error> error;       // the last error, until its window is here
  bool is_damaged = false;          // `error`: an object is missing or wrong
};

class PartialVersion {
 public:
  /// Makes the files and reserves their room; links what a base already has.
  /// Requires: the base stays reserved (store/local/eviction.hpp) until the version is complete.
  /// Keeps the reference.
  /// Throws BaseDamaged; Error: no_space, io, cancelled.
  PartialVersion(Plan plan, Repository& repository, PartialVersionOptions options,
                 const Context& context);
  ~PartialVersion();  // stop()
  PartialVersion(const PartialVersion&) = delete;
  PartialVersion& operator=(const PartialVersion&) = delete;

  /// The first one; others lead to the same version and have the same layout and hashes.
  [[nodiscard]] const Plan& plan() const noexcept;

  /// Files are identified by their path in the version.
  /// Returns: whether the whole file is here.  False for a path that this does not fill.
  [[nodiscard]] bool is_here(std::string_view path) const;
  [[nodiscard]] bool is_complete() const;  // all files are here, with mode and time

  /// Whether no file that is here, and would go with this version, is open or mapped; see
  /// nobody_reads() of the store.  Other files can only be open in this process.
  [[nodiscard]] bool nobody_reads(RefusedLeases* refused_leases = nullptr) const;

  /// Whether the bytes [offset, offset + size) of a file are here; bytes beyond its end count as
  /// here.  If not, they come first from now on, and `wake` is called once, from any thread and
  /// without locks, when they are here or there is an error to report: then ask again.  It may be
  /// called before this returns.  May be empty.
  /// Requires: a path that this fills.
  /// Throws Error: corrupt or not_found (an object of the bucket, or the base; names it), no_space,
  /// no_memory, io, all until the window is retried.  cancelled: stopped, and the bytes are not
  /// here.
  bool ask(std::string_view path, std::uint64_t offset_bytes, std::uint64_t size_bytes,
           std::function<void()> wake);

  /// Ends all work, promptly even if the bucket hangs, and wakes all waiters.  What is here stays.
  /// Afterwards neither the repository nor `changed` is used.
  void stop();

  /// Blocks until is_complete().  Throws Error: an error that is_damaged; cancelled (also by
  /// stop()), timed_out.
  void wait_complete(const Context& context);

  [[nodiscard]] PartialProgress progress() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weightfs
