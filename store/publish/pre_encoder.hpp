// Early work: codes files of a checkpoint, and uploads what it coded, before the checkpoint is
// handed over, so that little is left to be done then.
//
// Each file is coded by itself against the images of the parent, as publish() would; what is coded
// is spooled, and uploaded under a nonce of its own.  Of a first version chunks and pieces are
// hashed, and the file goes into the snapshot.  publish() takes each result that still fits, and
// does the rest again; so nothing here needs to succeed, and what fails is logged at debug and
// forgotten.
//
// A pack names tensors by their number in the version.  That is not known yet, so a pack is
// uploaded with the numbers that the file of this path has in the parent; if these turn out wrong,
// publish() makes another head, and uploads the pack again.
//
// What lies in the bucket and is not published after all is garbage, as after a killed publish.
//
// Threads: all calls may run in parallel and but take() return at once.  One thread of its own, at
// low priority, and those it starts.
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
#include "store/materialize/history.hpp"

namespace weightfs {

/// Smaller files are not worth it.
inline constexpr std::uint64_t kEarlyBytesMin = 1u << 20;

/// No more files are kept at a time; others are left to publish().
inline constexpr std::size_t kEarlyFilesMax = 1024;

/// A file that was closed by its last writer.
struct EarlyFile {
  std::uint64_t directory = 0;   // stands for the checkpoint, for its life
  std::string path;              // below the checkpoint's directory
  std::filesystem::path source;  // where its bytes are
  std::uint64_t generation = 0;  // changes with each writer
};

/// What was done for one checkpoint; publish() takes it.  To be kept for as long as that hand-over
/// is tried again, and not for another one.
class PreEncoded;

struct EarlyOptions {
  /// The version that the next one will be coded against, 0: there will be none (a first version);
  /// nullopt: not known yet.  Called by the thread, must not wait.
  std::function<std::optional<std::uint64_t>()> parent;
  unsigned threads = 0;                            // 0: one for each core
  std::chrono::milliseconds upload_grace{10'000};  // that take() waits for an upload
  kernels::SharedCoder coder = kernels::make_cpu_coder();
  /// Called at named points ("begin", "coded", "uploaded") with the file's path; for tests.
  std::function<void(std::string_view point, const std::string& path)> at = {};
};

/// For `status`.
struct EarlyStatus {
  std::uint64_t waiting_files = 0;                 // to be coded
  std::uint64_t coded_files = 0, coded_bytes = 0;  // of the files, that are held for publish()
  std::uint64_t uploaded_bytes = 0;                // of these: of files whose upload is done
};

class PreEncoder {
 public:
  /// Keeps both references.
  PreEncoder(History& history, Store& store, EarlyOptions options);

  /// Stops what is in work.  Waits for it: a bucket call that does not heed its Context holds it.
  ~PreEncoder();

  /// Takes note of a file, instead of an earlier one with the same directory and path.  Only
  /// *.safetensors of at least kEarlyBytesMin count.
  void add(EarlyFile file);

  /// Forgets a file, or all files of a directory: it was removed, or is written again.
  void drop(std::uint64_t directory, std::string_view path);
  void drop(std::uint64_t directory);

  /// Looks again what the parent is: what was coded against another one is coded again.  To be
  /// called when `parent` would answer something else, and when the images of the parent, which
  /// it waits for, have come into the store.
  void parent_changed();

  /// Ends the early work for a checkpoint, and gives what was done: waits for the file in work
  /// (while that is uploaded, for `upload_grace` at most), leaves out what has not begun, and
  /// what `is_valid` refuses: the file as it was added is not what is there now.  The stamp of the
  /// file (device, inode, size, modification time) is compared by publish().  The time of the
  /// last change (ctime) is not: a hand-over makes hard links.
  /// Never null.  Throws Error: cancelled, timed_out.
  std::shared_ptr<const PreEncoded> take(std::uint64_t directory,
                                         const std::function<bool(const EarlyFile&)>& is_valid,
                                         const Context& context);

  [[nodiscard]] EarlyStatus status() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weightfs
