#include "store/publish/upload_names.hpp"

#include <fmt/format.h>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/database/db.hpp"

namespace weightfs {
namespace {

constexpr std::string_view kUploader = "uploader", kSkipUploader = "skip_uploader";

std::string digits_of(Store& store, std::string_view record) {
  std::string digits = random_hex(16);
  const std::string key(record);
  try {
    if (const auto known = store.db().find(ColumnFamily::store, key)) return *known;
    store.db().write({{ColumnFamily::store, key, digits}}, Durability::process);
  } catch (const Error& error) {
    log_debug(fmt::format("interrupted uploads cannot be resumed: {}", error.what()));
  }
  return digits;
}

}  // namespace

std::string uploader_of(Store& store) { return digits_of(store, kUploader); }

std::string skip_uploader_of(Store& store) { return digits_of(store, kSkipUploader); }

void set_uploader(Store& store, const std::string& digits, Durability durability) {
  store.db().write({{ColumnFamily::store, std::string(kUploader), digits}}, durability);
}

UploadNonce::UploadNonce(const Repository& repository, std::string_view uploader,
                         std::uint64_t version) {
  add(repository.id());
  add(uploader);
  add(std::to_string(version));
}

void UploadNonce::add(std::string_view text) { add(as_bytes(text)); }

void UploadNonce::add(std::span<const std::byte> bytes) {
  std::string size;
  append_le<std::uint64_t>(size, bytes.size());
  hash_.update(as_bytes(size));
  hash_.update(bytes);
}

std::string UploadNonce::finish() {
  const Sha256 hash = hash_.finish();
  return to_hex(std::span(hash).first(16));
}

}  // namespace weightfs
