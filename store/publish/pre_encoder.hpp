// PreEncoder: codes files of a checkpoint and uploads the results before the checkpoint is handed
// over, so that little is left to do then.
//
// Each file is coded separately against the images of the parent, as publish() would; the result is
// spooled, and uploaded under its own nonce (store/publish/early_coding.hpp).  Files that are still
// written are coded as they grow.  For a first version chunks and pieces are hashed, and the file
// goes into the snapshot.  publish() takes each result that is still valid and redoes the rest; so
// nothing here has to succeed, and failures are only logged at debug level.
//
// A pack identifies tensors by their number in the version, which is not known yet. So a pack is
// uploaded with the numbers that the file of this path has in the parent; if they turn out to be
// wrong, publish() makes another header and uploads the pack again.
//
// Uploads that are never published are garbage, as after a killed publish.
//
// Memory: of what changed (store/patches/fresh_patches.hpp) all results that anybody holds have 64
// MiB, or a 32nd of their files where that is more; further ones go without.
//
// Threads: all calls may run in parallel; all but take() return at once.  The work is done by
// threads at low priority: one that hands it out, one for each file that is worked on, and those
// that they start.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/block/chunk_coder.hpp"
#include "kernels/dispatch/cpu_coder.hpp"
#include "store/coding/growing_file.hpp"
#include "store/format/early_record.hpp"
#include "store/materialize/history.hpp"

namespace weightfs {

/// How long files that were closed may lack the names that they are published by.
inline constexpr std::chrono::milliseconds kNamePatience{30'000};

/// A complete file is coded against so many parents in turn; one that still lies there then may
/// never be handed over, and is left to publish().
inline constexpr unsigned kEarlyParentsMax = 8;

/// The most files held at a time; others are left to publish().
inline constexpr std::size_t kEarlyFilesMax = 1024;

/// A file that was closed by its last writer, or is still written.
struct EarlyFile {
  std::uint64_t directory = 0;   // identifies the checkpoint
  std::string path;              // below the checkpoint's directory
  std::filesystem::path source;  // where its bytes are
  std::uint64_t generation = 0;  // changes with each writer
  bool is_written = false;       // still
};

/// The results for one checkpoint, for publish().  Keep them while that hand-over is retried, and
/// do not use them for another one.
class PreEncoded;

struct EarlyOptions {
  /// The version against which the next one will be coded; 0: none (a first version); nullopt: not
  /// known yet.  Called by any thread; must not block.
  std::function<std::optional<std::uint64_t>()> parent;
  /// Whether this checkpoint is being handed over: then `parent` may be unknown, but what its files
  /// are coded against stays.  Called by any thread; must not block.  Empty: none is.
  std::function<bool(std::uint64_t directory)> is_handed_over = {};
  /// Whether nothing may come of what would be coded now: then no file is begun.  Called by any
  /// thread; must not block.  Empty: something may.
  std::function<bool()> is_in_vain = {};
  unsigned threads = 0;                            // 0: work_threads()
  std::chrono::milliseconds upload_grace{10'000};  // how long take() waits for an upload
  GrowingFile::Pauses growth_pauses = {};          // of files that are still written
  std::chrono::milliseconds name_patience = kNamePatience;
  kernels::SharedCoder coder = kernels::make_cpu_coder();
  /// Called when coming() may return something else, by any thread; must be quick.  May be empty.
  std::function<void()> changed = {};
  /// Called at named points ("begin", "coded", "uploaded"; between the first two, of a file that is
  /// still written, "growing", "waiting" for more of it and, when all was coded, "grown") with the
  /// file's path; for tests.
  std::function<void(std::string_view point, const std::string& path)> at = {};
};

/// For `status`.
struct EarlyStatus {
  std::uint64_t waiting_files = 0;                 // complete, to be coded
  std::uint64_t growing_files = 0;                 // being coded while they are written
  std::uint64_t coded_files = 0, coded_bytes = 0;  // of files held for publish()
  std::uint64_t uploaded_bytes = 0;                // of these, those whose upload is done
  std::uint64_t grown_bytes = 0;                   // of these, those coded while they were written
};

/// What readers may be told before the hand-over.
struct EarlyComing {
  std::uint64_t next = 0;  // the version that comes next; 0: not known now
  /// Its files that are uploaded, of the checkpoint that was worked on last; nullopt: none are.
  std::optional<EarlyRecord> record;
};

class PreEncoder {
 public:
  /// Keeps both references.
  PreEncoder(History& history, Store& store, EarlyOptions options);

  /// Stops the work and waits for it; a bucket call that ignores its Context delays this.
  ~PreEncoder();

  /// Adds a file; replaces an earlier one with the same directory and path.  Ignores all but
  /// *.safetensors of at least kEarlyBytesMin.  One that is still written may have another name: it
  /// is known by its directory and source, and goes on when it is added again.
  void add(EarlyFile file);

  /// Ends the growing of a file that is being coded as it grows: no process can write to it now,
  /// and `file` has its name.  It is known by its directory and source. Returns: false if it is not
  /// such a file.
  bool close(const EarlyFile& file);

  /// No process can write to a file that is being coded as it grows, and it has another name than
  /// it would be published by: a saver is about to rename it, or was killed.  It is given up
  /// when nobody has written to its directory for `name_patience`, until it is added again.  It is
  /// known by its directory and source.
  void leave(std::uint64_t directory, const std::filesystem::path& source);

  /// Forgets a file, or all files of a directory, because it was removed or is being rewritten.
  void drop(std::uint64_t directory, std::string_view path);
  void drop(std::uint64_t directory);

  /// Checks the parent again; files that were coded against another one are coded again.  Call it
  /// when `parent` would return something else, and when the images of the parent have arrived in
  /// the store, since coding waits for them.
  void parent_changed();

  /// Ends the early work for a checkpoint and returns the results.  Waits for the files that are
  /// being coded (for `upload_grace` at most while they are uploaded).  Leaves out files that were
  /// not started, and those that `is_valid` rejects because they have changed since they were added
  /// or closed.  A file that grows counts as not started, unless it was closed.  publish() compares
  /// the file's stamp (device, inode, size, modification time), but not ctime, which the hard links
  /// of a hand-over change.  Never null.
  /// Throws Error: cancelled, timed_out.
  std::shared_ptr<const PreEncoded> take(std::uint64_t directory,
                                         const std::function<bool(const EarlyFile&)>& is_valid,
                                         const Context& context);

  [[nodiscard]] EarlyStatus status() const;

  /// Not for a first version: there is nothing that readers could begin with.
  [[nodiscard]] EarlyComing coming() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weightfs
