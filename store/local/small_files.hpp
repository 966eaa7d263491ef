// SmallFiles: small files of versions whose images may not be here, by their SHA-256:
// <store>/small/<64 hex digits>.  With them, images and patches make a version without the bucket.
//
// What is read is compared with its SHA-256 by whoever reads it.  Files appear whole; what a crash
// leaves besides is removed by keep_only().
//
// Threads: all calls may run in parallel, those that write one at a time.
#pragma once

#include <filesystem>
#include <set>
#include <string_view>

#include "store/base/sha256.hpp"

namespace weightfs {

class SmallFiles {
 public:
  /// `directory`: made when there is something to keep.
  explicit SmallFiles(std::filesystem::path directory);

  [[nodiscard]] std::filesystem::path path_of(const Sha256& sha256) const;

  /// Durable when it returns.  Throws Error: no_space, io.
  void keep(const Sha256& sha256, std::string_view bytes);

  /// Removes all others.  Throws Error: io.
  void keep_only(const std::set<Sha256>& wanted);

 private:
  const std::filesystem::path directory_;
};

}  // namespace weightfs
