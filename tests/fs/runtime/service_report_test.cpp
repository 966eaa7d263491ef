#include "fs/runtime/service_report.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <set>
#include <string>

#include "store/os/file.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/support.hpp"

namespace weightfs::fs {
namespace {

/// A service manager's end.
class Manager {
 public:
  explicit Manager(std::string name) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    name.copy(address.sun_path, sizeof address.sun_path);
    if (name.front() == '@') address.sun_path[0] = '\0';
    socket_ = File(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    EXPECT_EQ(::bind(socket_.fd(), reinterpret_cast<const sockaddr*>(&address), size), 0);
    ::setenv("NOTIFY_SOCKET", name.c_str(), 1);
  }
  ~Manager() { ::unsetenv("NOTIFY_SOCKET"); }
  Manager(const Manager&) = delete;
  Manager& operator=(const Manager&) = delete;

  /// The next message; "" if there is none in time.
  std::string next(int timeout_ms = 20'000) {
    pollfd waiting{.fd = socket_.fd(), .events = POLLIN, .revents = 0};
    if (::poll(&waiting, 1, timeout_ms) != 1) return "";
    std::array<char, 4096> buffer;
    const ssize_t got = ::recv(socket_.fd(), buffer.data(), buffer.size(), 0);
    return {buffer.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0))};
  }
  /// The next messages up to this one.
  std::string until(const std::string& wanted) {
    for (std::string message = next(); !message.empty(); message = next()) {
      if (message == wanted) return message;
    }
    return "";
  }

 private:
  File socket_;
};

TEST(ServiceReport, TellsReadinessHealthAndTheEnd) {
  const test::TempDir temp;
  Manager manager((temp / "notify").string());
  const NotifySocket socket;
  EXPECT_EQ(std::getenv("NOTIFY_SOCKET"), nullptr);
  {
    const ServiceReport report(
        socket, [] { return std::string("degraded: two\nlines"); }, [] { return true; });
    EXPECT_EQ(manager.next(), fmt::format("READY=1\nMAINPID={}", ::getpid()));
    EXPECT_EQ(manager.next(), "STATUS=degraded: two lines");
  }
  EXPECT_EQ(manager.next(), "STOPPING=1");
  EXPECT_EQ(manager.next(0), "");
}

TEST(ServiceReport, TheWatchdogHearsNothingWhileItDoesNotAnswer) {
  Manager manager(fmt::format("@weightfs-test-{}", ::getpid()));
  ::setenv("WATCHDOG_USEC", "60000", 1);
  const NotifySocket socket;
  ASSERT_TRUE(socket.watchdog());
  std::atomic<bool> answers{false}, is_well{true};
  std::atomic<int> asked{0};
  const ServiceReport report(
      socket, [&] { return std::string(is_well ? "healthy" : "failed: x"); },
      [&] {
        asked++;
        return answers.load();
      });
  EXPECT_EQ(manager.next().substr(0, 7), "READY=1");
  EXPECT_EQ(manager.next(), "STATUS=healthy");
  is_well = false;
  EXPECT_EQ(manager.next(), "STATUS=failed: x");  // with no WATCHDOG=1 before
  answers = true;
  EXPECT_EQ(manager.next(), "WATCHDOG=1");
  EXPECT_GT(asked, 0);
  EXPECT_EQ(manager.until("WATCHDOG=1"), "WATCHDOG=1");
}

// systemd would end a service whose READY=1 was lost.
TEST(ServiceReport, AManagerThatWasBusyIsToldAgain) {
  const test::TempDir temp;
  Manager manager((temp / "notify").string());
  ::setenv("WATCHDOG_USEC", "60000", 1);  // looks soon
  const NotifySocket socket;
  while (socket.send("full")) {
  }
  std::atomic<int> looks{0};
  const ServiceReport report(
      socket,
      [&] {
        looks++;
        return std::string("healthy");
      },
      [] { return false; });
  ASSERT_TRUE(test::eventually([&] { return looks > 1; }));  // the first ones found no room
  std::set<std::string> told;
  while (told.size() < 2) {
    const std::string message = manager.next();
    ASSERT_NE(message, "");
    if (message != "full") told.insert(message);
  }
  EXPECT_EQ(told, (std::set<std::string>{fmt::format("READY=1\nMAINPID={}", ::getpid()),
                                         "STATUS=healthy"}));
}

TEST(ServiceReport, WithoutAManagerNothingRuns) {
  ::unsetenv("NOTIFY_SOCKET");
  ::setenv("WATCHDOG_USEC", "1000", 1);
  ::setenv("WATCHDOG_PID", "1", 1);  // another process's
  const NotifySocket socket;
  EXPECT_FALSE(socket.is_wanted());
  EXPECT_FALSE(socket.watchdog());
  const ServiceReport report(
      socket, []() -> std::string { throw std::runtime_error("asked"); }, [] { return true; });
  ::setenv("NOTIFY_SOCKET", "relative", 1);
  EXPECT_FALSE(NotifySocket().is_wanted());
  ::setenv("NOTIFY_SOCKET", "/absent/socket", 1);
  EXPECT_FALSE(NotifySocket().send("READY=1"));
}

}  // namespace
}  // namespace weightfs::fs
