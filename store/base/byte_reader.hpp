// ByteReader: walks through untrusted bytes; every step is checked against what is left.
//
// Threads: one thread.  Ownership: keeps views of the bytes and of the name it was given.
// Format: docs/FORMAT.md, first paragraph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "store/base/bytes.hpp"

namespace weightfs {

class ByteReader {
 public:
  /// `what` begins every message.
  ByteReader(std::string_view bytes, std::string_view what) noexcept : bytes_(bytes), what_(what) {}

  [[nodiscard]] std::size_t remaining() const noexcept { return bytes_.size() - offset_; }

  /// The next `size_bytes` bytes, or an integer.  Throws Error: corrupt if fewer are left.
  std::string_view take(std::uint64_t size_bytes);
  template <typename T>
  T take_le() {
    return load_le<T>(as_bytes(take(sizeof(T))).data());
  }

  /// LEB128.  Throws Error: corrupt if it is not in shortest form, above 64 bits, or truncated.
  std::uint64_t take_varint();

  /// Throws Error: corrupt if fewer than `count` things of `size_bytes` (above 0) bytes can follow:
  /// to be called before anything is allocated for them.
  void expect_room_for(std::uint64_t count, std::uint64_t size_bytes) const;

  /// Throws Error: corrupt if bytes are left.
  void expect_end() const;

  /// Throws Error: corrupt, "WHAT: MESSAGE".
  [[noreturn]] void fail(const std::string& message) const;

 private:
  std::string_view bytes_;
  std::string_view what_;
  std::size_t offset_ = 0;
};

void append_varint(std::string& to, std::uint64_t value);

}  // namespace weightfs
