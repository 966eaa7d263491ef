// WatchedBucket: a view of an in-memory bucket that records all reads.
//
// Threads: all calls may run in parallel.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/hosts.hpp"

namespace weightfs::test {

class WatchedBucket final : public BucketView {
 public:
  using BucketView::BucketView;

  struct Get {
    std::string key;
    std::uint64_t offset_bytes = 0;
    std::size_t size_bytes = 0;
  };

  std::size_t get(std::string_view key, std::uint64_t offset_bytes, std::span<std::byte> into,
                  const Context& context) override {
    {
      const std::lock_guard lock(mutex_);
      gets_.push_back({std::string(key), offset_bytes, into.size()});
    }
    return BucketView::get(key, offset_bytes, into, context);
  }

  /// Reads of keys that start with `prefix`, in order.
  [[nodiscard]] std::vector<Get> gets(std::string_view prefix) const {
    const std::lock_guard lock(mutex_);
    std::vector<Get> found;
    std::copy_if(gets_.begin(), gets_.end(), std::back_inserter(found),
                 [&](const Get& get) { return get.key.starts_with(prefix); });
    return found;
  }

 private:
  mutable std::mutex mutex_;  // guards gets_
  std::vector<Get> gets_;
};

}  // namespace weightfs::test
