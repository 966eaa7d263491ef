#include "store/threads/parallel.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "store/base/log.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/threads/work_threads.hpp"

namespace weightfs {
namespace {

/// Starts helpers until all run or the system refuses one: the caller works too, so what there is
/// to do is done.
void start_helpers(std::vector<std::jthread>& helpers, std::size_t count,
                   const std::function<void()>& run) {
  try {
    while (helpers.size() < count) helpers.emplace_back(run);
  } catch (const std::system_error& error) {
    note_refused_thread(error);
  }
}

}  // namespace

void note_refused_thread(const std::system_error& error) {
  static std::atomic<bool> is_told{false};  // each call would say it again
  if (is_told.exchange(true)) return;
  log_warning(fmt::format("the system refuses threads, so work takes longer: {}", error.what()));
}

void parallel_for(std::size_t count, unsigned threads, const Context& context,
                  const std::function<void(std::size_t index)>& work) {
  if (threads == 0) threads = work_threads();
  threads = static_cast<unsigned>(std::min<std::size_t>(threads, count));

  std::atomic<std::size_t> next{0};
  std::atomic<bool> failed{false};
  RankedMutex mutex{LockRank::leaf, "parallel_for::mutex"};  // guards what follows
  std::exception_ptr first_error;
  std::size_t first_failed = count;
  const auto run = [&] {
    while (!failed) {  // pieces that were started are finished, so all before a failure are
      const std::size_t index = next++;
      if (index >= count) return;
      try {
        context.check("working");
        work(index);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (index < first_failed) first_error = std::current_exception();
        first_failed = std::min(first_failed, index);
        failed = true;
      }
    }
  };
  {
    std::vector<std::jthread> helpers;
    if (threads > 1) start_helpers(helpers, threads - 1, run);
    run();
  }
  if (first_error) std::rethrow_exception(first_error);
}

}  // namespace weightfs
