#include "store/format/checkpoint.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fnmatch.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <set>
#include <span>
#include <string_view>
#include <system_error>

#include "store/base/error.hpp"
#include "store/base/path_rules.hpp"
#include "store/format/rank_pieces.hpp"
#include "store/format/shard_index.hpp"
#include "store/os/file.hpp"

namespace weightfs {
namespace {

namespace stdfs = std::filesystem;

/// Excludes code, and pickles, which run code when they are loaded.
constexpr std::array kPublishedPatterns{
    "*.safetensors", "*.json",  "*.jsonl", "*.txt",      "*.model",  "*.jinja", "*.md",
    "*.tiktoken",    "*.vocab", "*.spm",   "tokenizer*", "LICENSE*", "NOTICE*"};
/// Files that "tokenizer*" would also match.
constexpr std::array kUnpublishedPatterns{"*.py",  "*.pyc",    "*.bin",  "*.pt", "*.pth",
                                          "*.pkl", "*.pickle", "*.ckpt", "*.so"};

constexpr std::size_t kDirectoryDepthMax = 16;

/// An index names every tensor once more, so it may be as large as a header.
constexpr std::uint64_t kIndexFileBytesMax = kSafetensorsHeaderBytesMax;

[[noreturn]] void fail(ErrorCode code, const std::string& message) { throw Error(code, message); }

std::string shown(const stdfs::path& path) { return escape_name(path.native()); }

std::string_view base_name_of(std::string_view path) { return path.substr(path.rfind('/') + 1); }

template <typename Patterns>
bool matches_any(const Patterns& patterns, const std::string& base) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const char* pattern) { return ::fnmatch(pattern, base.c_str(), 0) == 0; });
}

class Scanner {
 public:
  Scanner(Checkpoint& checkpoint, const std::vector<std::string>& include)
      : checkpoint_(checkpoint), include_(include) {}

  void scan_directory(const stdfs::path& directory, const std::string& prefix, std::size_t depth);

 private:
  void scan_entry(const stdfs::directory_entry& entry, const std::string& path, std::size_t depth);
  void scan_symlink(const stdfs::path& link, const std::string& path);
  void scan_file(const stdfs::path& file, const std::string& path);

  Checkpoint& checkpoint_;
  const std::vector<std::string>& include_;
};

void Scanner::scan_directory(const stdfs::path& directory, const std::string& prefix,
                             std::size_t depth) {
  if (depth == kDirectoryDepthMax) {
    fail(ErrorCode::invalid,
         fmt::format("{} is nested deeper than {} directories, which is not supported",
                     shown(directory), kDirectoryDepthMax));
  }
  std::error_code error;
  stdfs::directory_iterator entries(directory, error);
  for (; !error && entries != stdfs::directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename().native();
    if (name.front() != '.') scan_entry(*entries, prefix + name, depth);
  }
  if (error) throw_errno(error.value(), "read the directory " + shown(directory));
}

void Scanner::scan_entry(const stdfs::directory_entry& entry, const std::string& path,
                         std::size_t depth) {
  std::error_code error;
  const stdfs::file_status status = entry.symlink_status(error);
  switch (status.type()) {
    case stdfs::file_type::directory:
      return scan_directory(entry.path(), path + "/", depth + 1);
    case stdfs::file_type::regular:
      return scan_file(entry.path(), path);
    case stdfs::file_type::symlink:
      return scan_symlink(entry.path(), path);
    case stdfs::file_type::none:
    case stdfs::file_type::not_found:
      throw_errno(error ? error.value() : ENOENT, "read " + shown(entry.path()));
    default:
      fail(ErrorCode::invalid,
           fmt::format(
               "{} is a FIFO, socket or device; a checkpoint must not have one: remove it, or give "
               "it a name that begins with '.'",
               shown(entry.path())));
  }
}

