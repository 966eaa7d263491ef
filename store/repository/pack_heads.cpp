#include "store/repository/pack_heads.hpp"

#include <mutex>
#include <utility>

namespace weightfs {

std::shared_ptr<const std::string> PackHeads::find(const PackRef& ref) {
  const std::lock_guard lock(mutex_);
  const auto known = heads_.find(ref.head_sha256);
  if (!known || known->ref != ref) return nullptr;
  return {known, &known->head};
}

void PackHeads::put(const PackRef& ref, std::string head) {
  const std::lock_guard lock(mutex_);
  heads_.put(ref.head_sha256, std::make_shared<const Known>(Known{ref, std::move(head)}));
}

}  // namespace weightfs
