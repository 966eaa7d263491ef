#include "store/threads/background.hpp"

#include <atomic>
#include <optional>
#include <system_error>
#include <utility>

#include "store/threads/parallel.hpp"

namespace weightfs {

Background::Background(const Context& context, std::function<void(const Context& context)> work)
    : own_(context) {
  thread_ = std::jthread([this, work = std::move(work)] {
    try {
      work(own_.get());
    } catch (...) {
      error_ = std::current_exception();
    }
  });
}

Background::~Background() {
  own_.stop();
  if (thread_.joinable()) thread_.join();
}

void Background::finish() {
  thread_.join();
  if (error_) std::rethrow_exception(error_);
}

void run_both(OwnContext& own, const std::function<void()>& beside,
              const std::function<void()>& work) {
  std::atomic<bool> has_failed{false};
  std::optional<Background> other;
  try {
    other.emplace(own.get(), [&](const Context&) {
      try {
        beside();
      } catch (...) {
        has_failed = true;
        own.stop();
        throw;
      }
    });
  } catch (const std::system_error& error) {
    note_refused_thread(error);
  }
  try {
    if (!other) beside();
    work();
  } catch (...) {
    const bool is_later = has_failed;
    own.stop();
    if (is_later) other->finish();  // throws
    throw;
  }
  if (other) other->finish();
}

}  // namespace weightfs
