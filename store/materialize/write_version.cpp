// Files are cut into segments, and the segments of all files form one list of work, so that one
// large file and many small ones both keep all threads busy.
//
// A thread of its own fetches the packs.  What a chunk needs before it has arrived, its worker
// fetches itself.

#include "store/materialize/write_version.hpp"

#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/block/free_list.hpp"
#include "store/base/bytes.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/materialize/file_filter.hpp"
#include "store/materialize/image_files.hpp"
#include "store/materialize/pack_spool.hpp"
#include "store/materialize/plan.hpp"
#include "store/materialize/segment_order.hpp"
#include "store/materialize/segment_writer.hpp"
#include "store/materialize/window_writer.hpp"
#include "store/os/file.hpp"
#include "store/threads/background.hpp"
#include "store/threads/parallel.hpp"
#include "store/threads/progress_counter.hpp"
#include "store/threads/work_threads.hpp"

namespace weightfs {
namespace {

namespace filesystem = std::filesystem;

constexpr std::uint64_t kSegmentBytes = 8 * kWindowBytes;

/// A file written by several workers: the first one creates or opens it, the last one seals it.
struct Output {
  Output(const LayoutFile& its_file, BegunFiles::Rest its_rest)
      : file(its_file), rest(std::move(its_rest)), segments_left(segments()) {}

  [[nodiscard]] std::size_t segments() const {
    const std::uint64_t count = (rest.end - rest.begin + kSegmentBytes - 1) / kSegmentBytes;
    return static_cast<std::size_t>(std::max<std::uint64_t>(1, count));
  }

  const LayoutFile& file;
  const BegunFiles::Rest rest;
  RankedMutex mutex{LockRank::leaf, "Output::mutex"};  // ensures that it is created once
  File descriptor;
  std::atomic<std::size_t> segments_left;
};

class VersionWriter {
 public:
  VersionWriter(const Plan& plan, Repository& repository, const WriteOptions& options,
                const Context& context, const Progress& progress)
      : plan_(plan),
        repository_(repository),
        options_(options),
        own_(context),
        progress_(progress),
        seal_{options.mode, plan.version->manifest.time, options.sync},
        spool_(plan, repository, options.spool, context_, options.meter),
        // Bytes of a snapshot are fetched as they are written.
        counter_(writing_progress_, writing_phase(plan), plan.version_bytes()) {}

  void run() {
    const auto directories =
        make_image_directories(plan_, options_.directory, all_but(*plan_.layout, plan_.without));
    for (const LayoutFile& file : plan_.layout->files()) {
      if (!contains(plan_.without, plan_.layout->number_of(file))) link_or_queue(file);
    }
    // If some files are left out, only what the others need is fetched, on demand.
    if ((plan_.without.empty() || options_.all_packs) && !spool_.is_whole()) {
      write_while_fetching();
    } else {
      write_files();
    }
    report_fetched();
    if (!options_.sync) return;
    for (const filesystem::path& directory : directories) fsync_directory(directory);
  }

 private:
  static const char* writing_phase(const Plan& plan) {
    if (!plan.snapshot) return "writing";
    return plan.snapshot->seed ? "reading snapshot" : "fetching snapshot";
  }

  /// With a seed: what it did not have.
  void report_fetched() {
    if (!plan_.snapshot || !plan_.snapshot->seed || !progress_) return;
    const std::uint64_t bytes = plan_.snapshot->seed->fetched_bytes();
    if (bytes > 0) progress_("fetching what the seed lacks", bytes, bytes);
  }

  void write_files() {
    const auto& blobs = plan_.version->manifest.blobs;
    const unsigned threads = writing_threads();
    parallel_for(blobs.size(), threads, context_, [&](std::size_t i) { put_blob(blobs[i]); });
    const std::vector<SegmentPlace> order = order_segments(segments_of_outputs_, threads);
    parallel_for(order.size(), threads, context_, [&](std::size_t i) { put_segment(order[i]); });
  }

  void write_while_fetching() {
    is_fetching_ = true;
    const auto fetch = [&] {
      spool_.fetch_all(options_.threads, progress_, needed_packs());
      is_fetching_ = false;
    };
    run_both(own_, fetch, [&] { write_files(); });
    counter_.add(0);
  }

