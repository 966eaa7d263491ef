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

#include "kernels/block/chunk_coder.hpp"
#include "kernels/dispatch/cpu_coder.hpp"
#include "store/materialize/chunk_maker.hpp"
#include "store/materialize/plan.hpp"
#include "store/repository/repository.hpp"
#include "store/timing/build_meter.hpp"

namespace weightfs {

class EarlyVersion;  // store/materialize/early_version.hpp

struct WriteOptions {
  std::filesystem::path directory;      // must exist and be empty
  const EarlyVersion* early = nullptr;  // files that were made already
  bool all_packs = false;               // fetch packs whole, also if files are left out
  std::filesystem::path spool;          // for packs while they are applied
  unsigned threads = 0;                 // 0: one for each core
  bool sync = true;                     // fsync files and directories
  unsigned mode = 0444;                 // of files; a hard-linked file keeps the base's mode
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
