// Hook records: what hooks remember in the store, one record for each --hook.
//
// If the text of a --hook changes, the hook is a new one and starts over.
//
// Threads: pure functions of the database.
#pragma once

#include <string_view>

#include "fs/hooks/reconciler.hpp"
#include "store/database/db.hpp"

namespace weightfs::fs {

/// `text`: of the --hook.  Zeros if the record is missing or unknown.  Throws Error.
HookRecord find_hook_record(const Db& db, std::string_view text);

/// The record survives the end of the process.  Throws Error: no_space, io.
void put_hook_record(Db& db, std::string_view text, const HookRecord& record);

}  // namespace weightfs::fs
