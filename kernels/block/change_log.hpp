// ChangeLog: what decoding changed in the blocks of a chunk, noted on the way, so that a patch can
// be made of it later without the old bytes or the new ones (patch_of_log(),
// kernels/dispatch/patch.hpp).
//
// A decoder has positions and differences at hand, but in an order of its own, and while it decodes
// somebody waits for the version.  So it only copies them: of the work on a chunk (read, decode,
// hash, write; bf16 of which 1.1 % changed) that is 1 to 5 %; to compare the blocks beside decoding
// took 26 %.  An encoder decodes what it coded, to verify it, so it has such a log too
// (EncodeJob::log).  The log of a block is a list of entries, which add up, one for each step that
// changed it:
//
//     patch   an EF block, as it was coded, or a DIFF block
//     list    positions in any order, each of them once, and then as many differences
//
// An entry begins with its form (1 byte) and the size of the rest (4 bytes).  A list has 2 bytes
// for a position, and the element's width for a difference.  Logs live in memory only.
//
// Variant::decode_logged() decodes as decode_block() does, and appends an entry or none to the
// log of the block; where it refuses, the log is of no use.
//
// Threads: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/block/block.hpp"
#include "kernels/block/ordered.hpp"

namespace weightfs::kernels {

struct ChangeLog {
  std::vector<std::uint32_t> lengths;  // of the log of each block, 0: it did not change
  std::vector<std::byte> bytes;        // the logs back to back

  void clear() noexcept {
    lengths.clear();
    bytes.clear();
  }
};

enum class LogForm : std::uint8_t { patch = 0, list = 1 };

inline constexpr std::size_t kLogHeaderBytes = 5;

inline void append_bytes(std::vector<std::byte>& to, const void* from, std::size_t size) {
  const auto* const bytes = static_cast<const std::byte*>(from);
  to.insert(to.end(), bytes, bytes + size);
}

inline void append_log_header(std::vector<std::byte>& log, LogForm form, std::size_t size_bytes) {
  const auto size = static_cast<std::uint32_t>(size_bytes);
  log.push_back(static_cast<std::byte>(form));
  append_bytes(log, &size, sizeof size);
}

template <typename Bits>
void append_log_list(std::vector<std::byte>& log, const std::uint16_t* positions,
                     const Bits* differences, std::size_t count) {
  if (count == 0) return;
  append_log_header(log, LogForm::list, count * (sizeof(std::uint16_t) + sizeof(Bits)));
  append_bytes(log, positions, count * sizeof(std::uint16_t));
  append_bytes(log, differences, count * sizeof(Bits));
}

/// A DIFF block of `count` differences, one for each element of the block.
template <typename Bits>
void append_log_diff(std::vector<std::byte>& log, const Bits* differences, std::size_t count) {
  append_log_header(log, LogForm::patch, 1 + count * sizeof(Bits));
  log.push_back(static_cast<std::byte>(Mode::diff));
  append_bytes(log, differences, count * sizeof(Bits));
}

/// Calls add_patch(patch) and add_list(positions, differences, count), which point to unaligned
/// values, for each entry.
///
/// Returns: false if the log is malformed, or add_patch() has returned false.
template <typename Bits, typename AddPatch, typename AddList>
[[nodiscard]] bool visit_log(ByteSpan log, AddPatch&& add_patch, AddList&& add_list) {
  while (!log.empty()) {
    if (log.size() < kLogHeaderBytes) return false;
    const auto form = static_cast<LogForm>(log.front());
    const std::size_t size = load<std::uint32_t>(log.data() + 1);
    log = log.subspan(kLogHeaderBytes);
    if (size > log.size()) return false;
    const ByteSpan entry = log.first(size);
    log = log.subspan(size);
    if (form == LogForm::patch) {
      if (!add_patch(entry)) return false;
      continue;
    }
    constexpr std::size_t kChangeBytes = sizeof(std::uint16_t) + sizeof(Bits);
    if (form != LogForm::list || size % kChangeBytes != 0) return false;
    const std::size_t count = size / kChangeBytes;
    add_list(entry.data(), entry.data() + count * sizeof(std::uint16_t), count);
  }
  return true;
}

}  // namespace weightfs::kernels
