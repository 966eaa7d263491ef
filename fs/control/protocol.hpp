// Control protocol: the lines that are sent over the control socket.  A client sends one request;
// the daemon sends one reply and closes.
//
//     {"wait": {"tag": "step-42"}}          or "version": N, "newer_than": N, "order": N
//     {"hand_over": {"path": "run/step-42", "name": "step-42", "meta": {"loss": "0.7"},
//                    "include": ["*.py"], "snapshot": false, "rebase": false}}
//                                           and "rollback": N, of an empty directory
//     {"rebase": {}}
//     {"pin": {"version": 42}}              0: the one that `latest` shows
//     {"unpin": {"version": 42}}            or "session": "session 4711", or {}: all
//     {"diff": {"from": 41, "to": 42, "first": 0}}
//
//     {"end": {"how": "here", "version": 42, "message": "", "left": ""}}
//     {"order": 7}
//     {"rebased": {"newest": 43, "retried": ["step-42"]}}
//     {"pinned": 42}
//     {"unpinned": 3}                       how many pins
//     {"diff": {"next": 300, "tensors": [{"name": "w", "file": "model.safetensors",
//               "dtype": "BF16", "elements": 64, "changed": 1, "ulp": 2}]}}    no "next": the end
//     {"error": {"code": "invalid", "message": "..."}}
//
// Both sides are strict: an unknown field, or one of the wrong type, is an error that names it.
//
// Threads: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "fs/control/requests.hpp"
#include "store/base/error.hpp"
#include "store/inspect/patch_diff.hpp"
#include "store/os/file.hpp"

namespace weightfs::fs {

inline constexpr std::size_t kControlLineBytesMax = 64u << 10;  // without the newline

struct PinnedReply {
  std::uint64_t version = 0;
};
struct UnpinnedReply {
  std::uint64_t count = 0;
};

using ControlRequest =
    std::variant<WaitFor, HandOverRequest, RebaseRequest, PinRequest, UnpinRequest, DiffRequest>;
using ControlReply = std::variant<WaitEnd, std::uint64_t, PublishQueue::Rebased, PinnedReply,
                                  UnpinnedReply, PatchDiffPage>;

/// PatchDiffPage of a reply: a line of it fits into an empty socket buffer.
inline constexpr std::size_t kDiffPageBytesMax = 32u << 10;

/// With the newline.
/// Throws Error: invalid if it is not valid UTF-8, or too long.
std::string to_line(const WaitFor& what);
std::string to_line(const HandOverRequest& request);
std::string to_line(const RebaseRequest& request);
std::string to_line(const PinRequest& request);
std::string to_line(const UnpinRequest& request);
std::string to_line(const DiffRequest& request);

/// With the newline.  Long messages are truncated, invalid UTF-8 is replaced.
std::string to_line(const WaitEnd& end);
std::string to_line(std::uint64_t order);
std::string to_line(const PublishQueue::Rebased& rebased);
std::string to_line(const PinnedReply& reply);
std::string to_line(const UnpinnedReply& reply);
std::string to_line(const PatchDiffPage& page);
std::string to_line(ErrorCode code, std::string_view message);

/// `line`: without the newline.  Throws Error: invalid, naming the field.
ControlRequest parse_request(std::string_view line);

/// Throws Error: the daemon's; corrupt if the reply cannot be understood.
ControlReply parse_reply(std::string_view line);

/// A non-blocking Unix stream socket, bound or connected to a path of any length.
/// Throws Error: unavailable if nothing listens there; busy if the listener's queue is full;
/// permission, not_found, io.
File connect_socket(const std::filesystem::path& path);
/// `directory`: the socket's, open; `name`: the socket's name in it.
File bind_socket(int directory, const std::string& name, const std::filesystem::path& path);

}  // namespace weightfs::fs
