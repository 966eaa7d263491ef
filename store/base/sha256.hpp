// SHA-256, HMAC, and random nonces.  Home of OpenSSL's libcrypto.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace weightfs {

using Sha256 = std::array<std::byte, 32>;

/// Hash of all of `bytes`.  Threads: pure.
Sha256 sha256(std::span<const std::byte> bytes);

/// HMAC of `text` with a key of any length.  Threads: pure.
Sha256 hmac_sha256(std::string_view key, std::string_view text);

/// Hash of what is fed in pieces.  Threads: one thread at a time.
class Sha256Stream {
 public:
  Sha256Stream();
  ~Sha256Stream();
  Sha256Stream(Sha256Stream&&) noexcept;
  Sha256Stream& operator=(Sha256Stream&&) noexcept;

  void update(std::span<const std::byte> bytes);

  /// Requires: called once.
  Sha256 finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// `size_bytes` random bytes as lower-case hex, from the system's generator.
std::string random_hex(std::size_t size_bytes);

}  // namespace weightfs
