#include "store/materialize/early_version.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/base/log.hpp"
#include "store/os/file.hpp"
#include "store/patches/tensor_table_id.hpp"

namespace weightfs {

EarlyVersion::EarlyVersion(const Plan& plan, std::unique_ptr<EarlySet> set)
    : plan_(plan), set_(std::move(set)) {
  fitting_.assign(plan.layout->files().size(), false);
  if (!set_ || !is_of_plan()) return;
  for (const auto& [path, image] : set_->files) {
    const LayoutFile* const file = plan.layout->find_file(path);
    if (file == nullptr || !fits(*file, image)) continue;
    fitting_[plan.layout->number_of(*file)] = true;
    size_bytes_ += file->size_bytes;
    made_bytes_ += image.made_bytes;
  }
}

/// Whether the plan is the parent's images and the version's own delta.
bool EarlyVersion::is_of_plan() const {
  return plan_.base && !plan_.base->patched && plan_.without.empty() && plan_.steps.size() == 1 &&
         !plan_.steps.front().skip && plan_.version->number() == set_->version &&
         plan_.base->version->manifest_sha256 == set_->parent_sha256 &&
         tensor_table_id(*plan_.layout) == tensor_table_id(*plan_.base->layout);
}

/// For what is made of it: the packs are those that it was made by, no more and no fewer, and its
/// chunks have the hashes that follow from the manifest.
bool EarlyVersion::fits(const LayoutFile& file, const EarlyImage& image) const {
  if (file.head.size() != image.head.size() || file.size_bytes != image.size_bytes) return false;
  const auto hashes = plan_.layout->hashes_of(file, plan_.hashes);
  if (hashes.empty() || hashes.size() != image.hashes.size()) return false;
  const Step& step = plan_.steps.front();
  const std::span<const PackRef> listed = step.delta().packs;
  const std::uint64_t first = plan_.layout->tensors_of(file).front().first_chunk;
  std::set<std::uint32_t> packs, packs_of_made;  // of the manifest, that have chunks of the file
  for (const LayoutTensor& tensor : plan_.layout->tensors_of(file)) {
    for (std::uint32_t i = 0; i < tensor.chunk_count; i++) {
      const std::uint64_t chunk = tensor.first_chunk + i;
      const PackEntry place = step.listed[chunk];
      if (place) packs.insert(place.pack);
      if (tensor.offset_bytes + tensor.chunk_offset_bytes(i) >= image.made_bytes) continue;
      if (place) packs_of_made.insert(place.pack);
      if (plan_.hashes[chunk] != image.hashes[chunk - first]) return false;
    }
  }
  const auto is_used = [&](std::uint32_t pack) {
    return std::ranges::find(image.packs, listed[pack]) != image.packs.end();
  };
  const auto used = static_cast<std::size_t>(std::ranges::count_if(packs, is_used));
  return used == image.packs.size() && std::ranges::all_of(packs_of_made, is_used);
}

bool EarlyVersion::is_fitting(const std::string& path) const {
  const LayoutFile* const file = plan_.layout->find_file(path);
  return file != nullptr && contains(fitting_, plan_.layout->number_of(*file));
}

/// Also what a pass has left that was stopped for this version.
void EarlyVersion::remove_rest() {
  if (!set_) return;
  std::set<std::filesystem::path> kept, rest;
  for (const auto& [path, image] : set_->files) {
    if (is_fitting(path)) kept.insert(image.file);
  }
  for (const auto& entry : std::filesystem::recursive_directory_iterator(set_->directory.path())) {
    if (entry.is_regular_file() && !kept.contains(entry.path())) rest.insert(entry.path());
  }
  for (const auto& path : rest) std::filesystem::remove(path);
}

std::optional<BegunFiles::Rest> EarlyVersion::rest_of(const LayoutFile& file,
                                                      const std::filesystem::path& path,
                                                      const ImageSeal& seal) const {
  if (!contains(fitting_, plan_.layout->number_of(file))) return std::nullopt;
  const EarlyImage& image = set_->files.at(file.path);
  {
    const File made = File::open(image.file, O_WRONLY);
    if (image.head != file.head) {
      write_at(made.fd(), 0, as_bytes(file.head), image.file);
    }
    if (image.made_bytes == image.size_bytes) seal_image(made.fd(), image.file, seal);
  }
  if (std::rename(image.file.c_str(), path.c_str()) != 0) {
    throw_errno(errno, fmt::format("rename {} to {}", image.file.string(), path.string()));
  }
  return Rest{path, image.made_bytes, image.size_bytes};
}

std::optional<std::vector<FreshPart>> EarlyVersion::noted() const {
  if (!set_) return std::vector<FreshPart>{};
  std::map<std::shared_ptr<FreshChunks>, bool> is_taken;  // by pass: its files, if they are one
  for (const auto& [path, image] : set_->files) {
    const bool fits = is_fitting(path);
    for (const std::shared_ptr<FreshChunks>& fresh : image.fresh) {
      if (!fresh && fits) return std::nullopt;
      const auto [pass, is_first] = is_taken.try_emplace(fresh, fits);
      if (!is_first && pass->second != fits && fresh) return std::nullopt;
    }
  }
  std::vector<FreshPart> parts;
  for (const auto& [fresh, is_in] : is_taken) {
    if (is_in) parts.push_back({fresh, 0});
  }
  return parts;
}

}  // namespace weightfs
