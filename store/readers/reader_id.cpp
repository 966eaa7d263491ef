#include "store/readers/reader_id.hpp"

#include "store/base/sha256.hpp"
#include "store/format/manifest.hpp"

namespace weightfs {
namespace {

constexpr std::string_view kReaderIdKey = "reader";

}  // namespace

std::string take_reader_id(Db& db, const std::string& host, const std::string& place) {
  const std::string made_for = host + '\n' + place;
  const auto kept = db.find(ColumnFamily::store, kReaderIdKey);
  if (kept && kept->size() >= kNonceDigits && kept->substr(kNonceDigits) == made_for) {
    std::string id = kept->substr(0, kNonceDigits);
    if (is_nonce(id)) return id;
  }
  std::string id = random_hex(kNonceDigits / 2);
  db.write({{ColumnFamily::store, std::string(kReaderIdKey), id + made_for}});
  return id;
}

}  // namespace weightfs
