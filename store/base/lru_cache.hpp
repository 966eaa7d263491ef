// LruCache: shared immutable values, those used last, as many as fit into so many bytes.
//
// A value that somebody still holds is found again although it has left the cache, so there are
// never two of one key.  The value used last stays, whatever its size.
//
// `Cost` says what values take.  It has state, so that what several of them share counts once:
//
//     std::size_t enter(const Value& value);   // bytes that the cache takes more with it
//     std::size_t leave(const Value& value);   // bytes that it takes less without it
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

  /// nullptr if it is not here, nor held by anybody.
  std::shared_ptr<const Value> find(const Key& key) {
    const auto entry = entries_.find(key);
    if (entry == entries_.end()) return nullptr;
    auto value = entry->second.value.lock();
    if (value) use(entry, value);
    return value;
  }

  /// Returns: the value of that key from now on; one that is known already stays.
  std::shared_ptr<const Value> put(const Key& key, std::shared_ptr<const Value> value) {
    if (auto known = find(key)) return known;
    sweep();
    const auto entry = entries_.insert_or_assign(key, Entry{value, {}, false}).first;
    use(entry, value);
    return value;
  }

  /// Whether somebody else holds the value.
  [[nodiscard]] bool is_held(const Key& key) const {
    const auto entry = entries_.find(key);
    return entry != entries_.end() &&
           entry->second.value.use_count() > (entry->second.is_kept ? 1 : 0);
  }

  /// Of what is kept here, without what only others hold.
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

  /// Forgets the keys of values that are no more, when there may be as many of them as of others.
  void sweep() {
    if (entries_.size() < sweep_at_) return;
    std::erase_if(entries_, [](const auto& entry) { return entry.second.value.expired(); });
    sweep_at_ = 2 * entries_.size() + 64;
  }

  const std::size_t bytes_max_;
  Cost cost_{};
  std::size_t bytes_ = 0, sweep_at_ = 64;
  std::list<Kept> recent_;  // the last use in front
  Entries entries_;         // of these, and of what somebody else still holds
};

}  // namespace weightfs
