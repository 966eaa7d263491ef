// Poller: asks the bucket for the newest version, and says which one this host is to have.
//
// A poll without news is one GET of the next manifest, however many versions there are; about once
// a minute, and when the bucket is back, it is followed by History::check_bucket().  A manifest
// that is broken does not hide the versions before it.  While the bucket gives no answer, polls
// become sparse.
//
// Threads: a Poller belongs to one thread at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <random>

#include "store/base/context.hpp"
#include "store/base/error.hpp"
#include "store/catalog/catalog_builder.hpp"
#include "store/catalog/follow.hpp"
#include "store/local/store.hpp"
#include "store/materialize/history.hpp"
#include "store/sync/poll_rhythm.hpp"
#include "store/sync/version_watches.hpp"

namespace weightfs {

class Poller {
 public:
  /// Keeps the references.  `tags` reads those of new versions; `watches` is told when a version
  /// was seen.
  Poller(Store& store, History& history, CatalogBuilder& tags, VersionWatches& watches,
         FollowOptions follow);

  /// A version that was missing a moment ago is the newest one, as a rule, and whoever brings it
  /// need not wait for the answer that there is no other: the next poll, at once after it, asks.
  /// `can_wait`: that poll will come.
  /// Throws what went wrong; then is_reachable() is false, and newest() is that known before.
  void poll(const Context& context, bool can_wait = false);

  /// The newest version known to be in the bucket.
  [[nodiscard]] std::uint64_t newest() const noexcept { return newest_; }
  /// The followed version; 0: none yet.  Never goes back.
  [[nodiscard]] std::uint64_t wanted() const noexcept { return wanted_; }
  /// This host has `version`, so it wants no older one.
  void has(std::uint64_t version) noexcept;
  /// Why it is unknown whether there are versions after newest().  After a poll that found new ones
  /// the next poll says it.
  [[nodiscard]] const std::optional<Error>& beyond() const noexcept { return beyond_; }
  /// Why a later version than wanted() may carry the followed tag: its manifest cannot be read.
  [[nodiscard]] const std::optional<Error>& hidden_tag() const noexcept { return hidden_tag_; }

  /// Of the last poll.
  [[nodiscard]] bool is_reachable() const noexcept { return is_reachable_; }
  /// The last poll succeeded, those before it did not.
  [[nodiscard]] bool is_back() const noexcept { return is_back_; }

  /// The next version may come at this moment; nullopt: nothing says when.
  void expect(std::optional<Clock::time_point> due) noexcept { rhythm_.expect(due); }

  /// Time until the next poll; to be asked before each.
  [[nodiscard]] std::chrono::microseconds delay();
  /// Poll::learns: the time between versions that polls go by; nullopt: steady polls.
  [[nodiscard]] std::optional<std::chrono::milliseconds> rhythm() const;

 private:
  void ask(const Context& context, bool can_wait);
  void check_bucket(bool found, const Context& context);
  [[nodiscard]] bool is_dense() const;
  void find_newest(const Context& context, History::Reach reach);
  void walk_to_newest(const Context& context);
  void find_wanted(const Context& context);
  [[nodiscard]] std::chrono::microseconds find_delay();

  Store& store_;
  History& history_;
  CatalogBuilder& tags_;
  VersionWatches& watches_;
  const FollowOptions follow_;

  std::uint64_t newest_;
  std::uint64_t wanted_ = 0;
  std::optional<Error> beyond_, hidden_tag_;
  bool is_reachable_ = false;
  bool is_refused_ = false;  // a person's help is needed
  bool is_back_ = false;
  unsigned failures_ = 0;  // in a row
  PollRhythm rhythm_;
  Clock::duration took_{};                    // the last successful poll
  Clock::time_point checked_ = Clock::now();  // that the bucket still is the same one
  bool may_have_more_ = false;                // it has not asked whether there are later versions
  std::optional<std::chrono::microseconds> paused_;  // before the next poll
  std::minstd_rand random_{std::random_device{}()};
};

/// Whether an error of a poll says that the bucket as a whole gave no answer.  A refused key or
/// setting counts too: a running mount continues with what the store has.
bool is_offline(ErrorCode code) noexcept;

}  // namespace weightfs
