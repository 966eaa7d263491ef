// Compress: one zstd frame in, one out.  Home of zstd.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace weightfs {

/// Upper bound for the frame of this many bytes, whatever the compressor: zstd's bound for
/// incompressible bytes, plus some slack.
std::uint64_t compressed_bytes_max(std::uint64_t size_bytes) noexcept;

/// One frame that carries its content size.
std::string compress(std::string_view bytes);

/// Requires nothing of `frame`.  The frame must say that it holds exactly `size_bytes` bytes
/// (checked before anything is allocated), and hold them, and end there.
/// Throws Error: corrupt, naming `what`.
std::string decompress(std::string_view frame, std::uint64_t size_bytes, std::string_view what);

}  // namespace weightfs
