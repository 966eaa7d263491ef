#include "store/format/object_refs.hpp"

#include <algorithm>
#include <array>

#include "store/base/bytes.hpp"

namespace weightfs {
namespace {

constexpr std::size_t kPackNumberDigitsMax = 9;

}  // namespace

bool is_nonce(std::string_view text) noexcept {
  std::array<std::byte, kNonceDigits / 2> bytes{};
  return from_hex(text, bytes);
}

bool is_pack_name(std::string_view name) noexcept {
  if (name.size() < kNonceDigits + 2 || name[kNonceDigits] != '-') return false;
  const std::string_view number = name.substr(kNonceDigits + 1);
  const bool is_decimal = std::all_of(number.begin(), number.end(),
                                      [](char digit) { return digit >= '0' && digit <= '9'; });
  return is_nonce(name.substr(0, kNonceDigits)) && is_decimal &&
         number.size() <= kPackNumberDigitsMax && (number.front() != '0' || number.size() == 1);
}

}  // namespace weightfs
