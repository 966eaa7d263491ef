// Files are cut into segments, and the segments of all files make one list of work, so that one
// large file and many small ones both keep all threads busy.

#include "store/materialize/write_version.hpp"

#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/block/free_list.hpp"
#include "store/base/bytes.hpp"
#include "store/base/parallel.hpp"
#include "store/base/progress_counter.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/materialize/file_filter.hpp"
#include "store/materialize/image_files.hpp"
#include "store/materialize/pack_spool.hpp"
#include "store/materialize/plan.hpp"
#include "store/materialize/segment_writer.hpp"
#include "store/materialize/window_writer.hpp"
#include "store/os/file.hpp"

namespace weightfs {
namespace {

namespace filesystem = std::filesystem;

constexpr std::uint64_t kSegmentBytes = 8 * kWindowBytes;

/// A file that is being written by the workers of its segments: made by the first, sealed by the
/// last.
struct Output {
  Output(const LayoutFile& its_file, filesystem::path its_path, std::size_t segments)
      : file(its_file), path(std::move(its_path)), segments_left(segments) {}

  const LayoutFile& file;
  const filesystem::path path;
  RankedMutex mutex{LockRank::leaf, "Output::mutex"};  // guards that it is made once
  File descriptor;
  std::atomic<std::size_t> segments_left;
};

struct Segment {
  Output* output = nullptr;
  std::uint64_t begin = 0, end = 0;
};

class VersionWriter {
 public:
  VersionWriter(const Plan& plan, Repository& repository, const WriteOptions& options,
                const Context& context, const Progress& progress)
      : plan_(plan),
        repository_(repository),
        options_(options),
        context_(context),
        progress_(progress),
        seal_{options.mode, plan.version->manifest.time, options.sync},
        spool_(plan, repository, options.spool, context),
        // What comes out of a snapshot is fetched as it is written.
        counter_(progress, plan.snapshot ? "fetching snapshot" : "writing", plan.version_bytes()) {}

  void run() {
    // Of a version without some files only what the others need is fetched, when it is needed.
    if (plan_.without.empty()) spool_.fetch_all(options_.threads, progress_);
    const auto directories =
        make_image_directories(plan_, options_.directory, all_but(*plan_.layout, plan_.without));
    for (const LayoutFile& file : plan_.layout->files()) {
      if (!contains(plan_.without, plan_.layout->number_of(file))) link_or_queue(file);
    }
    const auto& blobs = plan_.version->manifest.blobs;
    const unsigned threads = writing_threads();
    parallel_for(blobs.size(), threads, context_, [&](std::size_t i) { put_blob(blobs[i]); });
    parallel_for(segments_.size(), threads, context_,
                 [&](std::size_t i) { put_segment(segments_[i]); });
    if (!options_.sync) return;
    for (const filesystem::path& directory : directories) fsync_directory(directory);
  }

 private:
  void link_or_queue(const LayoutFile& file) {
    const filesystem::path path = options_.directory / file.path;
    if (link_equal_file(plan_, file, path)) {
      counter_.add(file.size_bytes);
      return;
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
    if (!link_equal_blob(plan_, blob, path)) {
      const std::string bytes = repository_.get_blob(blob, context_);
      const File file = File::open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
      write_at(file.fd(), 0, as_bytes(bytes), path);
      seal_image(file.fd(), path, seal_);
    }
    counter_.add(blob.size_bytes);
  }

  void put_segment(const Segment& segment) {
    Output& output = *segment.output;
    begin_output(output);
    const auto writer = idle_.borrow([&] {
      return std::make_unique<SegmentWriter>(plan_, spool_, repository_, *options_.coder, context_);
    });
    writer->write(output.file, output.descriptor.fd(), output.path, segment.begin, segment.end);
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
    reserve_image(file.fd(), output.file.size_bytes, output.path);
    output.descriptor = std::move(file);
  }

  void end_output(Output& output) {
    seal_image(output.descriptor.fd(), output.path, seal_);
    output.descriptor = File();
  }

  const Plan& plan_;
  Repository& repository_;
  const WriteOptions& options_;
  const Context& context_;
  const Progress& progress_;
  const ImageSeal seal_;
  PackSpool spool_;
  ProgressCounter counter_;
  std::deque<Output> outputs_;
  std::vector<Segment> segments_;
  kernels::FreeList<SegmentWriter> idle_;
};

}  // namespace

void write_version(const Plan& plan, Repository& repository, const WriteOptions& options,
                   const Context& context, const Progress& progress) {
  VersionWriter(plan, repository, options, context, progress).run();
}

}  // namespace weightfs
