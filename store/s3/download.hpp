// S3Download: reads a range of an object, and accepts nothing else as an answer: status,
// Content-Range and length are checked.
//
// Threads: may run in parallel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "store/s3/request.hpp"

namespace weightfs {

/// As Bucket::get.
std::size_t s3_get(S3Client& client, std::string_view key, std::uint64_t offset_bytes,
                   std::span<std::byte> into, const Context& context);

}  // namespace weightfs
