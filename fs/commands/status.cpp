// status, top: the state of the mounts of this host, and whether they are healthy.

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "fs/base/stop_signals.hpp"
#include "fs/base/text_table.hpp"
#include "fs/client/mount_status.hpp"
#include "fs/client/status_lines.hpp"
#include "fs/commands/command_context.hpp"
#include "fs/control/mount_record.hpp"
#include "fs/directory/sync_directory.hpp"
#include "fs/mount/mount_info.hpp"
#include "fs/report/screen.hpp"
#include "fs/report/top_frame.hpp"
#include "store/base/json.hpp"

namespace weightfs::fs {
namespace {

using Align = TextTable::Align;

/// All weightfs mounts, the topmost one of each mount point.
std::vector<MountInfo> weightfs_mounts() {
  const std::vector<MountInfo> all = read_mounts();
  std::vector<MountInfo> mounts;
  for (const MountInfo& mount : all) {
    if (mount.type == kMountType && topmost_mount(all, mount.path) == mount) {
      mounts.push_back(mount);
    }
  }
  return mounts;
}

std::vector<std::string> status_cells(const Json& status) {
  const auto number = [&](const char* name) {
    return status.contains(name) ? std::to_string(json_uint(status, name, "its status")) : "-";
  };
  const std::string mode =
      status.contains("serve") ? status.at("serve").at("mode").get<std::string>() : "-";
  return {status.at("mountpoint").get<std::string>(),
          number("version"),
          number("newest"),
          health_word(status),
          status.at("state").get<std::string>(),
          mode,
          status.at("url").get<std::string>()};
}

/// Of a mount whose daemon cannot be asked.
Json failed_status(const MountInfo& mount, const Error& error) {
  const char* state = error.code() == ErrorCode::unavailable ? "dead"
                      : error.code() == ErrorCode::timed_out ? "stuck"
                                                             : "unknown";
  return {{"mountpoint", mount.path.string()},
          {"url", mount.source},
          {"health", printable(fmt::format("failed: {}", error.what()))},
          {"state", state},
          {"error", {{"code", to_string(error.code())}, {"message", error.what()}}}};
}

/// `lines`: makes what is printed of a status.  Throws Error: corrupt, if there is something else
/// behind the mount, such as another user's program.
std::string shown_of(const MountInfo& mount, const std::function<std::string()>& lines) {
  try {
    return lines();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(ErrorCode::corrupt,
                fmt::format("{} is not what a daemon of weightfs says: {}",
                            (mount.path / ".weightfs/status").string(), error.what()));
  }
}

/// The daemon's status, of which a row and the problems can be made, or why there is none.
Json status_json(const MountInfo& mount) {
  try {
    Json status = parse_json(read_status_of_other(mount), mount.path.string());
    static_cast<void>(shown_of(mount, [&] {
      static_cast<void>(status_cells(status));
      return problem_lines(status);
    }));
    return status;
  } catch (const Error& error) {
    return failed_status(mount, error);
  }
}

int list_mounts(Call& call) {
  Json json = Json::array();
  TextTable table({{"MOUNT POINT"},
                   {"VERSION", Align::right},
                   {"NEWEST", Align::right},
                   {"HEALTH"},
                   {"STATE"},
                   {"SERVED BY"},
                   {"URL"}});
  std::string problems;
  for (const MountInfo& mount : weightfs_mounts()) {
    json.push_back(status_json(mount));
    table.add(status_cells(json.back()));
    problems += problem_lines(json.back());
  }
  call.print(json, json.empty() ? "nothing is mounted\n"
                                : table.text(call.output.columns) +
                                      (problems.empty() ? "" : "\n" + problems));
  return 0;
}

// ---- the directory of a sync ----

/// A sync writes its status every 3 s, also while it is busy (fs/directory/sync_service.cpp).
constexpr std::int64_t kStatedLimit = 15;

/// Why a directory does not do what it is there for.
struct Flaw {
  std::string state, message;
};

/// What `latest` needs and somebody has removed; empty: nothing.
std::filesystem::path find_missing(const std::filesystem::path& directory, const Json& status) {
  const auto latest = directory / "latest";
  const auto read = [&] {
    std::error_code ignored;
    return std::filesystem::read_symlink(latest, ignored);
  };
  const auto link = read();
  if (link.empty()) {
    const Json &version = status.at("version"), &followed = status.at("follow").at("version");
    const Json& versions = status.at("versions");
    const bool was_here = version != 0 || std::ranges::find(versions, followed) != versions.end();
    return was_here ? latest : std::filesystem::path();
  }
  std::error_code ignored;
  if (std::filesystem::exists(directory / link, ignored)) return {};
  return read() == link ? directory / link : std::filesystem::path();  // or it has moved on
}

/// What its status does not say by itself; nullopt: nothing.
std::optional<Flaw> find_flaw(const MountInfo& mount, const Json& status) {
  const auto directory = find_sync_directory(mount.path);
  if (!directory || !directory->is_running) {
    return Flaw{"ended", "no process keeps it up to date; run weightfs sync again"};
  }
  if (const std::int64_t age = seconds_now() - directory->stated; age > kStatedLimit) {
    return Flaw{"stuck", fmt::format("weightfs sync, pid {0}, does not answer: its status was "
                                     "written {1} s ago; if it is stopped: kill -CONT {0}, if it "
                                     "hangs, end it and run: {2}",
                                     directory->pid, age, sync_again_command(mount))};
  }
  const auto missing = find_missing(mount.path, status);
  if (missing.empty()) return std::nullopt;
  return Flaw{"incomplete",
              fmt::format("{} is missing: somebody removed it; end weightfs sync, "
                          "pid {}, and run it again, which makes it: {}",
                          missing.string(), directory->pid, sync_again_command(mount))};
}

Json directory_status(const MountInfo& mount) {
  Json status = parse_json(read_status_of_other(mount), mount.path.string());
  const auto flaw = find_flaw(mount, status);
  if (!flaw) return status;
  status["state"] = flaw->state;
  status["health"] = printable("failed: " + flaw->message);
  Json& problems = status["problems"];
  if (!problems.is_array()) problems = Json::array();
  problems.insert(problems.begin(), Json{{"health", "failed"},
                                         {"state", flaw->state},
                                         {"what", nullptr},
                                         {"message", flaw->message}});
  return status;
}

// ---- one of either ----

/// The mount's, or the directory's.
Json served_status(const std::filesystem::path& path) {
  const MountInfo mount = get_served(path);
  return mount.type == kDirectoryType ? directory_status(mount) : status_json(mount);
}

/// What cannot be asked has failed too: a check always has a line and a code.
Json checked_status(const std::string& path) {
  try {
    return served_status(path);
  } catch (const std::exception& error) {  // not only Error: what a status says may be anything
    return {{"mountpoint", path}, {"health", printable(fmt::format("failed: {}", error.what()))}};
  }
}

/// As the exit code of a monitoring plug-in.
int check_code(const Json& status) {
  const std::string word = health_word(status);
  return word == "healthy" ? 0 : word == "degraded" ? 1 : 2;
}

/// "degraded: /mnt/w: step-42: the bucket does not answer".
std::string check_line(const Json& status) {
  const std::string text = health_text(status), word = health_word(status);
  const std::string place = status.at("mountpoint").get<std::string>();
  if (text != word) {
    const std::string why = text.substr(std::min(text.size(), word.size() + 2));
    return fmt::format("{}: {}", word, why.starts_with(place) ? why : place + ": " + why);
  }
  const auto version = status.value("version", std::uint64_t{0});
  return fmt::format("{}: {} shows {}", word, place,
                     version == 0 ? "no version yet" : fmt::format("version {}", version));
}

/// Of the worst; there is always something to say.
int check(Call& call, const std::vector<Json>& all) {
  if (all.empty()) {
    call.print({{"health", "failed"}, {"message", "nothing is mounted"}, {"mounts", Json::array()}},
               "failed: nothing is mounted\n");
    return 2;
  }
  const auto& worst = *std::ranges::max_element(all, {}, check_code);
  std::string line = check_line(worst);
  if (all.size() > 1) {
    const auto well =
        std::ranges::count_if(all, [](const Json& one) { return check_code(one) == 0; });
    line += fmt::format("; {} of {} mounts are healthy", well, all.size());
  }
  Json mounts = Json::array();
  for (const Json& one : all) {
    mounts.push_back({{"mountpoint", one.at("mountpoint")}, {"health", health_text(one)}});
  }
  call.print({{"health", health_word(worst)}, {"message", line}, {"mounts", std::move(mounts)}},
             line + "\n");
  return check_code(worst);
}

int check_all(Call& call) {
  std::vector<Json> all;
  for (const MountInfo& mount : weightfs_mounts()) all.push_back(status_json(mount));
  return check(call, all);
}

// ---- top ----

constexpr std::chrono::seconds kTopInterval{1};

/// Of all mounts, or of the one that is named.
TopReading read_top(const std::string& target) {
  TopReading reading;
  if (!target.empty()) {
    reading.mounts.push_back(served_status(target));
  } else {
    for (const MountInfo& mount : weightfs_mounts()) reading.mounts.push_back(status_json(mount));
  }
  reading.seconds = std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
  return reading;
}

int print_top(Call& call, const Context& context) {
  const TopReading before = read_top(call.options.target);
  context.pause(kTopInterval, "taking a second reading");
  const TopReading now = read_top(call.options.target);
  call.print({{"seconds", now.seconds - before.seconds},
              {"before", before.mounts},
              {"mounts", now.mounts}},
             top_frame(now, before, call.output.columns, 0));
  return 0;
}

}  // namespace

int run_top(Call& call) {
  const StopSignals signals;
  const Context context{.stop = signals.token()};
  if (call.options.look.once || call.options.json) return print_top(call, context);
  const Screen screen;
  TopReading before;
  for (;;) {
    TopReading now = read_top(call.options.target);
    const ScreenSize size = Screen::size();
    std::string frame = top_frame(now, before, size.columns, size.rows - 1);
    if (frame.ends_with('\n')) frame.pop_back();
    Screen::draw(frame);
    const auto key = Screen::read_key(kTopInterval, context.stop);
    if (context.stop.stop_requested() || (key && (*key == 'q' || *key == '\0'))) return 0;
    before = std::move(now);
  }
}

int run_status(Call& call) {
  const bool is_check = call.options.look.check;
  if (call.options.target.empty()) return is_check ? check_all(call) : list_mounts(call);
  if (is_check) return check(call, {checked_status(call.options.target)});
  const MountInfo mount = get_served(call.options.target);
  const Json status = mount.type == kDirectoryType
                          ? directory_status(mount)
                          : parse_json(read_status_of_other(mount), mount.path.string());
  call.print(status, call.options.json ? "" : shown_of(mount, [&] {
               return status_lines(status, call.output.columns);
             }));
  return 0;
}

}  // namespace weightfs::fs
