// Source: bytes to be uploaded, wherever they are.
//
// Threads: all calls may run in parallel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace weightfs {

/// Bytes to be uploaded.  May be read more than once, and by several threads.
class Source {
 public:
  virtual ~Source() = default;
  [[nodiscard]] virtual std::uint64_t size_bytes() const = 0;
  /// Fills `into` from `offset_bytes`.  Requires: inside the size.  Throws Error.
  virtual void read(std::uint64_t offset_bytes, std::span<std::byte> into) const = 0;
};

/// A Source over text held by the caller.
class TextSource final : public Source {
 public:
  explicit TextSource(std::string_view text) : text_(text) {}
  [[nodiscard]] std::uint64_t size_bytes() const override { return text_.size(); }
  void read(std::uint64_t offset_bytes, std::span<std::byte> into) const override;

 private:
  std::string_view text_;
};

}  // namespace weightfs
