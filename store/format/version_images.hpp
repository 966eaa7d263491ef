// Version images: what the store records of the files of a version.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "store/base/sha256.hpp"
#include "store/format/layout.hpp"
#include "store/format/manifest.hpp"

namespace weightfs {

/// What the store records of a version's images.
struct VersionImages {
  struct File {
    std::string path;
    std::uint64_t size_bytes = 0;
    std::optional<Sha256> sha256 = {};  // of small files
  };
  std::uint64_t version = 0;
  std::int64_t time = 0;                    // of the manifest: the files' modification time
  std::vector<File> files;                  // all of the version, blobs too; by path, bytewise
  std::vector<std::uint64_t> chunk_hashes;  // by chunk number
};

/// The files of a version, as VersionImages::files has them.
std::vector<VersionImages::File> files_of(const Manifest& manifest, const Layout& layout);

}  // namespace weightfs
