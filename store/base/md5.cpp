#include "store/base/md5.hpp"

#include <openssl/evp.h>

#include <array>

#include "store/base/bytes.hpp"

namespace weightfs {

struct Md5Stream::State {
  struct Free {
    void operator()(EVP_MD_CTX* its) const { EVP_MD_CTX_free(its); }
  };
  std::unique_ptr<EVP_MD_CTX, Free> context{EVP_MD_CTX_new()};
  bool works = false;
};

Md5Stream::Md5Stream() : state_(std::make_unique<State>()) {
  if (!state_->context) throw std::bad_alloc();
  state_->works = EVP_DigestInit_ex(state_->context.get(), EVP_md5(), nullptr) == 1;
}
Md5Stream::~Md5Stream() = default;

void Md5Stream::update(std::span<const std::byte> bytes) {
  if (!state_->works) return;
  state_->works = EVP_DigestUpdate(state_->context.get(), bytes.data(), bytes.size()) == 1;
}

std::string Md5Stream::finish() {
  std::array<std::byte, 16> hash{};
  if (!state_->works ||
      EVP_DigestFinal_ex(state_->context.get(), reinterpret_cast<unsigned char*>(hash.data()),
                         nullptr) != 1) {
    return "";
  }
  return to_hex(hash);
}

}  // namespace weightfs
