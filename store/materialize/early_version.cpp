#include "store/materialize/early_version.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <set>
#include <span>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/base/log.hpp"
#include "store/materialize/bases.hpp"
#include "store/materialize/write_version.hpp"
#include "store/os/file.hpp"
#include "store/patches/tensor_table_id.hpp"

namespace weightfs {
namespace {

bool is_same(const PackRef& a, const PackRef& b) {
  return a.name == b.name && a.size_bytes == b.size_bytes && a.head_bytes == b.head_bytes &&
         a.head_sha256 == b.head_sha256;
}

/// The chunks of a file, among those of the version.
std::span<const std::uint64_t> hashes_of(const LayoutFile& file, const Layout& layout,
                                         std::span<const std::uint64_t> hashes) {
  if (file.tensor_count == 0) return {};
  const auto tensors = layout.tensors_of(file);
  const std::uint64_t first = tensors.front().first_chunk;
  return hashes.subspan(first, tensors.back().first_chunk + tensors.back().chunk_count - first);
}

class EarlyMaker {
 public:
  EarlyMaker(Store& store, History& history, const EarlyRecord& record,
             const kernels::SharedCoder& coder, const Context& context)
      : store_(store), history_(history), record_(record), coder_(coder), context_(context) {}

  std::uint64_t run() {
    const std::uint64_t parent = record_.version - 1;
    if (!store_.images().has_all_files(parent)) return 0;
    if (!store_.wanted_deltas().of({parent, record_.version}).empty()) return 0;
    const Base base = base_of(store_, history_, parent, context_);
    if (base.version->manifest_sha256 != record_.parent_sha256) return 0;
    const ImagesHome home = store_.images().home_of_next();
    auto pass = store_.early_images().begin(record_.version, record_.parent_sha256, home,
                                            store_.images().temporary_of(home));
    if (!pass) return 0;
    const std::vector<EarlyRecord::File> files = files_to_make(base, pass->set());
    if (files.empty() || !has_room(base, pass->set(), home)) return 0;
    const auto reserved = reserve_base(store_, base, Eviction::Claim::stays, context_);
    if (!reserved) return 0;
    return make(base, files, *pass);
  }

 private:
  /// What changed, and is not here made by the same packs.
  [[nodiscard]] std::vector<EarlyRecord::File> files_to_make(const Base& base,
                                                             const EarlySet& set) const {
    std::vector<EarlyRecord::File> files;
    for (const EarlyRecord::File& file : record_.files) {
      const LayoutFile* const known = base.layout->find_file(file.path);
      if (known == nullptr || known->tensor_count == 0 || file.delta.packs.empty()) continue;
      const auto made = set.files.find(file.path);
      const bool is_here = made != set.files.end() &&
                           std::ranges::equal(made->second.packs, file.delta.packs, is_same);
      if (!is_here) files.push_back(file);
    }
    return files;
  }

  /// For the whole version, since that follows.
  [[nodiscard]] bool has_room(const Base& base, const EarlySet& set, ImagesHome home) const {
    const std::uint64_t bytes = base.layout->size_bytes();
    if (home == ImagesHome::disk) {
      return store_.evictor().has_room_for_images(bytes, set.size_bytes());
    }
    store_.evictor().evict_for_memory(bytes, bytes, set.size_bytes());
    return true;
  }

  std::uint64_t make(const Base& base, std::span<const EarlyRecord::File> files,
                     EarlyImages::Pass& pass) {
    const Plan plan = make_early_plan(history_, base, files, context_);
    std::uint64_t bytes = 0;
    for (const EarlyRecord::File& file : files)
      bytes += base.layout->find_file(file.path)->size_bytes;
    WriteOptions options;
    options.directory = pass.directory();
    options.spool = store_.temporary_directory();
    options.all_packs = true;
    options.sync = false;
    options.mode = 0600;  // its header may be written over
    options.coder = coder_;
    const auto fresh = coder_->writes_logs() ? store_.fresh_patches().begin(bytes)
                                             : std::shared_ptr<FreshChunks>();
    options.noted.fresh = fresh.get();
    write_version(plan, history_.repository(), options, context_, {});
    for (const EarlyRecord::File& file : files) {
      const LayoutFile& its = *base.layout->find_file(file.path);
      const auto hashes = hashes_of(its, *plan.layout, plan.hashes);
      pass.add(file.path, {options.directory / file.path,
                           its.size_bytes,
                           its.head,
                           file.delta.packs,
                           {hashes.begin(), hashes.end()},
                           fresh});
    }
    return bytes;
  }

