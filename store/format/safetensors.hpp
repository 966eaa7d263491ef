// Safetensors: reads and checks the header of a file; nothing else of it is ever interpreted.
//
//     8 bytes  n, little-endian, at most 100,000,000
//     n bytes  JSON object from '{', padded with spaces: name -> {dtype, shape, data_offsets}
//     data     begins at 8 + n; the tensors lie in it without hole or overlap, up to end of file
//
// The checks are those of the reference implementation, and these: the JSON must begin with '{' at
// once, duplicate keys are refused, each tensor is an object, the JSON's depth and the number of
// tensors are bounded.  Reference: safetensors src/tensor.rs, SafeTensors::read_metadata and
// Metadata::validate.
//
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/format/tensor.hpp"

namespace weightfs {

inline constexpr std::uint64_t kSafetensorsHeaderBytesMax = 100'000'000;
inline constexpr std::size_t kSafetensorsTensorsMax = 1'000'000;

struct SafetensorsTensor {
  std::string name;
  Dtype dtype{};
  std::vector<std::uint64_t> shape;
  std::uint64_t begin_bytes = 0;  // from the start of the data
  std::uint64_t end_bytes = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors;       // by begin_bytes, end_bytes, then name
  std::uint64_t data_size_bytes = 0;            // end of the last tensor
  std::map<std::string, std::string> metadata;  // of `__metadata__`
};

/// Parses the 8 + n bytes at the start of a file.
///
/// `head` starts with the length and holds exactly the header, no data.
/// `name` is what messages call the file.
/// Throws Error: corrupt, naming file and tensor.
SafetensorsHeader parse_safetensors_header(std::string_view head, std::string_view name);

/// Reads 8 + n bytes from the file open at `fd`, parses them, and checks that the data end at the
/// end of the file.
///
/// Returns: the verbatim header bytes, length included; `header` is filled.
/// Throws Error: corrupt (file too short, bad length, bad header, data too short or too long), io.
std::string read_safetensors_header(int fd, std::string_view name, SafetensorsHeader& header);

/// The same of a file that is still being written, of which so many bytes are there.
/// Returns: nothing while the header is not.
/// Throws Error: corrupt (bad length, bad header; the file is shorter now), io.
std::optional<std::string> read_growing_header(int fd, std::uint64_t written_bytes,
                                               std::string_view name, SafetensorsHeader& header);

}  // namespace weightfs
