// Materialize: a history in memory and versions written from it; shared by the tests of
// materializing.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "store/materialize/bases.hpp"
#include "store/materialize/materialize.hpp"
#include "store/materialize/plan.hpp"
#include "store/materialize/write_version.hpp"
#include "tests/support/random.hpp"
#include "tests/support/repository_builder.hpp"

namespace weightfs::test {

inline constexpr std::size_t kMany = 700'000;  // bytes as U8: not a multiple of the chunk size

/// The tensors and small files of a checkpoint, which random histories change.
struct Model {
  std::map<std::string, std::vector<TestTensor>> files;
  Tree blobs;
  std::map<std::string, std::string> metadata;

  [[nodiscard]] Tree tree() const {
    Tree tree = blobs;
    for (const auto& [path, tensors] : files) tree[path] = make_safetensors(tensors, metadata);
    return tree;
  }
  void nudge_all(double share, Random& rng) {
    for (auto& [path, tensors] : files) {
      for (TestTensor& tensor : tensors) nudge(tensor, share, rng);
    }
  }
};

/// Two shards, a sub-directory, a file without tensors, an empty tensor, and names that occur
/// twice.
inline Model small_model(Random& rng) {
  Model model;
  model.files["a.safetensors"] = {random_tensor("x", Dtype::bf16, {300, 100}, rng),
                                  random_tensor("bytes", Dtype::u8, {1500, 1000}, rng),
                                  random_tensor("empty", Dtype::f32, {0, 4}, rng)};
  model.files["b.safetensors"] = {random_tensor("x", Dtype::bf16, {70'000}, rng),
                                  random_tensor("scalar", Dtype::f32, {}, rng)};
  model.files["sub/dir/adapter.safetensors"] = {random_tensor("x", Dtype::f16, {333}, rng)};
  model.files["none.safetensors"] = {};
  model.blobs["config.json"] = R"({"model_type":"test"})";
  model.blobs["sub/notes.txt"] = "";
  return model;
}

/// A directory with a repository's history, and versions written by the test.
class Materialize : public ::testing::Test {
 protected:
  /// Writes the plan's version into a new directory.  Returns: it as a base for other plans.
  Base write(const Plan& plan, const Progress& progress = {}) {
    WriteOptions options;
    options.directory = directory_ / ("written-" + std::to_string(++written_));
    options.spool = directory_.path();
    options.sync = false;
    std::filesystem::create_directories(options.directory);
    write_version(plan, *repository_, options, {}, progress);
    return {plan.version, plan.layout, options.directory, plan.hashes};
  }

  Plan plan(std::uint64_t version, const std::vector<Base>& bases = {}) {
    return make_plan(history_, history_.get(version, {}), bases, {});
  }

  void expect_version(const Base& base) {
    EXPECT_EQ(read_tree(base.directory), builder_.tree(base.version->number()))
        << "version " << base.version->number();
  }

  /// Nothing is left in the directory except written versions.
  void expect_no_spools() {
    for (const auto& entry : std::filesystem::directory_iterator(directory_.path())) {
      EXPECT_TRUE(entry.is_directory()) << entry.path();
    }
  }

  TempDir directory_;
  Random rng_ = make_rng();
  RepositoryBuilder builder_;
  std::unique_ptr<Repository> repository_ = builder_.open();
  History history_{*repository_, nullptr};
  int written_ = 0;
};

inline ino_t inode_of(const std::filesystem::path& path) {
  struct stat attributes {};
  EXPECT_EQ(::stat(path.c_str(), &attributes), 0) << path;
  return attributes.st_ino;
}

inline void flip_byte(const std::filesystem::path& path, std::size_t offset) {
  std::string bytes = read_text(path);
  bytes.at(offset) = static_cast<char>(~bytes.at(offset));
  std::filesystem::remove(path);  // 0444, and possibly a hard link
  write_text(path, bytes);
}

inline bool mentions(const Error& error, std::string_view text) {
  return std::string_view(error.what()).find(text) != std::string_view::npos;
}

}  // namespace weightfs::test
