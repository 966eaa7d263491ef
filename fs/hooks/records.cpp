#include "fs/hooks/records.hpp"

#include "store/base/bytes.hpp"
#include "store/base/sha256.hpp"

namespace weightfs::fs {
namespace {

constexpr std::size_t kHookDigestBytes = 8;
constexpr std::string_view kHookRecord = "hook/", kHookRun = "hook-run/";

std::string hook_key(std::string_view kind, std::string_view identity) {
  const Sha256 digest = sha256(as_bytes(identity));
  return std::string(kind) + to_hex(std::span(digest).first(kHookDigestBytes));
}

}  // namespace

HookRecord find_hook_record(const Db& db, std::string_view identity) {
  const auto value = db.find(ColumnFamily::store, hook_key(kHookRecord, identity));
  if (!value || value->size() != 16) return {};
  const std::string_view bytes(*value);
  return {load_be(bytes.substr(0, 8)), load_be(bytes.substr(8))};
}

void put_hook_record(Db& db, std::string_view identity, const HookRecord& record) {
  std::string value;
  append_be64(value, record.told);
  append_be64(value, record.telling);
  db.write({{ColumnFamily::store, hook_key(kHookRecord, identity), value}}, Durability::process);
}

std::string find_hook_run(const Db& db, std::string_view identity) {
  return db.find(ColumnFamily::store, hook_key(kHookRun, identity)).value_or("");
}

void put_hook_run(Db& db, std::string_view identity, std::string_view id) {
  db.write({{ColumnFamily::store, hook_key(kHookRun, identity), std::string(id)}},
           Durability::process);
}

}  // namespace weightfs::fs
