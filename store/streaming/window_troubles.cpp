#include "store/streaming/window_troubles.hpp"

namespace weightfs {

void WindowTroubles::set(std::size_t window, const Trouble& trouble) {
  troubles_.insert_or_assign(window, trouble);
  last_ = window;
  if (trouble.is_damage()) {
    damaged_.insert(window);
  } else {
    damaged_.erase(window);
  }
}

void WindowTroubles::forget(std::size_t window) {
  troubles_.erase(window);
  damaged_.erase(window);
}

const Trouble* WindowTroubles::worst() const {
  if (troubles_.empty()) return nullptr;
  const auto last = troubles_.find(last_);
  const bool has_last = last != troubles_.end();
  if (damaged_.empty()) return has_last ? &last->second : &troubles_.begin()->second;
  if (has_last && last->second.is_damage()) return &last->second;
  return &troubles_.at(*damaged_.begin());
}

}  // namespace weightfs
