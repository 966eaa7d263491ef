// Reader record: what a reader of a repository says about itself in the bucket, readers/<id>.json.
//
// What others wrote is untrusted: sizes are bounded, unknown fields are ignored.
//
// Threads: a value.  Format: docs/FORMAT.md, "Readers".
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weightfs {

inline constexpr std::uint64_t kReaderBytesMax = 64u << 10;
inline constexpr std::size_t kReaderEnginesMax = 64;
inline constexpr std::uint64_t kReaderEveryMax = 3'600;  // seconds

/// One engine that a reader keeps up to date.
struct ReaderEngine {
  std::string name;           // "vllm http://127.0.0.1:8000", without secrets
  std::string state;          // a word of fs/hooks: "current", "telling", ...
  std::uint64_t version = 0;  // 0: none that is known
};

struct ReaderRecord {
  std::string id, repository;
  std::string host, place;  // place: mount point or directory
  std::uint64_t pid = 0;
  std::string follow;  // "latest", a tag, or a number
  std::uint64_t version = 0, newest = 0;
  bool is_whole = false;  // all bytes of `version` are on the host
  std::uint64_t lag_versions = 0, lag_seconds = 0;
  std::string health;
  std::vector<ReaderEngine> engines;
  std::uint64_t since = 0, time = 0;  // seconds since 1970, by the reader's clock
  std::uint64_t every_s = 30;
  bool has_left = false;

  /// Long strings are cut, and control characters replaced, so that it can be read again.
  [[nodiscard]] std::string serialize() const;

  /// `what` names it in messages.  Throws Error: corrupt, unsupported (a newer format).
  static ReaderRecord parse(std::string_view bytes, std::string_view what);
};

}  // namespace weightfs
