#include "store/catalog/catalog.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "store/base/error.hpp"

namespace weightfs {

namespace {

// Inode numbers have 24 bits for the entry.
constexpr std::size_t kEntriesMax = std::size_t{1} << 24;

struct Node {
  bool is_directory = false;
  std::uint64_t size_bytes = 0;
};
using Nodes = std::map<std::string, Node, std::less<>>;  // by path, bytewise

std::string_view parent_of(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? std::string_view() : path.substr(0, slash);
}

// Adds a file and its directories.  Manifest and layout were checked separately; together they may
// still name a path twice.
void add_file(Nodes& nodes, const std::string& path, std::uint64_t size_bytes) {
  bool fits = nodes.emplace(path, Node{false, size_bytes}).second;
  for (std::string_view parent = parent_of(path); !parent.empty(); parent = parent_of(parent)) {
    fits = fits && nodes.emplace(parent, Node{true, 0}).first->second.is_directory;
  }
  if (!fits) {
    throw Error(ErrorCode::corrupt,
                fmt::format("the path '{}' collides with another file or directory", path));
  }
}

Nodes collect_nodes(const Version& version, const Layout& layout) {
  Nodes nodes;
  for (const LayoutFile& file : layout.files()) add_file(nodes, file.path, file.size_bytes);
  for (const BlobRef& blob : version.manifest.blobs) add_file(nodes, blob.path, blob.size_bytes);
  if (nodes.size() >= kEntriesMax) {
    throw Error(ErrorCode::corrupt, fmt::format("it has {} files and directories, the limit is {}",
                                                nodes.size(), kEntriesMax - 1));
  }
  return nodes;
}

}  // namespace

const CatalogEntry* CatalogVersion::find(std::uint32_t parent,
                                         std::string_view name) const noexcept {
  if (parent >= entries.size() || name.empty() || name.find('/') != std::string_view::npos) {
    return nullptr;
  }
  const std::string& folder = entries[parent].path;
  // Compares with "folder/name" without building the string.
  const auto before = [&](const CatalogEntry& entry) {
    const std::string_view path = entry.path;
    if (folder.empty()) return path < name;
    const int order = path.substr(0, folder.size()).compare(folder);
    if (order != 0) return order < 0;
    const std::string_view slash = path.substr(folder.size()).substr(0, 1);
    return slash != "/" ? slash < "/" : path.substr(folder.size() + 1) < name;
  };
  const auto found = std::partition_point(entries.begin(), entries.end(), before);
  if (found == entries.end() || found->parent != parent || found == entries.begin()) return nullptr;
  const std::size_t skip = folder.empty() ? 0 : folder.size() + 1;
  return std::string_view(found->path).substr(skip) == name ? &*found : nullptr;
}

std::uint32_t CatalogVersion::number_of(const CatalogEntry& entry) const noexcept {
  return static_cast<std::uint32_t>(&entry - entries.data());
}

std::uint64_t CatalogVersion::size_bytes() const noexcept {
  std::uint64_t size = 0;
  for (const CatalogEntry& entry : entries) size += entry.size_bytes;
  return size;
}

std::uint64_t CatalogVersion::kept_bytes() const noexcept {
  std::uint64_t size = 0;
  for (const CatalogEntry& entry : entries) {
    if (!entry.is_remote) size += entry.size_bytes;
  }
  return size;
}

bool CatalogVersion::has_all_files() const noexcept {
  return std::none_of(entries.begin(), entries.end(),
                      [](const CatalogEntry& entry) { return entry.is_remote; });
}

std::shared_ptr<const CatalogVersion> Catalog::find(std::uint64_t version) const {
  if (const auto found = versions.find(version); found != versions.end()) return found->second;
  const auto found = incomplete.find(version);
  return found == incomplete.end() ? nullptr : found->second.version;
}

bool Catalog::has_images(std::uint64_t version) const {
  if (versions.contains(version)) return true;
  const auto found = incomplete.find(version);
  return found != incomplete.end() && found->second.state == ImageState::partial;
}

std::shared_ptr<const CatalogVersion> make_catalog_version(const Version& version,
                                                           const Layout& layout,
                                                           const std::filesystem::path& directory,
                                                           const FileSet& not_kept,
                                                           bool lacks_files) {
  auto made = std::make_shared<CatalogVersion>();
  made->number = version.number();
  made->time = version.manifest.time;
  made->tag = version.manifest.tag;
  made->directory = directory;
  made->lacks_files = lacks_files;
  made->entries.push_back({"", 0, true, 0, ImageState::complete});
  try {
    // A directory sorts before its contents, so the parent's number is always known.
    std::map<std::string, std::uint32_t, std::less<>> directories{{"", 0}};
    for (const auto& [path, node] : collect_nodes(version, layout)) {
      const auto number = static_cast<std::uint32_t>(made->entries.size());
      const std::uint32_t parent = directories.find(parent_of(path))->second;
      if (node.is_directory) directories.emplace(path, number);
      const LayoutFile* const file = layout.find_file(path);
      const bool is_remote = file != nullptr && contains(not_kept, layout.number_of(*file));
      made->entries.push_back({path, parent, node.is_directory, node.size_bytes,
                               is_remote ? ImageState::absent : ImageState::complete, is_remote});
    }
  } catch (const Error& error) {
    throw error.within(fmt::format("version {}", version.number()));
  }
  return made;
}

}  // namespace weightfs
