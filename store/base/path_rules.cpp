#include "store/base/path_rules.hpp"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <cstddef>

#include "store/base/controls.hpp"

namespace weightfs {
namespace {

constexpr std::size_t kPathBytesMax = 1024;
constexpr std::size_t kComponentBytesMax = 255;
constexpr std::size_t kComponentsMax = 16;
constexpr std::size_t kTagBytesMax = 200;

bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

/// The length of the UTF-8 sequence at the start of `text`, by its first two bytes. 0 if it is
/// invalid: overlong, a surrogate, or above U+10FFFF.
std::size_t sequence_size(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  const auto second = static_cast<unsigned char>(text.size() > 1 ? text[1] : 0);
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return 0;
  if (first < 0xE0) return 2;
  if (first == 0xE0 && second < 0xA0) return 0;
  if (first == 0xED && second > 0x9F) return 0;
  if (first == 0xF0 && second < 0x90) return 0;
  if (first == 0xF4 && second > 0x8F) return 0;
  return first < 0xF0 ? 3 : 4;
}

/// The length of the first character of `text`; 0 if it is not valid UTF-8.
std::size_t character_size(std::string_view text) {
  const std::size_t size = sequence_size(text);
  if (size == 0 || size > text.size()) return 0;
  return std::all_of(text.begin() + 1, text.begin() + static_cast<std::ptrdiff_t>(size),
                     is_continuation)
             ? size
             : 0;
}

bool is_unwanted(char byte) {
  const auto value = static_cast<unsigned char>(byte);
  return value < 0x20 || value == 0x7F || byte == '\\';
}

std::string characters_problem(std::string_view text) {
  while (!text.empty()) {
    const std::size_t size = character_size(text);
    if (size == 0) return "is not valid UTF-8";
    if (text[0] == '\\') return "has a backslash";
    if (is_unwanted(text[0])) return "has a control character";
    text.remove_prefix(size);
  }
  return {};
}

std::string component_problem(std::string_view component) {
  if (component.empty()) return "has an empty component (it begins or ends with '/', or has '//')";
  if (component == "." || component == "..") return fmt::format("has a component '{}'", component);
  if (component.front() == '.') return "has a hidden component (it begins with '.')";
  if (component.size() > kComponentBytesMax) {
    return fmt::format("has a component of more than {} bytes", kComponentBytesMax);
  }
  return {};
}

}  // namespace

std::string path_problem(std::string_view path) {
  if (path.empty()) return "is empty";
  if (path.size() > kPathBytesMax) return fmt::format("has more than {} bytes", kPathBytesMax);
  if (std::string problem = characters_problem(path); !problem.empty()) return problem;
  if (std::count(path.begin(), path.end(), '/') >= static_cast<std::ptrdiff_t>(kComponentsMax)) {
    return fmt::format("has more than {} components", kComponentsMax);
  }
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    std::string problem = component_problem(path.substr(begin, end - begin));
    if (!problem.empty()) return problem;
    begin = end + 1;
  }
  return {};
}

std::string_view directory_of(std::string_view path) noexcept {
  const std::size_t slash = path.rfind('/');
  return slash == path.npos ? std::string_view{} : path.substr(0, slash);
}

std::string paths_problem(std::span<const std::string_view> paths) {
  const auto twice = std::adjacent_find(paths.begin(), paths.end());
  if (twice != paths.end()) return fmt::format("'{}' occurs twice", *twice);
  for (const std::string_view path : paths) {
    for (std::size_t slash = path.find('/'); slash != path.npos;
         slash = path.find('/', slash + 1)) {
      const std::string_view directory = path.substr(0, slash);
      if (std::binary_search(paths.begin(), paths.end(), directory)) {
        return fmt::format("'{}' is both a file and a directory of '{}'", directory, path);
      }
    }
  }
  return {};
}

std::string tag_problem(std::string_view tag) {
  if (tag.empty()) return "is empty";
  if (tag.size() > kTagBytesMax) return fmt::format("has more than {} bytes", kTagBytesMax);
  if (tag.front() == '-' || tag.front() == ' ') return fmt::format("begins with '{}'", tag.front());
  if (tag.find('/') != tag.npos) return "has a '/'";
  return path_problem(tag);
}

bool matches_glob(const std::string& path, std::span<const std::string> globs) {
  const char* const base = path.c_str() + (path.rfind('/') + 1);  // npos + 1 is 0
  return std::any_of(globs.begin(), globs.end(), [&](const std::string& glob) {
    return glob.find('/') == glob.npos ? ::fnmatch(glob.c_str(), base, 0) == 0
                                       : ::fnmatch(glob.c_str(), path.c_str(), FNM_PATHNAME) == 0;
  });
}

std::string escape_name(std::string_view name) {
  std::string escaped;
  while (!name.empty()) {
    if (escaped.size() >= kPathBytesMax) return escaped + "...";
    const std::size_t size = character_size(name);
    // The second byte of a control character is escaped next: alone it is not valid UTF-8.
    if (size == 0 || is_unwanted(name[0]) || control_size(name) != 0) {
      escaped += fmt::format("\\x{:02x}", static_cast<unsigned char>(name[0]));
      name.remove_prefix(1);
    } else {
      escaped += name.substr(0, size);
      name.remove_prefix(size);
    }
  }
  return escaped;
}

}  // namespace weightfs
