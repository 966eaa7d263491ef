// Files are cut into segments, and the segments of all files make one list of work, so that one
// large file and many small ones both keep all threads busy.  A chunk that straddles two segments
// is made by both of their workers.

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <deque>
#include <mutex>
#include <set>
#include <string>

#include "kernels/free_list.hpp"
#include "store/bytes.hpp"
#include "store/chunk_maker.hpp"
#include "store/file.hpp"
#include "store/materialize.hpp"
#include "store/old_bytes.hpp"
#include "store/pack_spool.hpp"
#include "store/parallel.hpp"
#include "store/progress_counter.hpp"
#include "store/window_writer.hpp"

namespace weightfs {
namespace {

namespace filesystem = std::filesystem;

constexpr std::uint64_t kSegmentBytes = 8 * kWindowBytes;

/// Chunks that are made at a time, at most; larger ones fill a window before.
constexpr std::size_t kChunksAtOnce = 4096;

/// Gives a new file its size, in one extent where the file system can.
void reserve(int fd, std::uint64_t size_bytes, const filesystem::path& path) {
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

/// Gives a file that is written its mode and time, and makes it durable.
void seal(int fd, const filesystem::path& path, const WriteOptions& options, std::int64_t time) {
  if (::fchmod(fd, options.mode) != 0) throw_errno(errno, "set the mode of " + path.string());
  const timespec times[2] = {{time, 0}, {time, 0}};
  if (::futimens(fd, times) != 0) throw_errno(errno, "set the time of " + path.string());
  if (options.sync) sync_file(fd, path);
}

/// Gives a file of the base, if it is there and has this size, a second name.
/// Returns: false if it must be written instead (another file system, too many links, ...).
bool link_file(const filesystem::path& from, std::uint64_t size_bytes, const filesystem::path& to) {
  struct stat attributes {};
  if (::lstat(from.c_str(), &attributes) != 0 || !S_ISREG(attributes.st_mode)) return false;
  if (static_cast<std::uint64_t>(attributes.st_size) != size_bytes) return false;
  return ::link(from.c_str(), to.c_str()) == 0;
}

/// The tensor of the start that every chunk of a tensor is equal to; nullopt if a step changed one.
std::optional<std::uint32_t> untouched_from(const Plan& plan, std::uint32_t number) {
  for (std::size_t i = plan.steps.size(); i > 0; i--) {
    const Step& step = plan.steps[i - 1];
    const LayoutTensor& tensor = step.layout->tensors()[number];
    const auto first = step.listed.begin() + static_cast<std::ptrdiff_t>(tensor.first_chunk);
    const bool listed = std::any_of(first, first + tensor.chunk_count,
                                    [](Listed place) { return static_cast<bool>(place); });
    if (listed || !step.counterparts[number]) return std::nullopt;
    number = *step.counterparts[number];
  }
  return number;
}

/// The file of the base that has the same bytes; nullptr if there is none, or if that is not plain.
const LayoutFile* equal_file_of_base(const Plan& plan, const LayoutFile& file) {
  if (!plan.base || file.tensor_count == 0) return nullptr;
  const Layout& base = *plan.base->layout;
  const LayoutFile* old = nullptr;
  for (std::uint32_t i = 0; i < file.tensor_count; i++) {
    const std::uint32_t number = file.first_tensor + i;
    const auto origin = untouched_from(plan, number);
    if (!origin) return nullptr;
    const LayoutTensor& now = plan.layout->tensors()[number];
    const LayoutTensor& then = base.tensors()[*origin];
    const LayoutFile& its_file = base.files()[then.file];
    if (old != nullptr && old != &its_file) return nullptr;
    old = &its_file;
    if (then.offset_bytes != now.offset_bytes || then.size_bytes != now.size_bytes) return nullptr;
  }
  const bool same = old->size_bytes == file.size_bytes && old->head == file.head;
  return same && !contains(plan.base->absent, plan.base->layout->number_of(*old)) ? old : nullptr;
}

const BlobRef* equal_blob_of_base(const Plan& plan, const BlobRef& blob) {
  if (!plan.base) return nullptr;
  for (const BlobRef& old : plan.base->version->manifest.blobs) {
    if (old.path == blob.path && old.sha256 == blob.sha256) return &old;
  }
  return nullptr;
}

/// A file that is being written by the workers of its segments: made by the first, sealed by the
/// last.
struct Output {
  Output(const LayoutFile& its_file, filesystem::path its_path, std::size_t segments)
      : file(its_file), path(std::move(its_path)), segments_left(segments) {}

  const LayoutFile& file;
  const filesystem::path path;
  std::mutex mutex;  // guards that it is made once
  File descriptor;
  std::atomic<std::size_t> segments_left;
};

struct Segment {
  Output* output = nullptr;
  std::uint64_t begin = 0, end = 0;
};

/// What one thread needs; reused from segment to segment.
struct Worker {
  void place(std::uint32_t tensor, std::uint32_t chunk, std::uint64_t offset_bytes,
             std::size_t size_bytes) {
    wanted.push_back({tensor, chunk, writer.place(offset_bytes, size_bytes)});
    if (writer.is_full() || wanted.size() == kChunksAtOnce) make_placed();
  }

  /// Makes the chunks that were placed, and writes what fills a window.
  void make_placed() {
    maker.make(wanted);
    wanted.clear();
    if (writer.is_full()) writer.flush();
  }

  ChunkMaker maker;
  WindowWriter writer;
  std::vector<WantedChunk> wanted;
};

class VersionWriter {
 public:
  VersionWriter(const Plan& plan, Repository& repository, const WriteOptions& options,
                const Context& context, const Progress& progress)
      : plan_(plan),
        repository_(repository),
        options_(options),
        context_(context),
        spool_(plan, repository, options.spool, options.threads, context, progress),
        // What comes out of a snapshot is fetched as it is written.
        counter_(progress, plan.snapshot ? "fetching snapshot" : "writing", plan.version_bytes()) {}

  void run() {
    make_all_directories();
    for (const LayoutFile& file : plan_.layout->files()) {
      if (is_wanted(file)) link_or_queue(file);
    }
    const auto& blobs = plan_.version->manifest.blobs;
    const unsigned threads = writing_threads();
    parallel_for(blobs.size(), threads, context_, [&](std::size_t i) { put_blob(blobs[i]); });
    parallel_for(segments_.size(), threads, context_,
                 [&](std::size_t i) { put_segment(segments_[i]); });
    if (!options_.sync) return;
    for (const filesystem::path& directory : directories_) sync_directory(directory);
  }

 private:
  [[nodiscard]] bool is_wanted(const LayoutFile& file) const {
    return !contains(plan_.without, plan_.layout->number_of(file));
  }

  void make_all_directories() {
    directories_.insert(options_.directory);
    for (const LayoutFile& file : plan_.layout->files()) {
      if (is_wanted(file)) make_directory_of(file.path);
    }
    for (const BlobRef& blob : plan_.version->manifest.blobs) make_directory_of(blob.path);
  }

  void make_directory_of(const std::string& path) {
    for (auto slash = path.find('/'); slash != path.npos; slash = path.find('/', slash + 1)) {
      const filesystem::path directory = options_.directory / path.substr(0, slash);
      if (!directories_.insert(directory).second) continue;
      if (::mkdir(directory.c_str(), 0755) != 0) {
        throw_errno(errno, "make the directory " + directory.string());
      }
    }
  }

  void link_or_queue(const LayoutFile& file) {
    const filesystem::path path = options_.directory / file.path;
    if (const LayoutFile* old = equal_file_of_base(plan_, file)) {
      if (link_file(plan_.base->directory / old->path, file.size_bytes, path)) {
        counter_.add(file.size_bytes);
        return;
      }
    }
    const std::uint64_t count =
        std::max<std::uint64_t>(1, (file.size_bytes + kSegmentBytes - 1) / kSegmentBytes);
    Output& output = outputs_.emplace_back(file, path, static_cast<std::size_t>(count));
    for (std::uint64_t i = 0; i < count; i++) {
      const std::uint64_t begin = i * kSegmentBytes;
      segments_.push_back({&output, begin, std::min(begin + kSegmentBytes, file.size_bytes)});
    }
  }

  void put_blob(const BlobRef& blob) {
    const filesystem::path path = options_.directory / blob.path;
    const BlobRef* old = equal_blob_of_base(plan_, blob);
    if (old == nullptr || !link_file(plan_.base->directory / old->path, blob.size_bytes, path)) {
      const std::string bytes = repository_.get_blob(blob, context_);
      const File file = File::open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
      write_at(file.fd(), 0, as_bytes(bytes), path);
      seal(file.fd(), path, options_, plan_.version->manifest.time);
    }
    counter_.add(blob.size_bytes);
  }

  void put_segment(const Segment& segment) {
    Output& output = *segment.output;
    begin_output(output);
    const auto worker = idle_.borrow([&] { return make_worker(); });
    worker->wanted.clear();
    worker->writer.start(output.descriptor.fd(), output.path, segment.begin, segment.end);
    place_head(output.file, segment, *worker);
    place_tensors(output.file, segment, *worker);
    worker->make_placed();
    worker->writer.finish();
    counter_.add(segment.end - segment.begin);
    if (--output.segments_left == 0) end_output(output);
  }

  /// What comes out of a snapshot waits for the bucket; what is decoded, for a core.  A thread
  /// holds a window of 4 MiB, the 4 MiB that SnapshotBytes reads ahead, and a few chunks.
  [[nodiscard]] unsigned writing_threads() const {
    if (!plan_.snapshot) return options_.threads;
    return request_threads(repository_.bucket(context_), options_.threads);
  }

  void begin_output(Output& output) {
    const std::lock_guard lock(output.mutex);
    if (output.descriptor) return;
    File file = File::open(output.path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    reserve(file.fd(), output.file.size_bytes, output.path);
    output.descriptor = std::move(file);
  }

  void end_output(Output& output) {
    seal(output.descriptor.fd(), output.path, options_, plan_.version->manifest.time);
    output.descriptor = File();
  }

  static void place_head(const LayoutFile& file, const Segment& segment, Worker& worker) {
    const auto head = as_bytes(file.head);
    const std::uint64_t end = std::min<std::uint64_t>(segment.end, head.size());
    for (std::uint64_t at = segment.begin; at < end; at += kWindowBytes) {
      const auto size = static_cast<std::size_t>(std::min(end - at, kWindowBytes));
      const auto part = head.subspan(static_cast<std::size_t>(at), size);
      std::copy(part.begin(), part.end(), worker.writer.place(at, size).begin());
      if (worker.writer.is_full()) worker.writer.flush();
    }
  }

  void place_tensors(const LayoutFile& file, const Segment& segment, Worker& worker) const {
    const auto tensors = plan_.layout->tensors_of(file);
    const auto first =
        std::partition_point(tensors.begin(), tensors.end(), [&](const LayoutTensor& tensor) {
          return tensor.offset_bytes + tensor.size_bytes <= segment.begin;
        });
    for (auto tensor = first; tensor != tensors.end() && tensor->offset_bytes < segment.end;
         ++tensor) {
      const auto number = file.first_tensor + static_cast<std::uint32_t>(tensor - tensors.begin());
      place_tensor(*tensor, number, segment, worker);
    }
  }

  /// Places the chunks of a tensor that lie in the segment, or reach into it.
  void place_tensor(const LayoutTensor& tensor, std::uint32_t number, const Segment& segment,
                    Worker& worker) const {
    const std::uint64_t skipped =
        segment.begin > tensor.offset_bytes ? segment.begin - tensor.offset_bytes : 0;
    auto chunk = static_cast<std::uint32_t>(skipped / kernels::chunk_bytes(tensor.kind));
    for (; chunk < tensor.chunk_count; chunk++) {
      const std::uint64_t offset = tensor.offset_bytes + tensor.chunk_offset_bytes(chunk);
      if (offset >= segment.end) return;
      context_.check("writing images");
      worker.place(number, chunk, offset, tensor.chunk_size_bytes(chunk));
    }
  }

  [[nodiscard]] std::unique_ptr<Worker> make_worker() const {
    return std::unique_ptr<Worker>(new Worker{
        {plan_, spool_, open_old_bytes(plan_, repository_, context_), *options_.coder}, {}, {}});
  }

  const Plan& plan_;
  Repository& repository_;
  const WriteOptions& options_;
  const Context& context_;
  const PackSpool spool_;
  ProgressCounter counter_;
  std::set<filesystem::path> directories_;
  std::deque<Output> outputs_;
  std::vector<Segment> segments_;
  kernels::FreeList<Worker> idle_;
};

}  // namespace

void write_version(const Plan& plan, Repository& repository, const WriteOptions& options,
                   const Context& context, const Progress& progress) {
  VersionWriter(plan, repository, options, context, progress).run();
}

}  // namespace weightfs
