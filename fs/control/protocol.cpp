// A socket address holds a path of at most 107 bytes.  Longer paths are reached through a
// descriptor of their directory: /proc/self/fd/N/NAME.

#include "fs/control/protocol.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <initializer_list>
#include <limits>

#include "store/base/json.hpp"
#include "store/base/path_rules.hpp"

namespace weightfs::fs {
namespace {

constexpr std::size_t kMessageBytesMax = 8192;
constexpr std::string_view kRequest = "the request";
constexpr std::string_view kReply = "the daemon's reply";

// ---- words ----

struct HowWord {
  WaitEnd::How how;
  std::string_view word;
};
constexpr std::array<HowWord, 6> kHowWords{{{WaitEnd::How::here, "here"},
                                            {WaitEnd::How::damaged, "damaged"},
                                            {WaitEnd::How::gone, "gone"},
                                            {WaitEnd::How::failed, "failed"},
                                            {WaitEnd::How::taken_back, "taken_back"},
                                            {WaitEnd::How::conflict, "conflict"}}};

std::string_view word_of(WaitEnd::How how) {
  return std::find_if(kHowWords.begin(), kHowWords.end(),
                      [how](const HowWord& entry) { return entry.how == how; })
      ->word;
}

WaitEnd::How how_of(std::string_view word) {
  for (const HowWord& entry : kHowWords) {
    if (entry.word == word) return entry.how;
  }
  throw Error(ErrorCode::corrupt, fmt::format("{}: 'how' is '{}', which this release does not know",
                                              kReply, escape_name(word)));
}

ErrorCode code_of(std::string_view word) {
  for (int i = 0; i <= static_cast<int>(ErrorCode::io); i++) {
    if (to_string(static_cast<ErrorCode>(i)) == word) return static_cast<ErrorCode>(i);
  }
  return ErrorCode::io;
}

// ---- fields ----

void check_fields(const Json& object, std::initializer_list<std::string_view> known,
                  std::string_view what) {
  if (!object.is_object()) {
    throw Error(ErrorCode::corrupt, fmt::format("{} is not a JSON object", what));
  }
  for (const auto& [name, value] : object.items()) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      throw Error(ErrorCode::corrupt,
                  fmt::format("{}: field '{}' is not known", what, escape_name(name)));
    }
  }
}

bool json_bool(const Json& object, std::string_view name, std::string_view what) {
  const Json& value = json_field(object, name, what);
  if (!value.is_boolean()) {
    throw Error(ErrorCode::corrupt,
                fmt::format("{}: field '{}' must be true or false", what, name));
  }
  return value.get<bool>();
}

std::string text_of(const Json& value, std::string_view name, std::string_view what) {
  if (!value.is_string()) {
    throw Error(ErrorCode::corrupt, fmt::format("{}: field '{}' must hold strings", what, name));
  }
  return value.get<std::string>();
}

// ---- requests ----

WaitFor parse_wait(const Json& json) {
  constexpr std::string_view kWhat = "the request's 'wait'";
  check_fields(json, {"tag", "version", "newer_than", "order", "ready"}, kWhat);
  WaitFor what;
  what.ready = json.contains("ready") && json_bool(json, "ready", kWhat);
  const std::size_t others = json.size() - (json.contains("ready") ? 1 : 0);
  const bool fits = what.ready ? others == 0 || json.contains("version") : others == 1;
  if (!fits || others > 1) {
    throw Error(ErrorCode::corrupt,
                fmt::format("{} must have exactly one field: 'tag', 'version', 'newer_than' or "
                            "'order', or 'ready' and at most 'version'; it has {}",
                            kWhat, json.size()));
  }
  if (json.contains("tag")) {
    what.tag = json_string(json, "tag", kWhat);
    if (const std::string problem = tag_problem(*what.tag); !problem.empty()) {
      throw Error(ErrorCode::corrupt,
                  fmt::format("{}: field 'tag': '{}' {}", kWhat, escape_name(*what.tag), problem));
    }
  }
  const auto number = [&](const char* name, std::optional<std::uint64_t>& into) {
    if (json.contains(name)) into = json_uint(json, name, kWhat);
  };
  number("version", what.version);
  number("newer_than", what.newer_than);
  number("order", what.order);
  return what;
}

