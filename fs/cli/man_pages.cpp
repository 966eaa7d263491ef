#include "fs/cli/man_pages.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "fs/cli/command_table.hpp"

namespace weightfs::fs {
namespace {

/// Text that troff takes as it is.
std::string roff(std::string_view text) {
  std::string escaped;
  bool begins_line = true;
  for (const char c : text) {
    if (begins_line && (c == '.' || c == '\'')) escaped += "\\&";
    if (c == '\\') {
      escaped += "\\e";
    } else if (c == '-') {
      escaped += "\\-";
    } else if (c == '\'') {
      escaped += "\\(aq";
    } else if (c == '`') {
      escaped += "\\(ga";
    } else {
      escaped += c;
    }
    begins_line = c == '\n';
  }
  return escaped;
}

std::string bold(std::string_view text) { return "\\fB" + roff(text) + "\\fR"; }
std::string italic(std::string_view text) { return "\\fI" + roff(text) + "\\fR"; }

std::string as_written(std::string_view text) {
  return ".PP\n.nf\n.RS 4\n" + roff(text) + "\n.RE\n.fi\n";
}

/// Paragraphs between empty lines; indented ones are shown as they are written.
std::string paragraphs(std::string_view text) {
  std::string page;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find("\n\n"), text.size());
    const std::string_view one = text.substr(0, end);
    text.remove_prefix(std::min(end + 2, text.size()));
    if (one.starts_with("    ")) {
      std::string plain(one.substr(4));
      for (std::size_t at = 0; (at = plain.find("\n    ", at)) != std::string::npos; at++) {
        plain.erase(at + 1, 4);
      }
      page += as_written(plain);
    } else {
      page += ".PP\n" + roff(one) + "\n";
    }
  }
  return page;
}

std::string option_entry(const OptionSpec& option) {
  std::string left = bold("--" + std::string(option.name));
  if (!option.value.empty()) left += " " + italic(option.value);
  return ".TP\n" + left + "\n" + roff(option.help) + "\n";
}

std::string heading(std::string_view name, int section) {
  std::string upper(name);
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return fmt::format(".TH {} {} \"\" \"weightfs " WEIGHTFS_VERSION "\" \"weightfs\"\n.SH NAME\n",
                     roff(upper), section);
}

constexpr std::string_view kExitStatus =
    ".SH EXIT STATUS\n"
    "0 done, 1 failed, 2 usage, 3 conflict (another writer published first), 4 corrupt,\n"
    "5 timed out.\n";

std::string common_entries() {
  std::string text;
  for (const OptionSpec& option : common_options()) text += option_entry(option);
  return text;
}

ManPage command_page(const CommandSpec& command) {
  const std::string name = fmt::format("weightfs-{}", command.name);
  std::string text = heading(name, 1);
  text += roff(name) + " \\- " + roff(command.summary) + "\n.SH SYNOPSIS\n.nf\n";
  std::string usage = usage_line(command);
  for (std::size_t at = 0; (at = usage.find("\n       ", at)) != std::string::npos; at++) {
    usage.erase(at + 1, 7);
  }
  text += roff(usage) + "\n.fi\n.SH DESCRIPTION\n" + paragraphs(command.description);
  text += ".SH OPTIONS\n";
  for (const OptionSpec& option : command.options) text += option_entry(option);
  text += common_entries();
  text += kExitStatus;
  text += ".SH EXAMPLE\n" + as_written(command.example);
  text += ".SH SEE ALSO\n" + bold("weightfs") + "(1)\n";
  return {name + ".1", text};
}

