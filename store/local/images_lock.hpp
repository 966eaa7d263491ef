// ImagesLock: held while versions are brought into a store or adopted; one holder at a time.
//
// Threads: not bound to a thread; any thread may release it.
// Ownership: must not outlive the ImageTable that gave it out.
#pragma once

#include <functional>
#include <utility>

namespace weightfs {

class ImagesLock {
 public:
  ImagesLock() = default;  // holds nothing
  explicit ImagesLock(std::function<void()> unlock) : unlock_(std::move(unlock)) {}
  ImagesLock(ImagesLock&& other) noexcept : unlock_(std::exchange(other.unlock_, nullptr)) {}
  ImagesLock& operator=(ImagesLock&& other) noexcept {
    if (this == &other) return *this;
    unlock();
    unlock_ = std::exchange(other.unlock_, nullptr);
    return *this;
  }
  ~ImagesLock() { unlock(); }

  void unlock() noexcept {
    if (auto give_up = std::exchange(unlock_, nullptr)) give_up();
  }
  explicit operator bool() const noexcept { return static_cast<bool>(unlock_); }

 private:
  std::function<void()> unlock_;
};

}  // namespace weightfs
