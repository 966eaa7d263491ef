#include "store/format/early_record.hpp"

#include <fmt/format.h>

#include <array>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/json.hpp"
#include "store/base/path_rules.hpp"
#include "store/format/checkpoint.hpp"
#include "store/format/manifest.hpp"
#include "store/format/record_reader.hpp"

namespace weightfs {
namespace {

constexpr std::uint64_t kEarlyFormat = 1;
constexpr const char* kCodedBytes = "coded_bytes";
constexpr std::array kEarlyFeatures = {kFeatureXr};

std::vector<EarlyRecord::File> read_files(const RecordReader& reader, const Json& json,
                                          std::string_view what) {
  std::vector<EarlyRecord::File> files;
  for (const Json& entry : reader.array(json, "files")) {
    EarlyRecord::File file{json_string(entry, "path", what),
                           reader.delta(json_field(entry, "delta", what))};
    if (entry.contains(kCodedBytes)) {
      file.coded_bytes = reader.number(entry, kCodedBytes, kVersionBytesMax);
    }
    if (const std::string problem = path_problem(file.path); !problem.empty()) {
      reader.fail(fmt::format("the path '{}' {}", escape_name(file.path), problem));
    }
    if (!files.empty() && files.back().path >= file.path) {
      reader.fail(fmt::format("the path '{}' does not come after '{}'", escape_name(file.path),
                              escape_name(files.back().path)));
    }
    files.push_back(std::move(file));
  }
  if (files.empty()) reader.fail("it names no file");
  return files;
}

}  // namespace

std::string EarlyRecord::serialize() const {
  Json json = {{"files", Json::array()},
               {"format", kEarlyFormat},
               {"parent_sha256", to_hex(parent_sha256)},
               {"repository", repository},
               {"required_features", features},
               {"version", version}};
  for (const File& file : files) {
    Json entry = {{"delta", json_of(file.delta)}, {"path", file.path}};
    if (file.coded_bytes) entry[kCodedBytes] = *file.coded_bytes;
    json["files"].push_back(std::move(entry));
  }
  try {
    json[kRecordHash] = to_hex(hash_of_record(json));
    std::string bytes = json.dump();
    if (bytes.size() <= kEarlyRecordBytesMax) return bytes;
  } catch (const Json::exception&) {
    throw Error(ErrorCode::invalid, "a path of the early record is not valid UTF-8");
  }
  throw Error(ErrorCode::invalid,
              fmt::format("the early record of version {} would be larger than {} bytes", version,
                          kEarlyRecordBytesMax));
}

EarlyRecord EarlyRecord::parse(std::string_view bytes, std::string_view what) {
  const RecordReader reader(what);
  if (bytes.size() > kEarlyRecordBytesMax) {
    reader.fail(fmt::format("{} bytes are too large for an early record", bytes.size()));
  }
  const Json json = parse_json(bytes, what);
  reader.check_format(json, kEarlyFormat);
  reader.check_canonical(json, bytes);
  if (!json.contains(kRecordHash)) reader.fail("it does not carry its own SHA-256");
  reader.check_own_hash(json);
  reader.check_features(json, kEarlyFeatures);
  EarlyRecord record;
  record.repository = reader.nonce(json, "repository");
  record.version = reader.number(json, "version", kVersionMax);
  record.parent_sha256 = reader.hash(json, "parent_sha256");
  record.files = read_files(reader, json, what);
  record.features = reader.features(json);
  if (record.version < 2) {
    reader.fail(fmt::format("version {} has no version before it", record.version));
  }
  return record;
}

}  // namespace weightfs
