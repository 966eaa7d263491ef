// Layout: the files of a version that hold tensors, their verbatim headers, and the tensor table
// that follows from them.  Most versions of a run share one, so it is stored once, by its hash.
//
// Numbering: files by path (bytewise); tensors by file, then by offset, then by name; chunks by
// tensor, then by offset.  `first_chunk` of a tensor counts from the start of the version, so one
// array of hashes serves the whole version.
//
// A file is safetensors, or opaque: a large file without known structure, which is one tensor of
// dtype U8 with the empty name over all its bytes.
//
// Invariants
//   * Every byte of a file belongs to its header or to exactly one tensor.
//   * A file's bytes follow from header and tensors alone.
//
// Threads: immutable after construction, shared freely.  Format: docs/FORMAT.md, "Layouts".
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/block/block.hpp"
#include "store/base/sha256.hpp"
#include "store/format/checkpoint.hpp"
#include "store/format/tensor.hpp"

namespace weightfs {

/// A reader refuses a larger one (uncompressed).
inline constexpr std::uint64_t kLayoutBytesMax = 1u << 30;

struct LayoutTensor {
  std::string name;
  Dtype dtype{};
  kernels::Kind kind{};
  std::vector<std::uint64_t> shape;
  std::uint32_t file = 0;          // index into Layout::files()
  std::uint64_t offset_bytes = 0;  // from the start of the file
  std::uint64_t size_bytes = 0;
  std::uint64_t first_chunk = 0;  // of the version
  std::uint32_t chunk_count = 0;

  /// Place of chunk `index` < chunk_count inside the tensor.
  [[nodiscard]] std::uint64_t chunk_offset_bytes(std::uint32_t index) const noexcept;
  [[nodiscard]] std::size_t chunk_size_bytes(std::uint32_t index) const noexcept;

  bool operator==(const LayoutTensor&) const = default;
};

using TensorTable = std::vector<LayoutTensor>;

struct LayoutFile {
  enum class Kind : std::uint8_t { safetensors = 0, opaque = 1 };
  std::string path;
  Kind kind{};
  std::string head;              // verbatim, length included; empty if opaque
  std::uint64_t size_bytes = 0;  // head and data
  std::uint32_t first_tensor = 0;
  std::uint32_t tensor_count = 0;
};

class Layout {
 public:
  /// Makes the layout of a scanned directory.  Throws Error: invalid if it would be larger than
  /// kLayoutBytesMax.
  static std::shared_ptr<const Layout> from_checkpoint(const Checkpoint& checkpoint);

  /// Parses the stored form.  Throws Error: corrupt, naming `what` (a key): malformed, hostile
  /// names, a file beside its own directory, more than kVersionFilesMax files or kVersionBytesMax
  /// bytes.
  static std::shared_ptr<const Layout> parse(std::string_view bytes, std::string_view what);

  /// The layout of files that are described already; their numbers of tensors do not matter.
  /// Throws Error: corrupt, naming `what`, as parse().
  static std::shared_ptr<const Layout> of_files(std::vector<LayoutFile> files,
                                                std::string_view what);

  /// The stored form, before compression; parse(serialize()) gives an equal layout.
  [[nodiscard]] std::string serialize() const;

  [[nodiscard]] const Sha256& id() const noexcept { return id_; }  // of serialize()
  [[nodiscard]] std::span<const LayoutFile> files() const noexcept { return files_; }
  [[nodiscard]] std::span<const LayoutTensor> tensors() const noexcept { return *tensors_; }
  [[nodiscard]] std::span<const LayoutTensor> tensors_of(const LayoutFile& file) const noexcept;
  /// Of the hashes of all chunks those of a file.
  [[nodiscard]] std::span<const std::uint64_t> hashes_of(
      const LayoutFile& file, std::span<const std::uint64_t> hashes) const noexcept;
  [[nodiscard]] std::uint64_t chunk_count() const noexcept { return chunk_count_; }
  [[nodiscard]] std::uint64_t element_count() const noexcept { return element_count_; }
  [[nodiscard]] std::uint64_t size_bytes() const noexcept { return size_bytes_; }  // of all files

  /// Index of one of files().
  [[nodiscard]] std::uint32_t number_of(const LayoutFile& file) const noexcept {
    return static_cast<std::uint32_t>(&file - files_.data());
  }

  /// nullptr if no file has this path.
  [[nodiscard]] const LayoutFile* find_file(std::string_view path) const noexcept;

  /// The table that tensors() is a view of.  Layouts may share one:
  /// store/repository/layout_cache.hpp.
  [[nodiscard]] std::shared_ptr<const TensorTable> tensor_table() const noexcept {
    return tensors_;
  }

  /// The same layout with another copy of its table.  Requires: it is equal to tensor_table().
  [[nodiscard]] std::shared_ptr<const Layout> with(std::shared_ptr<const TensorTable> table) const;

 private:
  Layout() = default;
  void add_file(LayoutFile file, const SafetensorsHeader& header, TensorTable& tensors);
  void add_tensor(LayoutTensor tensor, TensorTable& tensors);
  void set_tensors(TensorTable tensors);

  Sha256 id_{};
  std::vector<LayoutFile> files_;
  std::shared_ptr<const TensorTable> tensors_;  // set when all files were added
  std::uint64_t chunk_count_ = 0, element_count_ = 0, size_bytes_ = 0;
};

/// For every tensor of `newer`, the number of the tensor of `older` whose bytes it is coded
/// against, or nullopt: it is coded against zeros.
///
/// The counterpart has the same name and dtype; it lies in the file of the same path, or else is
/// the lowest-numbered one among the files of the same directory.  Its bytes are cut, or extended
/// with zeros, to the length of the newer tensor.  Encoder and decoder both use this function.
std::vector<std::optional<std::uint32_t>> counterparts(const Layout& newer, const Layout& older);

}  // namespace weightfs
