#include "store/repository/kept_packs.hpp"

#include <mutex>
#include <utility>

namespace weightfs {

std::shared_ptr<const std::string> KeptPacks::find_head(const PackRef& ref) {
  return find(heads_, ref);
}

std::shared_ptr<const std::string> KeptPacks::find_data(const PackRef& ref) {
  return find(data_, ref);
}

void KeptPacks::put_head(const PackRef& ref, std::string head) {
  put(heads_, ref, std::make_shared<const std::string>(std::move(head)));
}

void KeptPacks::put_data(const PackRef& ref, std::shared_ptr<const std::string> data) {
  put(data_, ref, std::move(data));
}

std::shared_ptr<const std::string> KeptPacks::find(Cache& cache, const PackRef& ref) {
  const std::lock_guard lock(mutex_);
  const auto known = cache.find(ref.head_sha256);
  return known && known->ref == ref ? known->bytes : nullptr;
}

void KeptPacks::put(Cache& cache, const PackRef& ref, std::shared_ptr<const std::string> bytes) {
  const std::lock_guard lock(mutex_);
  cache.put(ref.head_sha256, std::make_shared<const Known>(Known{ref, std::move(bytes)}));
}

}  // namespace weightfs
