// Gives every file of a folder to a fuzz target, once for each variant.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "kernels/dispatch/variant_table.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace {

std::vector<std::filesystem::path> files_of(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<std::uint8_t> read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
    return EXIT_FAILURE;
  }
  const std::vector<std::filesystem::path> files = files_of(argv[1]);
  if (files.empty()) {
    std::fprintf(stderr, "%s: no files\n", argv[1]);
    return EXIT_FAILURE;
  }
  for (const auto& variant : weightfs::kernels::variants()) {
    weightfs::fuzz::require(weightfs::kernels::choose_variant(variant.name), "choose_variant");
    for (const std::filesystem::path& path : files) {
      const std::vector<std::uint8_t> input = read(path);
      std::printf("%s: %s\n", variant.name.data(), path.filename().c_str());
      std::fflush(stdout);  // the last line names the file that failed
      LLVMFuzzerTestOneInput(input.data(), input.size());
    }
  }
}
