#include "store/handover/handover_record.hpp"

#include <fmt/format.h>

#include <array>
#include <limits>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/json.hpp"
#include "store/base/path_rules.hpp"

namespace weightfs {
namespace {

constexpr std::uint64_t kWholeFormat = 1, kPartFormat = 2;
constexpr std::size_t kNonceBytes = 16;

using Phase = HandOverRecord::Phase;
constexpr std::array kPhases{Phase::queued, Phase::committing, Phase::committed, Phase::conflict,
                             Phase::failed};

[[noreturn]] void fail(std::string_view what, std::string_view why) {
  throw Error(ErrorCode::corrupt, fmt::format("{}: {}", what, why));
}

Phase phase_of(const std::string& text, std::string_view what) {
  for (const Phase phase : kPhases) {
    if (text == to_string(phase)) return phase;
  }
  fail(what, "field 'phase' has an unknown value");
}

bool flag_of(const Json& object, std::string_view name, std::string_view what) {
  const Json& value = json_field(object, name, what);
  if (!value.is_boolean()) fail(what, fmt::format("field '{}' must be true or false", name));
  return value.get<bool>();
}

std::int64_t time_of(const Json& object, std::string_view what) {
  const std::uint64_t value = json_uint(object, "time", what);
  if (value > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
    fail(what, "field 'time' is too large");
  }
  return static_cast<std::int64_t>(value);
}

std::string nonce_of(const Json& object, std::string_view what) {
  std::string nonce = json_string(object, "nonce", what);
  std::array<std::byte, kNonceBytes> bytes{};
  if (!from_hex(nonce, bytes)) fail(what, "field 'nonce' must be 32 hex digits");
  return nonce;
}

/// Names in staging are bytes, not text, so they are written as hex digits.
StagingOrigin origin_of(const Json& object, std::string_view what) {
  const Json& origin = json_field(object, "origin", what);
  const std::string hex = json_string(origin, "name", what);
  Bytes name(hex.size() / 2);
  if (!from_hex(hex, name)) fail(what, "the name of 'origin' must be hex digits");
  return {json_uint(origin, "parent", what), std::string(as_text(name))};
}

std::map<std::string, std::string> meta_of(const Json& object, std::string_view what) {
  const Json& meta = json_field(object, "meta", what);
  if (!meta.is_object()) fail(what, "field 'meta' must be an object");
  std::map<std::string, std::string> result;
  for (const auto& [key, value] : meta.items()) {
    if (!value.is_string()) fail(what, "field 'meta' must hold strings");
    result.emplace(key, value.get<std::string>());
  }
  return result;
}

std::vector<std::string> include_of(const Json& object, std::string_view what) {
  const Json& include = json_field(object, "include", what);
  if (!include.is_array()) fail(what, "field 'include' must be an array");
  std::vector<std::string> result;
  for (const Json& glob : include) {
    if (!glob.is_string()) fail(what, "field 'include' must hold strings");
    result.push_back(glob.get<std::string>());
  }
  return result;
}

PartChoice part_of(const Json& object, std::string_view tag, std::string_view what) {
  const Json& json = json_field(object, "part", what);
  const std::uint64_t part = json_uint(json, "part", what), parts = json_uint(json, "parts", what);
  if (part == 0 || part > kPartsMax || parts > kPartsMax) {
    fail(what, fmt::format("there is no part {} of {}", part, parts));
  }
  PartChoice choice{static_cast<unsigned>(part), static_cast<unsigned>(parts),
                    json_string(json, "run", what)};
  try {
    check_choice(choice, tag);
  } catch (const Error& error) {
    fail(what, error.what());
  }
  return choice;
}

}  // namespace

std::string_view to_string(HandOverRecord::Phase phase) noexcept {
  switch (phase) {
    case Phase::queued:
      return "queued";
    case Phase::committing:
      return "committing";
    case Phase::committed:
      return "committed";
    case Phase::conflict:
      return "conflict";
    case Phase::failed:
      return "failed";
  }
  return "failed";
}

std::string HandOverRecord::key() const {
  std::string key;
  append_be64(key, order);
  return key;
}

std::string HandOverRecord::serialize() const {
  Json record{{"format", part.is_part() ? kPartFormat : kWholeFormat},
              {"directory", directory},
              {"name", name},
              {"tag", wishes.tag},
              {"nonce", nonce},
              {"origin", {{"parent", origin.parent}, {"name", to_hex(as_bytes(origin.name))}}},
              {"fence", fence},
              {"meta", wishes.meta},
              {"include", wishes.include},
              {"snapshot", wishes.snapshot},
              {"rebase", wishes.rebase},
              {"time", static_cast<std::uint64_t>(time)},
              {"unsynced_boot", unsynced_boot},
              {"phase", to_string(phase)},
              {"version", version},
              {"error", error},
              {"error_code", error_code}};
  if (wishes.rollback != 0) record["rollback"] = wishes.rollback;
  if (part.is_part()) {
    record["part"] = {{"part", part.part}, {"parts", part.parts}, {"run", part.run}};
  }
  try {
    return record.dump();
  } catch (const Json::exception&) {
    throw Error(ErrorCode::invalid, fmt::format("the name, tag, metadata or --include of publish/{}"
                                                " is not valid UTF-8",
                                                escape_name(name)));
  }
}

HandOverRecord HandOverRecord::parse(std::string_view key, std::string_view value) {
  if (key.size() != 8) fail("a hand-over in the store", "its key is not 8 bytes long");
  HandOverRecord record;
  record.order = load_be(key);
  const std::string what = fmt::format("hand-over {} in the store", record.order);
  const Json object = parse_json(value, what);
  const std::uint64_t format = json_uint(object, "format", what);
  if (format > kPartFormat) {
    throw Error(ErrorCode::unsupported,
                fmt::format("{} has format {}, this weightfs knows up to {}; use a newer weightfs",
                            what, format, kPartFormat));
  }
  record.directory = json_uint(object, "directory", what);
  record.name = json_string(object, "name", what);
  record.wishes.tag = json_string(object, "tag", what);
  record.nonce = nonce_of(object, what);
  record.origin = origin_of(object, what);
  record.fence = json_uint(object, "fence", what);
  record.wishes.meta = meta_of(object, what);
  record.wishes.include = include_of(object, what);
  record.wishes.snapshot = flag_of(object, "snapshot", what);
  record.wishes.rebase = flag_of(object, "rebase", what);
  if (object.contains("rollback")) record.wishes.rollback = json_uint(object, "rollback", what);
  if (format == kPartFormat) record.part = part_of(object, record.wishes.tag, what);
  record.time = time_of(object, what);
  record.unsynced_boot = json_string(object, "unsynced_boot", what);
  record.phase = phase_of(json_string(object, "phase", what), what);
  record.version = json_uint(object, "version", what);
  record.error = json_string(object, "error", what);
  record.error_code = json_string(object, "error_code", what);
  return record;
}

}  // namespace weightfs
