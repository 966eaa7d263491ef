// export: a version, or the change between two, as ordinary files: from the bucket, or as a mount
// of this host shows them.
#include "store/inspect/export.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <string>

#include "fs/base/coder_choice.hpp"
#include "fs/base/errno.hpp"
#include "fs/base/text_table.hpp"
#include "fs/commands/command_context.hpp"
#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/format/safetensors.hpp"
#include "store/inspect/sparse_delta.hpp"
#include "store/materialize/whole_version.hpp"
#include "store/os/file.hpp"
#include "store/os/scratch_directory.hpp"
#include "store/repository/pieces.hpp"

namespace weightfs::fs {
namespace {

// ---- as a mount shows it ----

/// Whether the bucket may have what a mount cannot give: it does not have the file, or not the
/// patches and images that it would be made of.
bool may_be_in_bucket(ErrorCode code) {
  return code == ErrorCode::not_found || code == ErrorCode::io || code == ErrorCode::unavailable ||
         code == ErrorCode::unsupported;
}

/// Calls copy(); returns false, after a line that says why, if the bucket must be read instead.
template <typename Copy>
bool copied_from(const Target& target, const Copy& copy) {
  std::string why;
  try {
    copy();
    return true;
  } catch (const std::filesystem::filesystem_error& error) {
    why = describe_errno(error.code().value(), "read " + error.path1().string());
    if (!may_be_in_bucket(code_of_errno(error.code().value()))) throw;
  } catch (const Error& error) {
    why = error.what();
    if (!may_be_in_bucket(error.code())) throw;
  }
  log_warning(fmt::format("{} cannot give it: {}; exporting from {}", target.mount_point.string(),
                          why, target.url));
  return false;
}

int tell_version(Call& call, std::uint64_t number, std::uint64_t bytes) {
  const std::filesystem::path& directory = call.options.directory;
  call.print({{"version", number}, {"directory", directory.string()}, {"bytes", bytes}},
             fmt::format("exported version {} to {}: {}\n", number, directory.string(),
                         human_bytes(bytes)));
  return 0;
}

int tell_delta(Call& call, VersionPair versions, std::uint64_t changed) {
  const std::filesystem::path& file = call.options.directory;
  const std::uint64_t bytes = std::filesystem::file_size(file);
  call.print(
      {{"from", versions.from},
       {"to", versions.to},
       {"file", file.string()},
       {"changed", changed},
       {"bytes", bytes}},
      fmt::format("exported the change from version {} to {} to {}: {}, {}\n", versions.from,
                  versions.to, file.string(), count_text(changed, "element"), human_bytes(bytes)));
  return 0;
}

/// How many entries a sparse delta has: docs/FORMAT.md, "Sparse deltas".
std::uint64_t entries_of(const std::filesystem::path& file) {
  const File opened = File::open(file, O_RDONLY);
  SafetensorsHeader header;
  static_cast<void>(read_safetensors_header(opened.fd(), file.string(), header));
  const auto total = header.metadata.find("total_changed_elements");
  return total == header.metadata.end() ? 0 : std::stoull(total->second);
}

std::optional<int> copy_version_of(Call& call, const Target& target) {
  const Follow word = call.options.version.value_or(Follow{});
  if (target.latest == 0 && word.kind == Follow::Kind::latest) return std::nullopt;
  const std::uint64_t number = number_shown(call, target, word);
  const StopSignals signals;
  std::uint64_t bytes = 0;
  const bool is_copied = copied_from(target, [&] {
    bytes = copy_version(target.mount_point / "versions" / std::to_string(number),
                         call.options.directory, {.stop = signals.token()}, call.progress());
  });
  return is_copied ? std::optional(tell_version(call, number, bytes)) : std::nullopt;
}

std::optional<int> copy_delta_of(Call& call, const Target& target) {
  const Follow &from = call.options.look.from.value(), &to = call.options.look.to.value();
  const auto is_latest = [](const Follow& word) { return word.kind == Follow::Kind::latest; };
  if (target.latest == 0 && (is_latest(from) || is_latest(to))) return std::nullopt;
  const VersionPair versions{number_shown(call, target, from), number_shown(call, target, to)};
  const StopSignals signals;
  const bool is_copied = copied_from(target, [&] {
    const auto name = fmt::format("{}-{}.safetensors", versions.from, versions.to);
    copy_delta(target.mount_point / "deltas" / name, call.options.directory,
               {.stop = signals.token()}, call.progress());
  });
  if (!is_copied) return std::nullopt;
  return tell_delta(call, versions, entries_of(call.options.directory));
}

// ---- from the bucket ----

int export_delta(Call& call, const Target& target) {
  Reading reading(call, target);
  const VersionPair versions{reading.number_of(call.options.look.from.value()),
                             reading.number_of(call.options.look.to.value())};
  const CoderChoice choice(call.options.host.gpu);
  return tell_delta(call, versions,
                    export_sparse_delta(reading.history, versions, call.options.directory,
                                        reading.context, call.progress(), choice.coder()));
}

int export_now(Call& call, Reading& reading, std::uint64_t number) {
  const auto version = reading.history.get(number, reading.context);
  const auto layout = reading.history.layout(*version, reading.context);
  const CoderChoice choice(call.options.host.gpu);
  export_version(reading.history, number, call.options.directory, reading.context, call.progress(),
                 choice.coder());
  return tell_version(call, number, version_bytes(version->manifest, *layout));
}

/// Whether the version can be put there.  If not, "not found" may be said of this directory: of one
/// in /proc, for example.
bool can_make(const std::filesystem::path& directory) {
  const auto target = (std::filesystem::absolute(directory) / "").lexically_normal().parent_path();
  try {
    const ScratchDirectory made(target.parent_path(), ".weightfs-");
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// Whether this is damage in the bucket, not a version that never existed, or a directory that
/// cannot be made.
bool is_damage(Reading& reading, std::uint64_t number, const std::filesystem::path& directory,
               ErrorCode code) {
  if (code != ErrorCode::not_found) return code == ErrorCode::corrupt;
  return number <= reading.repository->newest_version(0, reading.context) && can_make(directory);
}

/// Names a version that can be exported instead, for the end of a message.
std::string whole_text(Reading& reading, const Options& options, const Error& error) {
  const auto* object = dynamic_cast<const ObjectError*>(&error);
  const std::uint64_t whole =
      find_whole_version(reading.history, object != nullptr ? object->key() : "", reading.context);
  if (whole == 0) {
    return fmt::format(
        "no other version can be built without it; to list all damage: weightfs verify {}",
        options.target);
  }
  return fmt::format(
      "the newest version that does not need it is {0}: weightfs export {1} {2} "
      "--version {0}",
      whole, options.target, options.directory.string());
}

int export_version_of(Call& call, const Target& target) {
  Reading reading(call, target);
  const std::uint64_t number = reading.number_of(call.options.version);
  try {
    return export_now(call, reading, number);
  } catch (const Error& error) {
    if (!is_damage(reading, number, call.options.directory, error.code())) throw;
    throw Error(error.code(),
                fmt::format("{}; {}", error.what(), whole_text(reading, call.options, error)));
  }
}

}  // namespace

int run_export(Call& call) {
  const Target target = resolve_target(call.options.target);
  const bool is_delta = call.options.look.from.has_value();
  if (!target.mount_point.empty()) {
    const auto done = is_delta ? copy_delta_of(call, target) : copy_version_of(call, target);
    if (done) return *done;
  }
  return is_delta ? export_delta(call, target) : export_version_of(call, target);
}

}  // namespace weightfs::fs
