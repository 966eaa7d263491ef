#include "store/format/version_images.hpp"

#include <map>
#include <utility>

namespace weightfs {

std::vector<VersionImages::File> files_of(const Manifest& manifest, const Layout& layout) {
  std::map<std::string, VersionImages::File> by_path;
  for (const LayoutFile& file : layout.files()) by_path[file.path] = {file.path, file.size_bytes};
  for (const BlobRef& blob : manifest.blobs) {
    by_path[blob.path] = {blob.path, blob.size_bytes, blob.sha256};
  }
  std::vector<VersionImages::File> files;
  for (auto& [path, file] : by_path) files.push_back(std::move(file));
  return files;
}

}  // namespace weightfs