  Store& store_;
  History& history_;
  const EarlyRecord& record_;
  const kernels::SharedCoder& coder_;
  const Context& context_;
};

}  // namespace

std::uint64_t make_early(Store& store, History& history, const EarlyRecord& record,
                         const kernels::SharedCoder& coder, const Context& context) {
  return EarlyMaker(store, history, record, coder, context).run();
}

// ---- what a version takes ----

EarlyVersion::EarlyVersion(const Plan& plan, std::unique_ptr<EarlySet> set)
    : plan_(plan), set_(std::move(set)) {
  fitting_.assign(plan.layout->files().size(), false);
  if (!set_ || !is_of_plan()) return;
  for (const auto& [path, image] : set_->files) {
    const LayoutFile* const file = plan.layout->find_file(path);
    if (file == nullptr || !fits(*file, image)) continue;
    fitting_[plan.layout->number_of(*file)] = true;
    size_bytes_ += file->size_bytes;
  }
}

/// Whether the plan is the parent's images and the version's own delta.
bool EarlyVersion::is_of_plan() const {
  return plan_.base && !plan_.base->patched && plan_.without.empty() && plan_.steps.size() == 1 &&
         !plan_.steps.front().skip && plan_.version->number() == set_->version &&
         plan_.base->version->manifest_sha256 == set_->parent_sha256 &&
         tensor_table_id(*plan_.layout) == tensor_table_id(*plan_.base->layout);
}

/// The packs of the file are those that it was made by, no more and no fewer, and its chunks have
/// the hashes that follow from the manifest.
bool EarlyVersion::fits(const LayoutFile& file, const EarlyImage& image) const {
  if (file.head.size() != image.head.size() || file.size_bytes != image.size_bytes) return false;
  if (!std::ranges::equal(hashes_of(file, *plan_.layout, plan_.hashes), image.hashes)) return false;
  const Step& step = plan_.steps.front();
  std::set<std::uint32_t> packs;  // of the manifest, that have chunks of the file
  for (const LayoutTensor& tensor : plan_.layout->tensors_of(file)) {
    for (std::uint32_t i = 0; i < tensor.chunk_count; i++) {
      const PackEntry place = step.listed[tensor.first_chunk + i];
      if (place) packs.insert(place.pack);
    }
  }
  if (packs.size() != image.packs.size()) return false;
  return std::ranges::all_of(packs, [&](std::uint32_t pack) {
    return std::ranges::any_of(
        image.packs, [&](const PackRef& used) { return is_same(used, step.delta().packs[pack]); });
  });
}

bool EarlyVersion::place(const LayoutFile& file, const std::filesystem::path& path,
                         const ImageSeal& seal) const {
  if (!contains(fitting_, plan_.layout->number_of(file))) return false;
  const EarlyImage& image = set_->files.at(file.path);
  const File made = File::open(image.file, O_WRONLY);
  if (image.head != file.head) {
    write_at(made.fd(), 0, as_bytes(file.head), image.file);
  }
  seal_image(made.fd(), image.file, seal);
  if (std::rename(image.file.c_str(), path.c_str()) != 0) {
    throw_errno(errno, fmt::format("rename {} to {}", image.file.string(), path.string()));
  }
  return true;
}

std::optional<std::vector<FreshPart>> EarlyVersion::noted() const {
  std::vector<FreshPart> parts;
  if (!set_ || size_bytes_ == 0) return parts;
  std::set<FreshChunks*> known;
  for (const auto& [path, image] : set_->files) {
    const LayoutFile* const file = plan_.layout->find_file(path);
    const bool is_taken = file != nullptr && contains(fitting_, plan_.layout->number_of(*file));
    if (!is_taken || !image.fresh) return std::nullopt;
    if (known.insert(image.fresh.get()).second) parts.push_back({image.fresh, 0});
  }
  return parts;
}

}  // namespace weightfs
