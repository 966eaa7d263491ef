#include "tests/support/support.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <stdexcept>
#include <system_error>

#include "store/local/image_times.hpp"

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__ 1  // as g++ has it
#endif
#endif
#if defined(__SANITIZE_THREAD__)
// ThreadSanitizer calls this after each report: the running test fails, the others go on.
extern "C" void __tsan_on_report(void* report);
extern "C" void __tsan_on_report(void* /*report*/) {
  ADD_FAILURE() << "ThreadSanitizer: see above";
}
#endif

namespace weightfs::test {
namespace {

namespace stdfs = std::filesystem;

std::uint64_t choose_seed() {
  const std::uint64_t chosen = number_from("WEIGHTFS_TEST_SEED", std::random_device{}());
  std::printf("seed: WEIGHTFS_TEST_SEED=%llu\n", static_cast<unsigned long long>(chosen));
  std::fflush(stdout);
  return chosen;
}

/// A version's directories are read-only: only root could remove their contents.
void make_removable(const stdfs::path& directory) {
  std::error_code ignored;
  stdfs::permissions(directory, stdfs::perms::owner_all, stdfs::perm_options::add, ignored);
  for (const auto& entry : stdfs::directory_iterator(directory, ignored)) {
    if (entry.symlink_status(ignored).type() == stdfs::file_type::directory) {
      make_removable(entry.path());
    }
  }
}

Bytes bytes_of(std::string_view text) {
  const auto view = as_bytes(text);
  return {view.begin(), view.end()};
}

// About normal, with sigma 1: the sum of four uniform numbers, of 16 bits each.
float normal(Random& rng) {
  constexpr float kSigma = 37837.2F;  // sqrt(4 / 12) of 65536
  const std::uint64_t parts = rng();
  std::int64_t sum = -4 * 32768;
  for (unsigned i = 0; i < 4; i++) sum += static_cast<std::int64_t>((parts >> (16 * i)) & 0xFFFF);
  return static_cast<float>(sum) / kSigma;
}

void put_u16(std::byte* to, std::uint16_t value) { std::memcpy(to, &value, sizeof value); }

std::uint16_t bf16_of(float value) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
}

std::uint16_t nudge(std::uint16_t value, Random& rng) {
  const auto step = static_cast<std::uint16_t>(rng() % 8 == 0 ? 2 + rng() % 3 : 1);
  const auto magnitude = static_cast<std::uint16_t>(value & 0x7FFF);
  const bool down = magnitude > step && rng() % 2 == 0;
  return static_cast<std::uint16_t>(down ? value - step : value + step);
}

/// A few floats that depend on `version`: so a tensor that is not bf16 changes too.
Bytes norm_of(unsigned version) {
  std::string bytes;
  for (unsigned i = 0; i < 64; i++) {
    append_le(bytes, std::bit_cast<std::uint32_t>(1.0F + static_cast<float>(i % 7 ? 0 : version)));
  }
  return bytes_of(bytes);
}

struct Weights {
  Bytes embed, down;
};

/// Fixed seeds: every process generates the same version.
Weights weights_of(unsigned version, std::size_t elements) {
  Random rng(7);
  Weights weights{random_bf16(elements / 2, rng), random_bf16(elements - elements / 2, rng)};
  for (unsigned step = 1; step < version; step++) {
    weights.embed = nudged_bf16(weights.embed, 0.01, rng);
    weights.down = nudged_bf16(weights.down, 0.01, rng);
  }
  return weights;
}

}  // namespace

stdfs::path temporary_directory() {
  const char* base = std::getenv("TMPDIR");
  return base != nullptr ? base : "/tmp";
}

stdfs::path memory_directory() {
  const char* const memory = "/dev/shm";
  return ::access(memory, W_OK) == 0 ? memory : temporary_directory();
}

TempDir::TempDir() : TempDir(temporary_directory()) {}

TempDir::TempDir(const stdfs::path& parent) {
  std::string name = (parent / "weightfs-test-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) {
    throw std::system_error(errno, std::generic_category(), "mkdtemp " + name);
  }
  path_ = name;
}

TempDir::~TempDir() {
  std::error_code failed;
  stdfs::remove_all(path_, failed);
  if (!failed) return;
  make_removable(path_);
  stdfs::remove_all(path_, failed);
}

std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* given = std::getenv(variable);
  return given != nullptr ? std::strtoull(given, nullptr, 10) : otherwise;
}

std::uint64_t seed() {
  static const std::uint64_t chosen = choose_seed();
  return chosen;
}

Random make_rng() { return Random(seed()); }

