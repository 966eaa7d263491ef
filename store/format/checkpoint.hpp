// Checkpoint: a directory as a trainer saved it, scanned and checked before anything is published.
//
// What is published (docs/SEMANTICS.md, "What is published"): regular files, in sub-directories
// too, whose name matches a built-in pattern (safetensors, JSON, text, tokenizer and template
// files) or one of the caller's --include globs.  Hidden files and directories are ignored.
// Symlinks to regular files are followed.  FIFOs, sockets, devices, symlinks to directories and
// dangling symlinks are errors: a checkpoint does not hold them, so something is wrong.
//
// Threads: scan_checkpoint is a plain function; a Checkpoint is a value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "store/format/safetensors.hpp"

namespace weightfs {

/// Files above this size that are not safetensors are opaque (docs/FORMAT.md, "Layouts").
inline constexpr std::uint64_t kBlobBytesMax = 16u << 20;

/// The most files and bytes of a version (64 TiB: so that chunk numbers do not overflow).
inline constexpr std::size_t kVersionFilesMax = 100'000;
inline constexpr std::uint64_t kVersionBytesMax = std::uint64_t{1} << 46;

/// Shows whether a file was written to since it was scanned.
struct FileStamp {
  std::uint64_t device = 0, inode = 0, size_bytes = 0;
  std::int64_t mtime_ns = 0, ctime_ns = 0;
  friend bool operator==(const FileStamp&, const FileStamp&) = default;

  /// Equal except for the ctime, which a new hard link changes too.
  [[nodiscard]] bool is_same_but_ctime(FileStamp other) const {
    other.ctime_ns = ctime_ns;
    return *this == other;
  }
};
FileStamp stamp_of(int fd);  // Throws Error: io.

struct CheckpointFile {
  enum class Kind { safetensors, opaque, blob };
  std::string path;              // relative, '/'-separated, passes path_problem()
  std::filesystem::path source;  // where its bytes are
  Kind kind{};
  FileStamp stamp;
  std::string head;          // safetensors: the verbatim header, length included; else empty
  SafetensorsHeader header;  // safetensors only
};

struct Checkpoint {
  std::filesystem::path directory;
  std::vector<CheckpointFile> files;     // by path, bytewise
  std::vector<std::string> unpublished;  // "optimizer.pt": left out, escaped for the message
  bool is_linked_meanwhile = false;      // the files get hard links: ctime is not compared

  [[nodiscard]] std::uint64_t size_bytes() const noexcept;  // of `files`
  /// Whether there is a safetensors file, or one that only --include publishes.  Not whether one is
  /// large: a tokenizer.json may have 33 MB.
  [[nodiscard]] bool has_weights() const;
  [[nodiscard]] std::string unpublished_text() const;  // the first of them, for a message
};

/// Whether a directory has all files of a version, or those of one part (store/parts): then an
/// index may name shards that are not there.
enum class ScanScope { whole, part };

/// Whether a file of this name, which is not hidden, would be published.
bool is_published(const std::string& path, const std::vector<std::string>& include);

/// Scans and checks: every safetensors header; every *.safetensors.index.json (names only base
/// names, every shard it names is there, every tensor lies in the shard it says); of a whole
/// version, that all shards are there of which one is (store/format/shard_index.hpp); that no file
/// has only a rank's piece of a tensor (store/format/rank_pieces.hpp).
///
/// `include`: fnmatch globs; one without '/' matches the base name, one with '/' the whole path.
/// Throws Error: invalid (not a directory, empty, nothing to publish, special file, bad name, too
/// many files or bytes), corrupt (header, index, a piece of a tensor), not_found (no such
/// directory, missing shard), permission, io.
Checkpoint scan_checkpoint(const std::filesystem::path& directory,
                           const std::vector<std::string>& include,
                           ScanScope scope = ScanScope::whole);

/// A checkpoint of one file, whose bytes lie at `source` and whose hard links may come and go.
/// Throws Error: as scan_checkpoint.
Checkpoint scan_one_file(const std::filesystem::path& source, const std::string& path);

}  // namespace weightfs
