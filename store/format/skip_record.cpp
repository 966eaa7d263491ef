#include "store/format/skip_record.hpp"

#include <fmt/format.h>

#include <array>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/json.hpp"
#include "store/format/record_reader.hpp"

namespace weightfs {
namespace {

constexpr std::uint64_t kSkipFormat = 1;
constexpr std::array kSkipFeatures = {kFeatureXr};

}  // namespace

std::string SkipRecord::serialize() const {
  Json json = {{"delta", json_of(delta)},  {"format", kSkipFormat},
               {"from", versions.from},    {"from_sha256", to_hex(from_sha256)},
               {"key_id", key_id},         {"nonce", nonce},
               {"repository", repository}, {"required_features", features},
               {"to", versions.to},        {"to_sha256", to_hex(to_sha256)}};
  json[kRecordHash] = to_hex(hash_of_record(json));
  json[kRecordSignature] = signature;
  std::string bytes = json.dump();
  if (bytes.size() <= kSkipRecordBytesMax) return bytes;
  throw Error(ErrorCode::invalid,
              fmt::format("the record of the skip delta from version {} to {} would be larger than "
                          "{} bytes",
                          versions.from, versions.to, kSkipRecordBytesMax));
}

SkipRecord SkipRecord::parse(std::string_view bytes, std::string_view what) {
  const RecordReader reader(what);
  if (bytes.size() > kSkipRecordBytesMax) {
    reader.fail(fmt::format("{} bytes are too large for a skip record", bytes.size()));
  }
  const Json json = parse_json(bytes, what);
  reader.check_format(json, kSkipFormat);
  reader.check_canonical(json, bytes);
  if (!json.contains(kRecordHash)) reader.fail("it does not carry its own SHA-256");
  reader.check_own_hash(json);
  reader.check_features(json, kSkipFeatures);
  SkipRecord record;
  record.repository = reader.nonce(json, "repository");
  record.versions = {reader.number(json, "from", kVersionMax),
                     reader.number(json, "to", kVersionMax)};
  record.from_sha256 = reader.hash(json, "from_sha256");
  record.to_sha256 = reader.hash(json, "to_sha256");
  record.delta = reader.delta(json_field(json, "delta", what));
  record.nonce = reader.nonce(json, "nonce");
  record.features = reader.features(json);
  record.key_id = json_string(json, "key_id", what);
  record.signature = json_string(json, "signature", what);
  const auto [from, to] = record.versions;
  if (from == 0 || to < from + 2) {
    reader.fail(fmt::format("a skip delta cannot lead from version {} to {}", from, to));
  }
  return record;
}

}  // namespace weightfs
