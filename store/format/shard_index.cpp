#include "store/format/shard_index.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "store/base/error.hpp"
#include "store/base/json.hpp"
#include "store/base/path_rules.hpp"

namespace weightfs {
namespace {

constexpr std::string_view kIndexSuffix = ".safetensors.index.json";

[[noreturn]] void refuse_index(const std::string& message, ErrorCode code = ErrorCode::corrupt) {
  throw Error(code, message);
}

bool holds(const ShardIndexes::File& file, const std::string& tensor) {
  return std::ranges::binary_search(file.tensors, std::string_view(tensor));
}

}  // namespace

bool is_shard_index(std::string_view path) noexcept { return path.ends_with(kIndexSuffix); }

ShardIndexes::ShardIndexes(std::vector<File> files, bool is_partial)
    : files_(std::move(files)), is_partial_(is_partial) {
  for (File& file : files_) std::ranges::sort(file.tensors);
}

void ShardIndexes::check(std::string_view path, std::string_view text,
                         const std::string& shown) const {
  const Json parsed = parse_json(text, shown);
  const Json& weight_map = json_field(parsed, "weight_map", shown);
  if (!weight_map.is_object()) {
    refuse_index(shown + ": 'weight_map' must be an object from tensors to shards");
  }
  for (const auto& [tensor, shard] : weight_map.items()) {
    if (!shard.is_string()) {
      refuse_index(
          fmt::format("{}: the shard of tensor '{}' must be a string", shown, escape_name(tensor)));
    }
    const File* const found = shard_of(path, shard.get<std::string>(), shown);
    if (found != nullptr) check_tensor(tensor, *found, shown);
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
