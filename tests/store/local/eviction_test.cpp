// The rule of eviction: the state machine, and a model host in memory whose sync, readers, pins and
// disk act in random order, also between the steps of evict().

#include "store/local/eviction.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "store/base/error.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/support.hpp"
#include "tests/support/told_guard.hpp"

namespace weightfs {
namespace {

using test::code_of;
using Claim = Eviction::Claim;

const auto kYes = [] { return true; };
const auto kNo = [] { return false; };
const auto kNothing = [] {};

TEST(EvictionTest, AVersionThatNobodyUsesGoes) {
  Eviction eviction;
  bool removed = false;
  EXPECT_TRUE(eviction.evict(1, {kYes, [&] {
                                   EXPECT_TRUE(eviction.is_hidden(1));
                                   removed = true;
                                 }}));
  EXPECT_TRUE(removed);
  EXPECT_FALSE(eviction.is_hidden(1)) << "nothing is known of what is gone";
}

TEST(EvictionTest, AVersionThatIsReadOrReservedStays) {
  Eviction eviction;
  EXPECT_FALSE(eviction.evict(1, {kNo, [] { FAIL(); }}));
  for (const Claim claim : {Claim::stays, Claim::in_use}) {
    auto reservation = eviction.reserve(1, claim, {});
    const auto second = eviction.try_reserve(1, claim);
    EXPECT_EQ(eviction.stays(1), claim == Claim::stays);
    reservation.give_up();
    EXPECT_FALSE(eviction.evict(1, {kYes, [] { FAIL(); }}));
    EXPECT_FALSE(eviction.leave(1));
  }
  EXPECT_FALSE(eviction.stays(1));
  EXPECT_TRUE(eviction.evict(1, {kYes, kNothing}));
}

TEST(EvictionTest, AReservationMovesAndEndsOnce) {
  Eviction eviction;
  auto first = eviction.reserve(1, Claim::stays, {});
  Eviction::Reservation second = std::move(first);
  first.give_up();
  EXPECT_TRUE(eviction.stays(1));
  second = eviction.reserve(2, Claim::stays, {});
  EXPECT_FALSE(eviction.stays(1));
  EXPECT_TRUE(eviction.stays(2));
}

TEST(EvictionTest, AGuardIsAskedInItsOrder) {
  Eviction eviction;
  std::vector<std::string> calls;
  const auto note = [&](const char* what, bool answer) {
    calls.push_back(what + std::string(eviction.is_hidden(1) ? " hidden" : " shown"));
    return answer;
  };
  bool keeps = false, withdraws = true, unused = true;
  eviction.set_changed([&] { note("changed", true); });
  const test::ToldGuard guard(eviction,
                              {.keeps = [&](auto) { return note("keep", keeps); },
                               .withdraw = [&](auto) { return note("withdraw", withdraws); },
                               .release = [&](auto) { return note("release", unused); },
                               .restore = [&](auto) { note("restore", true); }});
  bool read = false;
  const Eviction::Files files{[&] { return note("leases", !read); }, [&] { note("remove", true); }};
  using Calls = std::vector<std::string>;
  const auto evict = [&] {
    calls.clear();
    const bool is_gone = eviction.evict(1, files);
    return std::pair(is_gone, calls);
  };
  EXPECT_EQ(evict(), std::pair(true, Calls({"keep shown", "withdraw shown", "leases shown",
                                            "changed hidden", "keep hidden", "release hidden",
                                            "leases hidden", "remove hidden"})));
  unused = false;
  EXPECT_EQ(evict(), std::pair(false, Calls({"keep shown", "withdraw shown", "leases shown",
                                             "changed hidden", "keep hidden", "release hidden",
                                             "changed shown", "restore shown"})));
  read = true;
  EXPECT_EQ(
      evict(),
      std::pair(false, Calls({"keep shown", "withdraw shown", "leases shown", "restore shown"})))
      << "what is in use is not even hidden";
  withdraws = false;
  EXPECT_EQ(evict(), std::pair(false, Calls({"keep shown", "withdraw shown"})));
  keeps = true;
  EXPECT_EQ(evict(), std::pair(false, Calls({"keep shown"})));
}

TEST(EvictionTest, GuardsAreAskedInTurnAndWhatTheFirstHasWithdrawnIsRestored) {
  Eviction eviction;
  std::vector<std::string> calls;
  bool second_withdraws = false;
  const auto answers = [&](const std::string& name, const bool& withdraws) {
    return test::GuardAnswers{
        .keeps = {},
        .withdraw =
            [&calls, &withdraws, name](auto) {
              calls.push_back(name + " withdraw");
              return withdraws;
            },
        .release =
            [&calls, name](auto) {
              calls.push_back(name + " release");
              return name != "2";
            },
        .restore = [&calls, name](auto) { calls.push_back(name + " restore"); }};
  };
  const bool always = true;
  const test::ToldGuard first(eviction, answers("1", always));
  std::optional<test::ToldGuard> second(std::in_place, eviction, answers("2", second_withdraws));
  using Calls = std::vector<std::string>;
  EXPECT_FALSE(eviction.evict(1, {kYes, [] { FAIL(); }}));
  EXPECT_EQ(calls, Calls({"1 withdraw", "2 withdraw", "1 restore"}));
  calls.clear();
  second_withdraws = true;
  EXPECT_FALSE(eviction.evict(1, {kYes, [] { FAIL(); }}));
  EXPECT_EQ(calls, Calls({"1 withdraw", "2 withdraw", "1 release", "2 release", "1 restore",
                          "2 restore"}));
  calls.clear();
  second.reset();
  EXPECT_TRUE(eviction.evict(1, {kYes, kNothing}));
  EXPECT_EQ(calls, Calls({"1 withdraw", "1 release"}));
}

TEST(EvictionTest, AGuardThatThrowsLeavesNobodyWithdrawn) {
  Eviction eviction;
  std::vector<std::string> calls;
  const auto answers = [&](const std::string& name, bool fails) {
    return test::GuardAnswers{
        .withdraw =
            [&calls, name, fails](auto) {
              calls.push_back(name + " withdraw");
              if (fails) throw Error(ErrorCode::io, "withdraw");
              return true;
            },
        .restore = [&calls, name](auto) { calls.push_back(name + " restore"); }};
  };
  const test::ToldGuard first(eviction, answers("1", false));
  const test::ToldGuard second(eviction, answers("2", true));
  const test::ToldGuard third(eviction, answers("3", false));
  EXPECT_EQ(code_of([&] { eviction.evict(1, {kYes, [] { FAIL(); }}); }), ErrorCode::io);
  EXPECT_EQ(calls,
            std::vector<std::string>({"1 withdraw", "2 withdraw", "2 restore", "1 restore"}));
}

TEST(EvictionTest, AReservationCallsALeavingVersionBackAlsoIfItHasEnded) {
  Eviction eviction;
  auto departure = eviction.leave(1);
  ASSERT_TRUE(departure);
  EXPECT_TRUE(eviction.is_hidden(1));
  EXPECT_FALSE(eviction.leave(1)) << "it leaves once";
  // An OPEN was counted after the counts had been checked.
  eviction.try_reserve(1, Claim::in_use)->give_up();
  EXPECT_FALSE(departure->settle(true));
  EXPECT_FALSE(eviction.is_hidden(1));
}

TEST(EvictionTest, WhoReservesWhatIsGoingWaitsForTheEndOfIt) {
  Eviction eviction;
  const Context soon = Context{}.within(std::chrono::milliseconds(1));
  std::jthread waiter;
  std::atomic<bool> has_it = false;
  EXPECT_TRUE(eviction.evict(
      1, {kYes, [&] {
            EXPECT_FALSE(eviction.try_reserve(1, Claim::in_use));
            EXPECT_EQ(code_of([&] { static_cast<void>(eviction.reserve(1, Claim::in_use, soon)); }),
                      ErrorCode::timed_out);
            EXPECT_EQ(code_of([&] { eviction.wait_settled(1, soon); }), ErrorCode::timed_out);
            waiter = std::jthread([&] {
              const auto reservation = eviction.reserve(1, Claim::in_use, {});
              has_it = true;
            });
            EXPECT_FALSE(has_it);
          }}));
  EXPECT_TRUE(test::eventually([&] { return has_it.load(); }));
  eviction.wait_settled(1, {});
}

TEST(EvictionTest, AFailureShowsTheVersionAgain) {
  Eviction eviction;
  bool is_in_catalog = true, is_withdrawn = false;
  eviction.set_changed([&] { is_in_catalog = !eviction.is_hidden(1); });
  const test::ToldGuard guard(eviction, {.withdraw = [&](auto) { return is_withdrawn = true; },
                                         .restore = [&](auto) { is_withdrawn = false; }});
  for (const int fails_at : {1, 2}) {
    int asked = 0;
    const auto fail = [&]() -> bool {
      if (++asked == fails_at) throw Error(ErrorCode::io, "leases");
      return true;
    };
    EXPECT_EQ(code_of([&] { eviction.evict(1, {fail, kNothing}); }), ErrorCode::io);
    EXPECT_FALSE(eviction.is_hidden(1));
    EXPECT_TRUE(is_in_catalog) << "asked " << fails_at;
    EXPECT_FALSE(is_withdrawn) << "asked " << fails_at;
  }
  EXPECT_EQ(code_of([&] {
              eviction.evict(1, {kYes, [] { throw Error(ErrorCode::no_space, "remove"); }});
            }),
            ErrorCode::no_space);
  EXPECT_TRUE(eviction.try_reserve(1, Claim::stays));
}

// ---- the model ----

/// A host in memory.  The actors take one step at a time, in random order, and also within each
/// call that evict() makes; so every interleaving can happen, and a seed reproduces it.
class EvictionModel : public testing::TestWithParam<std::size_t> {
 protected:
  static constexpr std::size_t kReaders = 6;

