#include "fs/runtime/service_report.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "store/base/context.hpp"
#include "store/base/log.hpp"

namespace weightfs::fs {
namespace {

constexpr std::chrono::milliseconds kHealthLook{5000};
constexpr std::chrono::milliseconds kSoonest{10};

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace

ServiceReport::ServiceReport(const NotifySocket& socket, std::function<std::string()> health,
                             std::function<bool()> answers)
    : socket_(socket), health_(std::move(health)), answers_(std::move(answers)) {
  if (!socket_.is_wanted()) return;
  tell_ready();
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

ServiceReport::~ServiceReport() {
  if (!thread_.joinable()) return;
  socket_.send("STOPPING=1");
  thread_.request_stop();
  thread_.join();
}

void ServiceReport::run(const std::stop_token& stop) {
  std::chrono::milliseconds interval = kHealthLook;
  if (socket_.watchdog()) {
    const auto third = std::chrono::floor<std::chrono::milliseconds>(*socket_.watchdog()) / 3;
    interval = std::clamp(third, kSoonest, kHealthLook);
  }
  std::condition_variable_any never;
  while (!stop.stop_requested()) {
    try {
      if (!is_ready_told_) tell_ready();
      tell_health();
      if (socket_.watchdog() && answers_()) socket_.send("WATCHDOG=1");
    } catch (const std::exception& error) {
      log_debug(fmt::format("the service manager is not told: {}", error.what()));
    }
    std::unique_lock lock(mutex_);
    never.wait_for(lock, stop, interval, [] { return false; });
  }
}

void ServiceReport::tell_ready() {
  is_ready_told_ = socket_.send(fmt::format("READY=1\nMAINPID={}", ::getpid()));
}

void ServiceReport::tell_health() {
  std::string health = one_line(health_());
  if (health != told_ && socket_.send("STATUS=" + health)) told_ = std::move(health);
}

}  // namespace weightfs::fs