void Scanner::scan_symlink(const stdfs::path& link, const std::string& path) {
  std::error_code error;
  const stdfs::file_status target = stdfs::status(link, error);
  if (target.type() == stdfs::file_type::regular) return scan_file(link, path);
  const char* found = target.type() == stdfs::file_type::not_found   ? "nothing"
                      : target.type() == stdfs::file_type::directory ? "a directory"
                                                                     : "a special file";
  if (target.type() == stdfs::file_type::none) throw_errno(error.value(), "follow " + shown(link));
  fail(ErrorCode::invalid,
       fmt::format("{} is a symlink to {}; only symlinks to regular files are followed: remove it, "
                   "or put the files themselves there",
                   shown(link), found));
}

/// O_NONBLOCK: what was a regular file a moment ago may now be a FIFO.
File open_regular(const stdfs::path& file) {
  File opened = File::open(file, O_RDONLY | O_NONBLOCK);
  struct stat info {};
  if (::fstat(opened.fd(), &info) != 0) throw_errno(errno, "read the size of " + shown(file));
  if (!S_ISREG(info.st_mode)) {
    fail(ErrorCode::invalid, shown(file) + " is no longer a regular file");
  }
  return opened;
}

CheckpointFile describe_file(const stdfs::path& file, const std::string& path) {
  if (const std::string problem = path_problem(path); !problem.empty()) {
    fail(ErrorCode::invalid, fmt::format("the name {} {}: rename it", shown(file), problem));
  }
  const File opened = open_regular(file);
  CheckpointFile found;
  found.path = path;
  found.source = file;
  found.stamp = stamp_of(opened.fd());
  if (path.ends_with(".safetensors")) {
    found.kind = CheckpointFile::Kind::safetensors;
    found.head = read_safetensors_header(opened.fd(), shown(file), found.header);
  } else {
    found.kind = found.stamp.size_bytes > kBlobBytesMax ? CheckpointFile::Kind::opaque
                                                        : CheckpointFile::Kind::blob;
  }
  return found;
}

void Scanner::scan_file(const stdfs::path& file, const std::string& path) {
  if (!is_published(path, include_)) {
    checkpoint_.unpublished.push_back(escape_name(path));
    return;
  }
  if (checkpoint_.files.size() == kVersionFilesMax) {
    fail(ErrorCode::invalid, fmt::format("{} holds more than {} files",
                                         shown(checkpoint_.directory), kVersionFilesMax));
  }
  checkpoint_.files.push_back(describe_file(file, path));
}

void check_directory(const stdfs::path& directory) {
  std::error_code error;
  const stdfs::file_status status = stdfs::status(directory, error);
  if (status.type() == stdfs::file_type::directory) return;
  if (error) throw_errno(error.value(), "read the checkpoint directory " + shown(directory));
  fail(ErrorCode::invalid,
       shown(directory) + " is not a directory; give the directory of the checkpoint's files");
}

/// `what`: the directory, or the file.
void check_size(const Checkpoint& checkpoint, const stdfs::path& what) {
  if (checkpoint.size_bytes() <= kVersionBytesMax) return;
  fail(ErrorCode::invalid, fmt::format("{} holds {} bytes; a version has at most {}", shown(what),
                                       checkpoint.size_bytes(), kVersionBytesMax));
}

void check_published(const Checkpoint& checkpoint) {
  const std::string directory = shown(checkpoint.directory);
  if (checkpoint.files.empty() && checkpoint.unpublished.empty()) {
    fail(ErrorCode::invalid,
         directory + " is empty (hidden files do not count): there is nothing to publish");
  }
  if (checkpoint.files.empty()) {
    fail(
        ErrorCode::invalid,
        fmt::format("{} contains nothing that is published by default (safetensors, JSON, text and "
                    "tokenizer files), only {}; --include GLOB publishes other files",
                    directory, checkpoint.unpublished_text()));
  }
  check_size(checkpoint, checkpoint.directory);
}

