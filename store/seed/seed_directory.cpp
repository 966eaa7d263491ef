#include "store/seed/seed_directory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <system_error>
#include <utility>

#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/base/path_rules.hpp"
#include "store/format/checkpoint.hpp"
#include "store/format/safetensors.hpp"

namespace weightfs {
namespace {

namespace stdfs = std::filesystem;

constexpr int kSeedDepthMax = 16;
constexpr std::size_t kSeedTensorsMax = 4 * kSafetensorsTensorsMax;

std::string shown_seed(const stdfs::path& path) { return escape_name(path.native()); }

/// What tensors are matched by.
std::string key_of(std::string_view name, Dtype dtype, std::span<const std::uint64_t> shape) {
  std::string key = fmt::format("{}:", to_string(dtype));
  for (const std::uint64_t extent : shape) key += fmt::format("{},", extent);
  return key.append(":").append(name);
}

/// O_NONBLOCK: it may be a FIFO by now.
File open_seed_file(const stdfs::path& path) {
  File file = File::open(path, O_RDONLY | O_NONBLOCK);
  struct stat info {};
  if (::fstat(file.fd(), &info) != 0) throw_errno(errno, "read the size of " + shown_seed(path));
  if (!S_ISREG(info.st_mode)) {
    throw Error(ErrorCode::io, shown_seed(path) + " is not a regular file");
  }
  return file;
}

void check_seed_directory(const stdfs::path& directory) {
  std::error_code error;
  const stdfs::file_status status = stdfs::status(directory, error);
  if (status.type() == stdfs::file_type::directory) return;
  if (status.type() == stdfs::file_type::not_found) {
    throw Error(ErrorCode::not_found,
                fmt::format("there is no seed directory {}; give the directory of a checkpoint, or "
                            "leave out --seed",
                            shown_seed(directory)));
  }
  if (error) throw_errno(error.value(), "read the seed directory " + shown_seed(directory));
  throw Error(ErrorCode::invalid,
              fmt::format("the seed {} is not a directory; give the directory of a checkpoint, or "
                          "leave out --seed",
                          shown_seed(directory)));
}

/// The safetensors files below a directory, by path.  Directories below it that cannot be read are
/// left out.
class SeedFinder {
 public:
  explicit SeedFinder(const stdfs::path& directory) : directory_(directory) {}

  std::vector<stdfs::path> find() {
    if (const std::error_code error = look_into(directory_, 0)) {
      throw_errno(error.value(), "read the seed directory " + shown_seed(directory_));
    }
    std::sort(files_.begin(), files_.end());
    return std::move(files_);
  }

  /// What was left out last; empty: nothing was.
  [[nodiscard]] const std::string& problem() const noexcept { return problem_; }

 private:
  std::error_code look_into(const stdfs::path& directory, int depth) {
    std::error_code error;
    stdfs::directory_iterator entry(directory, error), end;
    for (; !error && entry != end; entry.increment(error)) take(*entry, depth);
    return error;
  }

  void take(const stdfs::directory_entry& entry, int depth) {
    const std::string name = entry.path().filename().native();
    if (name.front() == '.' || depth == kSeedDepthMax) return;
    std::error_code unreadable;
    if (entry.symlink_status(unreadable).type() == stdfs::file_type::directory) {
      const std::error_code error = look_into(entry.path(), depth + 1);
      if (error) leave_out(entry.path(), error);
    } else if (name.ends_with(".safetensors") && entry.is_regular_file(unreadable)) {
      add(entry.path());
    }
  }

  void leave_out(const stdfs::path& directory, const std::error_code& error) {
    problem_ = describe_errno(error.value(), "read the directory " + shown_seed(directory));
    log_warning(fmt::format("{}; nothing is taken from there for the seed", problem_));
  }

  void add(const stdfs::path& file) {
    files_.push_back(file);
    if (files_.size() <= kVersionFilesMax) return;
    throw Error(ErrorCode::invalid,
                fmt::format("the seed directory {} has more than {} safetensors files; give the "
                            "directory of one checkpoint",
                            shown_seed(directory_), kVersionFilesMax));
  }

  const stdfs::path& directory_;
  std::vector<stdfs::path> files_;
  std::string problem_;
};

}  // namespace

std::shared_ptr<const SeedDirectory> SeedDirectory::open(const stdfs::path& directory) {
  check_seed_directory(directory);
  std::vector<stdfs::path> files;
  Places places;
  std::size_t tensors = 0;
  std::set<std::pair<std::uint64_t, std::uint64_t>> seen;  // symlinks may lead to the same file
  SeedFinder finder(directory);
  const std::vector<stdfs::path> found = finder.find();
  std::string problem = finder.problem();
  for (const stdfs::path& path : found) {
    try {
      const File file = open_seed_file(path);
      const FileStamp stamp = stamp_of(file.fd());
      if (!seen.emplace(stamp.device, stamp.inode).second) continue;
      SafetensorsHeader header;
      const std::string head = read_safetensors_header(file.fd(), shown_seed(path), header);
      const auto number = static_cast<std::uint32_t>(files.size());
      for (const SafetensorsTensor& tensor : header.tensors) {
        auto& known = places[key_of(tensor.name, tensor.dtype, tensor.shape)];
        if (known.size() < kPlacesMax) known.push_back({number, head.size() + tensor.begin_bytes});
      }
      tensors += header.tensors.size();
      files.push_back(path);
    } catch (const Error& error) {
      problem = error.what();
      log_warning(fmt::format("{}; nothing is taken from this file of the seed", problem));
    }
    if (tensors > kSeedTensorsMax) {
      throw Error(ErrorCode::invalid,
                  fmt::format("the seed directory {} has more than {} tensors; give the directory "
                              "of one checkpoint",
                              shown_seed(directory), kSeedTensorsMax));
    }
  }
  if (files.empty()) {
    throw Error(
        ErrorCode::invalid,
        fmt::format("the seed directory {} has no safetensors file{}; give the directory of "
                    "a checkpoint, or leave out --seed",
                    shown_seed(directory),
                    problem.empty() ? "" : fmt::format(" that can be read ({})", problem)));
  }
  return std::shared_ptr<const SeedDirectory>(
      new SeedDirectory(directory, std::move(files), std::move(places), tensors));
}

SeedDirectory::SeedDirectory(stdfs::path path, std::vector<stdfs::path> files, Places places,
                             std::size_t tensors)
    : path_(std::move(path)),
      files_(std::move(files)),
      places_(std::move(places)),
      tensors_(tensors),
      told_(files_.size()) {}

std::span<const SeedDirectory::Place> SeedDirectory::find(const LayoutTensor& tensor) const {
  const auto found = places_.find(key_of(tensor.name, tensor.dtype, tensor.shape));
  if (found == places_.end()) return {};
  return found->second;
}

File SeedDirectory::open_file(std::uint32_t file) const { return open_seed_file(files_[file]); }

void SeedDirectory::complain(std::uint32_t file, const std::string& reason) const {
  if (told_[file].exchange(true)) return;
  log_warning(fmt::format(
      "the seed has changed: {}; fetching from the bucket what it does not have", reason));
}

SeedState SeedDirectory::state() const { return {path_, files_.size(), tensors_, taken_bytes_}; }

}  // namespace weightfs
