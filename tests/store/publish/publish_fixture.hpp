// PublishTest: a repository in memory, one publisher, and readers; shared by the tests of
// publish().
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "store/inspect/verify.hpp"
#include "store/publish/publish.hpp"
#include "tests/support/hosts.hpp"
#include "tests/support/random.hpp"

namespace weightfs::test {

namespace stdfs = std::filesystem;

inline std::uint64_t bytes_in(const MemoryBucket& bucket) {
  std::uint64_t bytes = 0;
  for (const auto& [key, object] : bucket.objects()) bytes += object.size();
  return bytes;
}

inline std::vector<std::string> keys_below(const MemoryBucket& bucket, std::string_view prefix) {
  std::vector<std::string> keys;
  for (const auto& [key, object] : bucket.objects()) {
    if (key.starts_with(prefix)) keys.push_back(key);
  }
  return keys;
}

inline TestTensor tensor_of(std::string name, Dtype dtype, std::size_t elements,
                            std::uint64_t salt) {
  Random rng(salt);
  Bytes data(elements * bits_of(dtype) / 8);
  for (std::byte& byte : data) byte = static_cast<std::byte>(rng());
  return {std::move(name), dtype, {elements}, std::move(data)};
}

/// Changes one byte of a file that may be read-only.
inline void rot(const stdfs::path& path, std::uint64_t offset_bytes) {
  stdfs::permissions(path, stdfs::perms::owner_write, stdfs::perm_options::add);
  const File file = File::open(path, O_RDWR);
  std::array<std::byte, 1> byte{};
  ASSERT_TRUE(read_at(file.fd(), offset_bytes, byte, path));
  byte[0] ^= std::byte{0x40};
  write_at(file.fd(), offset_bytes, byte, path);
}

/// A repository in memory, one publisher, and as many readers as needed.
class PublishTest : public testing::Test {
 protected:
  Host& publisher() {
    if (!publisher_) publisher_ = std::make_unique<Host>(bucket_, dir_ / "publisher");
    return *publisher_;
  }

  /// A host that has no versions yet.
  Host fresh_host() { return {bucket_, dir_ / ("host-" + std::to_string(hosts_++))}; }

  std::map<std::string, std::string> read_on_a_fresh_host(std::uint64_t version) {
    Host host = fresh_host();
    return host.read_version(version);
  }

  stdfs::path checkpoint(unsigned version, std::size_t elements = 200'000) {
    const stdfs::path directory = dir_ / ("checkpoint-" + std::to_string(version));
    write_checkpoint(directory, version, elements);
    return directory;
  }

  /// A directory with these files.
  stdfs::path directory_of(const std::map<std::string, std::string>& files) {
    const stdfs::path directory = dir_ / ("files-" + std::to_string(directories_++));
    for (const auto& [path, bytes] : files) write_text(directory / path, bytes);
    return directory;
  }

  PublishOptions options_of(const stdfs::path& directory) {
    PublishOptions options;
    options.directory = directory;
    return options;
  }

  Manifest manifest_of(std::uint64_t version) {
    return Manifest::parse(bucket_->find(keys::manifest(version)).value(), "manifest");
  }

  void expect_sound() {
    Host host = fresh_host();
    const VerifyReport report =
        verify_repository(host.history, host.store->temporary_directory(), {}, {});
    for (const Problem& problem : report.problems) {
      ADD_FAILURE() << problem.object << ": " << problem.message;
    }
  }

  TempDir dir_;
  std::shared_ptr<MemoryBucket> bucket_ = make_memory_repository();

 private:
  std::unique_ptr<Host> publisher_;
  int hosts_ = 0, directories_ = 0;
};

/// A separate file system, which can be filled.
class SmallDisk {
 public:
  explicit SmallDisk(stdfs::path path) : path_(std::move(path)) {
    stdfs::create_directory(path_);
    mounted_ = ::mount("tmpfs", path_.c_str(), "tmpfs", 0, "size=192m") == 0;
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  [[nodiscard]] bool mounted() const { return mounted_; }

  /// Leaves only this much free.
  void fill(std::uint64_t rest_bytes) {
    const File file = File::open(path_ / "ballast", O_RDWR | O_CREAT);
    const std::uint64_t size = space_of(path_).free_bytes - rest_bytes;
    ASSERT_EQ(::fallocate(file.fd(), 0, 0, static_cast<off_t>(size)), 0);
  }
  void empty() { stdfs::remove(path_ / "ballast"); }

 private:
  stdfs::path path_;
  bool mounted_ = false;
};

}  // namespace weightfs::test
