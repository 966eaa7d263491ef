// Own meta: what weightfs itself notes in the metadata of a version.  Keys that begin with
// `weightfs.` are reserved for that.
//
// Threads: pure functions.  Format: docs/FORMAT.md, "Manifests".
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace weightfs {

inline constexpr std::string_view kOwnMetaPrefix = "weightfs.";

/// Of a version published through a mount: how many bytes of its files were coded before the
/// hand-over.
inline constexpr std::string_view kEarlyBytesKey = "weightfs.early_bytes";

/// nullopt if the metadata lacks the key.
std::optional<std::uint64_t> find_early_bytes(const std::map<std::string, std::string>& meta);

/// The metadata without the reserved keys.
std::map<std::string, std::string> users_meta(std::map<std::string, std::string> meta);

/// Throws Error: invalid, naming a reserved key.
void check_users_meta(const std::map<std::string, std::string>& meta);

}  // namespace weightfs