std::string make_safetensors(const std::vector<TestTensor>& tensors,
                             const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::string data;
  for (const TestTensor& tensor : tensors) {
    const std::size_t begin = data.size();
    data += as_text(tensor.data);
    header[tensor.name] = {{"dtype", to_string(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {begin, data.size()}}};
  }
  std::string json = header.dump();
  json.append((8 - json.size() % 8) % 8, ' ');
  std::string file;
  append_le(file, std::uint64_t{json.size()});
  return file + json + data;
}

Bytes random_bf16(std::size_t elements, Random& rng) {
  Bytes weights(2 * elements);
  for (std::size_t i = 0; i < elements; i++) put_u16(&weights[2 * i], bf16_of(0.02F * normal(rng)));
  return weights;
}

Bytes nudged_bf16(const Bytes& weights, double share, Random& rng) {
  const auto chosen = static_cast<std::uint64_t>(share * 0x1p53);
  Bytes nudged = weights;
  for (std::size_t i = 0; i + 1 < nudged.size(); i += 2) {
    if ((rng() >> 11) >= chosen) continue;
    put_u16(&nudged[i], nudge(load_le<std::uint16_t>(&nudged[i]), rng));
  }
  return nudged;
}

void write_text(const stdfs::path& path, std::string_view text) {
  if (path.has_parent_path()) stdfs::create_directories(path.parent_path());
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  out.close();
  if (!out) throw std::runtime_error("cannot write " + path.string());
}

std::string read_text(const stdfs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path.string());
  std::ostringstream text;  // an iterator of its bytes takes as long as the tests, not optimised
  if (in.peek() != std::ifstream::traits_type::eof()) text << in.rdbuf();
  if (in.bad() || text.bad()) throw std::runtime_error("cannot read all of " + path.string());
  return std::move(text).str();
}

void seal_files(const stdfs::path& directory) {
  const timespec times[2] = {{1'700'000'000, 0}, {1'700'000'000, 0}};
  for (const auto& entry : stdfs::recursive_directory_iterator(directory)) {
    if (entry.symlink_status().type() != stdfs::file_type::regular) continue;
    ASSERT_EQ(::utimensat(AT_FDCWD, entry.path().c_str(), times, 0), 0) << entry.path();
  }
}

std::vector<std::string> unsealed_files(const stdfs::path& directory) {
  std::vector<std::string> files;
  for (const auto& entry : stdfs::recursive_directory_iterator(directory)) {
    struct stat found {};
    const bool is_file = ::lstat(entry.path().c_str(), &found) == 0 && S_ISREG(found.st_mode);
    if (is_file && !is_sealed(found)) files.push_back(entry.path().string());
  }
  return files;
}

void mark_as_lost(const stdfs::path& path) {
  struct stat found {};
  ASSERT_EQ(::stat(path.c_str(), &found), 0) << path;
  const timespec times[2] = {found.st_atim, {found.st_mtim.tv_sec, 1}};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0) << path;
}

std::map<std::string, std::string> read_tree(const stdfs::path& directory) {
  std::map<std::string, std::string> tree;
  for (const auto& entry : stdfs::recursive_directory_iterator(directory)) {
    if (entry.symlink_status().type() != stdfs::file_type::regular) continue;
    tree[entry.path().lexically_relative(directory).string()] = read_text(entry.path());
  }
  return tree;
}

void write_checkpoint(const stdfs::path& directory, unsigned version, std::size_t elements) {
  const Weights weights = weights_of(version, elements);
  const std::string first = "model-00001-of-00002.safetensors";
  const std::string second = "model-00002-of-00002.safetensors";
  write_text(
      directory / first,
      make_safetensors({{"model.embed_tokens.weight", Dtype::bf16, {elements / 2}, weights.embed}},
                       {{"format", "pt"}}));
  write_text(directory / second,
             make_safetensors({{"model.norm.weight", Dtype::f32, {64}, norm_of(version)},
                               {"model.layers.0.mlp.down_proj.weight",
                                Dtype::bf16,
                                {elements - elements / 2},
                                weights.down}},
                              {{"format", "pt"}}));
  const nlohmann::json index = {{"metadata", {{"total_size", 2 * elements + 256}}},
                                {"weight_map",
                                 {{"model.embed_tokens.weight", first},
                                  {"model.norm.weight", second},
                                  {"model.layers.0.mlp.down_proj.weight", second}}}};
  write_text(directory / "model.safetensors.index.json", index.dump(2));
  write_text(directory / "config.json",
             nlohmann::json{{"model_type", "test"}, {"step", version}}.dump(2));
}

}  // namespace weightfs::test