ManPage overview_page() {
  std::string text = heading("weightfs", 1);
  text +=
      "weightfs \\- a path that always holds a complete, immutable checkpoint\n"
      ".SH SYNOPSIS\n"
      "\\fBweightfs\\fR \\fICOMMAND\\fR \\fIOPERAND\\fR... [\\fIOPTION\\fR...]\n"
      ".SH DESCRIPTION\n"
      "Shows the checkpoints of a training run as a file system: \\fBlatest\\fR always leads to a\n"
      "complete, immutable version. A publisher uploads only what changed between two versions;\n"
      "each host rebuilds the files from the changes.\n"
      ".SH COMMANDS\n";
  for (const CommandSpec& command : all_commands()) {
    text += ".TP\n" + bold(command.name);
    if (!command.operands.empty()) text += " " + italic(command.operands);
    text += "\n" + roff(command.summary) + "; see " +
            bold(fmt::format("weightfs-{}", command.name)) + "(1)\n";
  }
  text += ".SH OPTIONS\nThese are of every command.\n" + common_entries();
  text += ".TP\n" + bold("--version") + ", " + bold("-V") + "\nprint the version\n";
  text +=
      ".SH ENVIRONMENT\n"
      "An option that is not given is taken from the environment: \\fBWEIGHTFS_STORE_SIZE\\fR for\n"
      "\\fB\\-\\-store\\-size\\fR; lists have one entry per line. \\fBWEIGHTFS_CONFIG\\fR names "
      "the\n"
      "configuration file.\n"
      ".SH FILES\n"
      ".TP\n\\fI/etc/weightfs/weightfs.toml\\fR, \\fI~/.config/weightfs/config.toml\\fR\n"
      "options, at the top level or in the command's table; the operands of mount and sync may\n"
      "stand in their tables, as url, mountpoint and dir\n"
      ".TP\n\\fI/etc/weightfs/NAME.toml\\fR\n"
      "what weightfs@NAME.service mounts, or weightfs\\-sync@NAME.service follows\n";
  text += kExitStatus;
  text += ".SH EXAMPLE\n" + as_written(
                                "weightfs init file:///srv/runs/a\n"
                                "weightfs publish file:///srv/runs/a out/step-0\n"
                                "weightfs mount file:///srv/runs/a /mnt/w\n"
                                "vllm serve /mnt/w/latest");
  text += ".SH SEE ALSO\n" + bold("mount.weightfs") + "(8)\n";
  return {"weightfs.1", text};
}

ManPage mount_helper_page() {
  std::string text = heading("mount.weightfs", 8);
  text +=
      "mount.weightfs \\- weightfs for mount(8) and fstab\n"
      ".SH SYNOPSIS\n"
      "\\fBmount \\-t weightfs\\fR \\fIURL\\fR \\fIMOUNTPOINT\\fR [\\fB\\-o\\fR "
      "\\fIOPTION\\fR,...]\n"
      ".SH DESCRIPTION\n"
      "Does what \\fBweightfs mount\\fR does, and returns when the mount is ready. Options are\n"
      "those of \\fBweightfs\\-mount\\fR(1) without dashes, a switch without a value; an "
      "underscore\n"
      "is the same as a dash. A comma in a value is written \\fB\\e,\\fR, or the value stands in\n"
      "double quotes. What all file systems have (\\fBro\\fR, \\fBnofail\\fR, \\fB_netdev\\fR,\n"
      "\\fBx\\-systemd.*\\fR ...) has no effect. \\fB\\-f\\fR mounts nothing, \\fB\\-s\\fR ignores "
      "unknown\n"
      "options.\n"
      ".SH EXIT STATUS\n"
      "0 mounted, or mounted already; 1 a wrong option; 32 it failed.\n"
      ".SH EXAMPLE\nA line of fstab:\n";
  text += as_written("s3://models/run-7 /mnt/w weightfs store=/ssd/w,_netdev,nofail 0 0");
  text += ".SH SEE ALSO\n" + bold("weightfs-mount") + "(1), " + bold("mount") + "(8)\n";
  return {"mount.weightfs.8", text};
}

}  // namespace

std::vector<ManPage> man_pages() {
  std::vector<ManPage> pages{overview_page(), mount_helper_page()};
  for (const CommandSpec& command : all_commands()) pages.push_back(command_page(command));
  return pages;
}

}  // namespace weightfs::fs
