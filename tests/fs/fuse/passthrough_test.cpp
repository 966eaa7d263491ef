#include "fs/fuse/passthrough.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "fs/fuse/passthrough_abi.hpp"
#include "tests/support/support.hpp"

namespace weightfs::fs {
namespace {

std::vector<std::byte> make_init(std::uint32_t opcode, std::uint32_t flags, std::uint32_t flags2) {
  abi::InHeader header{};
  header.opcode = opcode;
  const abi::InitIn body{7, 45, 0, flags, flags2};
  std::vector<std::byte> request(sizeof header + sizeof body);
  std::memcpy(request.data(), &header, sizeof header);
  std::memcpy(request.data() + sizeof header, &body, sizeof body);
  return request;
}

// A reply as libfuse hands it to writev: header and body.
template <typename Body>
struct KernelReply {
  abi::OutHeader header{};
  Body body{};
  iovec parts[2] = {{&header, sizeof header}, {&body, sizeof body}};
};

TEST(Passthrough, OnlyAnInitOfANewKernelOffersIt) {
  const std::uint32_t ext = abi::kInitExt, flag = abi::kFlags2Passthrough;
  EXPECT_TRUE(offers_passthrough(make_init(abi::kOpcodeInit, ext, flag)));
  EXPECT_FALSE(offers_passthrough(make_init(abi::kOpcodeInit, ext, ~flag)));
  EXPECT_FALSE(offers_passthrough(make_init(abi::kOpcodeInit, ~ext, flag)));
  EXPECT_FALSE(offers_passthrough(make_init(abi::kOpcodeInit + 1, ext, flag)));
  auto cut = make_init(abi::kOpcodeInit, ext, flag);
  cut.pop_back();  // as from a kernel before 7.36
  EXPECT_FALSE(offers_passthrough(cut));
  EXPECT_FALSE(offers_passthrough({}));
}

TEST(Passthrough, SaysWhichKernelLacksIt) {
  const test::TempDir store;
  const PassthroughState state =
      try_passthrough(-1, make_init(abi::kOpcodeInit, 0, 0), store.path());
  EXPECT_FALSE(state.available);
  EXPECT_NE(state.why_not.find("no FUSE passthrough (6.9 or newer)"), std::string::npos);
}

TEST(Passthrough, AStoreThatCannotBeWrittenIsAReasonNotAFailure) {
  const auto init = make_init(abi::kOpcodeInit, abi::kInitExt, abi::kFlags2Passthrough);
  const PassthroughState state = try_passthrough(-1, init, "/absent/store");
  EXPECT_FALSE(state.available);
  EXPECT_NE(state.why_not.find("/absent/store"), std::string::npos) << state.why_not;
}

TEST(Passthrough, AMissingImageIsNotRegistered) {
  EXPECT_EQ(register_backing(-1, "/absent/image"), -ENOENT);
}

TEST(Passthrough, PatchesTheInitReply) {
  KernelReply<abi::InitOut> reply;
  reply.body.flags = 5;
  reply.body.flags2 = 2;
  patch_init_reply(reply.parts);
  EXPECT_EQ(reply.body.flags, 5u | abi::kInitExt);
  EXPECT_EQ(reply.body.flags2, 2u | abi::kFlags2Passthrough);
  EXPECT_EQ(reply.body.max_stack_depth, 1u);
}

TEST(Passthrough, PatchesTheOpenReply) {
  KernelReply<abi::OpenOut> reply;
  reply.body.fh = 9;
  reply.body.open_flags = 32;
  patch_open_reply(reply.parts, 77);
  EXPECT_EQ(reply.body.fh, 9u);
  EXPECT_EQ(reply.body.open_flags, 32u | abi::kOpenPassthrough);
  EXPECT_EQ(reply.body.backing_id, 77);
}

// What CREATE's reply holds: fuse_entry_out, fuse_open_out.
struct CreateOut {
  std::byte entry[abi::kEntryOutBytes]{};
  abi::OpenOut open{};
};

TEST(Passthrough, PatchesTheCreateReply) {
  KernelReply<CreateOut> reply;
  reply.body.open.fh = 9;
  reply.body.open.open_flags = 32;
  patch_open_reply(reply.parts, 77);
  EXPECT_EQ(reply.body.open.fh, 9u);
  EXPECT_EQ(reply.body.open.open_flags, 32u | abi::kOpenPassthrough);
  EXPECT_EQ(reply.body.open.backing_id, 77);
  for (const std::byte byte : reply.body.entry) EXPECT_EQ(byte, std::byte{0});
}

TEST(Passthrough, LeavesErrorsAndOtherRepliesAlone) {
  KernelReply<abi::OpenOut> failed;
  failed.header.error = -ENOENT;
  patch_open_reply(failed.parts, 77);
  EXPECT_EQ(failed.body.backing_id, 0);

  KernelReply<abi::InitOut> other;  // not an OPEN reply by its size
  patch_open_reply(other.parts, 77);
  KernelReply<abi::OpenOut> no_init;
  patch_init_reply(no_init.parts);
  EXPECT_EQ(no_init.body.open_flags, 0u);
  const abi::InitOut untouched{};
  EXPECT_EQ(std::memcmp(&other.body, &untouched, sizeof untouched), 0);
  patch_open_reply({}, 77);
  patch_init_reply({});
}

}  // namespace
}  // namespace weightfs::fs