HandOverRequest parse_hand_over(const Json& json) {
  constexpr std::string_view kWhat = "the request's 'hand_over'";
  check_fields(json, {"path", "name", "meta", "include", "snapshot", "rebase", "rollback"}, kWhat);
  HandOverRequest request{.path = json_string(json, "path", kWhat),
                          .name = json_string(json, "name", kWhat),
                          .options = {}};
  const Json& meta = json_field(json, "meta", kWhat);
  if (!meta.is_object()) {
    throw Error(ErrorCode::corrupt, fmt::format("{}: field 'meta' must be an object", kWhat));
  }
  for (const auto& [key, value] : meta.items()) {
    request.options.wishes.meta[key] = text_of(value, "meta", kWhat);
  }
  const Json& include = json_field(json, "include", kWhat);
  if (!include.is_array()) {
    throw Error(ErrorCode::corrupt, fmt::format("{}: field 'include' must be an array", kWhat));
  }
  for (const Json& glob : include) {
    request.options.wishes.include.push_back(text_of(glob, "include", kWhat));
  }
  request.options.wishes.snapshot = json_bool(json, "snapshot", kWhat);
  request.options.wishes.rebase = json_bool(json, "rebase", kWhat);
  if (json.contains("rollback")) {
    request.options.wishes.rollback = json_uint(json, "rollback", kWhat);
  }
  return request;
}

PinRequest parse_pin(const Json& json) {
  constexpr std::string_view kWhat = "the request's 'pin'";
  check_fields(json, {"version"}, kWhat);
  return {.version = json_uint(json, "version", kWhat)};
}

UnpinRequest parse_unpin(const Json& json) {
  constexpr std::string_view kWhat = "the request's 'unpin'";
  check_fields(json, {"version", "session"}, kWhat);
  if (json.size() > 1) {
    throw Error(ErrorCode::corrupt,
                fmt::format("{} must not have both 'version' and 'session'", kWhat));
  }
  UnpinRequest request;
  if (json.contains("version")) request.version = json_uint(json, "version", kWhat);
  if (json.contains("session")) request.session = json_string(json, "session", kWhat);
  return request;
}

DiffRequest parse_diff(const Json& json) {
  constexpr std::string_view kWhat = "the request's 'diff'";
  check_fields(json, {"from", "to", "first"}, kWhat);
  const std::uint64_t first = json_uint(json, "first", kWhat);
  if (first > std::numeric_limits<std::uint32_t>::max()) {
    throw Error(ErrorCode::corrupt, fmt::format("{}: field 'first' is too large", kWhat));
  }
  return {.versions = {json_uint(json, "from", kWhat), json_uint(json, "to", kWhat)},
          .first = static_cast<std::uint32_t>(first)};
}

std::string request_line(const Json& json) {
  try {
    std::string line = json.dump();
    if (line.size() <= kControlLineBytesMax) return line + "\n";
    throw Error(
        ErrorCode::invalid,
        fmt::format("the request has {} bytes; at most {} can be sent: use fewer or shorter "
                    "--meta and --include",
                    line.size(), kControlLineBytesMax));
  } catch (const Json::exception&) {
    throw Error(ErrorCode::invalid, "the request is not valid UTF-8");
  }
}

// ---- replies ----

