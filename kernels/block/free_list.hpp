// FreeList: objects that are expensive to make, lent to threads for a piece of work.
//
// There are never more of them than were borrowed at the same time; they are destroyed with the
// list.
//
// Threads: borrow() may be called from any number of threads; a borrowed object belongs to its
// Lease.  The list must outlive all leases.
#pragma once

#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace weightfs::kernels {

template <typename Value>
class FreeList {
 public:
  /// Returns the object to the list when it ends, also after an exception; so each borrower must
  /// set up the state it needs.
  class Lease {
   public:
    Lease(FreeList& list, std::unique_ptr<Value> value) : list_(&list), value_(std::move(value)) {}
    ~Lease() {
      if (value_) list_->give(std::move(value_));
    }
    Lease(Lease&&) noexcept = default;
    Lease& operator=(Lease&&) = delete;

    Value& operator*() const noexcept { return *value_; }
    Value* operator->() const noexcept { return value_.get(); }

   private:
    FreeList* list_;
    std::unique_ptr<Value> value_;
  };

  /// An idle object, or the result of `make`: a unique_ptr<Value>.
  template <typename Make>
  Lease borrow(Make&& make) {
    std::unique_ptr<Value> value = take();
    if (!value) value = std::forward<Make>(make)();
    return Lease(*this, std::move(value));
  }

 private:
  std::unique_ptr<Value> take() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return nullptr;
    std::unique_ptr<Value> value = std::move(idle_.back());
    idle_.pop_back();
    return value;
  }

  void give(std::unique_ptr<Value> value) noexcept {
    const std::lock_guard lock(mutex_);
    try {
      idle_.push_back(std::move(value));
    } catch (const std::bad_alloc&) {
      // It ends here, and is made again.
    }
  }

  std::mutex mutex_;  // guards idle_
  std::vector<std::unique_ptr<Value>> idle_;
};

}  // namespace weightfs::kernels
