// Hook records: what hooks remember in the store, one for each --hook.
//
// A hook whose text was changed is another one, and begins anew.
//
// Threads: pure functions of the database.
#pragma once

#include <string_view>

#include "fs/hooks/reconciler.hpp"
#include "store/local/db.hpp"

namespace weightfs::fs {

/// `text`: of the --hook.  Zeros if nothing, or something unknown, is recorded.  Throws Error.
HookRecord find_hook_record(const Db& db, std::string_view text);

/// Survives the end of the process.  Throws Error: no_space, io.
void put_hook_record(Db& db, std::string_view text, const HookRecord& record);

}  // namespace weightfs::fs
