#include "store/format/shard_index.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "store/base/error.hpp"
#include "store/base/json.hpp"
#include "store/base/path_rules.hpp"

namespace weightfs {
namespace {

constexpr std::string_view kIndexSuffix = ".safetensors.index.json";
constexpr std::string_view kShardSuffix = ".safetensors";

[[noreturn]] void refuse_index(const std::string& message, ErrorCode code = ErrorCode::corrupt) {
  throw Error(code, message);
}

bool holds(const ShardIndexes::File& file, const std::string& tensor) {
  return std::ranges::binary_search(file.tensors, std::string_view(tensor));
}

/// Takes the digits at the end of `text` off; nullopt if there are none, or too many.
std::optional<std::uint64_t> take_number(std::string_view& text) {
  const std::size_t begin = text.find_last_not_of("0123456789") + 1;  // 0: all are digits
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data() + begin, text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  text.remove_suffix(text.size() - begin);
  return number;
}

bool take_end(std::string_view& text, std::string_view end) {
  if (!text.ends_with(end)) return false;
  text.remove_suffix(end.size());
  return true;
}

/// "shard-00002-" before the name: torch's DCP writes it for each rank, which need not have a
/// tensor of every file.
std::string without_rank(std::string_view stem) {
  const std::size_t name = stem.rfind('/') + 1;  // 0: there is no '/'
  constexpr std::string_view kRank = "shard-";
  if (!stem.substr(name).starts_with(kRank)) return std::string(stem);
  const std::size_t end = stem.find_first_not_of("0123456789", name + kRank.size());
  if (end == stem.npos || end == name + kRank.size() || stem[end] != '-') return std::string(stem);
  return std::string(stem.substr(0, name)).append(stem.substr(end + 1));
}

/// A name that says how many shards there are.
struct NumberedShard {
  std::string stem;  // what it shares with the others, directories too
  std::uint64_t number = 0, count = 0;
  std::size_t at = 0, digits = 0;  // of its number in the path
};

std::optional<NumberedShard> numbered(std::string_view path) {
  std::string_view rest = path;
  if (!take_end(rest, kShardSuffix)) return std::nullopt;
  const auto count = take_number(rest);
  if (!count || *count == 0 || !take_end(rest, "-of-")) return std::nullopt;
  const std::size_t end = rest.size();
  const auto number = take_number(rest);
  const std::size_t at = rest.size();
  if (!number || *number > *count || !take_end(rest, "-")) return std::nullopt;
  return NumberedShard{without_rank(rest), *number, *count, at, end - at};
}

std::string with_number(std::string_view path, std::uint64_t number) {
  const NumberedShard shard = numbered(path).value();
  return fmt::format("{}{:0{}}{}", path.substr(0, shard.at), number, shard.digits,
                     path.substr(shard.at + shard.digits));
}

/// Those that belong together.
struct ShardFamily {
  std::set<std::uint64_t> numbers;
  std::string_view first;  // the first one that no index names; "": there is none
};

/// nullopt: all are there.  Some savers count from 0.
std::optional<std::uint64_t> missing_number(const std::set<std::uint64_t>& numbers,
                                            std::uint64_t count) {
  const std::uint64_t first = numbers.contains(0) ? 0 : 1;
  std::uint64_t wanted = first;
  while (numbers.contains(wanted)) wanted++;
  return wanted - first < count ? std::optional(wanted) : std::nullopt;
}

}  // namespace

bool is_shard_index(std::string_view path) noexcept { return path.ends_with(kIndexSuffix); }

ShardIndexes::ShardIndexes(std::vector<File> files, bool is_partial)
    : files_(std::move(files)), is_partial_(is_partial) {
  for (File& file : files_) std::ranges::sort(file.tensors);
}

std::set<std::string_view> ShardIndexes::check(std::string_view path, std::string_view text,
                                               const std::string& shown) const {
  const Json parsed = parse_json(text, shown);
  const Json& weight_map = json_field(parsed, "weight_map", shown);
  if (!weight_map.is_object()) {
    refuse_index(shown + ": 'weight_map' must be an object from tensors to shards");
  }
  std::set<std::string_view> indexed;
  for (const auto& [tensor, shard] : weight_map.items()) {
    if (!shard.is_string()) {
      refuse_index(
          fmt::format("{}: the shard of tensor '{}' must be a string", shown, escape_name(tensor)));
    }
    const File* const found = shard_of(path, shard.get<std::string>(), shown);
    if (found == nullptr) continue;
    check_tensor(tensor, *found, shown);
    indexed.insert(found->path);
  }
  return indexed;
}

void ShardIndexes::check_names(const std::set<std::string_view>& indexed,
                               const std::string& shown) const {
  std::map<std::pair<std::string, std::uint64_t>, ShardFamily> families;
  for (const File& file : files_) {
    const auto shard = numbered(file.path);
    if (!shard) continue;
    ShardFamily& family = families[{shard->stem, shard->count}];
    family.numbers.insert(shard->number);
    if (family.first.empty() && !indexed.contains(file.path)) family.first = file.path;
  }
  for (const auto& [key, family] : families) {
    const auto missing = missing_number(family.numbers, key.second);
    if (!missing || family.first.empty()) continue;
    std::string named = with_number(family.first, *missing);
    if (*missing == key.second && !family.numbers.contains(0)) {
      named = fmt::format("{} or {}", with_number(family.first, 0), named);  // it may count from 0
    }
    refuse_index(
        fmt::format("{} is missing: {} has {}, and no index says that it needs no others; save the "
                    "whole checkpoint",
                    escape_name(named), shown, escape_name(family.first)),
        ErrorCode::not_found);
  }
}

/// nullptr: it is not there, which is fine.
const ShardIndexes::File* ShardIndexes::shard_of(std::string_view index, const std::string& shard,
                                                 const std::string& shown) const {
  if (shard.find('/') != shard.npos || shard == "." || shard == "..") {
    refuse_index(
        fmt::format("{} names a path outside the directory: '{}'; a shard must lie beside "
                    "its index",
                    shown, escape_name(shard)));
  }
  if (const std::string problem = path_problem(shard); !problem.empty()) {
    refuse_index(
        fmt::format("{}: the name of the shard '{}' {}", shown, escape_name(shard), problem));
  }
  const std::string path = std::string(index.substr(0, index.rfind('/') + 1)) + shard;
  const auto found = std::ranges::lower_bound(files_, std::string_view(path), {}, &File::path);
  if (found == files_.end() || found->path != path) {
    if (is_partial_) return nullptr;
    refuse_index(fmt::format("{} is listed in the index {} but missing; save the whole checkpoint, "
                             "or remove a stale index",
                             path, shown),
                 ErrorCode::not_found);
  }
  if (!found->is_shard) {
    refuse_index(
        fmt::format("{} is listed in the index {} but is not a safetensors file", path, shown));
  }
  return &*found;
}

void ShardIndexes::check_tensor(const std::string& tensor, const File& shard,
                                const std::string& shown) const {
  if (holds(shard, tensor)) return;
  for (const File& other : files_) {
    if (!other.is_shard || !holds(other, tensor)) continue;
    refuse_index(fmt::format("tensor '{}' is in shard {}, but the index {} says {}",
                             escape_name(tensor), other.path, shown, shard.path));
  }
  refuse_index(fmt::format("tensor '{}' is in no shard, but the index {} says {}",
                           escape_name(tensor), shown, shard.path));
}

}  // namespace weightfs
