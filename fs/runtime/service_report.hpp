// Service report: what a service manager is told while a mount or a sync runs.
//
//     READY=1, MAINPID     when it is made
//     STATUS=              its health, when that changes (looked at every 5 s)
//     WATCHDOG=1           if the manager wants it: every third of its time, as long as it answers
//     STOPPING=1           when it is destroyed
//
// A manager that has no room for a message, as one that starts many services, is told again at the
// next look: without READY=1 it would end the service.
//
// Threads: one of its own, if anybody wants to know, which calls `health` and `answers`.
#pragma once

#include <functional>
#include <stop_token>
#include <string>
#include <thread>

#include "fs/base/notify_socket.hpp"
#include "store/base/ranked_mutex.hpp"

namespace weightfs::fs {

class ServiceReport {
 public:
  /// `health`: one line.  `answers`: false if readers would wait in vain; then the manager is told
  /// nothing, and ends this process when its time is over.  `socket` outlives this.
  ServiceReport(const NotifySocket& socket, std::function<std::string()> health,
                std::function<bool()> answers);
  ~ServiceReport();
  ServiceReport(const ServiceReport&) = delete;
  ServiceReport& operator=(const ServiceReport&) = delete;

 private:
  void run(const std::stop_token& stop);
  void tell_ready();
  void tell_health();

  const NotifySocket& socket_;
  const std::function<std::string()> health_;
  const std::function<bool()> answers_;
  bool is_ready_told_ = false;                                  // the thread's, once it runs
  std::string told_;                                            // the thread's
  RankedMutex mutex_{LockRank::leaf, "ServiceReport::mutex_"};  // guards nothing: it is slept on
  std::jthread thread_;
};

}  // namespace weightfs::fs
