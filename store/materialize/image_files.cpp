#include "store/materialize/image_files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <set>
#include <string>

#include "store/base/bytes.hpp"
#include "store/base/log.hpp"
#include "store/local/image_times.hpp"
#include "store/os/file.hpp"

namespace weightfs {
namespace {

bool link_file(const std::filesystem::path& from, const std::filesystem::path& to) {
  return ::link(from.c_str(), to.c_str()) == 0;
}

/// Whether a weights file of the base looks unmodified since it was sealed, going by its
/// attributes.
bool is_as_sealed(const std::filesystem::path& path, std::uint64_t size_bytes) {
  struct stat attributes {};
  if (::lstat(path.c_str(), &attributes) != 0 || !S_ISREG(attributes.st_mode)) return false;
  return static_cast<std::uint64_t>(attributes.st_size) == size_bytes && is_sealed(attributes);
}

/// The tensor of the start that has the same bytes; nullopt if a step changed any chunk.
std::optional<std::uint32_t> untouched_from(const Plan& plan, std::uint32_t number) {
  for (std::size_t i = plan.steps.size(); i > 0; i--) {
    const Step& step = plan.steps[i - 1];
    const LayoutTensor& tensor = step.layout->tensors()[number];
    const auto first = step.listed.begin() + static_cast<std::ptrdiff_t>(tensor.first_chunk);
    const bool listed = std::any_of(first, first + tensor.chunk_count,
                                    [](PackEntry place) { return static_cast<bool>(place); });
    if (listed || !step.counterparts[number]) return std::nullopt;
    number = *step.counterparts[number];
  }
  return number;
}

/// Whether the patches that lead to the base's version change the tensor.
bool is_patched(const Base& base, const LayoutTensor& tensor) {
  if (!base.patched) return false;
  const auto first =
      base.patched->changed.begin() + static_cast<std::ptrdiff_t>(tensor.first_chunk);
  return std::find(first, first + tensor.chunk_count, true) != first + tensor.chunk_count;
}

/// The base's file with the same bytes; nullptr if there is none, or if finding it is not simple.
const LayoutFile* equal_file_of_base(const Plan& plan, const LayoutFile& file) {
  if (!plan.base || file.tensor_count == 0) return nullptr;
  const Layout& base = plan.base->images_layout();
  const LayoutFile* old = nullptr;
  for (std::uint32_t i = 0; i < file.tensor_count; i++) {
    const std::uint32_t number = file.first_tensor + i;
    const auto origin = untouched_from(plan, number);
    if (!origin) return nullptr;
    const LayoutTensor& now = plan.layout->tensors()[number];
    const LayoutTensor& then = base.tensors()[*origin];
    if (is_patched(*plan.base, then)) return nullptr;
    const LayoutFile& its_file = base.files()[then.file];
    if (old != nullptr && old != &its_file) return nullptr;
    old = &its_file;
    if (then.offset_bytes != now.offset_bytes || then.size_bytes != now.size_bytes) return nullptr;
  }
  const bool same = old->size_bytes == file.size_bytes && old->head == file.head;
  return same && !contains(plan.base->absent, base.number_of(*old)) ? old : nullptr;
}

const BlobRef* equal_blob_of_base(const Plan& plan, const BlobRef& blob) {
  if (!plan.base) return nullptr;
  for (const BlobRef& old : plan.base->images().manifest.blobs) {
    if (old.path == blob.path && old.sha256 == blob.sha256) return &old;
  }
  return nullptr;
}

/// nullopt if it does not exist, is not a regular file of this size, or cannot be read.
std::optional<Bytes> read_small_file(const std::filesystem::path& path, std::uint64_t size_bytes) {
  const File file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat attributes {};
  if (!file || ::fstat(file.fd(), &attributes) != 0 || !S_ISREG(attributes.st_mode)) {
    return std::nullopt;
  }
  if (static_cast<std::uint64_t>(attributes.st_size) != size_bytes) return std::nullopt;
  Bytes bytes(static_cast<std::size_t>(size_bytes));
  try {
    if (!read_at(file.fd(), 0, bytes, path)) return std::nullopt;
  } catch (const Error&) {
    return std::nullopt;  // the disk cannot read it
  }
  return bytes;
}

/// Of the base's images, or kept by the store; nullopt if neither has the bytes.
std::optional<Bytes> read_equal_blob(const Plan& plan, const BlobRef& blob) {
  const auto read = [&](const std::filesystem::path& path) {
    auto bytes = read_small_file(path, blob.size_bytes);
    if (bytes && sha256(*bytes) != blob.sha256) bytes.reset();
    return bytes;
  };
  if (const BlobRef* old = equal_blob_of_base(plan, blob)) {
    if (auto bytes = read(plan.base->directory / old->path)) return bytes;
  }
  if (!plan.base || !plan.base->patched || !plan.base->patched->small_files) return std::nullopt;
  return read(plan.base->patched->small_files->path_of(blob.sha256));
}

bool is_one_file_system(const std::filesystem::path& one, const std::filesystem::path& other) {
  struct stat first {};
  struct stat second {};
  return ::stat(one.c_str(), &first) == 0 && ::stat(other.c_str(), &second) == 0 &&
         first.st_dev == second.st_dev;
}

}  // namespace

std::vector<std::filesystem::path> make_image_directories(const Plan& plan,
                                                          const std::filesystem::path& root,
                                                          const FileSet& files) {
  std::set<std::filesystem::path> made{root};
  const auto make_directory_of = [&](const std::string& path) {
    for (auto slash = path.find('/'); slash != path.npos; slash = path.find('/', slash + 1)) {
      const std::filesystem::path directory = root / path.substr(0, slash);
      if (!made.insert(directory).second) continue;
      if (::mkdir(directory.c_str(), 0755) != 0) {
        throw_errno(errno, "make the directory " + directory.string());
      }
    }
  };
  for (std::uint32_t i = 0; i < plan.layout->files().size(); i++) {
    if (files.empty() || contains(files, i)) make_directory_of(plan.layout->files()[i].path);
  }
  for (const BlobRef& blob : plan.version->manifest.blobs) make_directory_of(blob.path);
  return {made.begin(), made.end()};
}

std::uint64_t linked_bytes(const Plan& plan, const std::filesystem::path& into) {
  std::uint64_t bytes = 0;
  if (plan.base && !is_one_file_system(plan.base->directory, into)) return 0;
  for (std::uint32_t i = 0; i < plan.layout->files().size(); i++) {
    const LayoutFile& file = plan.layout->files()[i];
    if (!contains(plan.without, i) && equal_file_of_base(plan, file)) bytes += file.size_bytes;
  }
  for (const BlobRef& blob : plan.version->manifest.blobs) {
    if (equal_blob_of_base(plan, blob)) bytes += blob.size_bytes;
  }
  return bytes;
}

bool link_equal_file(const Plan& plan, const LayoutFile& file, const std::filesystem::path& path) {
  const LayoutFile* old = equal_file_of_base(plan, file);
  if (old == nullptr) return false;
  const std::filesystem::path from = plan.base->directory / old->path;
  return is_as_sealed(from, file.size_bytes) && link_file(from, path);
}

bool link_equal_blob(const Plan& plan, const BlobRef& blob, const std::filesystem::path& path) {
  const BlobRef* old = equal_blob_of_base(plan, blob);
  if (old == nullptr) return false;
  const std::filesystem::path from = plan.base->directory / old->path;
  if (!is_as_sealed(from, blob.size_bytes)) return false;  // or one that the disk did not take
  const std::optional<Sha256> found = hash_of_small_file(from, blob.size_bytes);
  if (found == blob.sha256) return link_file(from, path);
  if (found) {
    log_warning(fmt::format(
        "{}, a file of version {}, no longer has its original SHA-256; version {} fetches it "
        "from the bucket",
        from.string(), plan.base->images().number(), plan.version->number()));
  }
  return false;
}

bool copy_equal_blob(const Plan& plan, const BlobRef& blob, int fd,
                     const std::filesystem::path& path) {
  const auto bytes = read_equal_blob(plan, blob);
  if (!bytes) return false;
  write_at(fd, 0, *bytes, path);
  return true;
}

bool has_equal_blobs(const Plan& plan) {
  const auto& blobs = plan.version->manifest.blobs;
  return std::all_of(blobs.begin(), blobs.end(),
                     [&](const BlobRef& blob) { return read_equal_blob(plan, blob).has_value(); });
}

std::optional<Sha256> hash_of_small_file(const std::filesystem::path& path,
                                         std::uint64_t size_bytes) {
  const auto bytes = read_small_file(path, size_bytes);
  if (!bytes) return std::nullopt;
  return sha256(*bytes);
}

void reserve_image(int fd, std::uint64_t size_bytes, const std::filesystem::path& path) {
  const auto size = static_cast<off_t>(size_bytes);
  if (size == 0) return;
  int failed = 0;
  do {
    failed = ::fallocate(fd, 0, 0, size);
  } while (failed != 0 && errno == EINTR);
  if (failed == 0) return;
  if (errno != EOPNOTSUPP) throw_errno(errno, "reserve room for " + path.string());
  if (::ftruncate(fd, size) != 0) throw_errno(errno, "set the size of " + path.string());
}

void write_blob(Repository& repository, const BlobRef& blob, int fd,
                const std::filesystem::path& path, const Context& context, BuildMeter* meter) {
  const Clock::time_point begin = Clock::now();
  const std::string bytes = repository.get_blob(blob, context);
  if (meter != nullptr) meter->add_fetch(begin, bytes.size());
  const Clock::time_point fetched = Clock::now();
  write_at(fd, 0, as_bytes(bytes), path);
  if (meter != nullptr) meter->add_written(Clock::now() - fetched, bytes.size());
}

void seal_image(int fd, const std::filesystem::path& path, const ImageSeal& seal) {
  if (::fchmod(fd, seal.mode) != 0) throw_errno(errno, "set the mode of " + path.string());
  const timespec times[2] = {{seal.time, 0}, {seal.time, 0}};
  if (::futimens(fd, times) != 0) throw_errno(errno, "set the time of " + path.string());
  if (seal.sync) fsync_file(fd, path);
}

}  // namespace weightfs
