#include "fs/fuse/request_counts.hpp"

#include <linux/fuse.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <mutex>
#include <string_view>

namespace weightfs::fs {
namespace {

struct OpName {
  std::uint32_t op;
  std::string_view name;
};
constexpr OpName kOpNames[] = {{FUSE_LOOKUP, "lookup"},
                               {FUSE_GETATTR, "getattr"},
                               {FUSE_SETATTR, "setattr"},
                               {FUSE_READLINK, "readlink"},
                               {FUSE_SYMLINK, "symlink"},
                               {FUSE_MKNOD, "mknod"},
                               {FUSE_MKDIR, "mkdir"},
                               {FUSE_UNLINK, "unlink"},
                               {FUSE_RMDIR, "rmdir"},
                               {FUSE_RENAME, "rename"},
                               {FUSE_LINK, "link"},
                               {FUSE_OPEN, "open"},
                               {FUSE_READ, "read"},
                               {FUSE_WRITE, "write"},
                               {FUSE_STATFS, "statfs"},
                               {FUSE_RELEASE, "release"},
                               {FUSE_FSYNC, "fsync"},
                               {FUSE_SETXATTR, "setxattr"},
                               {FUSE_GETXATTR, "getxattr"},
                               {FUSE_LISTXATTR, "listxattr"},
                               {FUSE_REMOVEXATTR, "removexattr"},
                               {FUSE_FLUSH, "flush"},
                               {FUSE_OPENDIR, "opendir"},
                               {FUSE_READDIR, "readdir"},
                               {FUSE_RELEASEDIR, "releasedir"},
                               {FUSE_FSYNCDIR, "fsyncdir"},
                               {FUSE_ACCESS, "access"},
                               {FUSE_CREATE, "create"},
                               {FUSE_FALLOCATE, "fallocate"},
                               {FUSE_READDIRPLUS, "readdirplus"},
                               {FUSE_RENAME2, "rename2"},
                               {FUSE_LSEEK, "lseek"}};

std::string_view name_of_op(std::size_t op) {
  const auto* const found = std::ranges::find(kOpNames, op, &OpName::op);
  return found == std::end(kOpNames) ? "other" : found->name;
}

std::string name_of_code(std::size_t code, std::size_t last) {
  if (code == 0) return "ok";
  const char* const name = code == last ? nullptr : strerrorname_np(static_cast<int>(code));
  return name == nullptr ? "other" : name;
}

bool has_answer(std::uint32_t op) {
  return op != FUSE_INIT && op != FUSE_FORGET && op != FUSE_BATCH_FORGET && op != FUSE_INTERRUPT &&
         op != FUSE_NOTIFY_REPLY;
}

}  // namespace

RequestCounts::Shard& RequestCounts::shard_of(std::uint64_t unique) noexcept {
  return shards_.at(unique / 2 % kShards);  // the kernel's numbers are even
}

void RequestCounts::asked(std::span<const std::byte> request) noexcept {
  fuse_in_header header{};
  if (request.size() < sizeof header) return;
  std::memcpy(&header, request.data(), sizeof header);
  if (!has_answer(header.opcode)) return;
  Shard& shard = shard_of(header.unique);
  try {
    const std::lock_guard lock(shard.mutex);
    shard.ops.insert_or_assign(header.unique, header.opcode);
  } catch (const std::exception&) {
    // Out of memory: this one is not counted.
  }
}

void RequestCounts::answered(std::span<const iovec> reply) noexcept {
  fuse_out_header header{};
  if (reply.empty() || reply[0].iov_len < sizeof header) return;
  std::memcpy(&header, reply[0].iov_base, sizeof header);
  if (header.unique == 0) return;  // a notice to the kernel
  std::uint32_t op = 0;
  Shard& shard = shard_of(header.unique);
  {
    const std::lock_guard lock(shard.mutex);
    const auto found = shard.ops.find(header.unique);
    if (found == shard.ops.end()) return;
    op = found->second;
    shard.ops.erase(found);
  }
  if (op >= kOps) op = 0;
  const auto code = static_cast<std::size_t>(-std::min(header.error, 0));
  counts_.at(op).at(std::min(code, kCodes - 1)).fetch_add(1, std::memory_order_relaxed);
  if (op == FUSE_READ && code == 0) served_bytes_ += header.len - sizeof header;
}

std::vector<RequestCount> RequestCounts::list() const {
  std::vector<RequestCount> list;
  for (std::size_t op = 0; op < kOps; op++) {
    for (std::size_t code = 0; code < kCodes; code++) {
      const std::uint64_t count = counts_.at(op).at(code).load(std::memory_order_relaxed);
      if (count == 0) continue;
      const RequestCount one{std::string(name_of_op(op)), name_of_code(code, kCodes - 1), count};
      const auto same = std::ranges::find_if(list, [&](const RequestCount& other) {
        return other.op == one.op && other.code == one.code;  // two may both be "other"
      });
      if (same == list.end()) {
        list.push_back(one);
      } else {
        same->count += count;
      }
    }
  }
  return list;
}

}  // namespace weightfs::fs
