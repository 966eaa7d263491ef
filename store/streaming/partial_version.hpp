// PartialVersion: the images of one version, filled while they are read.
//
// The unit is a window: kWindowBytes of a weights file, or a whole blob.  Every window is made as
// write_version() makes it (store/materialize/segment_writer.hpp), so nothing is handed out that
// was not verified.  Workers take first what was asked for, then the windows behind that, then
// blobs and the weights files in their order; as many at a time as the bucket has requests for.
// Packs are fetched piece by piece, as chunks need them.
//
//     absent --> being made --> here                    what ask() says yes to
//                          \--> failed --> being made   its object is missing or damaged: told to
//                                                       who asks, and tried again later
//
// While the bucket is out of reach a window stays absent and is tried again, backing off; who asks
// waits as long as he has time.  Nobody is ever given fewer bytes instead.
//
// Files have their full size from the start and keep their names; only what is here may be read.
// When all windows are here, files and directories are synced and get mode and time.
//
// Memory: a SegmentWriter for each worker (about 20 MiB with a snapshot), a byte for each window.
//
// Threads: all calls may run in parallel; it has threads of its own, which end with it.
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

namespace weightfs {

struct PartialVersionOptions {
  std::filesystem::path directory;  // exists; none of the files is there
  std::filesystem::path spool;      // for packs; same machine
  unsigned threads = 0;             // 0: what the bucket is worth (request_threads())
  unsigned mode = 0444;             // of files, when they are complete
  kernels::SharedCoder coder = kernels::make_cpu_coder();
  /// Files of the layout that are filled; without any: all.  Others are not made.
  FileSet files = {};
  /// Fill by itself; else only what is asked for.
  bool in_background = true;
  /// How long a failure is told to who asks before its window is tried again.
  std::chrono::milliseconds tell_failures_for{30'000};
  /// A file has become complete, all have, or the error changed.  From any thread, without locks;
  /// must be quick and call nothing of the PartialVersion's but the const ones.
  std::function<void()> changed = {};
};

/// For `status`.
struct PartialProgress {
  std::uint64_t bytes = 0;          // of all files that it fills
  std::uint64_t bytes_here = 0;     // verified, and readable now
  std::uint64_t fetched_bytes = 0;  // for it, of packs and of windows of the snapshot
  std::optional<Error> error;       // the last one, until what it was about is here
  bool is_damaged = false;          // of it: an object is missing or not what it should be
};

class PartialVersion {
 public:
  /// Makes the files and reserves their room; what a base has is linked and here at once.
  /// Requires: the base is reserved (store/local/eviction.hpp) until all is here.
  /// Keeps the reference.  Throws BaseDamaged; Error: no_space, io, cancelled.
  PartialVersion(Plan plan, Repository& repository, PartialVersionOptions options,
                 const Context& context);
  ~PartialVersion();  // stop()
  PartialVersion(const PartialVersion&) = delete;
  PartialVersion& operator=(const PartialVersion&) = delete;

  [[nodiscard]] const Plan& plan() const noexcept;

  /// Files are told by their path in the version.
  /// Returns: whether the whole file is here.  False for a path that it does not fill.
  [[nodiscard]] bool is_here(std::string_view path) const;
  [[nodiscard]] bool is_complete() const;  // all files are here, synced and have mode and time

  /// Nobody has a file open or mapped that is here and would go with this version; see
  /// nobody_reads() of the store.  The others only this process can have open.
  [[nodiscard]] bool nobody_reads() const;

  /// Whether the bytes [offset, offset + size) of a file are here.  If not they come first from now
  /// on, and `wake` is called once, from any thread and without locks, when they are here or there
  /// is a failure to tell: then ask again.  It may be called before this returns.  Empty: nobody
  /// waits.
  /// Requires: a path that it fills.  What lies behind the end of the file is here.
  /// Throws Error: corrupt or not_found (an object of the bucket, or the base; names it); no_space;
  /// io; told until the window is tried again.  cancelled: it was stopped, and this is not here.
  bool ask(std::string_view path, std::uint64_t offset_bytes, std::uint64_t size_bytes,
           std::function<void()> wake);

  /// Ends what goes on, promptly also if the bucket hangs, and wakes all who wait.  What is here
  /// stays.  After it neither repository nor `changed` is used.
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
