// Path rules: which names may appear in a version.  The same check guards what is published and
// what comes out of a bucket.
//
// Threads: pure functions.  Format: docs/FORMAT.md, "Names".
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace weightfs {

/// Empty if `path` may name a file of a version, else the reason in words ("has a component '..'").
///
/// Relative; components separated by single '/'; no empty component, none that begins with '.'; no
/// control character, backslash or NUL; valid UTF-8; at most 255 bytes a component, 1024 bytes in
/// all; at most 16 components.
std::string path_problem(std::string_view path);

/// What stands before the last '/' of a path of a version; empty where there is none.
std::string_view directory_of(std::string_view path) noexcept;

/// Empty if no path stands twice and none is a directory of another, else the reason, naming both.
///
/// Requires: `paths` ascend bytewise.
std::string paths_problem(std::span<const std::string_view> paths);

/// Empty if `tag` may name a version, else the reason.  A tag is one path component, at most 200
/// bytes, does not start with '.', '-' or a space.
std::string tag_problem(std::string_view tag);

/// Whether one of the fnmatch globs fits: one without '/' is compared with what stands behind the
/// last '/' of the path, one with '/' with the whole path.
bool matches_glob(const std::string& path, std::span<const std::string> globs);

/// The name for a message: control characters, backslash and what is not UTF-8 as \xNN; cut after
/// 1024 bytes.
std::string escape_name(std::string_view name);

}  // namespace weightfs
