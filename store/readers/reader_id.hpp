// Reader id: by which a mount, or a sync, announces itself.
//
// It stays over restarts, since the store keeps it.  A copy of a store on another host, or for
// another place, gets one of its own.
//
// Threads: one caller for each store, which is locked.
#pragma once

#include <string>

#include "store/database/db.hpp"

namespace weightfs {

/// 32 lower-case hex digits.  `host`, `place`: of this reader.
/// Throws Error: what reading and writing the database throws.
std::string take_reader_id(Db& db, const std::string& host, const std::string& place);

}  // namespace weightfs
