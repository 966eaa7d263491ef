// The header is parsed as a stream of events, not into a tree: the tree of a 100 MB header would
// take gigabytes, and would hide duplicate keys.  Every value has a slot, which follows from its
// position:
//     { "__metadata__": metadata, NAME: tensor }
//       metadata  { KEY: metadata_value } or null
//       tensor    { "dtype": dtype, "shape": [extent, ...], "data_offsets": [offset, offset],
//                   KEY: unknown }
#include "store/format/safetensors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <span>
#include <tuple>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/json.hpp"
#include "store/base/path_rules.hpp"
#include "store/os/file.hpp"

namespace weightfs {
namespace {

constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kDepthMax = 32;

std::string shape_text(const std::vector<std::uint64_t>& shape) {
  constexpr std::size_t kShownExtentsMax = 16;
  const std::span all(shape);
  return fmt::format("[{}{}]", fmt::join(all.first(std::min(all.size(), kShownExtentsMax)), ", "),
                     all.size() > kShownExtentsMax ? ", ..." : "");
}

class HeaderReader {
 public:
  HeaderReader(std::string_view name, SafetensorsHeader& header) : name_(name), header_(header) {}

  // The events of Json::sax_parse.
  bool null() {
    if (slot() != Slot::metadata) accept_unknown("null");
    return true;
  }
  bool boolean(bool /*value*/) { return accept_unknown("a boolean"); }
  bool number_integer(Json::number_integer_t /*value*/) {
    return accept_unknown("a negative number");
  }
  bool number_float(Json::number_float_t /*value*/, const std::string& text) {
    return accept_unknown(fmt::format("the number {}", escape_name(text)));
  }
  bool binary(Json::binary_t& /*value*/) { return accept_unknown("binary"); }
  bool number_unsigned(Json::number_unsigned_t value);
  bool string(std::string& value);
  bool start_object(std::size_t /*elements*/);
  bool end_object();
  bool start_array(std::size_t /*elements*/);
  bool end_array();
  bool key(std::string& key) {
    levels_.back().keys.push_back(std::move(key));
    return true;
  }
  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const Json::exception& error) {
    fail(fmt::format("the header is not valid JSON at byte {} of it: {}", position,
                     escape_name(error.what())));
  }

 private:
  enum class Slot {
    header,
    metadata,
    metadata_value,
    tensor,
    dtype,
    shape,
    extent,
    offsets,
    offset,
    unknown
  };

  /// An open object or array.  Its last key is that of the value being read.
  struct Level {
    Slot slot;
    std::vector<std::string> keys;
  };

  [[nodiscard]] Slot slot() const;
  bool accept_unknown(std::string_view found) const;
  void open(Slot slot);
  void begin_tensor();
  void end_tensor();
  void check_keys() const;
  [[nodiscard]] std::string place() const;
  [[noreturn]] void fail(const std::string& message) const {
    throw Error(ErrorCode::corrupt, fmt::format("{}: {}", name_, message));
  }

