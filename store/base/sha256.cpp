#include "store/base/sha256.hpp"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"

namespace weightfs {
namespace {

void check(int result, const char* what) {
  if (result != 1) throw Error(ErrorCode::io, std::string("libcrypto: ") + what + " failed");
}

}  // namespace

struct Sha256Stream::State {
  struct Free {
    void operator()(EVP_MD_CTX* one) const { EVP_MD_CTX_free(one); }
  };
  std::unique_ptr<EVP_MD_CTX, Free> context{EVP_MD_CTX_new()};
};

Sha256Stream::Sha256Stream() : state_(std::make_unique<State>()) {
  if (!state_->context) throw std::bad_alloc();
  check(EVP_DigestInit_ex(state_->context.get(), EVP_sha256(), nullptr), "SHA-256");
}
Sha256Stream::~Sha256Stream() = default;
Sha256Stream::Sha256Stream(Sha256Stream&&) noexcept = default;
Sha256Stream& Sha256Stream::operator=(Sha256Stream&&) noexcept = default;

void Sha256Stream::update(std::span<const std::byte> bytes) {
  check(EVP_DigestUpdate(state_->context.get(), bytes.data(), bytes.size()), "SHA-256");
}

Sha256 Sha256Stream::finish() {
  Sha256 hash{};
  check(EVP_DigestFinal_ex(state_->context.get(), reinterpret_cast<unsigned char*>(hash.data()),
                           nullptr),
        "SHA-256");
  return hash;
}

Sha256 sha256(std::span<const std::byte> bytes) {
  Sha256Stream stream;
  stream.update(bytes);
  return stream.finish();
}

Sha256 hmac_sha256(std::string_view key, std::string_view text) {
  Sha256 code{};
  unsigned size = 0;
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  const auto* made = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), bytes,
                          text.size(), reinterpret_cast<unsigned char*>(code.data()), &size);
  check(made != nullptr && size == code.size() ? 1 : 0, "HMAC");
  return code;
}

std::string random_hex(std::size_t size_bytes) {
  Bytes bytes(size_bytes);
  check(RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(size_bytes)),
        "the random generator");
  return to_hex(bytes);
}

}  // namespace weightfs
