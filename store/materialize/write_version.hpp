// Write version: carries out a plan: builds the files of its version.
//
// For each chunk of the wanted version: read it from the base, apply the coded chunks of all steps
// in memory (kernels/block/chunk_coder.hpp), compare the hash, write once.  Files are written in
// file-aligned windows of kWindowBytes after fallocate, in parallel by segment. A file that no step
// touches is hard-linked to the base's image.
//
// Threads: write_version runs its own threads and returns when they are done.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "kernels/block/chunk_coder.hpp"
#include "kernels/dispatch/cpu_coder.hpp"
#include "store/materialize/chunk_maker.hpp"
#include "store/materialize/image_files.hpp"
#include "store/materialize/plan.hpp"
#include "store/repository/repository.hpp"
#include "store/timing/build_meter.hpp"

namespace weightfs {

/// Files of which not all is to be written: the rest is there, or comes later.
class BegunFiles {
 public:
  virtual ~BegunFiles() = default;

  /// What is to be written of a file.
  struct Rest {
    std::filesystem::path path;
    std::uint64_t begin = 0;  // a multiple of kWindowBytes, or the file's size; 0: in a new file
    std::uint64_t end = 0;    // `begin`: nothing, it has its mode and time
  };

  /// Called once for each file of the plan that is to be built; `path`: where.
  /// Returns: nullopt: all is to be written, or linked, there.
  /// Throws Error: io.
  [[nodiscard]] virtual std::optional<Rest> rest_of(const LayoutFile& file,
                                                    const std::filesystem::path& path,
                                                    const ImageSeal& seal) const = 0;
};

struct WriteOptions {
  std::filesystem::path directory;    // must exist and be empty
  const BegunFiles* begun = nullptr;  // nullptr: all of all files is written
  bool all_packs = false;             // fetch packs whole, also if files are left out
  std::filesystem::path spool;        // for packs while they are applied
  unsigned threads = 0;               // 0: work_threads()
  bool sync = true;                   // fsync files and directories
  unsigned mode = 0444;               // of files; a hard-linked file keeps the base's mode
  kernels::SharedCoder coder = kernels::make_cpu_coder();
  BuildMeter* meter = nullptr;  // nullptr: nobody asks
  NotedChanges noted = {};      // as ChunkMaker()
};

/// Writes every file of the plan's version that is to be built, with the manifest's time as
/// modification time.  Nothing outside options.directory is changed; after a failure the caller
/// removes its contents.
///
/// Throws Error: corrupt: a pack, snapshot or blob that does not match (names the key), or a
/// damaged base image (names the file; BaseDamaged); not_found, naming the key; no_space;
/// cancelled; unavailable.
void write_version(const Plan& plan, Repository& repository, const WriteOptions& options,
                   const Context& context, const Progress& progress);

}  // namespace weightfs