  std::string_view name_;
  SafetensorsHeader& header_;
  std::vector<Level> levels_;
  bool has_dtype_ = false, has_shape_ = false;  // of the tensor being read
  std::vector<std::uint64_t> offsets_;
};

HeaderReader::Slot HeaderReader::slot() const {
  if (levels_.empty()) return Slot::header;
  const Level& level = levels_.back();
  switch (level.slot) {
    case Slot::header:
      return level.keys.back() == "__metadata__" ? Slot::metadata : Slot::tensor;
    case Slot::metadata:
      return Slot::metadata_value;
    case Slot::tensor:
      if (level.keys.back() == "dtype") return Slot::dtype;
      if (level.keys.back() == "shape") return Slot::shape;
      if (level.keys.back() == "data_offsets") return Slot::offsets;
      return Slot::unknown;
    case Slot::shape:
      return Slot::extent;
    case Slot::offsets:
      return Slot::offset;
    default:
      return Slot::unknown;
  }
}

/// The current position in words: "tensor 'a': shape".
std::string HeaderReader::place() const {
  if (levels_.empty()) return "the header";
  const std::string first = escape_name(levels_[0].keys.back());
  const std::string owner = first == "__metadata__" ? first : fmt::format("tensor '{}'", first);
  if (levels_.size() == 1) return owner;
  return fmt::format("{}: {}", owner, escape_name(levels_[1].keys.back()));
}

/// Unknown fields are ignored, as in the reference implementation; all others must have their type.
bool HeaderReader::accept_unknown(std::string_view found) const {
  static constexpr std::array<std::string_view, 9> kExpected{"an object",
                                                             "an object of strings",
                                                             "a string",
                                                             "an object",
                                                             "the name of a dtype",
                                                             "an array of numbers",
                                                             "an integer from 0 to 2^64 - 1",
                                                             "an array of two numbers",
                                                             "an integer from 0 to 2^64 - 1"};
  const Slot here = slot();
  if (here == Slot::unknown) return true;
  fail(fmt::format("{} must be {}, but is {}", place(), kExpected[static_cast<std::size_t>(here)],
                   found));
}

bool HeaderReader::number_unsigned(Json::number_unsigned_t value) {
  if (slot() == Slot::extent) {
    header_.tensors.back().shape.push_back(value);
  } else if (slot() == Slot::offset) {
    offsets_.push_back(value);
    if (offsets_.size() > 2) fail(place() + " has more than two numbers");
  } else {
    accept_unknown("a number");
  }
  return true;
}

bool HeaderReader::string(std::string& value) {
  if (slot() == Slot::metadata_value) {
    header_.metadata[levels_.back().keys.back()] = std::move(value);
  } else if (slot() == Slot::dtype) {
    const auto dtype = find_dtype(value);
    if (!dtype) {
      fail(fmt::format("{}: unknown dtype '{}'; if it is new, a newer weightfs may know it",
                       place(), escape_name(value)));
    }
    header_.tensors.back().dtype = *dtype;
    has_dtype_ = true;
  } else {
    accept_unknown("a string");
  }
  return true;
}

bool HeaderReader::start_object(std::size_t /*elements*/) {
  const Slot here = slot();
  if (here == Slot::tensor) begin_tensor();
  if (here != Slot::header && here != Slot::metadata && here != Slot::tensor) {
    accept_unknown("an object");
  }
  open(here);
  return true;
}

bool HeaderReader::start_array(std::size_t /*elements*/) {
  const Slot here = slot();
  if (here != Slot::shape && here != Slot::offsets) accept_unknown("an array");
  if (here == Slot::shape) has_shape_ = true;
  open(here);
  return true;
}

void HeaderReader::open(Slot slot) {
  if (levels_.size() == kDepthMax) {
    fail(fmt::format("{} is nested deeper than {} levels", place(), kDepthMax));
  }
  levels_.push_back({slot, {}});
}

bool HeaderReader::end_object() {
  check_keys();
  const Slot ended = levels_.back().slot;
  levels_.pop_back();
  if (ended == Slot::tensor) end_tensor();
  return true;
}

bool HeaderReader::end_array() {
  levels_.pop_back();
  return true;
}

void HeaderReader::check_keys() const {
  std::vector<std::string_view> keys(levels_.back().keys.begin(), levels_.back().keys.end());
  std::sort(keys.begin(), keys.end());
  const auto twice = std::adjacent_find(keys.begin(), keys.end());
  if (twice == keys.end()) return;
  if (levels_.size() == 1)
    fail(fmt::format("the name '{}' occurs twice in the header", escape_name(*twice)));
  fail(fmt::format("{}: the key '{}' occurs twice in one object", place(), escape_name(*twice)));
}

void HeaderReader::begin_tensor() {
  if (header_.tensors.size() == kSafetensorsTensorsMax) {
    fail(fmt::format("more than {} tensors", kSafetensorsTensorsMax));
  }
  header_.tensors.emplace_back().name = levels_.back().keys.back();
  has_dtype_ = has_shape_ = false;
  offsets_.clear();
}

void HeaderReader::end_tensor() {
  SafetensorsTensor& tensor = header_.tensors.back();
  if (!has_dtype_ || !has_shape_ || offsets_.size() != 2) {
    fail(place() + " must have a dtype, a shape and two data_offsets");
  }
  tensor.begin_bytes = offsets_[0];
  tensor.end_bytes = offsets_[1];
  if (tensor.begin_bytes > tensor.end_bytes) {
    fail(fmt::format("{}: begins at {}, after its end at {}", place(), offsets_[0], offsets_[1]));
  }
  const auto size = size_bytes_of(tensor.dtype, tensor.shape);
  if (!size) {
    fail(fmt::format("{}: shape {} of {} overflows 64 bits or is not a whole number of bytes",
                     place(), shape_text(tensor.shape), to_string(tensor.dtype)));
  }
  if (*size != tensor.end_bytes - tensor.begin_bytes) {
    fail(fmt::format("{}: shape {} of {} takes {} bytes, but its data_offsets span {}", place(),
                     shape_text(tensor.shape), to_string(tensor.dtype), *size,
                     tensor.end_bytes - tensor.begin_bytes));
  }
}

/// Requires: sorted.  Every byte up to the end of the last tensor must belong to exactly one.
std::uint64_t check_coverage(const std::vector<SafetensorsTensor>& tensors, std::string_view name) {
  std::uint64_t end = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    if (tensor.begin_bytes != end) {
      throw Error(
          ErrorCode::corrupt,
          fmt::format("{}: tensor '{}' begins at {}, but the tensor before it ends at {}: {}", name,
                      escape_name(tensor.name), tensor.begin_bytes, end,
                      tensor.begin_bytes > end ? "a hole" : "they overlap"));
    }
    end = tensor.end_bytes;
  }
  return end;
}

