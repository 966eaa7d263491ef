#include "fs/control/path.hpp"

#include <unistd.h>

#include <cstdlib>
#include <span>
#include <string>

#include "store/base/bytes.hpp"
#include "store/base/sha256.hpp"

namespace weightfs::fs {
namespace {

constexpr std::size_t kDigits = 16;

}  // namespace

std::filesystem::path runtime_directory() {
  if (::geteuid() == 0) return "/run/weightfs";
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime == nullptr || *runtime != '/') return {};
  return std::filesystem::path(runtime) / "weightfs";
}

std::filesystem::path control_path(const std::filesystem::path& store) {
  const std::string text = std::filesystem::weakly_canonical(store).string();
  const std::string name =
      to_hex(sha256(std::as_bytes(std::span(text)))).substr(0, kDigits) + ".sock";
  const std::filesystem::path directory = runtime_directory();
  return directory.empty() ? store / "control.sock" : directory / name;
}

}  // namespace weightfs::fs