std::string reply_line(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

PublishQueue::Rebased parse_rebased(const Json& json) {
  constexpr std::string_view kWhat = "the reply's 'rebased'";
  PublishQueue::Rebased rebased{json_uint(json, "newest", kWhat), {}};
  for (const Json& name : json_field(json, "retried", kWhat)) {
    rebased.retried.push_back(text_of(name, "retried", kWhat));
  }
  return rebased;
}

std::string cut(std::string_view message) {
  return std::string(message.substr(0, kMessageBytesMax));
}

WaitEnd parse_end(const Json& json) {
  return {.how = how_of(json_string(json, "how", kReply)),
          .version = json_uint(json, "version", kReply),
          .message = json_string(json, "message", kReply),
          .left = json_string(json, "left", kReply)};
}

PatchDiffPage parse_diff_page(const Json& json) {
  constexpr std::string_view kWhat = "the reply's 'diff'";
  PatchDiffPage page;
  if (json.contains("next")) {
    page.next = static_cast<std::uint32_t>(json_uint(json, "next", kWhat));
  }
  for (const Json& row : json_field(json, "tensors", kWhat)) {
    TensorDiff tensor;
    tensor.name = json_string(row, "name", kWhat);
    tensor.file = json_string(row, "file", kWhat);
    tensor.dtype = json_string(row, "dtype", kWhat);
    tensor.elements = json_uint(row, "elements", kWhat);
    tensor.changed = json_uint(row, "changed", kWhat);
    tensor.largest_ulp = json_uint(row, "ulp", kWhat);
    tensor.change = tensor.changed > 0 ? TensorDiff::Change::changed : TensorDiff::Change::same;
    page.tensors.push_back(std::move(tensor));
  }
  return page;
}

// ---- sockets ----

File make_socket() {
  File socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) throw_errno(errno, "make a socket");
  return socket;
}

sockaddr_un make_address(int directory, const std::string& name,
                         const std::filesystem::path& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string text = fmt::format("/proc/self/fd/{}/{}", directory, name);
  if (text.size() >= sizeof address.sun_path) {
    throw Error(
        ErrorCode::invalid,
        fmt::format("the last component of the socket's path {} is too long", path.string()));
  }
  std::memcpy(address.sun_path, text.data(), text.size());
  return address;
}

const sockaddr* as_sockaddr(const sockaddr_un& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

}  // namespace

std::string to_line(const WaitFor& what) {
  Json fields = Json::object();
  if (what.tag) fields["tag"] = *what.tag;
  if (what.version) fields["version"] = *what.version;
  if (what.newer_than) fields["newer_than"] = *what.newer_than;
  if (what.order) fields["order"] = *what.order;
  if (what.ready) fields["ready"] = true;
  return request_line({{"wait", std::move(fields)}});
}

std::string to_line(const HandOverRequest& request) {
  const VersionWishes& wishes = request.options.wishes;
  Json fields{{"path", request.path},        {"name", request.name},
              {"meta", wishes.meta},         {"include", wishes.include},
              {"snapshot", wishes.snapshot}, {"rebase", wishes.rebase}};
  if (wishes.rollback != 0) fields["rollback"] = wishes.rollback;
  return request_line({{"hand_over", std::move(fields)}});
}

std::string to_line(const RebaseRequest&) { return request_line({{"rebase", Json::object()}}); }

std::string to_line(const PinRequest& request) {
  return request_line({{"pin", {{"version", request.version}}}});
}

std::string to_line(const UnpinRequest& request) {
  Json fields = Json::object();
  if (request.version) fields["version"] = *request.version;
  if (request.session) fields["session"] = *request.session;
  return request_line({{"unpin", std::move(fields)}});
}

std::string to_line(const DiffRequest& request) {
  return request_line(
      {{"diff",
        {{"from", request.versions.from}, {"to", request.versions.to}, {"first", request.first}}}});
}

std::string to_line(const WaitEnd& end) {
  return reply_line({{"end",
                      {{"how", word_of(end.how)},
                       {"version", end.version},
                       {"message", cut(end.message)},
                       {"left", end.left}}}});
}

std::string to_line(std::uint64_t order) { return reply_line({{"order", order}}); }
std::string to_line(const PublishQueue::Rebased& rebased) {
  return reply_line({{"rebased", {{"newest", rebased.newest}, {"retried", rebased.retried}}}});
}
std::string to_line(const PinnedReply& reply) { return reply_line({{"pinned", reply.version}}); }
std::string to_line(const UnpinnedReply& reply) { return reply_line({{"unpinned", reply.count}}); }

