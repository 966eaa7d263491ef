#include "fs/hooks/records.hpp"

#include "store/base/bytes.hpp"
#include "store/base/sha256.hpp"

namespace weightfs::fs {
namespace {

constexpr std::size_t kHookDigestBytes = 8;
constexpr std::string_view kHookRecord = "hook/", kHookRun = "hook-run/", kHookStep = "hook-step/";

std::string hook_key(std::string_view kind, std::string_view identity) {
  const Sha256 digest = sha256(as_bytes(identity));
  return std::string(kind) + to_hex(std::span(digest).first(kHookDigestBytes));
}

std::string hook_text_key(HookText kind, std::string_view identity) {
  return hook_key(kind == HookText::run ? kHookRun : kHookStep, identity);
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

std::string find_hook_text(const Db& db, HookText kind, std::string_view identity) {
  return db.find(ColumnFamily::store, hook_text_key(kind, identity)).value_or("");
}

void put_hook_text(Db& db, HookText kind, std::string_view identity, std::string_view text) {
  db.write({{ColumnFamily::store, hook_text_key(kind, identity), std::string(text)}},
           Durability::process);
}

}  // namespace weightfs::fs
