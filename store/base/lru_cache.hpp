// LruCache: the most recently used of some shared immutable values, up to a number of bytes.
//
// An evicted value that is still held somewhere is found again, so a key never has two values. The
// most recently used value stays, whatever its size.
//
// `Cost` measures values. It has state, so that what several of them share counts once:
//
//     std::size_t enter(const Value& value);   // bytes that it adds to the cache
//     std::size_t leave(const Value& value);   // bytes that its removal frees
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <utility>

namespace weightfs {

template <typename Key, typename Value, typename Cost>
class LruCache {
 public:
  explicit LruCache(std::size_t bytes_max) : bytes_max_(bytes_max) {}

  /// nullptr if the value is neither cached nor held elsewhere.
  std::shared_ptr<const Value> find(const Key& key) {
    const auto entry = entries_.find(key);
    if (entry == entries_.end()) return nullptr;
    auto value = entry->second.value.lock();
    if (value) use(entry, value);
    return value;
  }

  /// Returns: the value of that key from now on: the known one, if there is one.
  std::shared_ptr<const Value> put(const Key& key, std::shared_ptr<const Value> value) {
    if (auto known = find(key)) return known;
    sweep();
    const auto entry = entries_.insert_or_assign(key, Entry{value, {}, false}).first;
    use(entry, value);
    return value;
  }

  /// Whether the value is held outside the cache.
  [[nodiscard]] bool is_held(const Key& key) const {
    const auto entry = entries_.find(key);
    return entry != entries_.end() &&
           entry->second.value.use_count() > (entry->second.is_kept ? 1 : 0);
  }

  /// Bytes of the cached values, without those that are only held elsewhere.
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::size_t count() const noexcept { return recent_.size(); }
  [[nodiscard]] const Cost& cost() const noexcept { return cost_; }

 private:
  struct Kept {
    Key key;
    std::shared_ptr<const Value> value;
  };
  struct Entry {
    std::weak_ptr<const Value> value;
    typename std::list<Kept>::iterator place;  // valid if is_kept
    bool is_kept = false;
  };
  using Entries = std::map<Key, Entry>;

  void use(typename Entries::iterator entry, const std::shared_ptr<const Value>& value) {
    if (entry->second.is_kept) {
      recent_.splice(recent_.begin(), recent_, entry->second.place);
      return;
    }
    recent_.push_front({entry->first, value});
    entry->second = {value, recent_.begin(), true};
    bytes_ += cost_.enter(*value);
    while (bytes_ > bytes_max_ && recent_.size() > 1) drop_oldest();
  }

  void drop_oldest() {
    const Kept& oldest = recent_.back();
    bytes_ -= cost_.leave(*oldest.value);
    entries_.find(oldest.key)->second.is_kept = false;
    recent_.pop_back();
  }

  /// Drops the keys of destroyed values once there may be as many of them as of live ones.
  void sweep() {
    if (entries_.size() < sweep_at_) return;
    std::erase_if(entries_, [](const auto& entry) { return entry.second.value.expired(); });
    sweep_at_ = 2 * entries_.size() + 64;
  }

  const std::size_t bytes_max_;
  Cost cost_{};
  std::size_t bytes_ = 0, sweep_at_ = 64;
  std::list<Kept> recent_;  // the most recently used first
  Entries entries_;         // of these, and of values that are held elsewhere
};

}  // namespace weightfs
