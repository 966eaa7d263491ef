// Image records: the database records of complete versions' images, and whether the files match
// them.
//
// Threads: pure functions.
// Errors: functions that take a Db throw Error: corrupt, io; those that write also no_space
// (nothing was written).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "store/database/db.hpp"

namespace weightfs {

struct ImageRecord {
  std::uint64_t size_bytes = 0;
  bool is_absent = false;  // not kept by this host
};

/// Of all files of a version, sorted bytewise by path.
using ImageRecords = std::vector<ImageRecord>;

struct VersionRecords {
  ImageRecords images;
  bool is_synced = true;  // files and directories were synced before this was recorded
};

/// By version.
std::map<std::uint64_t, VersionRecords> read_image_records(const Db& db);

/// Writes files, as not synced, and chunk hashes at once.  Survives the end of the process; after a
/// power cut it may be missing, which means the same: nothing is known of the files.
void write_image_records(Db& db, std::uint64_t version, const ImageRecords& images,
                         std::span<const std::uint64_t> chunk_hashes);

/// Notes, durably, that the files of these paths are about to be moved below the directory of a
/// complete version.  The next records of the version, or their removal, remove the note.
void write_coming_files(Db& db, std::uint64_t version, std::span<const std::string> paths);

/// The notes that nothing has removed, by version.
std::map<std::uint64_t, std::vector<std::string>> read_coming_files(const Db& db);

/// Records the files as synced.  Survives the end of the process: Db::sync() makes it durable.
void mark_image_records_synced(Db& db, std::uint64_t version);

/// Likewise.  Returns: whether there were any.
bool remove_image_records(Db& db, std::uint64_t version);

/// The chunk hashes of a complete version; nullopt if it is not complete.
std::optional<std::vector<std::uint64_t>> find_chunk_hashes(const Db& db, std::uint64_t version);

/// Whether a directory contains exactly the files that are not absent.  A missing or unreadable
/// directory is a mismatch, not an error.
bool has_files(const std::filesystem::path& directory, const ImageRecords& images);

/// Which files are absent; empty if none is.
std::vector<bool> absent_files_of(const ImageRecords& images);

}  // namespace weightfs
