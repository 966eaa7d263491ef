#include "fs/cli/mount_helper.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "fs/cli/command_table.hpp"
#include "store/base/error.hpp"
#include "store/base/suggest.hpp"

namespace weightfs::fs {
namespace {

constexpr std::string_view kHelperName = "mount.weightfs";

/// Of mount(8), fstab, systemd and FUSE.  weightfs is mounted without devices and setuid in any
/// case.
constexpr std::array<std::string_view, 35> kWithoutEffect{"defaults",
                                                          "rw",
                                                          "ro",
                                                          "auto",
                                                          "noauto",
                                                          "user",
                                                          "nouser",
                                                          "users",
                                                          "owner",
                                                          "group",
                                                          "_netdev",
                                                          "nofail",
                                                          "atime",
                                                          "noatime",
                                                          "diratime",
                                                          "relatime",
                                                          "norelatime",
                                                          "strictatime",
                                                          "nostrictatime",
                                                          "nodiratime",
                                                          "lazytime",
                                                          "nolazytime",
                                                          "suid",
                                                          "nosuid",
                                                          "dev",
                                                          "nodev",
                                                          "exec",
                                                          "noexec",
                                                          "sync",
                                                          "async",
                                                          "silent",
                                                          "loud",
                                                          "allow_other",
                                                          "default_permissions",
                                                          "comment"};

/// Options of the command that make no sense for who waits for its end.
constexpr std::array<std::string_view, 5> kNotHere{"again", "foreground", "help", "json", "quiet"};

bool is_one_of(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_without_effect(std::string_view name) {
  return is_one_of(kWithoutEffect, name) || name.starts_with("x-") || name.starts_with("X-");
}

/// Splits at commas, except in double quotes and after a backslash; both are taken away.
std::vector<std::string> split_options(std::string_view text) {
  std::vector<std::string> options(1);
  bool is_quoted = false;
  for (std::size_t i = 0; i < text.size(); i++) {
    const bool is_escape = text[i] == '\\' && i + 1 < text.size() &&
                           std::string_view(",\"\\").find(text[i + 1]) != std::string_view::npos;
    if (is_escape) {
      options.back() += text[++i];
    } else if (text[i] == '"') {
      is_quoted = !is_quoted;
    } else if (text[i] == ',' && !is_quoted) {
      options.emplace_back();
    } else {
      options.back() += text[i];
    }
  }
  if (is_quoted) {
    throw Error(ErrorCode::invalid, fmt::format("a quote is not closed in the options {}", text));
  }
  std::erase(options, "");
  return options;
}

[[noreturn]] void refuse_unknown(const std::string& option, const CommandSpec& mount) {
  std::vector<std::string> names = option_names(&mount);
  names.insert(names.end(), kWithoutEffect.begin(), kWithoutEffect.end());
  throw Error(ErrorCode::invalid,
              fmt::format("there is no mount option '{}'{}", option, did_you_mean(option, names)));
}

class HelperOptions {
 public:
  explicit HelperOptions(bool sloppy) : sloppy_(sloppy) {}

  /// Returns: the argument for `weightfs mount`; nothing if the option has no effect.
  std::optional<std::string> take(const std::string& option) {
    const std::size_t equals = std::min(option.find('='), option.size());
    std::string name = option.substr(0, equals);
    if (name == "remount") {
      throw Error(ErrorCode::invalid,
                  "a mount's options cannot be changed: umount it, and mount it anew");
    }
    is_read_only_ |= name == "ro";
    if (is_without_effect(name)) return std::nullopt;
    std::replace(name.begin(), name.end(), '_', '-');
    if (is_one_of(kNotHere, name)) {
      throw Error(ErrorCode::invalid, fmt::format("'{}' is an option of `weightfs mount`, and not "
                                                  "of mount -o or fstab",
                                                  name));
    }
    const OptionSpec* const spec = find_option(mount_, name);
    if (spec == nullptr) {
      if (sloppy_) return std::nullopt;
      refuse_unknown(option.substr(0, equals), mount_);
    }
    if (!spec->value.empty() && equals == option.size()) {  // the next argument is another option
      throw Error(ErrorCode::invalid, fmt::format("the mount option '{0}' needs a value: {0}={1}",
                                                  option, spec->value));
    }
    is_writer_ |= name == "writer";
    return "--" + name + option.substr(equals);
  }

  void check() const {
    if (!is_read_only_ || !is_writer_) return;
    throw Error(ErrorCode::invalid, "the options ro and writer exclude each other");
  }

 private:
  const CommandSpec& mount_ = *find_command("mount");
  const bool sloppy_;
  bool is_read_only_ = false, is_writer_ = false;
};

}  // namespace

bool is_mount_helper(std::string_view program) {
  return program.substr(program.rfind('/') + 1) == kHelperName;
}

MountHelperCall parse_mount_helper(std::span<const std::string> arguments) {
  MountHelperCall call;
  call.arguments = {"mount"};
  std::vector<std::string> options, operands;
  bool is_sloppy = false;
  for (std::size_t i = 0; i < arguments.size(); i++) {
    const std::string& argument = arguments[i];
    if (argument == "--help") {
      call.arguments.push_back(argument);
    } else if (argument.size() < 2 || argument[0] != '-') {
      operands.push_back(argument);
    } else {
      for (std::size_t at = 1; at < argument.size(); at++) {
        const char flag = argument[at];
        if (flag == 'o' || flag == 't' || flag == 'N') {
          std::string value = argument.substr(at + 1);
          if (value.empty() && ++i < arguments.size()) value = arguments[i];
          if (flag == 'o') options.push_back(value);
          break;
        }
        call.is_fake |= flag == 'f';
        call.is_verbose |= flag == 'v';
        is_sloppy |= flag == 's';
        if (std::string_view("fvsnwr").find(flag) == std::string_view::npos) {
          throw Error(ErrorCode::invalid,
                      fmt::format("mount.weightfs has no option -{}; it has -f, -n, -s, -v and -o "
                                  "OPTIONS",
                                  flag));
        }
      }
    }
  }
  HelperOptions taken(is_sloppy);
  for (const std::string& text : options) {
    for (const std::string& option : split_options(text)) {
      if (auto flag = taken.take(option)) call.arguments.push_back(std::move(*flag));
    }
  }
  taken.check();
  call.arguments.emplace_back("--");
  call.arguments.insert(call.arguments.end(), operands.begin(), operands.end());
  return call;
}

}  // namespace weightfs::fs
