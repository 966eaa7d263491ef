// SavePace: when a save that is under way will be complete, by how far it was before.
//
// Trainers save at a steady pace, and writers' mounts tell how far they are (EarlyRecord).  So the
// next version can be expected at a moment, whenever the step before it ended.
//
// Threads: a SavePace belongs to one thread at a time.
#pragma once

#include <cstdint>
#include <optional>

#include "store/base/context.hpp"
#include "store/format/early_record.hpp"
#include "store/format/layout.hpp"

namespace weightfs {

/// How much of a save is coded and uploaded.
struct SaveProgress {
  std::uint64_t version = 0;  // that it will be
  std::uint64_t done_bytes = 0, all_bytes = 0;
};

/// What a record says of the files that writers' mounts code early.  `parent`: the layout of the
/// version before.
SaveProgress progress_of(const EarlyRecord& record, const Layout& parent);

class SavePace {
 public:
  /// Returns: when all will be done.  When it was first seen, while the pace is not known; in the
  /// past, if it goes on no more.
  Clock::time_point note(const SaveProgress& progress, Clock::time_point now);

 private:
  struct Seen {
    std::uint64_t done_bytes = 0;
    Clock::time_point at;
  };

  std::uint64_t version_ = 0;
  Seen first_, last_;  // when it went on
};

}  // namespace weightfs