  /// Other actors run before and after the call.
  template <typename Body>
  auto between(Body&& body) {
    others();
    struct After {
      EvictionModel* model;
      ~After() { model->others(); }
    } const after{this};
    return body();
  }

  EvictionModel()
      : guard_(
            eviction_,
            {.keeps = [this](auto v) { return between([&] { return keeps(v); }); },
             .release = [this](auto v) { return between([&] { return !opens_.contains(v); }); }}) {
    eviction_.set_changed([this] { between([&] { make_catalog(); }); });
  }

  void run(unsigned steps) {
    for (unsigned i = 0; i < steps && !HasFailure(); i++) step();
    // No actor is stuck: all finish if they get time.
    EXPECT_GT(latest_, steps / 1000);
    EXPECT_GT(evicted_, latest_ / 2);
    EXPECT_GT(stayed_, 0u);
    EXPECT_GT(opened_, steps / 100);
  }

 private:
  std::uint64_t random(std::uint64_t below) { return rng_() % below; }

  void others() {
    for (std::uint64_t n = random(4); n > 0; n--) step();
  }

  void step() {
    const std::uint64_t who = random(kReaders + 3);
    if (who < kReaders) {
      read(readers_[who]);
    } else if (who == kReaders) {
      bring();
    } else if (who == kReaders + 1) {
      complete();
    } else {
      hook();
    }
    check();
  }