std::vector<NamedHeader> headers_of(const Checkpoint& checkpoint) {
  std::vector<NamedHeader> headers;
  for (const CheckpointFile& file : checkpoint.files) headers.push_back({file.path, &file.header});
  return headers;
}

void check_indexes(const Checkpoint& checkpoint, ScanScope scope) {
  std::vector<ShardIndexes::File> files;
  for (const CheckpointFile& file : checkpoint.files) {
    const bool is_shard = file.kind == CheckpointFile::Kind::safetensors;
    ShardIndexes::File& listed = files.emplace_back(ShardIndexes::File{file.path, is_shard, {}});
    for (const SafetensorsTensor& tensor : file.header.tensors) {
      listed.tensors.push_back(tensor.name);
    }
  }
  const ShardIndexes indexes(std::move(files), scope == ScanScope::part);
  std::set<std::string_view> indexed;
  for (const CheckpointFile& file : checkpoint.files) {
    if (!is_shard_index(file.path)) continue;
    const stdfs::path path = checkpoint.directory / file.path;
    indexed.merge(indexes.check(file.path, read_file(path, kIndexFileBytesMax), shown(path)));
  }
  if (scope == ScanScope::whole) indexes.check_names(indexed, shown(checkpoint.directory));
}

std::int64_t stamp_nanoseconds(const timespec& time) {
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

}  // namespace

FileStamp stamp_of(int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) throw_errno(errno, "read the attributes of an open file");
  return {info.st_dev, info.st_ino, static_cast<std::uint64_t>(info.st_size),
          stamp_nanoseconds(info.st_mtim), stamp_nanoseconds(info.st_ctim)};
}

std::uint64_t Checkpoint::size_bytes() const noexcept {
  std::uint64_t sum = 0;
  for (const CheckpointFile& file : files) {
    // Sparse files may claim any size; a sum that overflows is too large in any case.
    if (__builtin_add_overflow(sum, file.stamp.size_bytes, &sum)) return UINT64_MAX;
  }
  return sum;
}

bool Checkpoint::has_weights() const {
  return std::ranges::any_of(files, [](const CheckpointFile& file) {
    return file.kind == CheckpointFile::Kind::safetensors || !is_published(file.path, {});
  });
}

std::string Checkpoint::unpublished_text() const {
  constexpr std::size_t kShownMax = 10;
  const auto some = std::span(unpublished).first(std::min(unpublished.size(), kShownMax));
  return fmt::format("{}{}", fmt::join(some, ", "), unpublished.size() > kShownMax ? ", ..." : "");
}

bool is_published(const std::string& path, const std::vector<std::string>& include) {
  const std::string base(base_name_of(path));
  if (matches_any(kPublishedPatterns, base) && !matches_any(kUnpublishedPatterns, base))
    return true;
  return matches_glob(path, include);
}

Checkpoint scan_checkpoint(const stdfs::path& directory, const std::vector<std::string>& include,
                           ScanScope scope) {
  check_directory(directory);
  Checkpoint checkpoint;
  checkpoint.directory = directory;
  Scanner(checkpoint, include).scan_directory(directory, "", 0);
  std::sort(checkpoint.files.begin(), checkpoint.files.end(),
            [](const auto& a, const auto& b) { return a.path < b.path; });
  std::sort(checkpoint.unpublished.begin(), checkpoint.unpublished.end());
  check_published(checkpoint);
  refuse_rank_pieces(directory, headers_of(checkpoint));
  check_indexes(checkpoint, scope);
  return checkpoint;
}

Checkpoint scan_one_file(const stdfs::path& source, const std::string& path) {
  Checkpoint checkpoint;
  checkpoint.directory = source.parent_path();
  checkpoint.files.push_back(describe_file(source, path));
  checkpoint.is_linked_meanwhile = true;
  check_size(checkpoint, source);
  return checkpoint;
}

}  // namespace weightfs
