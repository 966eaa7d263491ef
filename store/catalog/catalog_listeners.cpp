#include "store/catalog/catalog_listeners.hpp"

#include <algorithm>

namespace weightfs {

struct CatalogListeners::Entry {
  explicit Entry(CatalogListener its_listener) : listener(std::move(its_listener)) {}

  const CatalogListener listener;
  unsigned calls = 0;  // calls in progress
  bool has_ended = false;
};

CatalogListeners::Listening CatalogListeners::add(CatalogListener listener) {
  auto entry = std::make_shared<Entry>(std::move(listener));
  const std::lock_guard lock(mutex_);
  entries_.push_back(entry);
  return {*this, std::move(entry)};
}

CatalogListeners::Listening& CatalogListeners::Listening::operator=(Listening&& other) noexcept {
  if (this == &other) return *this;
  end();
  listeners_ = std::exchange(other.listeners_, nullptr);
  entry_ = std::move(other.entry_);
  return *this;
}

void CatalogListeners::Listening::end() noexcept {
  CatalogListeners* const listeners = std::exchange(listeners_, nullptr);
  if (listeners == nullptr) return;
  std::unique_lock lock(listeners->mutex_);
  entry_->has_ended = true;
  std::erase(listeners->entries_, entry_);
  listeners->called_.wait(lock, [this] { return entry_->calls == 0; });
}

bool CatalogListeners::prepares() const {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(
      entries_, [](const auto& entry) { return static_cast<bool>(entry->listener.prepare); });
}

template <typename Call>
void CatalogListeners::for_each(const Call& call) {
  std::unique_lock lock(mutex_);
  const std::vector<std::shared_ptr<Entry>> entries = entries_;
  for (const auto& entry : entries) {
    if (entry->has_ended) continue;
    entry->calls++;
    lock.unlock();
    const auto finish = [&](void*) {
      lock.lock();
      entry->calls--;
      called_.notify_all();
    };
    const std::unique_ptr<CatalogListeners, decltype(finish)> called(this, finish);
    call(entry->listener);
  }
}

void CatalogListeners::prepare(const CatalogVersion& version) {
  for_each([&](const CatalogListener& listener) {
    if (listener.prepare) listener.prepare(version);
  });
}

void CatalogListeners::changed() {
  for_each([](const CatalogListener& listener) {
    if (listener.changed) listener.changed();
  });
}

void CatalogListeners::recorded() {
  for_each([](const CatalogListener& listener) {
    if (listener.recorded) listener.recorded();
  });
}

}  // namespace weightfs
