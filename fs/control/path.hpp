// Control path: where this user's daemons listen.
//
// Threads: pure functions.
#pragma once

#include <filesystem>

namespace weightfs::fs {

/// /run/weightfs for root, else $XDG_RUNTIME_DIR/weightfs; empty if there is none.
std::filesystem::path runtime_directory();

/// Where the daemon of a store listens: /run/weightfs/<16 hex digits>.sock for root; else below
/// $XDG_RUNTIME_DIR/weightfs; else in the store.  The digits are from the SHA-256 of the store's
/// path.
std::filesystem::path control_path(const std::filesystem::path& store);

}  // namespace weightfs::fs
