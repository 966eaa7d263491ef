// Uploads one object of SIZE_MIB MiB as `key` and prints the peak memory use in KiB. A separate
// program, so that nothing else is measured.
//
//     weightfs_put_large URL SIZE_MIB
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <string>

#include "store/bucket/bucket.hpp"
#include "store/repository/open_bucket.hpp"

namespace {

class Counting final : public weightfs::Source {
 public:
  explicit Counting(std::uint64_t size_bytes) : size_(size_bytes) {}
  [[nodiscard]] std::uint64_t size_bytes() const override { return size_; }
  void read(std::uint64_t offset_bytes, std::span<std::byte> into) const override {
    std::fill(into.begin(), into.end(), static_cast<std::byte>(offset_bytes >> 20));
  }

 private:
  std::uint64_t size_;
};

std::string most_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "VmHWM:" && status >> word) return word;
  }
  return "?";
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) return 2;
  try {
    const auto bucket = weightfs::open_bucket(arguments[1], false);
    bucket->put("key", Counting(std::strtoull(arguments[2], nullptr, 10) << 20), {});
    std::printf("%s\n", most_memory().c_str());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
