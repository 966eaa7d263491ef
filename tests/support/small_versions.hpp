// Small versions: layouts and manifests without any tensor data, for tests of code that handles
// only records.
//
// Threads: plain functions.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "store/base/bytes.hpp"
#include "store/format/layout.hpp"
#include "store/repository/repository.hpp"

namespace weightfs::test {

/// A layout of opaque files; paths ascend.
inline std::shared_ptr<const Layout> make_opaque_layout(
    const std::vector<std::pair<std::string, std::uint64_t>>& files) {
  std::string bytes = "WFLAYOUT";
  append_le(bytes, std::uint32_t{1});
  append_le(bytes, static_cast<std::uint32_t>(files.size()));
  for (const auto& [path, size] : files) {
    append_le(bytes, std::uint8_t{1});
    append_le(bytes, static_cast<std::uint16_t>(path.size()));
    bytes += path;
    append_le(bytes, std::uint64_t{0});
    append_le(bytes, size);
  }
  return Layout::parse(bytes, "a test's layout");
}

/// The manifest of a version after `parent` (nullptr: version 1); its nonce is random.
inline Manifest make_manifest(const std::string& repository, const Version* parent,
                              std::string tag = "") {
  Manifest manifest;
  manifest.repository = repository;
  manifest.version = parent == nullptr ? 1 : parent->number() + 1;
  manifest.parent = manifest.version - 1;
  if (parent != nullptr) manifest.parent_sha256 = parent->manifest_sha256;
  manifest.time = 1'790'000'000 + static_cast<std::int64_t>(manifest.version);
  manifest.tag = std::move(tag);
  manifest.nonce = random_hex(16);
  if (parent == nullptr) {
    manifest.snapshot = SnapshotRef{manifest.nonce, {}};
  } else {
    manifest.delta = DeltaRef{};
  }
  return manifest;
}

/// Commits versions until the repository has `count`; returns all of them, version n at [n - 1].
inline std::vector<Version> commit_versions(Repository& repository, std::uint64_t count) {
  std::vector<Version> versions;
  for (std::uint64_t number = 1; number <= count; number++) {
    if (auto there = repository.find_version(number, {})) {
      versions.push_back(std::move(*there));
      continue;
    }
    const Version* parent = versions.empty() ? nullptr : &versions.back();
    const std::string tag = "step-" + std::to_string(number);
    versions.push_back(repository.commit(make_manifest(repository.id(), parent, tag), {}));
  }
  return versions;
}

}  // namespace weightfs::test
