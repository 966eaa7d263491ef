#include "fs/hooks/records.hpp"

#include "store/base/bytes.hpp"
#include "store/base/sha256.hpp"

namespace weightfs::fs {
namespace {

constexpr std::size_t kHookDigestBytes = 8;

std::string hook_key(std::string_view text) {
  const Sha256 digest = sha256(as_bytes(text));
  return "hook/" + to_hex(std::span(digest).first(kHookDigestBytes));
}

}  // namespace

HookRecord find_hook_record(const Db& db, std::string_view text) {
  const auto value = db.find(ColumnFamily::store, hook_key(text));
  if (!value || value->size() != 16) return {};
  const std::string_view bytes(*value);
  return {load_be(bytes.substr(0, 8)), load_be(bytes.substr(8))};
}

void put_hook_record(Db& db, std::string_view text, const HookRecord& record) {
  std::string value;
  append_be64(value, record.told);
  append_be64(value, record.telling);
  db.write({{ColumnFamily::store, hook_key(text), value}}, Durability::process);
}

}  // namespace weightfs::fs
