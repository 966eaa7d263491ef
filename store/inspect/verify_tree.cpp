#include "store/inspect/verify_tree.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <system_error>

#include "kernels/dispatch/hash.hpp"
#include "store/base/bytes.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/materialize/plan.hpp"
#include "store/os/file.hpp"
#include "store/repository/gc_log.hpp"
#include "store/threads/parallel.hpp"
#include "store/threads/progress_counter.hpp"

namespace weightfs {
namespace {

namespace filesystem = std::filesystem;

[[noreturn]] void throw_system(const std::error_code& error, const std::string& what) {
  throw_errno(error.value(), what);
}

/// The versions listed in `directory`, ascending; ignores names that are not numbers.
std::vector<std::uint64_t> listed_versions(const filesystem::path& directory) {
  std::vector<std::uint64_t> versions;
  std::error_code error;
  filesystem::directory_iterator entry(directory, error);
  for (; !error && entry != filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    std::uint64_t number = 0;
    std::from_chars(name.data(), name.data() + name.size(), number);
    if (std::to_string(number) == name && number > 0) versions.push_back(number);
  }
  if (error) throw_system(error, "list " + directory.string());
  std::sort(versions.begin(), versions.end());
  return versions;
}

/// Paths of everything below `directory` that is not a directory.
std::set<std::string> files_below(const filesystem::path& directory) {
  std::set<std::string> files;
  std::error_code error;
  filesystem::recursive_directory_iterator entry(directory, error);
  for (; !error && entry != filesystem::recursive_directory_iterator(); entry.increment(error)) {
    const auto status = entry->symlink_status(error);
    if (error) break;
    if (filesystem::is_directory(status)) continue;
    files.insert(entry->path().lexically_relative(directory).generic_string());
  }
  if (error) throw_system(error, "list " + directory.string());
  return files;
}

/// Collects the bad chunks of one file; only the first one is named.
class BadChunks {
 public:
  void add(std::uint64_t offset_bytes, std::string message) {
    const std::lock_guard lock(mutex_);
    count_++;
    if (offset_bytes > first_) return;
    first_ = offset_bytes;
    message_ = std::move(message);
  }

  void check(std::uint64_t chunks) const {
    if (count_ == 0) return;
    throw Error(ErrorCode::corrupt, fmt::format("{} of its {} chunks are wrong; the first: {}",
                                                count_, chunks, message_));
  }

 private:
  RankedMutex mutex_{LockRank::leaf, "BadChunks::mutex_"};
  std::uint64_t count_ = 0;
  std::uint64_t first_ = std::numeric_limits<std::uint64_t>::max();
  std::string message_;
};

class TreeVerifier {
 public:
  TreeVerifier(History& history, const filesystem::path& directory, const Context& context,
               const Progress& progress)
      : history_(history), root_(directory), context_(context), progress_(progress) {}

  VerifyReport run(std::optional<std::uint64_t> only) {
    const auto versions =
        only ? std::vector{get_existing(*only)} : listed_versions(root_ / "versions");
    ProgressCounter counter(progress_, "verifying", bytes_of(versions));
    for (const std::uint64_t number : versions) {
      context_.check("verifying");
      check_version(number, counter);
    }
    return std::move(report_);
  }

 private:
  /// Runs `body`; an error that it throws is a problem of `object`, if it is one of the bytes
  /// there: that the bucket does not answer is none.
  template <typename Body>
  void judge(const std::string& object, Body&& body) {
    try {
      body();
    } catch (const Error& error) {
      if (!is_verdict(error) && error.code() != ErrorCode::io) throw;
      report_.problems.push_back({object, error.what()});
    }
  }

  std::uint64_t get_existing(std::uint64_t number) {
    static_cast<void>(history_.get(number, context_));
    const filesystem::path directory = root_ / "versions" / std::to_string(number);
    std::error_code ignored;
    if (filesystem::is_directory(directory, ignored)) return number;
    throw Error(ErrorCode::not_found,
                fmt::format("{} does not exist: version {} is not on that host", directory.string(),
                            number));
  }

  /// Used only for the progress: errors here are reported when the version is checked.
  std::uint64_t bytes_of(std::span<const std::uint64_t> versions) {
    std::uint64_t total = 0;
    for (const std::uint64_t number : versions) {
      try {
        total += history_.layout(*history_.get(number, context_), context_)->size_bytes();
      } catch (const Error&) {
        continue;
      }
    }
    return total;
  }

  void check_version(std::uint64_t number, ProgressCounter& counter) {
    name_ = fmt::format("versions/{}", number);
    const filesystem::path directory = root_ / name_;
    std::optional<Plan> plan;
    judge(name_, [&] { plan = expected(number); });
    if (!report_.retired.empty() && report_.retired.back() == number) return;
    report_.versions++;
    if (!plan) return;
    std::set<std::string> found;
    judge(name_, [&] { found = files_below(directory); });
    for (const LayoutFile& file : plan->layout->files()) {
      check_file(file.path, found,
                 [&] { check_tensors(directory / file.path, file, *plan, counter); });
    }
    for (const BlobRef& blob : plan->version->manifest.blobs) {
      check_file(blob.path, found, [&] { check_blob(directory / blob.path, blob); });
    }
    for (const std::string& path : found) {
      report_.problems.push_back({name_ + "/" + path, "is not a file of this version"});
    }
  }

