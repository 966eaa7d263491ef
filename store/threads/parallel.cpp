#include "store/threads/parallel.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "store/base/ranked_mutex.hpp"

namespace weightfs {

void parallel_for(std::size_t count, unsigned threads, const Context& context,
                  const std::function<void(std::size_t index)>& work) {
  if (threads == 0) threads = std::max(1u, std::thread::hardware_concurrency());
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
    std::vector<std::jthread> others;
    for (unsigned i = 1; i < threads; i++) others.emplace_back(run);
    run();
  }
  if (first_error) std::rethrow_exception(first_error);
}

}  // namespace weightfs
