#include "store/streaming/filled_files.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <utility>

#include "store/format/version_images.hpp"
#include "store/materialize/image_files.hpp"
#include "store/os/file.hpp"

namespace weightfs {
namespace {

void add_filled(std::vector<FilledFile>& files, FilledFile file, bool is_linked) {
  file.first_window = files.empty() ? 0 : files.back().first_window + files.back().window_count;
  if (is_linked) {
    file.window_count = 0;
    file.is_here = true;
  } else {
    const File made = File::open(file.path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    reserve_image(made.fd(), file.size_bytes, file.path);
    file.windows_left = file.window_count;
  }
  files.push_back(std::move(file));
}

}  // namespace

void check_base_files(const Plan& plan) {
  if (!plan.base) return;
  const Base& base = *plan.base;
  const auto its_files = files_of(base.images().manifest, base.images_layout());
  for (const auto& file : its_files) {
    if (std::filesystem::exists(base.directory / file.path)) return;
  }
  if (its_files.empty()) return;
  const std::uint64_t number = base.images().number();
  throw BaseDamaged(number, fmt::format("the images of version {} are damaged: no file of it is in "
                                        "{}",
                                        number, base.directory.string()));
}

std::vector<FilledFile> make_filled_files(const Plan& plan, const std::filesystem::path& directory,
                                          const FileSet& only, const Context& context) {
  std::vector<FilledFile> files;
  for (const BlobRef& blob : plan.version->manifest.blobs) {
    context.check("making files");
    FilledFile file{.blob = &blob,
                    .path = directory / blob.path,
                    .size_bytes = blob.size_bytes,
                    .window_count = 1};
    const bool is_linked = link_equal_blob(plan, blob, file.path);
    add_filled(files, std::move(file), is_linked);
  }
  for (std::uint32_t i = 0; i < plan.layout->files().size(); i++) {
    const LayoutFile& weights = plan.layout->files()[i];
    if (!only.empty() && !contains(only, i)) continue;
    context.check("making files");
    FilledFile file{
        .weights = &weights, .path = directory / weights.path, .size_bytes = weights.size_bytes};
    const std::uint64_t windows = (file.size_bytes + kWindowBytes - 1) / kWindowBytes;
    file.window_count = static_cast<std::size_t>(std::max<std::uint64_t>(1, windows));
    const bool is_linked = link_equal_file(plan, weights, file.path);
    add_filled(files, std::move(file), is_linked);
  }
  return files;
}

}  // namespace weightfs
