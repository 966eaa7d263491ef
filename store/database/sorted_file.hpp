// SortedFile: pairs that are written beside the database, in ascending order, and then become a
// part of it as they are (Db::ingest): neither its log nor its memory sees them.
//
// Threads: one thread at a time.
// Ownership: owns the file; it is removed with the object unless it was ingested.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>

namespace weightfs {

/// The size of a file at which its writer begins the next one.
inline constexpr std::uint64_t kSortedFileBytesMax = 64u << 20;

class SortedFile {
 public:
  /// Makes an empty file, with a name of its own, in `directory`.  Callers use
  /// Db::make_sorted_file(), which checks that there is room.
  /// Throws Error: no_space, io.
  explicit SortedFile(const std::filesystem::path& directory);
  ~SortedFile();
  SortedFile(SortedFile&&) noexcept;
  SortedFile& operator=(SortedFile&&) noexcept;

  /// Requires: `key` is above all keys before; finish() was not called.
  /// Throws Error: no_space, io; the file is then of no use.
  void add(std::string_view key, std::string_view value);

  /// Bytes that the file would have if it were finished now, or a few more; exact after finish().
  [[nodiscard]] std::uint64_t size_bytes() const noexcept;
  [[nodiscard]] bool is_empty() const noexcept;

  /// Writes the rest and syncs the file.  Requires: not empty, called once.
  /// Throws Error: no_space, io.
  void finish();

  [[nodiscard]] const std::filesystem::path& path() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weightfs
