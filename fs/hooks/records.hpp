// Hook records: what hooks remember in the store, for each engine (HookOptions::identity).
//
//     hook/DIGEST       the version that it was told, and the one that it is being told
//     hook-run/DIGEST   of exec: the last command that was started (store/os/child_process.hpp)
//     hook-step/DIGEST  of vllm: the process of the engine whose ranks are out of step (vllm.hpp)
//
// Other options of a --hook, such as a timeout, keep the record.  Another URL, or another command,
// is a new hook, which starts over.
//
// Threads: pure functions of the database.
#pragma once

#include <string>
#include <string_view>

#include "fs/hooks/reconciler.hpp"
#include "store/database/db.hpp"

namespace weightfs::fs {

/// Zeros if the record is missing or unknown.  Throws Error.
HookRecord find_hook_record(const Db& db, std::string_view identity);

/// The record survives the end of the process.  Throws Error: no_space, io.
void put_hook_record(Db& db, std::string_view identity, const HookRecord& record);

enum class HookText { run, step };  // hook-run/, hook-step/

/// "": nothing.  Throws Error.
std::string find_hook_text(const Db& db, HookText kind, std::string_view identity);

/// As put_hook_record().
void put_hook_text(Db& db, HookText kind, std::string_view identity, std::string_view text);

}  // namespace weightfs::fs
