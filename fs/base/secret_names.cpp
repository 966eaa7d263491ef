#include "fs/base/secret_names.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>

namespace weightfs::fs {
namespace {

constexpr std::array<std::string_view, 8> kSecretWords{
    "KEY", "TOKEN", "SECRET", "PASSW", "PASSPHRASE", "CREDENTIAL", "AUTH", "COOKIE"};

}  // namespace

bool is_secret_name(std::string_view name) {
  std::string upper(name);
  std::ranges::transform(upper, upper.begin(), [](unsigned char c) { return std::toupper(c); });
  return std::ranges::any_of(
      kSecretWords, [&](std::string_view word) { return upper.find(word) != std::string::npos; });
}

}  // namespace weightfs::fs
