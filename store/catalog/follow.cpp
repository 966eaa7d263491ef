#include "store/catalog/follow.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "store/base/error.hpp"
#include "store/base/path_rules.hpp"
#include "store/format/manifest.hpp"

namespace weightfs {
namespace {

constexpr std::string_view kLatestWord = "latest";

bool is_digits(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

std::uint64_t parse_version(std::string_view text) {
  std::uint64_t version = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), version);
  if (error == std::errc() && version >= 1 && version <= kVersionMax) return version;
  throw Error(
      ErrorCode::invalid,
      fmt::format("'{}' is not a version: versions are numbers from 1 to {}", text, kVersionMax));
}

}  // namespace

Follow parse_follow(std::string_view text) {
  if (text == kLatestWord) return {};
  if (is_digits(text)) return {.kind = Follow::Kind::version, .version = parse_version(text)};
  if (const std::string problem = tag_problem(text); !problem.empty()) {
    throw Error(
        ErrorCode::invalid,
        fmt::format("'{}' is not a version: expected a number, a tag or latest, and as a tag it {}",
                    escape_name(text), problem));
  }
  return {.kind = Follow::Kind::tag, .tag = std::string(text)};
}

std::string to_string(const Follow& follow) {
  switch (follow.kind) {
    case Follow::Kind::latest:
      return std::string(kLatestWord);
    case Follow::Kind::version:
      return std::to_string(follow.version);
    case Follow::Kind::tag:
      break;
  }
  return follow.tag;
}

std::string describe(const Follow& follow) {
  switch (follow.kind) {
    case Follow::Kind::latest:
      return "the newest version";
    case Follow::Kind::version:
      return fmt::format("version {}", follow.version);
    case Follow::Kind::tag:
      break;
  }
  return fmt::format("the tag {}", follow.tag);
}

std::uint64_t version_to_bring(const Follow& follow, std::uint64_t newest, std::uint64_t carrier) {
  switch (follow.kind) {
    case Follow::Kind::latest:
      return newest;
    case Follow::Kind::version:
      return follow.version <= newest ? follow.version : 0;
    case Follow::Kind::tag:
      break;
  }
  return carrier;
}

std::uint64_t choose_latest(
    const Follow& follow,
    const std::map<std::uint64_t, std::shared_ptr<const CatalogVersion>>& versions) {
  const auto is_followed = [&](const auto& entry) {
    switch (follow.kind) {
      case Follow::Kind::latest:
        return true;
      case Follow::Kind::version:
        return entry.first == follow.version;
      case Follow::Kind::tag:
        break;
    }
    return entry.second->tag == follow.tag;
  };
  const auto found = std::find_if(versions.rbegin(), versions.rend(), is_followed);
  return found == versions.rend() ? 0 : found->first;
}

}  // namespace weightfs
