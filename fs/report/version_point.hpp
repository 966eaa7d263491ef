// Version point: what a picture of a run shows of one version.
//
// Threads: a value.
#pragma once

#include <cstdint>
#include <string>

namespace weightfs::fs {

struct VersionPoint {
  std::uint64_t number = 0;
  std::int64_t time = 0;  // of its publication, seconds since 1970
  std::string tag;        // from a bucket: untrusted
  std::uint64_t changed = 0, elements = 0;
  bool has_delta = false;
  std::uint64_t delta_bytes = 0;
  std::uint64_t snapshot_bytes = 0;  // in the bucket; 0: it has none there
  std::uint64_t version_bytes = 0;   // of its files
  bool is_retired = false;           // gc has retired it

  [[nodiscard]] std::uint64_t uploaded_bytes() const noexcept {
    return delta_bytes + snapshot_bytes;
  }
};

}  // namespace weightfs::fs
