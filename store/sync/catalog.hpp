// Catalog: what a mount shows, at one moment.  The sync makes a new one whenever something changes;
// readers hold the one they started with.
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

/// How much of an image is here.
enum class ImageState { absent, partial, complete };

/// One file or directory of a version.  Entry 0 is the version's own directory; the others follow
/// by path, bytewise, so the numbers follow from the version alone and never change.
struct CatalogEntry {
  std::string path;          // "" for entry 0; "sub/x.json"
  std::uint32_t parent = 0;  // entry of the directory that holds it
  bool is_directory = false;
  std::uint64_t size_bytes = 0;
  ImageState image = ImageState::complete;
  /// This host does not keep the file (store/materialize/file_filter.hpp): its image is absent, and
  /// no one makes it; its bytes come from store/materialize/remote_files.hpp.
  bool is_rest = false;
};

struct CatalogVersion {
  std::uint64_t number = 0;
  std::int64_t time = 0;  // mtime of everything in it
  std::string tag;
  std::filesystem::path directory;  // of its images
  bool is_lacking = false;          // files that this host keeps are still to be added to it
  std::vector<CatalogEntry> entries;

  /// Entry of `name` in the directory `parent`; nullptr if there is none.
  [[nodiscard]] const CatalogEntry* find(std::uint32_t parent,
                                         std::string_view name) const noexcept;
  [[nodiscard]] std::uint32_t number_of(const CatalogEntry& entry) const noexcept;
  [[nodiscard]] std::uint64_t size_bytes() const noexcept;  // of its files
  [[nodiscard]] std::uint64_t kept_bytes() const noexcept;  // of those that this host keeps
  [[nodiscard]] bool has_all_files() const noexcept;        // it keeps all
};

/// A version whose images are not complete: its files are served by the daemon.
struct IncompleteVersion {
  std::shared_ptr<const CatalogVersion> version;
  /// partial: it is being filled (store/streaming/partial_images.hpp), and listed.  absent:
  /// somebody named it, and nothing is fetched before he opens a file.
  ImageState state = ImageState::absent;
};

struct Catalog {
  /// 0: none yet.  In `versions`, but on a host that has not had a complete one yet: then it is one
  /// that is being filled.
  std::uint64_t latest = 0;
  std::map<std::uint64_t, std::shared_ptr<const CatalogVersion>> versions;  // complete ones
  std::map<std::uint64_t, IncompleteVersion> incomplete;                    // none of `versions`
  std::map<std::string, std::uint64_t>
      tags;                          // every tag of the repository -> newest that carries it
  std::int64_t repository_time = 0;  // mtime of the fixed directories: newest version's time

  /// Complete or not; nullptr if it is neither here nor was named.
  [[nodiscard]] std::shared_ptr<const CatalogVersion> find(std::uint64_t version) const;

  /// Complete or partial: its images are here, or come by themselves.
  [[nodiscard]] bool has_images(std::uint64_t version) const;
};

/// The entries of a version from its manifest and layout.  `rest`: files of the layout that are
/// not kept here.
std::shared_ptr<const CatalogVersion> make_catalog_version(const Version& version,
                                                           const Layout& layout,
                                                           const std::filesystem::path& directory,
                                                           const FileSet& rest = {},
                                                           bool is_lacking = false);

}  // namespace weightfs
