// Image records: what the database says of the images of complete versions, and whether the files
// agree with it.
//
// Threads: pure functions.
// Errors: those with a Db throw Error: corrupt, io; those that write also no_space (nothing was
// written).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "store/local/db.hpp"

namespace weightfs {

struct ImageRecord {
  std::uint64_t size_bytes = 0;
  bool is_absent = false;  // not kept by this host
};

/// Of all files of a version, by path, bytewise.
using ImageRecords = std::vector<ImageRecord>;

/// By version.
std::map<std::uint64_t, ImageRecords> read_image_records(const Db& db);

/// Writes files and chunk hashes at once; durable.
void write_image_records(Db& db, std::uint64_t version, const ImageRecords& images,
                         std::span<const std::uint64_t> chunk_hashes);

/// Durable.  On a full disk the records stay, with a warning in the log.
void remove_image_records(Db& db, std::uint64_t version);

/// Of a version that is complete; nullopt if it is not.
std::optional<std::vector<std::uint64_t>> find_chunk_hashes(const Db& db, std::uint64_t version);

/// Whether a directory has exactly the files that are not absent.  One that is not there or cannot
/// be read is a mismatch, not an error.
bool has_files(const std::filesystem::path& directory, const ImageRecords& images);

/// Which files are absent; empty if none is.
std::vector<bool> absent_files_of(const ImageRecords& images);

}  // namespace weightfs
