// Reader list: who reads a repository, by the records in readers/.
//
// A LIST shows which records there are and when the bucket got them; each is fetched, unless it was
// before and has not changed.  What cannot be read counts for nothing, and is named.
//
// Threads: one at a time.  Format: docs/FORMAT.md, "Readers".
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/context.hpp"
#include "store/bucket/bucket.hpp"
#include "store/readers/reader_record.hpp"
#include "store/repository/repository.hpp"

namespace weightfs {

inline constexpr std::uint64_t kReadersMax = 4'096;  // that are fetched: those written last
inline constexpr std::int64_t kGoneAfterIntervals = 3;

enum class Presence {
  live,
  left,  // it has ended in an orderly way
  gone   // nothing was heard of it for three intervals
};
std::string_view to_string(Presence presence) noexcept;

struct ListedReader {
  ReaderRecord record;
  Presence presence{};
  std::int64_t age_s = 0;  // since the record was written
};

struct ReaderList {
  std::vector<ListedReader> readers;    // by host and place
  std::vector<std::string> unreadable;  // why a record counts for nothing, one message each
  std::uint64_t left_out = 0;           // records beyond the limit
  /// Ages are by the bucket's clock; false: it does not say what time it is, and they are the
  /// difference between this host's clock and those of the readers.
  bool by_bucket_clock = true;
};

class ReaderLister {
 public:
  /// `limit`: fetches at most so many records, the last written first; 0: kReadersMax.
  explicit ReaderLister(Repository& repository, std::uint64_t limit = 0);

  /// Throws Error: permission (LIST and GET of readers/ are needed); what the bucket throws.
  ReaderList list(const Context& context);

 private:
  struct Fetched {
    Bucket::Time written;
    std::uint64_t size_bytes = 0;
    std::optional<ReaderRecord> record;  // nullopt: it cannot be read, or is gone
    std::string problem;                 // why it cannot be read
    bool is_settled = false;  // another write would have another time, so it need not be asked for
  };

  [[nodiscard]] std::vector<ObjectInfo> list_objects(std::uint64_t& left_out,
                                                     const Context& context) const;
  [[nodiscard]] Fetched fetch(const ObjectInfo& object, const std::optional<Bucket::Time>& now,
                              const Context& context) const;

  Repository& repository_;
  const std::uint64_t limit_;
  std::map<std::string, Fetched, std::less<>> fetched_;  // by key
};

/// Records that were written longer ago than this are of nobody.
inline constexpr std::chrono::hours kReaderRecordAgeMax{7 * 24};

/// Records older than kReaderRecordAgeMax, by the bucket's clock; none if it does not say what time
/// it is.  They may be removed: a reader that comes back writes its own again.
/// Throws Error: what the bucket throws.
std::vector<ObjectInfo> find_old_readers(Repository& repository, const Context& context);

/// Removes these; where that is not permitted they stay, and the log says so: nothing needs their
/// room.  `wait_turn`: called before each.
/// Returns: those that were removed.  Throws Error: what the bucket throws otherwise.
std::vector<ObjectInfo> remove_old_readers(
    Repository& repository, const Context& context,
    const std::function<void(const Context& context)>& wait_turn = {});

}  // namespace weightfs
