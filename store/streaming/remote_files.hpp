// RemoteFiles: serves reads of files that this host does not keep (`--only`).
//
// The unit is a chunk.  It is built as in materialize(), from the bucket's snapshot and the steps
// after it, and its hash is compared, so only verified bytes are returned.  The only data on disk
// are fetched pieces of packs, in an unlinked file; the last kRestBytesMax of chunks and the plans
// of two versions stay in memory.
//
// Network failures are retried for a while; a read never returns fewer bytes instead of failing.
//
// Threads: all calls may run in parallel.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "kernels/block/chunk_coder.hpp"
#include "kernels/dispatch/cpu_coder.hpp"
#include "store/local/store.hpp"
#include "store/materialize/history.hpp"

namespace weightfs {

inline constexpr std::size_t kRestBytesMax = 64u << 20;

struct RemoteFilesOptions {
  kernels::SharedCoder coder = kernels::make_cpu_coder();
  /// How long a read retries while the bucket is unreachable.
  std::chrono::milliseconds retry{60'000};
};

class RemoteFiles {
 public:
  /// Keeps the references.
  RemoteFiles(Store& store, History& history, RemoteFilesOptions options);
  ~RemoteFiles();  // requires: no read is running
  RemoteFiles(const RemoteFiles&) = delete;
  RemoteFiles& operator=(const RemoteFiles&) = delete;

  /// Reads into `into` up to the end of a file of the version's layout.
  /// Returns: how many bytes; 0 at the end.
  /// Throws Error: corrupt, io (an object of the bucket is missing or damaged, naming it; or there
  /// is no such file); unavailable, no_space; cancelled, timed_out.
  std::size_t read(std::uint64_t version, std::string_view path, std::uint64_t offset_bytes,
                   std::span<std::byte> into, const Context& context);

  /// Cancels running reads; from now on read() throws cancelled if it needs the bucket.
  void stop() noexcept;

  /// Bytes of all chunks made so far.
  [[nodiscard]] std::uint64_t made_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weightfs
