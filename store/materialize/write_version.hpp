// Write version: carries out a plan, that is, builds the files of its version.
//
// For each chunk of the wanted version: read it from the base, apply the coded chunks of all steps
// one after another in memory (kernels/block/chunk_coder.hpp), compare the hash, write once.  Files
// are written in file-aligned windows of kWindowBytes after fallocate, in parallel over segments. A
// file that no step touches is hard-linked to the base's image.
//
// Threads: write_version runs its own threads and returns when they are done.
#pragma once

#include <cstdint>
#include <filesystem>

#include "kernels/block/chunk_coder.hpp"
#include "kernels/dispatch/cpu_coder.hpp"
#include "store/materialize/plan.hpp"
#include "store/repository/repository.hpp"

namespace weightfs {

struct WriteOptions {
  std::filesystem::path directory;  // exists, empty
  std::filesystem::path spool;      // for packs while they are applied; same machine
  unsigned threads = 0;             // 0: one for each core
  bool sync = true;                 // fsync files and directories
  unsigned mode = 0444;             // of files; a hard-linked one keeps the base's
  kernels::SharedCoder coder = kernels::make_cpu_coder();
};

/// Writes every file of the plan's version that is to be made, with the manifest's time as
/// modification time.  Nothing outside options.directory is changed; after a failure the caller
/// removes what is in it.
///
/// Throws Error: corrupt: a pack, snapshot or blob that does not match (names the key), or a
/// damaged base image (names the file; BaseDamaged); not_found, naming the key; no_space;
/// cancelled; unavailable.
void write_version(const Plan& plan, Repository& repository, const WriteOptions& options,
                   const Context& context, const Progress& progress);

}  // namespace weightfs
