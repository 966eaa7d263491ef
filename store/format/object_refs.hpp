// Object refs: how records of a bucket name its objects, with sizes and hashes.
//
// Threads: values.  Format: docs/FORMAT.md, "Manifests".
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/sha256.hpp"

namespace weightfs {

/// An object that holds `size_bytes` uncompressed bytes with this hash.
struct ObjectRef {
  std::uint64_t size_bytes = 0;
  Sha256 sha256{};
};

/// A small file, stored once under its hash.
struct BlobRef {
  std::string path;
  std::uint64_t size_bytes = 0;  // uncompressed
  Sha256 sha256{};               // uncompressed
};

/// A random nonce, in lower-case hex, distinguishes the objects of one attempt to publish.
inline constexpr std::size_t kNonceDigits = 32;
bool is_nonce(std::string_view text) noexcept;

/// "<nonce>-<k>", k in plain decimal of at most 9 digits: several uploaders have several nonces.
bool is_pack_name(std::string_view name) noexcept;

struct PackRef {
  std::string name;              // is_pack_name()
  std::uint64_t size_bytes = 0;  // whole object
  std::uint64_t head_bytes = 0;  // header and index
  Sha256 head_sha256{};

  bool operator==(const PackRef&) const = default;
};

struct DeltaRef {
  std::vector<PackRef> packs;  // may be empty: nothing changed but blobs or headers
  std::uint64_t changed_elements = 0;

  bool operator==(const DeltaRef&) const = default;
};

}  // namespace weightfs
