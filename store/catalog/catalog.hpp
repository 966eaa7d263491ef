// Catalog: what a mount shows at one moment.  The sync makes a new one whenever something changes;
// readers keep the one they started with.
//
// Threads: immutable, shared freely.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "store/format/chunk_batches.hpp"
#include "store/format/layout.hpp"
#include "store/repository/repository.hpp"

namespace weightfs {

/// How much of an image is on this host.
enum class ImageState { absent, partial, complete };

/// One file or directory of a version.  Entry 0 is the version's own directory; the others are
/// sorted bytewise by path, so the numbers follow from the version alone and never change.
struct CatalogEntry {
  std::string path;          // "" for entry 0; "sub/x.json"
  std::uint32_t parent = 0;  // entry of the containing directory
  bool is_directory = false;
  std::uint64_t size_bytes = 0;
  ImageState image = ImageState::complete;
  /// This host does not keep the file (store/materialize/file_filter.hpp): its image is absent and
  /// stays so; reads are served by store/streaming/remote_files.hpp.
  bool is_remote = false;
};

struct CatalogVersion {
  std::uint64_t number = 0;
  std::int64_t time = 0;  // mtime of all its entries
  std::string tag;
  std::filesystem::path directory;  // of its images
  bool lacks_files = false;         // files that this host keeps are still missing
  std::vector<CatalogEntry> entries;

  /// Entry of `name` in the directory `parent`; nullptr if there is none.
  [[nodiscard]] const CatalogEntry* find(std::uint32_t parent,
                                         std::string_view name) const noexcept;
  [[nodiscard]] std::uint32_t number_of(const CatalogEntry& entry) const noexcept;
  [[nodiscard]] std::uint64_t size_bytes() const noexcept;  // of its files
  [[nodiscard]] std::uint64_t kept_bytes() const noexcept;  // of the files that this host keeps
  [[nodiscard]] bool has_all_files() const noexcept;        // this host keeps all files
};

/// A version whose images are not complete, so the daemon serves its files.
struct IncompleteVersion {
  std::shared_ptr<const CatalogVersion> version;
  /// partial: listed, and being filled (store/streaming/partial_images.hpp).  absent: named, but
  /// nothing is fetched until a file is opened.
  ImageState state = ImageState::absent;
};

struct Catalog {
  /// 0: none yet.  Is in `versions`, except on a host that has not had a complete version yet:
  /// there it is the version being filled.
  std::uint64_t latest = 0;
  std::map<std::uint64_t, std::shared_ptr<const CatalogVersion>> versions;  // complete ones
  std::map<std::uint64_t, IncompleteVersion> incomplete;  // disjoint from `versions`
  std::map<std::string, std::uint64_t>
      tags;  // every tag of the repository -> newest version that carries it
  std::int64_t repository_time = 0;  // mtime of the fixed directories: newest version's time

  /// Complete or not; nullptr if it is neither here nor named.
  [[nodiscard]] std::shared_ptr<const CatalogVersion> find(std::uint64_t version) const;

  /// Complete or partial: its images are here or are being filled.
  [[nodiscard]] bool has_images(std::uint64_t version) const;
};

/// Builds the entries of a version from its manifest and layout.  `not_kept`: files of the layout
/// that are not kept here.
std::shared_ptr<const CatalogVersion> make_catalog_version(const Version& version,
                                                           const Layout& layout,
                                                           const std::filesystem::path& directory,
                                                           const FileSet& not_kept = {},
                                                           bool lacks_files = false);

}  // namespace weightfs
