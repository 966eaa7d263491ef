// Seal: the checks of a staged directory before it is published, and the tree of links from which
// it is published.
//
//     staging/<id>              the bytes of a file, named by its StagingId
//     handover/<nonce>/<path>   hard links to them, under the names of the checkpoint
//
// Hidden files and directories are left out: they are not published.
//
// Errors name a file as its user knows it: "staging/run/model.safetensors".
//
// Threads: plain functions.  The caller holds a Staging::Seal of the directory, or it lies below
// publish/, so nothing in it changes.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/context.hpp"
#include "store/format/checkpoint.hpp"
#include "store/staging/staging.hpp"

namespace weightfs {

/// The longest that a hand-over waits for the last writer.
inline constexpr auto kWriterWait = std::chrono::seconds(2);

/// `file`: nobody writes to it.
/// Throws Error: unsupported if the kernel cannot tell who writes to a file there, permission if it
/// does not tell this process; io, no_memory.
void require_leases(const std::filesystem::path& file);

/// Whether the permissions of the publish root let this user write there.  Supplementary groups are
/// not known here.
bool may_hand_over(const Staging& staging, Caller caller);

/// Throws Error: permission if a file below the directory does not belong to `caller`, unless that
/// is root; names files and owners.
void require_own_files(const Staging& staging, StagingId directory, Caller caller);

/// Waits until no file below the directory is open for writing or mapped by a writer, or until
/// `until`, and then checks once more.  `holders`: see QueueOptions; may be empty.
/// Throws Error: busy (names the files and their holders), unsupported, permission (the kernel does
/// not tell), io (a file cannot be opened), no_memory, cancelled.
void wait_unwritten(Staging& staging, StagingId directory,
                    const std::function<std::string(const std::vector<StagedFile>& files)>& holders,
                    Clock::time_point until, const Context& context);

/// Makes the tree of links; removes what was at `tree` first.
/// Throws Error: invalid (a symlink, or a path that is too long), no_space, io.
void make_links(const Staging& staging, StagingId directory, const std::filesystem::path& tree);

/// Removes a tree of links, if it exists.  Logs what cannot be removed; the next start removes it.
void remove_links(const std::filesystem::path& tree) noexcept;

/// Scans the tree as publish() will.  `shown`: the directory as its user knows it.
/// Throws Error: as scan_checkpoint.
void check_links(const std::filesystem::path& tree, const std::vector<std::string>& include,
                 ScanScope scope, std::string_view shown);

/// Syncs the bytes of all files of the tree, and their names in `backing`, to disk.  `shown`: as
/// above.
/// Throws Error: corrupt if the disk failed to store them (they may be lost); cancelled, between
/// two slices; io, no_memory: they could not all be synced, and may be once more.
void sync_links(const std::filesystem::path& tree, const std::filesystem::path& backing,
                std::string_view shown, const Context& context);

/// Asks the kernel whether it could not write bytes of these files to the disk; waits for no disk.
/// Until that happens, what is read of them is what was written.  `shown`: as above.
/// Throws Error: corrupt if so (they may be lost then), io.
void require_no_lost_writes(const std::filesystem::path& tree, std::string_view shown);

}  // namespace weightfs