  /// Those that have chunks of what is to be written; empty: perhaps all.
  [[nodiscard]] std::vector<bool> needed_packs() const {
    if (options_.begun == nullptr || plan_.steps.size() != 1) return {};
    const Step& step = plan_.steps.front();
    std::vector<bool> needed(step.packs.size());
    for (const Output& output : outputs_) {
      for (const LayoutTensor& tensor : plan_.layout->tensors_of(output.file)) {
        for (std::uint32_t i = 0; i < tensor.chunk_count; i++) {
          const std::uint64_t begin = tensor.offset_bytes + tensor.chunk_offset_bytes(i);
          if (begin >= output.rest.end) break;
          const bool is_made = begin + tensor.chunk_size_bytes(i) <= output.rest.begin;
          const PackEntry place = step.listed[tensor.first_chunk + i];
          if (!is_made && place) needed[place.pack] = true;
        }
      }
    }
    return needed;
  }

  void link_or_queue(const LayoutFile& file) {
    const filesystem::path path = options_.directory / file.path;
    std::optional<BegunFiles::Rest> rest;
    if (options_.begun != nullptr) rest = options_.begun->rest_of(file, path, seal_);
    const bool is_linked = !rest && link_equal_file(plan_, file, path);
    if (is_linked || (rest && rest->begin == rest->end)) {
      counter_.add(file.size_bytes);
      return;
    }
    if (!rest) rest = BegunFiles::Rest{path, 0, file.size_bytes};
    counter_.add(file.size_bytes - (rest->end - rest->begin));
    const Output& output = outputs_.emplace_back(file, std::move(*rest));
    segments_of_outputs_.push_back(output.segments());
  }

  void put_blob(const BlobRef& blob) {
    const filesystem::path path = options_.directory / blob.path;
    if (!link_equal_blob(plan_, blob, path)) {
      const File file = File::open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
      if (!copy_equal_blob(plan_, blob, file.fd(), path)) {
        write_blob(repository_, blob, file.fd(), path, context_, options_.meter);
      }
      seal_image(file.fd(), path, seal_);
    }
    counter_.add(blob.size_bytes);
  }

  void put_segment(const SegmentPlace& place) {
    Output& output = outputs_[place.file];
    const std::uint64_t begin = output.rest.begin + place.segment * kSegmentBytes;
    const std::uint64_t end = std::min(begin + kSegmentBytes, output.rest.end);
    begin_output(output);
    const auto writer = idle_.borrow([&] {
      return std::make_unique<SegmentWriter>(plan_, spool_, repository_, *options_.coder, context_,
                                             options_.meter, options_.noted);
    });
    writer->write(output.file, output.descriptor.fd(), output.rest.path, begin, end);
    counter_.add(end - begin);
    if (--output.segments_left == 0) end_output(output);
  }

  /// With a snapshot the limit is the bucket's latency; with deltas it is the CPU. A thread holds a
  /// window of 4 MiB, the 4 MiB that SnapshotBytes reads ahead, and a few chunks.
  [[nodiscard]] unsigned writing_threads() const {
    if (!plan_.snapshot) {
      return options_.threads != 0 ? options_.threads : work_threads();
    }
    return request_threads(repository_.bucket(context_), options_.threads);
  }

  void begin_output(Output& output) {
    const std::lock_guard lock(output.mutex);
    if (output.descriptor) return;
    const filesystem::path& path = output.rest.path;
    if (output.rest.begin > 0) {
      output.descriptor = File::open(path, O_WRONLY);
      return;
    }
    File file = File::open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    reserve_image(file.fd(), output.file.size_bytes, path);
    output.descriptor = std::move(file);
  }

  void end_output(Output& output) {
    seal_image(output.descriptor.fd(), output.rest.path, seal_);
    output.descriptor = File();
  }

  const Plan& plan_;
  Repository& repository_;
  const WriteOptions& options_;
  OwnContext own_;
  const Context& context_ = own_.get();
  const Progress& progress_;
  /// One phase is reported at a time: writing from when all is fetched.
  std::atomic<bool> is_fetching_ = false;
  const Progress writing_progress_ = [this](auto... report) {
    if (!is_fetching_ && progress_) progress_(report...);
  };
  const ImageSeal seal_;
  PackSpool spool_;
  ProgressCounter counter_;
  std::deque<Output> outputs_;
  std::vector<std::size_t> segments_of_outputs_;
  kernels::FreeList<SegmentWriter> idle_;
};

}  // namespace

void write_version(const Plan& plan, Repository& repository, const WriteOptions& options,
                   const Context& context, const Progress& progress) {
  VersionWriter(plan, repository, options, context, progress).run();
}

}  // namespace weightfs
