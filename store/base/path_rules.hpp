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

/// The part of a version's path before the last '/'; empty if there is none.
std::string_view directory_of(std::string_view path) noexcept;

/// Empty if no path occurs twice and none is a directory of another, else the reason, naming both.
///
/// Requires: `paths` ascend bytewise.
std::string paths_problem(std::span<const std::string_view> paths);

/// Empty if `tag` may name a version, else the reason.  A tag is one path component, at most 200
/// bytes, does not start with '.', '-' or a space.
std::string tag_problem(std::string_view tag);

/// Whether one of the fnmatch globs matches: one without '/' is compared with the base name, one
/// with '/' with the whole path.
bool matches_glob(const std::string& path, std::span<const std::string> globs);

/// The name as messages show it: control characters, backslash and invalid UTF-8 as \xNN; cut after
/// 1024 bytes.
std::string escape_name(std::string_view name);

}  // namespace weightfs
