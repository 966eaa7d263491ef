// Path rules: which names may appear in a version.  The same check guards what is published and
// what comes out of a bucket.
#pragma once

#include <string>
#include <string_view>

namespace weightfs {

/// Empty if `path` may name a file of a version, else the reason in words ("has a component '..'").
///
/// Relative; components separated by single '/'; no empty component, '.', '..'; no control
/// character, backslash or NUL; valid UTF-8; at most 255 bytes a component, 1024 bytes in all;
/// at most 16 components.
std::string path_problem(std::string_view path);

/// Empty if `tag` may name a version, else the reason.  A tag is one path component, at most 200
/// bytes, does not start with '.', '-' or a space.
std::string tag_problem(std::string_view tag);

}  // namespace weightfs
