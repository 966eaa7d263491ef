// Support: helpers shared by several test files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/bytes.hpp"
#include "store/format/tensor.hpp"
#include "tests/support/random.hpp"

namespace weightfs::test {

/// A new directory below $TMPDIR or the given parent, removed with its contents at the end.
class TempDir {
 public:
  TempDir();
  explicit TempDir(const std::filesystem::path& parent);
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

/// $TMPDIR, or /tmp.
std::filesystem::path temporary_directory();
/// A directory in memory, if the machine has one, so that nothing is synced to a disk; otherwise
/// the same as above.
std::filesystem::path memory_directory();

/// $`variable`, or `otherwise`: how much of a random test runs (scripts/soak.sh).
std::uint64_t number_from(const char* variable, std::uint64_t otherwise);

/// The seed of this run: $WEIGHTFS_TEST_SEED, or random; printed once.
std::uint64_t seed();
Random make_rng();

/// A tensor of a file to be written.
struct TestTensor {
  std::string name;
  Dtype dtype{};
  std::vector<std::uint64_t> shape;
  Bytes data;
};

/// The bytes of a safetensors file with these tensors, in this order, and this `__metadata__`.
std::string make_safetensors(const std::vector<TestTensor>& tensors,
                             const std::map<std::string, std::string>& metadata = {});

/// Random bf16 weights like a model's (normal, sigma 0.02); and the same with `share` of the
/// elements changed by a few units in the last place.
Bytes random_bf16(std::size_t elements, Random& rng);
Bytes nudged_bf16(const Bytes& weights, double share, Random& rng);

void write_text(const std::filesystem::path& path, std::string_view text);  // makes directories
std::string read_text(const std::filesystem::path& path);

/// path -> bytes of every regular file below `directory`.
std::map<std::string, std::string> read_tree(const std::filesystem::path& directory);

/// As images have them: modification times of whole seconds, of all files below `directory`.
void seal_files(const std::filesystem::path& directory);
/// Files below an image directory that are not sealed (store/local/image_times.hpp): all of the
/// version would be read at every start.
std::vector<std::string> unsealed_files(const std::filesystem::path& directory);

/// As sync_images() marks a file that the disk did not take.
void mark_as_lost(const std::filesystem::path& path);

/// A checkpoint directory with config.json, two shards and an index; `version` determines the
/// values.  Version n+1 differs from n in about 1 % of the elements.
void write_checkpoint(const std::filesystem::path& directory, unsigned version,
                      std::size_t elements = 200'000);

}  // namespace weightfs::test
