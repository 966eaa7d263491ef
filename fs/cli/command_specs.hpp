// Command specs: the rows of the command table, by subject.  Included by spec_*.cpp and
// command_table.cpp only.
//
// Threads: pure functions.
#pragma once

#include "fs/cli/command_spec.hpp"

namespace weightfs::fs {

// spec_repository.cpp: making a repository, and getting data out of it.
CommandSpec init_command();
CommandSpec publish_command();
CommandSpec rollback_command();
CommandSpec export_command();
CommandSpec verify_command();

// spec_mount.cpp: versions on this host.
CommandSpec mount_command();
CommandSpec sync_command();
CommandSpec umount_command();
CommandSpec wait_command();
CommandSpec rebase_command();
CommandSpec pin_command();
CommandSpec unpin_command();

// spec_retention.cpp: what a bucket holds and keeps.
CommandSpec du_command();
CommandSpec gc_command();
CommandSpec skip_command();

// spec_look.cpp: read-only commands.
CommandSpec status_command();
CommandSpec top_command();
CommandSpec fleet_command();
CommandSpec log_command();
CommandSpec report_command();
CommandSpec show_command();
CommandSpec diff_command();
CommandSpec doctor_command();

}  // namespace weightfs::fs
