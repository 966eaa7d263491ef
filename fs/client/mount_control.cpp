#include "fs/client/mount_control.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "fs/client/mount_status.hpp"
#include "fs/client/status_lines.hpp"
#include "fs/control/client.hpp"
#include "fs/control/mount_record.hpp"
#include "store/base/bytes.hpp"
#include "store/base/error.hpp"

namespace weightfs::fs {
namespace {

constexpr std::chrono::milliseconds kAskInterval{500};

/// "1.5 s".
std::string seconds_text(Clock::duration duration) {
  return fmt::format("{:.1f} s", std::chrono::duration<double>(duration).count());
}

[[noreturn]] void throw_end(const WaitEnd& end) {
  switch (end.how) {
    case WaitEnd::How::conflict:
      throw Error(ErrorCode::conflict, end.message);
    case WaitEnd::How::taken_back:
      throw Error(ErrorCode::cancelled, end.message);
    case WaitEnd::How::gone:
      throw Error(ErrorCode::not_found, end.message);
    case WaitEnd::How::damaged:
      throw Error(ErrorCode::corrupt, end.message);
    case WaitEnd::How::failed:
    case WaitEnd::How::here:
      break;
  }
  throw Error(ErrorCode::io, end.message);
}

}  // namespace

MountControl::MountControl(const std::filesystem::path& path)
    : mount_(get_served(path)), status_(parse_json(read_status(mount_), mount_.path.string())) {
  if (mount_.type == kDirectoryType && !is_synced(mount_.path)) {
    throw Error(ErrorCode::unavailable,
                fmt::format("no weightfs sync is running for {}; run: {}", mount_.path.string(),
                            sync_again_command(mount_)));
  }
  const auto found = status_.find("control");
  if (found == status_.end() || !found->is_string()) {
    throw Error(ErrorCode::unavailable,
                fmt::format("the daemon of {} has no control socket; its log says why",
                            mount_.path.string()));
  }
  socket_ = found->get<std::string>();
}

std::uint64_t MountControl::latest() const {
  return json_uint(status_, "version", mount_.path.string());
}

std::string MountControl::path_of(std::uint64_t version) const {
  return (mount_.path / "versions" / std::to_string(version)).string();
}

WaitEnd MountControl::wait(const WaitFor& what, const std::string& name,
                           const Context& context) const {
  return wait_since(Clock::now(), what, name, context);
}

WaitEnd MountControl::wait_since(Clock::time_point begin, const WaitFor& what,
                                 const std::string& name, const Context& context) const {
  try {
    WaitEnd end = control_wait(socket_, what, context);
    if (end.how != WaitEnd::How::here) throw_end(end);
    return end;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::unavailable) {
      throw Error(
          ErrorCode::unavailable,
          fmt::format(
              "the daemon of {} ended while waiting for {}; hand-overs continue with the next "
              "mount: {}",
              mount_.path.string(), name, mount_again_command(mount_)));
    }
    if (error.code() == ErrorCode::timed_out) {
      throw Error(ErrorCode::timed_out,
                  fmt::format("{} did not arrive at {} within {}{}", name, mount_.path.string(),
                              seconds_text(Clock::now() - begin), progress_text(what)));
    }
    throw;
  }
}

void MountControl::tell_progress(std::uint64_t order, const Progress& progress) const {
  try {
    const Json status = parse_json(read_status(mount_), mount_.path.string());
    for (const Json& one : status.at("writer").at("queue")) {
      if (one.at("order") != order) continue;
      const std::string phase = one.at("phase").get<std::string>();
      progress(phase.empty() ? one.at("state").get<std::string>() : phase,
               one.at("done").get<std::uint64_t>(), one.at("total").get<std::uint64_t>());
    }
  } catch (const std::exception&) {
    return;  // only for display
  }
}