  [[nodiscard]] bool is_here(std::uint64_t version) const {
    return complete_.contains(version) || filling_.contains(version);
  }
  [[nodiscard]] bool keeps(std::uint64_t version) const { return held_ == version; }

  void check() {
    EXPECT_TRUE(latest_ == 0 || complete_.contains(latest_)) << "latest " << latest_;
    EXPECT_TRUE(!is_made_ || complete_.contains(bringing_)) << "about to be latest: " << bringing_;
    for (const std::uint64_t version : shown_) {
      EXPECT_TRUE(is_here(version)) << version << " is shown";
    }
    for (const auto& [version, count] : opens_) {
      EXPECT_TRUE(is_here(version)) << version << " is open";
    }
    EXPECT_TRUE(!is_held_ || is_here(held_)) << held_ << " is held";
  }

  /// Like CatalogBuilder and Sync.
  void make_catalog() {
    std::set<std::uint64_t> shown;
    for (const std::uint64_t v : complete_) {
      if (!eviction_.is_hidden(v)) shown.insert(v);
    }
    for (const std::uint64_t v : filling_) {
      if (!eviction_.is_hidden(v)) shown.insert(v);
    }
    std::uint64_t chosen = 0;
    for (const std::uint64_t v : complete_) {
      if (shown.contains(v)) chosen = std::max(chosen, v);
    }
    ASSERT_GE(chosen, latest_) << "latest would be absent, or go back";
    if (chosen > 0) {
      auto reserved = eviction_.try_reserve(chosen, Claim::stays);
      ASSERT_TRUE(reserved);
      reserved_latest_ = std::move(*reserved);
    }
    latest_ = chosen;
    shown_ = std::move(shown);
  }

  /// Partial ones first, then the oldest.
  bool make_room() {
    if (is_evicting_) return false;  // another caller waits
    is_evicting_ = true;
    std::vector<std::uint64_t> candidates(filling_order_);
    candidates.insert(candidates.end(), complete_.begin(), complete_.end());
    std::set<std::uint64_t> counted(candidates.begin(), candidates.end());
    for (const std::uint64_t version : candidates) {
      if (counted.size() < room_) break;
      const bool was_filling = filling_.contains(version);
      const bool is_gone = eviction_.evict(
          version,
          {[&] { return between([&] { return filling_.contains(version) == was_filling; }); },
           [&] {
             between([&] {
               EXPECT_TRUE(eviction_.is_hidden(version));
               complete_.erase(version);
               filling_.erase(version);
               std::erase(filling_order_, version);
             });
             evicted_++;
           }});
      if (!is_gone && !eviction_.stays(version)) stayed_++;
      if (is_gone || !eviction_.stays(version)) counted.erase(version);
    }
    is_evicting_ = false;
    make_catalog();
    return counted.size() < room_;
  }