  /// The plan of a version, from the bucket alone.  Reuses the hashes of the previous version.
  /// nullopt: gc retired it, and its objects are gone; a host that is frozen there still shows it.
  std::optional<Plan> expected(std::uint64_t number) {
    const auto version = history_.get(number, context_);
    try {
      Plan plan = make_plan(history_, version, known_, context_);
      known_.assign(1, Base{version, plan.layout, {}, plan.hashes});
      return plan;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::not_found || !is_retired(number)) throw;
    }
    report_.retired.push_back(number);
    return std::nullopt;
  }

  bool is_retired(std::uint64_t number) {
    try {
      throw_if_retired(history_.repository(), number, context_);
      return false;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::not_found) throw;
      return true;
    }
  }

  template <typename Body>
  void check_file(const std::string& path, std::set<std::string>& found, Body&& body) {
    report_.objects++;
    judge(name_ + "/" + path, [&] {
      if (found.erase(path) == 0) throw Error(ErrorCode::not_found, "is missing");
      body();
    });
  }

  static File open_sized(const filesystem::path& path, std::uint64_t size_bytes) {
    File file = File::open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    struct stat attributes {};
    if (::fstat(file.fd(), &attributes) != 0) throw_errno(errno, "stat " + path.string());
    if (!S_ISREG(attributes.st_mode)) throw Error(ErrorCode::corrupt, "is not a regular file");
    if (static_cast<std::uint64_t>(attributes.st_size) != size_bytes) {
      throw Error(ErrorCode::corrupt,
                  fmt::format("has {} bytes, expected {}", attributes.st_size, size_bytes));
    }
    return file;
  }

  static void read(const File& file, std::uint64_t offset_bytes, std::span<std::byte> into,
                   const filesystem::path& path) {
    if (!read_at(file.fd(), offset_bytes, into, path)) {
      throw Error(ErrorCode::corrupt, "ends before its size");
    }
  }

  void check_tensors(const filesystem::path& path, const LayoutFile& file, const Plan& plan,
                     ProgressCounter& counter) {
    const File opened = open_sized(path, file.size_bytes);
    std::string head(file.head.size(), '\0');
    read(opened, 0, std::as_writable_bytes(std::span(head)), path);
    if (head != file.head) throw Error(ErrorCode::corrupt, "its safetensors header is wrong");

    const auto tensors = plan.layout->tensors_of(file);
    std::vector<std::pair<const LayoutTensor*, std::uint32_t>> chunks;
    for (const LayoutTensor& tensor : tensors) {
      for (std::uint32_t c = 0; c < tensor.chunk_count; c++) chunks.emplace_back(&tensor, c);
    }
    BadChunks bad;
    parallel_for(chunks.size(), 0, context_, [&](std::size_t i) {
      const auto [tensor, chunk] = chunks[i];
      check_chunk(opened, path, *tensor, chunk, plan.hashes[tensor->first_chunk + chunk], bad);
      counter.add(tensor->chunk_size_bytes(chunk));
    });
    bad.check(chunks.size());
    report_.bytes += file.size_bytes;
  }

  static void check_chunk(const File& file, const filesystem::path& path,
                          const LayoutTensor& tensor, std::uint32_t chunk, std::uint64_t expected,
                          BadChunks& bad) {
    const std::size_t size = tensor.chunk_size_bytes(chunk);
    const std::uint64_t offset = tensor.offset_bytes + tensor.chunk_offset_bytes(chunk);
    const auto buffer = std::make_unique_for_overwrite<std::byte[]>(size);
    const std::span<std::byte> bytes(buffer.get(), size);
    read(file, offset, bytes, path);
    const std::uint64_t found = kernels::hash_chunk(bytes);
    if (found == expected) return;
    bad.add(offset,
            fmt::format("tensor '{}', chunk {}, bytes {} to {}: hash {:016x}, expected {:016x}",
                        tensor.name, chunk, offset, offset + size, found, expected));
  }

  void check_blob(const filesystem::path& path, const BlobRef& blob) {
    const File file = open_sized(path, blob.size_bytes);
    std::string bytes(blob.size_bytes, '\0');
    read(file, 0, std::as_writable_bytes(std::span(bytes)), path);
    const Sha256 found = sha256(as_bytes(bytes));
    if (found != blob.sha256) {
      throw Error(ErrorCode::corrupt, fmt::format("has the SHA-256 {}, expected {}", to_hex(found),
                                                  to_hex(blob.sha256)));
    }
    report_.bytes += blob.size_bytes;
  }

  History& history_;
  const filesystem::path& root_;
  const Context& context_;
  const Progress& progress_;
  VerifyReport report_;
  std::string name_;         // "versions/<n>" of the version being checked
  std::vector<Base> known_;  // hashes of the last planned version
};

}  // namespace

VerifyReport verify_tree(History& history, const filesystem::path& directory,
                         const Context& context, const Progress& progress,
                         std::optional<std::uint64_t> only) {
  return TreeVerifier(history, directory, context, progress).run(only);
}

}  // namespace weightfs