void MountControl::tell_partial(std::optional<std::uint64_t> version,
                                const Progress& progress) const {
  try {
    const Json status = parse_json(read_status(mount_), mount_.path.string());
    const auto wanted = version.value_or(status.at("version").get<std::uint64_t>());
    for (const Json& one : status.at("partial")) {
      if (one.at("version") != wanted) continue;
      progress(fmt::format("fetching version {}", wanted), one.at("here").get<std::uint64_t>(),
               one.at("bytes").get<std::uint64_t>());
    }
  } catch (const std::exception&) {
    return;  // only for display
  }
}

WaitEnd MountControl::wait_whole(std::optional<std::uint64_t> version, const Context& context,
                                 const Progress& progress) const {
  const WaitFor what{.version = version, .ready = true};
  const std::string name = version ? fmt::format("all of version {}", *version) : "all of latest";
  const auto begin = Clock::now();
  while (progress) {
    try {
      return wait_since(begin, what, name, context.within(kAskInterval));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::timed_out || Clock::now() >= context.deadline) throw;
    }
    tell_partial(version, progress);
  }
  return wait_since(begin, what, name, context);
}

std::string MountControl::describe_wait(const std::string& name) const {
  const std::string what = mount_.path.string();
  const std::uint64_t version = latest();
  if (version > 0) return fmt::format("{} at {}, which is at version {}", name, what, version);
  const std::string url = json_string(status_, "url", what);
  if (json_uint(status_, "newest", what) > 0) {
    return fmt::format("{} at {}, which has no version of {} yet", name, what, url);
  }
  return fmt::format("{} at {}: no version of {} was published yet", name, what, url);
}

std::uint64_t MountControl::hand_over(const HandOverRequest& request,
                                      const Context& context) const {
  return control_hand_over(socket_, request, context);
}

PublishQueue::Rebased MountControl::rebase(const Context& context) const {
  return control_rebase(socket_, {}, context);
}

std::uint64_t MountControl::pin(const PinRequest& request, const Context& context) const {
  return control_pin(socket_, request, context);
}

std::uint64_t MountControl::unpin(const UnpinRequest& request, const Context& context) const {
  return control_unpin(socket_, request, context);
}

std::vector<TensorDiff> MountControl::diff(VersionPair versions, const Context& context,
                                           const Progress& progress) const {
  std::vector<TensorDiff> all;
  DiffRequest request{.versions = versions};
  try {
    for (;;) {
      PatchDiffPage page = control_diff(socket_, request, context);
      std::ranges::move(page.tensors, std::back_inserter(all));
      if (progress) progress("comparing", all.size(), 0);
      if (!page.next || *page.next <= request.first) return all;
      request.first = *page.next;
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid) throw;
    throw Error(ErrorCode::unsupported,
                fmt::format("the daemon of {} is of a release that does not compare versions",
                            mount_.path.string()));
  }
}

std::string MountControl::progress_text(const WaitFor& waited) const {
  try {
    const std::string what = mount_.path.string();
    const Json status = parse_json(read_status(mount_), what);
    const std::uint64_t version = waited.version.value_or(json_uint(status, "version", what));
    for (const Json& one : waited.ready ? status.at("partial") : Json::array()) {
      if (one.at("version") != version) continue;
      return fmt::format("; {} of {} are here", human_bytes(one.at("here").get<std::uint64_t>()),
                         human_bytes(one.at("bytes").get<std::uint64_t>()));
    }
    const Json& writer = json_field(status, "writer", what);
    for (const Json& one : writer.is_null() ? Json::array() : writer.at("queue")) {
      const bool is_meant = waited.order ? one.at("order") == *waited.order
                                         : waited.tag && one.at("tag") == *waited.tag;
      if (is_meant) return "; " + hand_over_text(one);
    }
    return fmt::format("; it is at version {}", json_uint(status, "version", what));
  } catch (const std::exception&) {
    return "";  // the wait reports its own error
  }
}

}  // namespace weightfs::fs
