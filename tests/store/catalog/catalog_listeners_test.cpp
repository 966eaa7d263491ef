#include "store/catalog/catalog_listeners.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <string>
#include <thread>

#include "tests/support/eventually.hpp"

namespace weightfs {
namespace {

TEST(CatalogListeners, AreToldInTurnAsLongAsTheyListen) {
  CatalogListeners listeners;
  std::string told;
  EXPECT_FALSE(listeners.prepares());
  const auto first = listeners.add({.prepare = [&](const CatalogVersion&) { told += "p1 "; },
                                    .changed = [&] { told += "c1 "; }});
  auto second = listeners.add({.changed = [&] { told += "c2 "; }});
  EXPECT_TRUE(listeners.prepares());
  listeners.prepare({});
  listeners.changed();
  EXPECT_EQ(told, "p1 c1 c2 ");
  told.clear();
  second.end();
  listeners.changed();
  EXPECT_EQ(told, "c1 ");
}

TEST(CatalogListeners, AListenerMayMakeANewCatalog) {
  CatalogListeners listeners;
  int catalogs = 0;
  const auto preparing =
      listeners.add({.prepare = [&](const CatalogVersion&) { listeners.changed(); }});
  const auto counting = listeners.add({.changed = [&] { catalogs++; }});
  listeners.prepare({});
  EXPECT_EQ(catalogs, 1);
}

TEST(CatalogListeners, OneThatEndsWaitsForItsCalls) {
  CatalogListeners listeners;
  std::atomic<bool> is_called = false, is_ending = false, has_ended = false;
  std::optional listening = listeners.add({.changed = [&] {
    is_called = true;
    while (!is_ending) std::this_thread::yield();
    for (int i = 0; i < 10'000; i++)
      std::this_thread::yield();  // gives end() time to return too
                                  // early
    EXPECT_FALSE(has_ended);
  }});
  std::jthread teller([&] { listeners.changed(); });
  ASSERT_TRUE(test::eventually([&] { return is_called.load(); }));
  std::jthread ender([&] {
    is_ending = true;
    listening.reset();
    has_ended = true;
  });
  ASSERT_TRUE(test::eventually([&] { return has_ended.load(); }));
  is_called = false;
  listeners.changed();
  EXPECT_FALSE(is_called);
}

}  // namespace
}  // namespace weightfs
