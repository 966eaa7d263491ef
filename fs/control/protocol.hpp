// Control protocol: the lines that go over the control socket.  A client sends one request, the
// daemon one reply, and closes.
//
//     {"wait": {"tag": "step-42"}}          or "version": N, "newer_than": N, "order": N
//     {"hand_over": {"path": "run/step-42", "name": "step-42", "meta": {"loss": "0.7"},
//                    "include": ["*.py"], "snapshot": false, "rebase": false}}
//
//     {"rebase": {}}
//     {"pin": {"version": 42}}              0: what `latest` is
//     {"unpin": {"version": 42}}            or "session": "session 4711", or {}: all
//
//     {"end": {"how": "here", "version": 42, "message": "", "left": ""}}
//     {"order": 7}
//     {"rebased": {"newest": 43, "retried": ["step-42"]}}
//     {"pinned": 42}
//     {"unpinned": 3}                       how many pins
//     {"error": {"code": "invalid", "message": "..."}}
//
// Both sides are strict: a field that is not known, or of another type, is an error that names it.
//
// Threads: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "fs/control/requests.hpp"
#include "store/base/error.hpp"
#include "store/os/file.hpp"

namespace weightfs::fs {

inline constexpr std::size_t kControlLineBytesMax = 64u << 10;  // its newline not counted

struct PinnedReply {
  std::uint64_t version = 0;
};
struct UnpinnedReply {
  std::uint64_t count = 0;
};

using ControlRequest =
    std::variant<WaitFor, HandOverRequest, RebaseRequest, PinRequest, UnpinRequest>;
using ControlReply =
    std::variant<WaitEnd, std::uint64_t, PublishQueue::Rebased, PinnedReply, UnpinnedReply>;

/// With the newline.  Throws Error: invalid if it cannot be said in UTF-8, or is too long.
std::string to_line(const WaitFor& what);
std::string to_line(const HandOverRequest& request);
std::string to_line(const RebaseRequest& request);
std::string to_line(const PinRequest& request);
std::string to_line(const UnpinRequest& request);

/// With the newline; long messages are cut, what is no UTF-8 is replaced.
std::string to_line(const WaitEnd& end);
std::string to_line(std::uint64_t order);
std::string to_line(const PublishQueue::Rebased& rebased);
std::string to_line(const PinnedReply& reply);
std::string to_line(const UnpinnedReply& reply);
std::string to_line(ErrorCode code, std::string_view message);

/// `line`: without the newline.  Throws Error: invalid, naming the field.
ControlRequest parse_request(std::string_view line);

/// Throws Error: what the daemon says; corrupt if that cannot be understood.
ControlReply parse_reply(std::string_view line);

/// A Unix stream socket, not blocking, bound or connected to a path of any length.
/// Throws Error: unavailable if nobody listens there; busy if there is no room in the queue of who
/// listens; permission, not_found, io.
File connect_socket(const std::filesystem::path& path);
/// `directory`: of the socket, open; `name`: in it.
File bind_socket(int directory, const std::string& name, const std::filesystem::path& path);

}  // namespace weightfs::fs
