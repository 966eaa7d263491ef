#include "store/format/own_meta.hpp"

#include <fmt/format.h>

#include <charconv>
#include <system_error>

#include "store/base/error.hpp"
#include "store/base/path_rules.hpp"

namespace weightfs {

std::optional<std::uint64_t> find_early_bytes(const std::map<std::string, std::string>& meta) {
  const auto found = meta.find(std::string(kEarlyBytesKey));
  if (found == meta.end()) return std::nullopt;
  std::uint64_t bytes = 0;
  const std::string& text = found->second;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bytes);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return bytes;
}

std::map<std::string, std::string> users_meta(std::map<std::string, std::string> meta) {
  std::erase_if(meta, [](const auto& entry) { return entry.first.starts_with(kOwnMetaPrefix); });
  return meta;
}

void check_users_meta(const std::map<std::string, std::string>& meta) {
  for (const auto& [key, value] : meta) {
    if (!key.starts_with(kOwnMetaPrefix)) continue;
    throw Error(
        ErrorCode::invalid,
        fmt::format("metadata '{}': keys that begin with '{}' are reserved; use another one",
                    escape_name(key), kOwnMetaPrefix));
  }
}

}  // namespace weightfs
