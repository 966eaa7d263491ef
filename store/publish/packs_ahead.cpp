#include "store/publish/packs_ahead.hpp"

#include <mutex>
#include <utility>

namespace weightfs {

PacksAhead::PacksAhead(const Context& context,
                       std::function<PackRef(const SpooledPack& pack, std::size_t k)> upload)
    : upload_(std::move(upload)), thread_(context, [this](const Context& inner) { run(inner); }) {}

PacksAhead::~PacksAhead() { static_cast<void>(end()); }

void PacksAhead::add(std::shared_ptr<const SpooledPack> pack) {
  {
    const std::lock_guard lock(mutex_);
    packs_.push_back(std::move(pack));
  }
  changed_.notify_all();
}

std::size_t PacksAhead::end() {
  std::size_t begun = 0;
  {
    const std::lock_guard lock(mutex_);
    is_ended_ = true;
    begun = begun_;
  }
  changed_.notify_all();
  return begun;
}

std::vector<PackRef> PacksAhead::finish() {
  thread_.finish();
  return std::move(refs_);
}

void PacksAhead::run(const Context& context) {
  std::unique_lock lock(mutex_);
  while (true) {
    // Stopped by its Context, it ends too: the caller asks that itself.
    const bool is_woken =
        changed_.wait(lock, context.stop, [&] { return is_ended_ || begun_ < packs_.size(); });
    if (!is_woken || is_ended_) return;
    const std::size_t k = begun_++;
    const std::shared_ptr<const SpooledPack> pack = packs_[k];
    lock.unlock();
    refs_.push_back(upload_(*pack, k));
    lock.lock();
  }
}

}  // namespace weightfs
