#include "fs/control/mount_record.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <span>
#include <string_view>
#include <utility>

#include "fs/base/secret_names.hpp"
#include "fs/control/path.hpp"
#include "fs/control/protocol.hpp"
#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/json.hpp"
#include "store/base/log.hpp"
#include "store/base/sha256.hpp"
#include "store/os/file.hpp"

namespace weightfs::fs {
namespace {

namespace stdfs = std::filesystem;

constexpr std::size_t kNameDigits = 16;
constexpr std::uint64_t kRecordBytesMax = 1u << 20;
constexpr std::string_view kExtension = ".mount";
constexpr std::string_view kSyncCommand = ".weightfs/command";
constexpr std::string_view kPlainCharacters =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-+=:,./@%";

/// Empty if this user has no directory for records.
stdfs::path record_path(const stdfs::path& mount_point) {
  const stdfs::path directory = runtime_directory();
  if (directory.empty()) return {};
  const std::string text = mount_point.string();
  const std::string digits = to_hex(sha256(std::as_bytes(std::span(text)))).substr(0, kNameDigits);
  return directory / (digits + std::string(kExtension));
}

std::optional<MountRecord> read_record(const stdfs::path& path) {
  try {
    const std::string what = path.string();
    const Json json = parse_json(read_file(path, kRecordBytesMax), what);
    MountRecord record{json_string(json, "mountpoint", what),
                       static_cast<int>(json_uint(json, "pid", what)),
                       json_string(json, "command", what), json_string(json, "control", what)};
    if (!json.contains("words")) return record;
    record.words = json["words"].get<std::vector<std::string>>();
    record.environment = json.at("environment").get<std::map<std::string, std::string>>();
    record.secrets = json.at("secrets").get<std::vector<std::string>>();
    return record;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

void write_record(const MountRecord& record) {
  const stdfs::path path = record_path(record.mount_point);
  if (path.empty()) return;
  make_directories(path.parent_path());
  const Json json{{"mountpoint", record.mount_point.string()},
                  {"pid", record.pid},
                  {"command", record.command},
                  {"control", record.control.string()},
                  {"words", record.words},
                  {"environment", record.environment},
                  {"secrets", record.secrets}};
  write_file(path, json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n", 0600);
}

void remove_stale_socket(const stdfs::path& path) noexcept {
  struct stat found {};
  if (path.empty() || ::lstat(path.c_str(), &found) != 0 || !S_ISSOCK(found.st_mode)) return;
  try {
    connect_socket(path);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::unavailable) ::unlink(path.c_str());
  }
}

/// True also for a zombie.
bool has_ended(int pid) {
  const File process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!process) return errno == ESRCH;
  pollfd ended{.fd = process.fd(), .events = POLLIN, .revents = 0};
  return ::poll(&ended, 1, 0) > 0;
}

/// Removes records of daemons that were killed, if their mount is gone too.
void remove_leftovers() {
  std::error_code failed;
  for (stdfs::directory_iterator entry(runtime_directory(), failed), end; !failed && entry != end;
       entry.increment(failed)) {
    if (entry->path().extension() != kExtension) continue;
    const auto record = read_record(entry->path());
    if (!record || !has_ended(record->pid)) continue;
    const auto mount = topmost_mount(read_mounts(), record->mount_point);
    if (!mount || mount->type != kMountType) remove_mount_record(record->mount_point);
  }
}

enum class Variable { other, kept, secret };

/// Of the names that the program and its libraries read; of other AWS_ ones, which may be of other
/// programs, those that sound harmless.  A proxy's URL may have a password.
Variable kind_of_variable(std::string_view name, std::string_view value) {
  static constexpr std::array kKept{"HOME",
                                    "PATH",
                                    "TMPDIR",
                                    "XDG_CONFIG_HOME",
                                    "XDG_CACHE_HOME",
                                    "XDG_RUNTIME_DIR",
                                    "WEIGHTFS_KERNELS",
                                    "HF_HOME",
                                    "HF_TOKEN_PATH",
                                    "HF_ENDPOINT",
                                    "HF_HUB_DISABLE_IMPLICIT_TOKEN",
                                    "SSL_CERT_FILE",
                                    "SSL_CERT_DIR",
                                    "CURL_CA_BUNDLE",
                                    "REQUESTS_CA_BUNDLE",
                                    "AWS_SHARED_CREDENTIALS_FILE",
                                    "AWS_WEB_IDENTITY_TOKEN_FILE",
                                    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
                                    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
                                    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
                                    "AWS_CREDENTIAL_EXPIRATION",
                                    "CUDA_VISIBLE_DEVICES"};
  static constexpr std::array kProxies{"http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy",
                                       "ALL_PROXY",  "no_proxy",    "NO_PROXY"};
  static constexpr std::array kSecret{"AWS_ACCESS_KEY_ID",
                                      "AWS_SECRET_ACCESS_KEY",
                                      "AWS_SESSION_TOKEN",
                                      "AWS_SECURITY_TOKEN",
                                      "AWS_CONTAINER_AUTHORIZATION_TOKEN",
                                      "HF_TOKEN",
                                      "HUGGING_FACE_HUB_TOKEN"};
  const auto is_in = [&](const auto& names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (is_in(kSecret)) return Variable::secret;
  if (is_in(kProxies)) {
    return value.find('@') == std::string_view::npos ? Variable::kept : Variable::secret;
  }
  const bool is_kept = is_in(kKept) || (name.starts_with("AWS_") && !is_secret_name(name));
  return is_kept ? Variable::kept : Variable::other;
}

std::map<std::string, std::string> environment_now() {
  std::map<std::string, std::string> now;
  for (char** entry = environ; *entry != nullptr; entry++) {
    const std::string_view text(*entry);
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos || equals + 1 == text.size()) continue;  // empty: not set
    now.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return now;
}

std::string without_options(const std::string& command) {
  return fmt::format("{} (with its original options)", command);
}

std::string quoted(const std::string& word) {
  if (!word.empty() && word.find_first_not_of(kPlainCharacters) == std::string::npos) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

}  // namespace

std::optional<MountRecord> find_mount_record(const stdfs::path& mount_point) {
  const stdfs::path path = record_path(mount_point);
  return path.empty() ? std::nullopt : read_record(path);
}

void remove_mount_record(const stdfs::path& mount_point) noexcept {
  try {
    const auto record = find_mount_record(mount_point);
    if (!record) return;
    remove_stale_socket(record->control);
    ::unlink(record_path(mount_point).c_str());
  } catch (const std::exception& error) {
    log_debug(fmt::format("cannot remove the record of a mount: {}", error.what()));
  }
}

MountRecordFile::MountRecordFile(MountRecord record) noexcept : record_(std::move(record)) {
  try {
    const auto before = find_mount_record(record_.mount_point);
    if (before && before->control != record_.control) remove_stale_socket(before->control);
    remove_leftovers();
    write_record(record_);
  } catch (const std::exception& error) {
    log_warning(fmt::format("cannot record the command of this mount: {}", error.what()));
  }
}

MountRecordFile::~MountRecordFile() {
  try {
    const auto now = find_mount_record(record_.mount_point);
    if (now && now->pid == record_.pid) ::unlink(record_path(record_.mount_point).c_str());
  } catch (const std::exception& error) {
    log_debug(fmt::format("cannot remove the record of this mount: {}", error.what()));
  }
}

void record_environment(MountRecord& record) {
  for (const auto& [name, value] : environment_now()) {
    const Variable kind = kind_of_variable(name, value);
    if (kind == Variable::kept) record.environment.emplace(name, value);
    if (kind == Variable::secret) record.secrets.push_back(name);
  }
}

void restore_environment(const MountRecord& record) {
  const auto now = environment_now();
  std::string missing;
  for (const std::string& name : record.secrets) {
    if (!now.contains(name)) missing += (missing.empty() ? "" : ", ") + name;
  }
  if (!missing.empty()) {
    throw Error(ErrorCode::invalid,
                fmt::format("{} was mounted with {} in the environment, which no record keeps; set "
                            "it and try again",
                            record.mount_point.string(), missing));
  }
  for (const auto& [name, value] : now) {
    const bool was_secret =
        std::find(record.secrets.begin(), record.secrets.end(), name) != record.secrets.end();
    const bool decides =
        name.starts_with("WEIGHTFS_") || kind_of_variable(name, value) != Variable::other;
    if (decides && !was_secret) ::unsetenv(name.c_str());
  }
  for (const auto& [name, value] : record.environment) {
    ::setenv(name.c_str(), value.c_str(), 1);
  }
}

std::string mount_again_command(const MountInfo& mount) {
  const auto record = find_mount_record(mount.path);
  if (!record) {
    return without_options(command_again(words_again("mount", mount.source, mount.path, {})));
  }
  if (record->words.empty()) return record->command;
  return shell_line({"weightfs", "mount", "--again", record->mount_point.string()});
}

std::string sync_again_command(const MountInfo& directory) {
  try {
    std::string command = read_file(directory.path / kSyncCommand, kRecordBytesMax);
    if (!command.empty()) return command;
  } catch (const Error&) {
    // An older release wrote none, or it belongs to another user.
  }
  return without_options(command_again(words_again("sync", directory.source, directory.path, {})));
}

void write_sync_command(const stdfs::path& directory, const std::string& command) noexcept {
  try {
    write_file(directory / kSyncCommand, command, 0600);
  } catch (const std::exception& error) {
    log_warning(fmt::format("cannot record the command of this sync: {}", error.what()));
  }
}

std::vector<std::string> words_again(const std::string& name, const std::string& url,
                                     const stdfs::path& directory,
                                     const std::vector<std::string>& flags) {
  std::vector<std::string> words{name, url, stdfs::absolute(directory).lexically_normal().string()};
  words.insert(words.end(), flags.begin(), flags.end());
  return words;
}

std::string command_again(const std::vector<std::string>& words) {
  return "weightfs " + shell_line(words);
}

std::string shell_line(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) line += (line.empty() ? "" : " ") + quoted(word);
  return line;
}

}  // namespace weightfs::fs
