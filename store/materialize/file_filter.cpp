#include "store/materialize/file_filter.hpp"

#include <algorithm>

#include "store/base/path_rules.hpp"
#include "store/format/version_images.hpp"

namespace weightfs {

FileSet left_out(const Layout& layout, std::span<const std::string> only) {
  if (only.empty()) return {};
  FileSet files(layout.files().size());
  for (std::size_t i = 0; i < files.size(); i++) {
    files[i] = !matches_glob(layout.files()[i].path, only);
  }
  return files;
}

FileSet all_but(const Layout& layout, const FileSet& without) {
  if (without.empty()) return {};
  FileSet files(layout.files().size());
  for (std::uint32_t i = 0; i < files.size(); i++) files[i] = !contains(without, i);
  return files;
}

bool is_enough(const FileSet& absent, const FileSet& left_out) noexcept {
  for (std::uint32_t i = 0; i < absent.size(); i++) {
    if (absent[i] && !contains(left_out, i)) return false;
  }
  return true;
}

std::uint64_t bytes_of(const Layout& layout, const FileSet& files) noexcept {
  std::uint64_t bytes = 0;
  for (std::uint32_t i = 0; i < layout.files().size(); i++) {
    if (contains(files, i)) bytes += layout.files()[i].size_bytes;
  }
  return bytes;
}

std::vector<bool> by_path(const Manifest& manifest, const Layout& layout, const FileSet& files) {
  std::vector<bool> result;
  for (const auto& shown : files_of(manifest, layout)) {
    const LayoutFile* const file = layout.find_file(shown.path);
    result.push_back(file != nullptr && contains(files, layout.number_of(*file)));
  }
  return result;
}

FileSet absent_files(const Store& store, const Version& version, const Layout& layout) {
  const std::vector<bool> absent = store.images().absent_files(version.number());
  if (absent.empty()) return {};
  FileSet files(layout.files().size());
  std::size_t i = 0;
  for (const auto& shown : files_of(version.manifest, layout)) {
    const LayoutFile* const file = layout.find_file(shown.path);
    if (file != nullptr && i < absent.size()) files[layout.number_of(*file)] = absent[i];
    i++;
  }
  return files;
}

bool has_kept_files(const Store& store, History& history, std::uint64_t version,
                    std::span<const std::string> only, const Context& context) {
  if (!store.images().is_complete(version)) return false;
  if (store.images().has_all_files(version)) return true;
  const auto described = history.get(version, context);
  const auto layout = history.layout(*described, context);
  return is_enough(absent_files(store, *described, *layout), left_out(*layout, only));
}

}  // namespace weightfs