std::string to_line(const PatchDiffPage& page) {
  Json rows = Json::array();
  for (const TensorDiff& tensor : page.tensors) {
    rows.push_back({{"name", tensor.name},
                    {"file", tensor.file},
                    {"dtype", tensor.dtype},
                    {"elements", tensor.elements},
                    {"changed", tensor.changed},
                    {"ulp", tensor.largest_ulp}});
  }
  Json fields{{"tensors", std::move(rows)}};
  if (page.next) fields["next"] = *page.next;
  return reply_line({{"diff", std::move(fields)}});
}

std::string to_line(ErrorCode code, std::string_view message) {
  return reply_line({{"error", {{"code", to_string(code)}, {"message", cut(message)}}}});
}

ControlRequest parse_request(std::string_view line) {
  try {
    const Json json = parse_json(line, kRequest);
    check_fields(json, {"wait", "hand_over", "rebase", "pin", "unpin", "diff"}, kRequest);
    if (json.size() != 1) {
      throw Error(ErrorCode::corrupt,
                  fmt::format("{} must have exactly one field: 'wait', 'hand_over', 'rebase', "
                              "'pin', 'unpin' or 'diff'",
                              kRequest));
    }
    if (json.contains("wait")) return parse_wait(json["wait"]);
    if (json.contains("rebase")) {
      check_fields(json["rebase"], {}, "the request's 'rebase'");
      return RebaseRequest{};
    }
    if (json.contains("pin")) return parse_pin(json["pin"]);
    if (json.contains("unpin")) return parse_unpin(json["unpin"]);
    if (json.contains("diff")) return parse_diff(json["diff"]);
    return parse_hand_over(json["hand_over"]);
  } catch (const Error& error) {
    throw Error(ErrorCode::invalid, error.what());  // the caller's fault: not `corrupt`
  }
}

ControlReply parse_reply(std::string_view line) {
  const Json json = parse_json(line, kReply);
  check_fields(json, {"end", "order", "rebased", "pinned", "unpinned", "diff", "error"}, kReply);
  if (json.contains("end")) return parse_end(json["end"]);
  if (json.contains("order")) return json_uint(json, "order", kReply);
  if (json.contains("rebased")) return parse_rebased(json["rebased"]);
  if (json.contains("pinned")) return PinnedReply{json_uint(json, "pinned", kReply)};
  if (json.contains("unpinned")) return UnpinnedReply{json_uint(json, "unpinned", kReply)};
  if (json.contains("diff")) return parse_diff_page(json["diff"]);
  const Json& error = json_field(json, "error", kReply);
  throw Error(code_of(json_string(error, "code", kReply)), json_string(error, "message", kReply));
}

File connect_socket(const std::filesystem::path& path) {
  const File directory(::open(path.parent_path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!directory && errno != ENOENT) throw_errno(errno, "open " + path.parent_path().string());
  File socket = make_socket();
  const sockaddr_un address = make_address(directory.fd(), path.filename().string(), path);
  if (::connect(socket.fd(), as_sockaddr(address), sizeof address) == 0) return socket;
  if (errno == ENOENT || errno == ECONNREFUSED) {
    throw Error(ErrorCode::unavailable,
                fmt::format("no weightfs daemon listens at {}", path.string()));
  }
  if (errno == EAGAIN) {
    throw Error(ErrorCode::busy,
                fmt::format("the daemon at {} accepts no more connections", path.string()));
  }
  throw_errno(errno, "connect to " + path.string());
}

File bind_socket(int directory, const std::string& name, const std::filesystem::path& path) {
  File socket = make_socket();
  const sockaddr_un address = make_address(directory, name, path);
  if (::bind(socket.fd(), as_sockaddr(address), sizeof address) != 0) {
    throw_errno(errno, "make the socket " + path.string());
  }
  return socket;
}

}  // namespace weightfs::fs
