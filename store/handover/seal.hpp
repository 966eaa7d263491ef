// Seal: what is checked of a staged directory before it may be published, and the tree of links
// through which it is published.
//
//     staging/<id>              the bytes of a file, under its StagingId
//     handover/<nonce>/<path>   hard links to them, under the names of the checkpoint
//
// Hidden files and directories are no part of it: they are not published.
//
// Errors name a file as its user knows it: "staging/run/model.safetensors".
//
// Threads: plain functions.  The caller holds a Staging::Seal of the directory, or it lies below
// publish/: nothing in it changes.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/context.hpp"
#include "store/staging/staging.hpp"

namespace weightfs {

/// How long a hand-over waits for the last writer, at most.
inline constexpr auto kWriterWait = std::chrono::seconds(2);

/// Throws Error: permission if a file below the directory belongs to somebody else than `caller`,
/// who is not root; names files and owners.
void require_own_files(const Staging& staging, StagingId directory, Caller caller);

/// Waits until no file below the directory is open for writing or mapped by a writer, or `until`;
/// then looks once more.  `holders`: see QueueOptions; may be empty.
/// Throws Error: busy (names the files and who holds them), cancelled.
void wait_unwritten(Staging& staging, StagingId directory,
                    const std::function<std::string(const std::vector<StagedFile>& files)>& holders,
                    Clock::time_point until, const Context& context);

/// Makes the tree of links; what lay at `tree` goes first.
/// Throws Error: invalid (a symlink, or a path that is too long), no_space, io.
void make_links(const Staging& staging, StagingId directory, const std::filesystem::path& tree);

/// Removes a tree of links; one that is not there is fine.  What cannot be removed is logged: it is
/// removed with the next start.
void remove_links(const std::filesystem::path& tree) noexcept;

/// Scans the tree as publish() will.  `shown`: the directory as its user knows it.
/// Throws Error: as scan_checkpoint.
void check_links(const std::filesystem::path& tree, const std::vector<std::string>& include,
                 std::string_view shown);

/// Brings the bytes of all files of the tree, and their names in `backing`, to the disk.
/// Throws Error: corrupt if the disk did not take them (they may be lost then); cancelled, io.
void sync_links(const std::filesystem::path& tree, const std::filesystem::path& backing,
                const Context& context);

}  // namespace weightfs
