#include "fs/doctor/bundle.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <span>
#include <utility>

#include "fs/base/parse_values.hpp"
#include "fs/cli/config_file.hpp"
#include "fs/client/mount_status.hpp"
#include "fs/control/mount_record.hpp"
#include "fs/hooks/hook_options.hpp"
#include "store/aws/config.hpp"
#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/json.hpp"
#include "store/hub/hub_settings.hpp"
#include "store/local/store.hpp"
#include "store/os/file.hpp"

namespace weightfs::fs {
namespace {

namespace stdfs = std::filesystem;

constexpr std::uint64_t kSmallFileBytesMax = 1u << 20;
constexpr std::chrono::seconds kAnswerWithin{5};  // of a daemon

constexpr const char* kReadme =
    "A bundle of weightfs doctor: what this host and its mount say of themselves.\n"
    "\n"
    "Names of hosts, paths, buckets, tags and engines are in it.  Keys, tokens and passwords\n"
    "are not: of hooks there is the address, of secret variables the name; and whatever this host\n"
    "has as a secret was replaced by [removed] wherever it stood, as were users, passwords and\n"
    "queries of URLs.  A secret that this host does not know as one, such as a password in a tag,\n"
    "would still be there: look before you send it.\n";

/// The text of a part of the bundle, or why there is none.
template <typename Body>
std::string or_why(Body&& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    return fmt::format("cannot be read: {}\n", error.what());
  }
}

/// Files of /proc and /sys say that they are empty.
std::string read_kernel_file(const stdfs::path& path) {
  const File file = File::open(path, O_RDONLY);
  std::string text;
  std::array<char, 16384> buffer;
  while (text.size() < kSmallFileBytesMax) {
    const ssize_t got = ::read(file.fd(), buffer.data(), buffer.size());
    if (got <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
  return text;
}

/// The last bytes of a file, from the beginning of a line.
std::string read_end(const stdfs::path& path, std::uint64_t limit_bytes) {
  const File file = File::open(path, O_RDONLY);
  struct stat found {};
  if (::fstat(file.fd(), &found) != 0) throw_errno(errno, "read the size of " + path.string());
  const auto size = static_cast<std::uint64_t>(found.st_size);
  const std::uint64_t begin = size - std::min(size, limit_bytes);
  std::string text(size - begin, '\0');
  if (!read_at(file.fd(), begin, std::as_writable_bytes(std::span(text)), path)) text.clear();
  if (begin == 0) return text;
  return fmt::format("({} bytes before this are left out)\n{}", begin,
                     text.substr(text.find('\n') + 1));
}

// ---- the mount ----

/// "vllm=http://127.0.0.1:8000": without options, a query, or arguments of a program.
std::string shown_hook(const std::string& text) {
  try {
    const HookOptions hook = parse_hook(text);
    return fmt::format("{}={}", to_string(hook.type), hook.target());
  } catch (const Error&) {
    return std::string(Scrubber::kRemoved);
  }
}

std::string shown_word(const std::string& word) {
  constexpr std::string_view kHook = "--hook=";
  return word.starts_with(kHook) ? std::string(kHook) + shown_hook(word.substr(kHook.size()))
                                 : word;
}

/// One word a line.
std::string command_text(const MountRecord& record) {
  std::string text = "weightfs\n";
  for (std::size_t i = 0; i < record.words.size(); i++) {
    const bool is_hook = i > 0 && record.words[i - 1] == "--hook";
    text += (is_hook ? shown_hook(record.words[i]) : shown_word(record.words[i])) + "\n";
  }
  return text;
}

std::string environment_text(const MountRecord& record) {
  std::string text;
  for (const auto& [name, value] : record.environment) {
    text += fmt::format("{}={}\n", name, value);
  }
  for (const std::string& name : record.secrets) {
    text += fmt::format("{}={}\n", name, Scrubber::kRemoved);
  }
  return text;
}

std::string read_shown(const stdfs::path& path) { return read_file_within(path, kAnswerWithin); }

/// As the daemon says; else where a mount of this URL has it by default.
std::string log_text(const BundleSubject& subject, const std::string& status) {
  stdfs::path path;
  const Json json = Json::parse(status, nullptr, false);
  if (json.is_object() && json.contains("log") && json["log"].is_string()) {
    path = json["log"].get<std::string>();
  } else if (const auto store = Store::find_default_by_url(subject.url)) {
    path = *store / "weightfs.log";
  } else {
    return "it is not known where the log is: --foreground writes it to stderr\n";
  }
  return fmt::format("{}\n\n{}", path.string(), read_end(path, kBundleLogBytes));
}

void collect_mount(const BundleSubject& subject, BundleFiles& files) {
  std::string status, health;
  try {
    status = read_shown(subject.mount_point / ".weightfs/status");
    health = read_shown(subject.mount_point / ".weightfs/health");
  } catch (const Error& error) {  // a daemon that does not answer is asked once
    status = health = fmt::format("cannot be read: {}\n", error.what());
  }
  files["status.json"] = status;
  files["health.txt"] = health;
  files["log.txt"] = or_why([&] { return log_text(subject, status); });
  if (const auto record = find_mount_record(subject.mount_point)) {
    files["command.txt"] = command_text(*record);
    files["environment.txt"] = environment_text(*record);
  } else {
    files["command.txt"] = "there is no record of this mount, or this user may not read it\n";
  }
}

// ---- the host ----

std::string config_text(const stdfs::path& path) {
  const std::string what = path.string();
  std::string text = what + "\n\n";
  for (const ConfigEntry& entry : parse_config(read_file(path, kSmallFileBytesMax), what)) {
    for (const std::string& value : entry.values) {
      text += fmt::format("{}{}{} = {}\n", entry.table, entry.table.empty() ? "" : ".", entry.key,
                          entry.key == "hook" ? shown_hook(value) : value);
    }
  }
  return text;
}

std::string kernel_text() {
  utsname name{};
  if (::uname(&name) != 0) throw_errno(errno, "uname");
  return fmt::format("{} {} {} {}\n", name.sysname, name.release, name.version, name.machine);
}

std::string space_text(const stdfs::path& path) {
  const Space space = space_of(path);
  return fmt::format("{}: {} free of {}\n", path.string(), human_bytes(space.free_bytes),
                     human_bytes(space.total_bytes));
}

std::string host_text(const BundleSubject& subject) {
  static constexpr std::array kFiles{"/etc/os-release",           "/proc/meminfo",
                                     "/proc/self/limits",         "/proc/self/cgroup",
                                     "/sys/fs/cgroup/memory.max", "/proc/sys/vm/dirty_ratio",
                                     "/proc/sys/fs/file-max",     "/proc/pressure/memory",
                                     "/proc/pressure/io",         "/proc/self/mountinfo"};
  std::string text = "== kernel\n" + or_why(kernel_text);
  for (const char* path : kFiles) {
    text += fmt::format("== {}\n{}", path, or_why([&] { return read_kernel_file(path); }));
  }
  text += "== space\n";
  for (const stdfs::path& path : {stdfs::path("/var/lib"), stdfs::path("/tmp")}) {
    text += or_why([&] { return space_text(path); });
  }
  if (!subject.url.empty()) text += fmt::format("== bucket\n{}\n", subject.url);
  return text;
}

// ---- secrets ----

void add_aws_files(Scrubber& scrubber) {
  const AwsFiles files = read_aws_files(process_environment());
  for (const AwsSections* sections : {&files.config, &files.services, &files.credentials}) {
    for (const auto& [section, settings] : *sections) {
      std::string block;
      for (const auto& [name, value] : settings) block += name + "=" + value + '\0';
      scrubber.add_environment(block);
    }
  }
}

/// Also the file, where a variable comes first.
void add_hub_tokens(Scrubber& scrubber) {
  const Environment all = process_environment();
  scrubber.add(find_hub_token(all).token);
  scrubber.add(find_hub_token([&](std::string_view name) -> std::optional<std::string> {
                 return name == "HF_TOKEN" || name == "HUGGING_FACE_HUB_TOKEN" ? std::nullopt
                                                                               : all(name);
               }).token);
}

/// The token in the file that a hook names.
void add_hook(Scrubber& scrubber, const std::string& text) {
  try {
    const HookOptions hook = parse_hook(text);
    if (!hook.token_file.empty()) {
      scrubber.add(read_file(hook.token_file, kSmallFileBytesMax));
    }
  } catch (const Error&) {  // it cannot be read, so nothing of it is in the bundle
  }
}

void add_record(Scrubber& scrubber, const MountRecord& record) {
  for (std::size_t i = 0; i < record.words.size(); i++) {
    const std::string& word = record.words[i];
    if (word.starts_with("--hook=")) add_hook(scrubber, word.substr(7));
    if (i > 0 && record.words[i - 1] == "--hook") add_hook(scrubber, word);
  }
  try {
    scrubber.add_environment(read_kernel_file(fmt::format("/proc/{}/environ", record.pid)));
  } catch (const Error&) {  // it has ended, or is another user's
  }
}

// ---- tar ----

/// POSIX ustar: pax, "ustar Interchange Format".  Numbers are octal.
struct TarHeader {
  std::array<char, 100> name{};
  std::array<char, 8> mode{}, uid{}, gid{};
  std::array<char, 12> size{}, mtime{};
  std::array<char, 8> checksum{};
  char type = '0';
  std::array<char, 100> link{};
  std::array<char, 6> magic{'u', 's', 't', 'a', 'r', '\0'};
  std::array<char, 2> version{'0', '0'};
  std::array<char, 32> user{}, group{};
  std::array<char, 8> major{}, minor{};
  std::array<char, 155> prefix{};
  std::array<char, 12> padding{};
};
static_assert(sizeof(TarHeader) == 512);

template <std::size_t Size>
void put_octal(std::array<char, Size>& field, std::uint64_t value) {
  const std::string digits = fmt::format("{:0{}o}", value, Size - 1);
  std::memcpy(field.data(), digits.data(), Size - 1);
}

std::string tar_entry(const std::string& name, const std::string& bytes, std::int64_t time) {
  TarHeader header;
  std::memcpy(header.name.data(), name.data(), std::min(name.size(), header.name.size()));
  put_octal(header.mode, 0600);
  put_octal(header.uid, 0);
  put_octal(header.gid, 0);
  put_octal(header.size, bytes.size());
  put_octal(header.mtime, static_cast<std::uint64_t>(std::max<std::int64_t>(time, 0)));
  header.checksum.fill(' ');
  std::string block(sizeof header, '\0');
  std::memcpy(block.data(), &header, sizeof header);
  unsigned sum = 0;
  for (const char c : block) sum += static_cast<unsigned char>(c);
  const std::string digits = fmt::format("{:06o}", sum);
  std::memcpy(block.data() + offsetof(TarHeader, checksum), digits.data(), digits.size());
  block[offsetof(TarHeader, checksum) + digits.size()] = '\0';
  block += bytes;
  block.resize((block.size() + 511) / 512 * 512);
  return block;
}

std::string gzip(const std::string& bytes) {
  constexpr int kGzip = 16, kMemoryLevel = 8;  // zlib.h: deflateInit2
  z_stream stream{};
  if (deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, MAX_WBITS + kGzip, kMemoryLevel,
                   Z_DEFAULT_STRATEGY) != Z_OK) {
    throw Error(ErrorCode::no_memory, "zlib has no memory");
  }
  std::string packed(deflateBound(&stream, bytes.size()), '\0');
  std::string input = bytes;  // zlib's pointer is to what is not const
  stream.next_in = reinterpret_cast<Bytef*>(input.data());
  stream.avail_in = static_cast<uInt>(input.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

}  // namespace

BundleFiles collect_bundle(const BundleSubject& subject) {
  BundleFiles files;
  files["doctor.txt"] = subject.doctor_text;
  files["doctor.json"] = subject.doctor_json;
  files["host.txt"] = host_text(subject);
  if (!subject.mount_point.empty()) collect_mount(subject, files);
  for (std::size_t i = 0; i < subject.configs.size(); i++) {
    files[fmt::format("config-{}.txt", i + 1)] =
        or_why([&] { return config_text(subject.configs[i]); });
  }
  const Scrubber scrubber = find_secrets(subject.mount_point);
  for (auto& [name, text] : files) text = scrubber.scrub(std::move(text));
  files["README"] = kReadme;
  return files;
}

Scrubber find_secrets(const stdfs::path& mount_point) {
  Scrubber scrubber;
  scrubber.add_environment(read_kernel_file("/proc/self/environ"));
  try {
    add_aws_files(scrubber);
  } catch (const Error&) {  // a file that cannot be read has given nothing to anybody here
  }
  add_hub_tokens(scrubber);
  if (mount_point.empty()) return scrubber;
  if (const auto record = find_mount_record(mount_point)) add_record(scrubber, *record);
  return scrubber;
}

std::string pack_bundle(const BundleFiles& files, const std::string& directory, std::int64_t time) {
  std::string archive;
  for (const auto& [name, text] : files) archive += tar_entry(directory + "/" + name, text, time);
  archive.resize(archive.size() + 1024);  // two empty blocks end it
  return gzip(archive);
}

}  // namespace weightfs::fs