  /// The sync: reserve, make room, build, prepare, show, release.
  void bring() {
    switch (bring_step_) {
      case 0:
        if (random(8) != 0) return;
        bringing_ = published_ + 1;
        if (auto reserved = eviction_.try_reserve(bringing_, Claim::stays)) {
          bring_ = std::move(*reserved);
          published_++;
          bring_step_ = 1;
        }
        return;
      case 1:
        if (is_evicting_) return;
        bring_step_ = 5;  // in progress
        if (make_room()) {
          bring_step_ = 2;
        } else {
          ADD_FAILURE() << "no room for what is followed";
        }
        return;
      case 2:
        complete_.insert(bringing_);
        is_made_ = true;
        bring_step_ = 3;
        return;
      case 3:  // listeners prepare before `latest` moves
        if (random(3) != 0) return;
        make_catalog();
        bring_step_ = 4;
        return;
      case 4:
        bring_.give_up();
        is_made_ = false;
        bring_step_ = 0;
        return;
      default:
        return;
    }
  }

  /// Some partial versions become complete; every third version never does.
  void complete() {
    if (filling_order_.empty()) return;
    const std::uint64_t version = filling_order_[random(filling_order_.size())];
    if (version % 3 == 0) return;
    const auto reserved = eviction_.try_reserve(version, Claim::in_use);
    if (!reserved) return;
    filling_.erase(version);
    std::erase(filling_order_, version);
    complete_.insert(version);
  }

  /// A hook holds the shown version: hold first, then look.
  void hook() {
    if (held_ != 0) {
      if (random(20) == 0) held_ = is_held_ = 0;
      return;
    }
    if (shown_.empty()) return;
    held_ = *std::next(shown_.begin(), static_cast<std::ptrdiff_t>(random(shown_.size())));
    others_once();
    is_held_ = shown_.contains(held_);
    if (!is_held_) held_ = 0;
  }
  void others_once() {
    if (random(2) == 0) bring();
  }

  struct Reader {
    int step = 0;
    std::uint64_t version = 0;
    std::optional<Eviction::Reservation> reserved = {};
  };

  /// Opens any version by name, like an OPEN of the mount, reads it, and closes it.
  void read(Reader& one) {
    switch (one.step) {
      case 0:
        if (published_ == 0 || random(4) != 0) return;
        one.version = 1 + random(std::min<std::uint64_t>(published_, latest_ + 1));
        if (one.version > latest_) return;
        one.step = 1;
        return;
      case 1:
        one.reserved = eviction_.try_reserve(one.version, Claim::in_use);
        if (one.reserved) one.step = shown_.contains(one.version) ? 3 : 2;
        return;
      case 2:  // parked
        if (!is_here(one.version)) {
          if (is_evicting_) return;
          one.step = 6;
          const bool has_room = make_room();
          one.step = 2;
          if (!has_room) {  // EIO; status names the reason
            one.reserved.reset();
            one.step = 0;
            return;
          }
          if (!is_here(one.version)) {
            filling_.insert(one.version);
            filling_order_.push_back(one.version);
          }
        }
        if (eviction_.is_hidden(one.version)) return;  // called back, but not shown yet
        make_catalog();
        EXPECT_TRUE(shown_.contains(one.version));
        one.step = 3;
        return;
      case 3:
        EXPECT_TRUE(is_here(one.version)) << "an OPEN of version " << one.version << " fails";
        opens_[one.version]++;
        opened_++;
        one.step = 4;
        return;
      case 4:
        one.reserved.reset();
        one.step = 5;
        return;
      case 5:
        EXPECT_TRUE(is_here(one.version)) << "a read of version " << one.version << " fails";
        if (random(4) != 0) return;
        if (--opens_[one.version] == 0) opens_.erase(one.version);
        one.step = 0;
        return;
      default:
        return;
    }
  }

  const std::size_t room_ = GetParam();  // number of versions that fit
  test::Random rng_ = test::make_rng();
  Eviction eviction_;
  test::ToldGuard guard_;
  std::set<std::uint64_t> complete_, filling_;
  std::vector<std::uint64_t> filling_order_;
  std::set<std::uint64_t> shown_;
  std::uint64_t latest_ = 0, published_ = 0;
  Eviction::Reservation reserved_latest_, bring_;
  std::uint64_t bringing_ = 0;
  int bring_step_ = 0;
  bool is_made_ = false, is_evicting_ = false;
  std::uint64_t held_ = 0;
  bool is_held_ = false;
  std::map<std::uint64_t, unsigned> opens_;
  std::array<Reader, kReaders> readers_;
  std::uint64_t evicted_ = 0, stayed_ = 0, opened_ = 0;
};

TEST_P(EvictionModel, HoldsInRandomInterleavings) { run(35'000); }

// With room for two, the followed version takes all of it, and others must find none.
INSTANTIATE_TEST_SUITE_P(Rooms, EvictionModel, testing::Values(2, 3, 4));

}  // namespace
}  // namespace weightfs
