// WantedDeltas: which changes somebody will ask for as a file (store/local/delta_table.hpp) when
// the next version is here, so that they are made while it is
// (store/sparse/ahead_deltas.hpp).
//
//     a reader     who opened the change that led to one of the two newest versions will open the
//                  next one, with or without old values as that one: note_opened()
//     an engine    that takes versions in place says what it will read: set_engines()
//
// A version is made from another one; the change between these two is what can be made ahead.
// While nobody asks, nothing is made, and a pass costs nothing more.
//
// Threads: all calls may run in parallel.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "store/base/context.hpp"
#include "store/base/delta_id.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/base/version_pair.hpp"

namespace weightfs {

/// A delta that was noted while a version was made, and is still to be written.
class UnfinishedDelta {
 public:
  virtual ~UnfinishedDelta() = default;  // if it was not finished: gives it up

  /// Never throws for what is wrong with the delta: then it is given up, and made on demand.
  virtual void finish(const Context& context) = 0;
};

class WantedDeltas {
 public:
  /// The changes that engines will read when this version is here.
  using FindWanted = std::function<std::vector<DeltaId>(std::uint64_t version)>;
  /// Called while a version is about to be made, by the thread that makes it; must be quick.
  /// Empty: there are no engines.
  void set_engines(FindWanted find_wanted);

  /// A reader opened it.
  void note_opened(const DeltaId& id);

  /// The version span.to is complete, made from the other one.
  void note_made(VersionPair span);

  /// What to make while the version span.to is made from the other one.
  [[nodiscard]] std::vector<DeltaId> of(VersionPair span) const;

  /// To be finished when `latest` has moved.
  void put_unfinished(std::unique_ptr<UnfinishedDelta> delta);
  [[nodiscard]] std::vector<std::unique_ptr<UnfinishedDelta>> take_unfinished();

 private:
  [[nodiscard]] bool is_wanted_by_readers(VersionPair span, bool with_old) const;

  mutable RankedMutex mutex_{LockRank::leaf, "WantedDeltas::mutex_"};  // guards what follows
  FindWanted find_wanted_;                                             // may be empty
  std::deque<VersionPair> made_;                                       // the last two, by time
  std::array<std::uint64_t, 2> opened_{};  // newest version led to, without and with old values
  std::vector<std::unique_ptr<UnfinishedDelta>> unfinished_;
};

}  // namespace weightfs
