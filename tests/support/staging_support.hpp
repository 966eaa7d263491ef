// Staging support: a staging's tree as text, and the errno of a refused operation.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "store/staging/staging.hpp"

namespace weightfs::test {

/// Runs `body`; returns 0 if nothing is thrown. no_space counts as ENOSPC.
int errno_of(const std::function<void()>& body);

/// The paths of all inodes, sorted: "staging/a", "staging/a/b".
std::vector<std::string> paths_of(const Staging& staging);

/// A line for each inode: path, id, type, mode, owner, links, size, times (except of files),
/// target, and a hash of the bytes.
std::string tree_text(const Staging& staging);

}  // namespace weightfs::test
