// Chooses the variant for libFuzzer, which has its own main.
#include <algorithm>
#include <array>
#include <string_view>

#include "kernels/dispatch/variant_table.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace {

constexpr int kSkipped = 77;
constexpr std::array<std::string_view, 2> kNotEverywhere = {"avx2", "avx3_dl"};

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char* const name = std::getenv("WEIGHTFS_KERNELS");
  if (name == nullptr || weightfs::kernels::choose_variant(name)) return 0;
  std::fprintf(stderr, "WEIGHTFS_KERNELS=%s: no such variant on this machine\n", name);
  const bool is_known =
      std::find(kNotEverywhere.begin(), kNotEverywhere.end(), name) != kNotEverywhere.end();
  std::exit(is_known ? kSkipped : EXIT_FAILURE);
}