/// The length at the start of a file.
std::uint64_t checked_length(std::string_view bytes, std::uint64_t file_size,
                             std::string_view name) {
  const auto fail = [&](const std::string& message) {
    throw Error(ErrorCode::corrupt, fmt::format("{}: not a safetensors file: {}", name, message));
  };
  if (bytes.size() < kLengthBytes) {
    fail(fmt::format("{} bytes are too few; the header length alone takes {}", bytes.size(),
                     kLengthBytes));
  }
  const auto length = load_le<std::uint64_t>(as_bytes(bytes).data());
  if (length > kSafetensorsHeaderBytesMax) {
    fail(fmt::format("a header of {} bytes is larger than {}", length, kSafetensorsHeaderBytesMax));
  }
  if (length > file_size - kLengthBytes) {
    fail(fmt::format("a header of {} bytes does not fit the file of {} bytes; is it truncated?",
                     length, file_size));
  }
  return length;
}

std::uint64_t file_size_of(int fd, std::string_view name) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) throw_errno(errno, fmt::format("read the size of {}", name));
  return static_cast<std::uint64_t>(info.st_size);
}

void read_exactly(int fd, std::uint64_t offset_bytes, std::string& into, std::string_view name) {
  const std::span out(reinterpret_cast<std::byte*>(into.data()), into.size());
  if (!read_at(fd, offset_bytes, out, std::filesystem::path(name))) {
    throw Error(ErrorCode::corrupt, fmt::format("{}: was truncated while it was read", name));
  }
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view head, std::string_view name) {
  const auto fail = [&](const std::string& message) {
    throw Error(ErrorCode::corrupt, fmt::format("{}: {}", name, message));
  };
  const std::uint64_t length = checked_length(head, head.size(), name);
  const std::string_view json = head.substr(kLengthBytes);
  if (length != json.size()) {
    fail(fmt::format("a header of {} bytes expected, {} found", length, json.size()));
  }
  if (json.empty() || json.front() != '{') fail("the header does not begin with '{'");
  // The JSON library would take a NUL for the end of the text.
  if (const std::size_t nul = json.find('\0'); nul != json.npos) {
    fail(fmt::format("the header is not valid JSON: a NUL at byte {} of it", nul));
  }
  SafetensorsHeader header;
  HeaderReader reader(name, header);
  Json::sax_parse(json, &reader);
  std::sort(header.tensors.begin(), header.tensors.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin_bytes, a.end_bytes, a.name) <
           std::tie(b.begin_bytes, b.end_bytes, b.name);
  });
  header.data_size_bytes = check_coverage(header.tensors, name);
  return header;
}

std::optional<std::string> read_growing_header(int fd, std::uint64_t written_bytes,
                                               std::string_view name, SafetensorsHeader& header) {
  if (written_bytes < kLengthBytes) return std::nullopt;
  std::string head(kLengthBytes, '\0');
  read_exactly(fd, 0, head, name);
  const std::uint64_t length =
      checked_length(head, std::numeric_limits<std::uint64_t>::max(), name);
  if (length > written_bytes - kLengthBytes) return std::nullopt;
  head.resize(kLengthBytes + static_cast<std::size_t>(length));
  read_exactly(fd, 0, head, name);
  header = parse_safetensors_header(head, name);
  return head;
}

std::string read_safetensors_header(int fd, std::string_view name, SafetensorsHeader& header) {
  const std::uint64_t file_size = file_size_of(fd, name);
  std::string head(static_cast<std::size_t>(std::min<std::uint64_t>(file_size, kLengthBytes)),
                   '\0');
  read_exactly(fd, 0, head, name);
  const std::uint64_t length = checked_length(head, file_size, name);
  head.resize(kLengthBytes + static_cast<std::size_t>(length));
  read_exactly(fd, 0, head, name);
  header = parse_safetensors_header(head, name);
  const std::uint64_t data_size = file_size - head.size();
  if (data_size != header.data_size_bytes) {
    throw Error(
        ErrorCode::corrupt,
        fmt::format("{}: the tensors end {} bytes after the header, the file {} bytes after "
                    "it; {}",
                    name, header.data_size_bytes, data_size,
                    data_size < header.data_size_bytes ? "it is truncated"
                                                       : "something follows the tensors"));
  }
  return head;
}

}  // namespace weightfs
