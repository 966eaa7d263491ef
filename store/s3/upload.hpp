// S3Upload: an object in parts.
//
//     a large put            aborts uploads below the same first component of the key that began
//                            more than a day ago, and are not its own; the first one of a process,
//                            and one each day
//     begin                  takes the newest upload of this key that a crash left, with the parts
//                            in it whose size and MD5 are ours; or creates one
//     parts                  in parallel, as many as memory allows; all of one size but the last
//                            (R2 insists)
//     complete               again after a 200 without S3's confirmation (an <Error>, nothing: the
//                            status is sent before the work is done), which shows what came of it
//     failure                aborts, within a few seconds
//
// Keys that are written twice have equal bytes, so if the upload is gone and the object exists with
// the right size, the work is done: the reply of the completion was lost, or another host that
// resumed the same upload was faster.
//
// A part is read into memory once: its MD5, the signed SHA-256, and all attempts to send it use the
// same bytes.
//
// Memory: kUploadBytesMax for all objects together.
//
// Threads: may run in parallel.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "store/base/ranked_mutex.hpp"
#include "store/s3/request.hpp"

namespace weightfs {

inline constexpr std::uint64_t kMultipartBytes = 64u << 20;
inline constexpr std::uint64_t kPartBytesMin = 16u << 20;     // larger where 10,000 would not do
inline constexpr std::uint64_t kUploadBytesMax = 256u << 20;  // stated in docs/OPERATIONS.md
inline constexpr std::chrono::hours kUploadAgeMax{24};        // an older one is left behind

/// Limits how much of all uploads is in memory.  Threads: all calls may run in parallel.
class UploadMemory {
 public:
  /// Waits for room; a part that is larger than the limit waits until it is alone.
  /// Throws Error: cancelled, timed_out.
  void take(std::uint64_t size_bytes, const Context& context);
  void give_back(std::uint64_t size_bytes);

 private:
  RankedMutex mutex_{LockRank::leaf, "UploadMemory::mutex_"};  // guards taken_
  std::condition_variable_any changed_;
  std::uint64_t taken_ = 0;
};

/// A part of a source in memory, read once.
class UploadPart final : public Source {
 public:
  /// Throws Error: as `source`; cancelled, timed_out.
  UploadPart(UploadMemory& memory, const Source& source, std::uint64_t offset_bytes,
             std::uint64_t size_bytes, const Context& context);
  ~UploadPart() override;
  UploadPart(const UploadPart&) = delete;
  UploadPart& operator=(const UploadPart&) = delete;

  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {bytes_.get(), size_}; }
  [[nodiscard]] std::uint64_t size_bytes() const override { return size_; }
  void read(std::uint64_t offset_bytes, std::span<std::byte> into) const override;

 private:
  UploadMemory& memory_;
  const std::size_t size_;
  std::unique_ptr<std::byte[]> bytes_;
};

/// When uploads were last looked for that are left behind.
class TidyTimes {
 public:
  /// Whether to look now below a prefix: at first, and again after kUploadAgeMax.  If so, it counts
  /// as done.
  bool is_due(const std::string& prefix, Clock::time_point now);

 private:
  std::map<std::string, Clock::time_point> tidied_;
};

/// The uploads that are being sent, by their ids.  Threads: all calls may run in parallel.
class RunningUploads {
 public:
  /// Counts as running until it is destroyed.
  class Run {
   public:
    Run(RunningUploads& all, std::string id);
    ~Run();
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;

   private:
    RunningUploads& all_;
    const std::string id_;
  };

  [[nodiscard]] bool contains(const std::string& id) const;

 private:
  mutable RankedMutex mutex_{LockRank::leaf, "RunningUploads::mutex_"};  // guards ids_
  std::multiset<std::string> ids_;  // two puts of one key may resume the same upload
};

class S3Uploader {
 public:
  using Now = std::function<Clock::time_point()>;

  /// Keeps both references.
  S3Uploader(S3Client& client, UploadMemory& memory, Now now = Clock::now)
      : client_(client), memory_(memory), now_(std::move(now)) {}

  /// Uploads an object of more than kMultipartBytes.  Throws Error: as Bucket::put.
  void put(std::string_view key, const Source& source, const Context& context);

 private:
  void abort_old(std::string_view key, const Context& context);

  S3Client& client_;
  UploadMemory& memory_;
  const Now now_;
  RunningUploads running_;
  RankedMutex mutex_{LockRank::leaf, "S3Uploader::mutex_"};  // guards tidied_
  TidyTimes tidied_;
};

}  // namespace weightfs
