#include "store/format/layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include "store/base/byte_reader.hpp"
#include "store/base/error.hpp"
#include "store/base/path_rules.hpp"

namespace weightfs {
namespace {

constexpr std::string_view kMagic = "WFLAYOUT";
constexpr std::uint32_t kLayoutFormat = 1;
constexpr std::size_t kFileRecordBytesMin = 1 + 2 + 8 + 8;

/// Returns: the number of files that follow.
std::uint32_t take_preamble(ByteReader& reader) {
  if (reader.remaining() > kLayoutBytesMax) reader.fail("the layout is too large");
  if (reader.take(kMagic.size()) != kMagic) reader.fail("not a layout: wrong magic bytes");
  const auto format = reader.take_le<std::uint32_t>();
  if (format != kLayoutFormat) reader.fail(fmt::format("unknown layout format {}", format));
  const auto count = reader.take_le<std::uint32_t>();
  if (count > kVersionFilesMax) reader.fail(fmt::format("too many files: {}", count));
  reader.expect_room_for(count, kFileRecordBytesMin);
  return count;
}

/// Reads one file of a stored layout, before its tensors are known.
LayoutFile take_file(ByteReader& reader) {
  LayoutFile file;
  const auto kind = reader.take_le<std::uint8_t>();
  if (kind > static_cast<std::uint8_t>(LayoutFile::Kind::opaque)) {
    reader.fail(fmt::format("unknown kind of file: {}", kind));
  }
  file.kind = static_cast<LayoutFile::Kind>(kind);
  file.path = reader.take(reader.take_le<std::uint16_t>());
  file.head = reader.take(reader.take_le<std::uint64_t>());
  file.size_bytes = reader.take_le<std::uint64_t>();
  return file;
}

void check_path(const ByteReader& reader, const LayoutFile& file, const LayoutFile* before) {
  if (const std::string problem = path_problem(file.path); !problem.empty()) {
    reader.fail(fmt::format("the path '{}' {}", escape_name(file.path), problem));
  }
  if (before != nullptr && before->path >= file.path) {
    reader.fail(fmt::format("the path '{}' does not come after '{}'", file.path, before->path));
  }
}

/// The header of a file, checked against its size; an opaque file has an empty one.
SafetensorsHeader header_of(const ByteReader& reader, const LayoutFile& file,
                            std::string_view what) {
  if (file.kind == LayoutFile::Kind::opaque) {
    if (!file.head.empty()) reader.fail(fmt::format("opaque file '{}' has a header", file.path));
    return {};
  }
  const std::string name = fmt::format("{}: {}", what, file.path);
  SafetensorsHeader header = parse_safetensors_header(file.head, name);
  if (file.size_bytes < file.head.size() ||
      file.size_bytes - file.head.size() != header.data_size_bytes) {
    reader.fail(
        fmt::format("the tensors of '{}' take {} bytes after a header of {}, but the file has {}",
                    file.path, header.data_size_bytes, file.head.size(), file.size_bytes));
  }
  return header;
}

void check_directories(const ByteReader& reader, std::span<const LayoutFile> files) {
  std::vector<std::string_view> paths;
  paths.reserve(files.size());
  for (const LayoutFile& file : files) paths.push_back(file.path);
  if (const std::string problem = paths_problem(paths); !problem.empty()) reader.fail(problem);
}

/// The tensors of a layout by directory, name and dtype.  Sorted, not hashed: names come from the
/// bucket, and could be chosen to collide.
class CounterpartFinder {
 public:
  explicit CounterpartFinder(const Layout& older);

  [[nodiscard]] std::optional<std::uint32_t> find(const LayoutTensor& tensor,
                                                  std::string_view path) const;

 private:
  struct Entry {
    std::string_view directory, name;
    Dtype dtype{};
    std::uint32_t file = 0, number = 0;
    [[nodiscard]] auto key() const { return std::tie(directory, name, dtype); }
  };

  const Layout& older_;
  std::vector<Entry> entries_;  // sorted by key; for equal keys by tensor number, and so by file
};

CounterpartFinder::CounterpartFinder(const Layout& older) : older_(older) {
  entries_.reserve(older.tensors().size());
  for (const LayoutTensor& tensor : older.tensors()) {
    entries_.push_back({directory_of(older.files()[tensor.file].path), tensor.name, tensor.dtype,
                        tensor.file, static_cast<std::uint32_t>(entries_.size())});
  }
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.directory, a.name, a.dtype, a.number) <
           std::tie(b.directory, b.name, b.dtype, b.number);
  });
}

std::optional<std::uint32_t> CounterpartFinder::find(const LayoutTensor& tensor,
                                                     std::string_view path) const {
  const Entry wanted{directory_of(path), tensor.name, tensor.dtype};
  const auto [begin, end] =
      std::equal_range(entries_.begin(), entries_.end(), wanted,
                       [](const Entry& a, const Entry& b) { return a.key() < b.key(); });
  if (begin == end) return std::nullopt;
  const LayoutFile* same = older_.find_file(path);
  if (same == nullptr) return begin->number;
  const auto number = static_cast<std::uint32_t>(same - older_.files().data());
  const auto in_same = std::lower_bound(
      begin, end, number, [](const Entry& entry, std::uint32_t file) { return entry.file < file; });
  return in_same != end && in_same->file == number ? in_same->number : begin->number;
}

}  // namespace

std::uint64_t LayoutTensor::chunk_offset_bytes(std::uint32_t index) const noexcept {
  return std::uint64_t{index} * kernels::chunk_bytes(kind);
}

std::size_t LayoutTensor::chunk_size_bytes(std::uint32_t index) const noexcept {
  return static_cast<std::size_t>(
      std::min<std::uint64_t>(kernels::chunk_bytes(kind), size_bytes - chunk_offset_bytes(index)));
}

std::shared_ptr<const Layout> Layout::from_checkpoint(const Checkpoint& checkpoint) {
  const std::shared_ptr<Layout> layout(new Layout);
  TensorTable tensors;
  for (const CheckpointFile& found : checkpoint.files) {
    if (found.kind == CheckpointFile::Kind::blob) continue;
    LayoutFile file;
    file.path = found.path;
    file.kind = found.kind == CheckpointFile::Kind::opaque ? LayoutFile::Kind::opaque
                                                           : LayoutFile::Kind::safetensors;
    file.head = found.head;
    file.size_bytes = found.stamp.size_bytes;
    layout->add_file(std::move(file), found.header, tensors);
  }
  layout->set_tensors(std::move(tensors));
  const std::string bytes = layout->serialize();
  if (bytes.size() > kLayoutBytesMax) {
    throw Error(
        ErrorCode::invalid,
        fmt::format("{}: the headers of all files take {} bytes; the limit of a version is {}",
                    checkpoint.directory.string(), bytes.size(), kLayoutBytesMax));
  }
  layout->id_ = sha256(as_bytes(bytes));
  return layout;
}

std::shared_ptr<const Layout> Layout::parse(std::string_view bytes, std::string_view what) {
  ByteReader reader(bytes, what);
  const std::uint32_t count = take_preamble(reader);
  const std::shared_ptr<Layout> layout(new Layout);
  layout->files_.reserve(count);
  TensorTable tensors;
  for (std::uint32_t i = 0; i < count; i++) {
    LayoutFile file = take_file(reader);
    check_path(reader, file, layout->files_.empty() ? nullptr : &layout->files_.back());
    if (file.size_bytes > kVersionBytesMax - layout->size_bytes_) {
      reader.fail(
          fmt::format("'{}' takes the version above {} bytes", file.path, kVersionBytesMax));
    }
    const SafetensorsHeader header = header_of(reader, file, what);
    layout->add_file(std::move(file), header, tensors);
  }
  reader.expect_end();
  check_directories(reader, layout->files_);
  layout->set_tensors(std::move(tensors));
  layout->id_ = sha256(as_bytes(bytes));
  return layout;
}

/// Requires: all files together do not exceed kVersionBytesMax, and the header fits into the file.
void Layout::add_file(LayoutFile file, const SafetensorsHeader& header, TensorTable& tensors) {
  const auto number = static_cast<std::uint32_t>(files_.size());
  file.first_tensor = static_cast<std::uint32_t>(tensors.size());
  if (file.kind == LayoutFile::Kind::opaque) {
    add_tensor({"", Dtype::u8, kind_of(Dtype::u8), {file.size_bytes}, number, 0, file.size_bytes},
               tensors);
  }
  for (const SafetensorsTensor& tensor : header.tensors) {
    add_tensor({tensor.name, tensor.dtype, kind_of(tensor.dtype), tensor.shape, number,
                file.head.size() + tensor.begin_bytes, tensor.end_bytes - tensor.begin_bytes},
               tensors);
  }
  file.tensor_count = static_cast<std::uint32_t>(tensors.size()) - file.first_tensor;
  size_bytes_ += file.size_bytes;
  files_.push_back(std::move(file));
}

/// The numbers of tensors and chunks fit into 32 bits: a tensor's record takes more than 32 bytes
/// of a layout of less than 2^31, and a version has fewer than 2^46 bytes in chunks of at least
/// 2^20.
void Layout::add_tensor(LayoutTensor tensor, TensorTable& tensors) {
  static_assert(kLayoutBytesMax / 32 < std::numeric_limits<std::uint32_t>::max());
  static_assert(kVersionBytesMax >> 20 < std::numeric_limits<std::uint32_t>::max());
  tensor.first_chunk = chunk_count_;
  tensor.chunk_count =
      static_cast<std::uint32_t>(kernels::chunk_count(tensor.kind, tensor.size_bytes));
  chunk_count_ += tensor.chunk_count;
  element_count_ += tensor.size_bytes / kernels::width_bytes(tensor.kind);
  tensors.push_back(std::move(tensor));
}

void Layout::set_tensors(TensorTable tensors) {
  tensors.shrink_to_fit();
  tensors_ = std::make_shared<const TensorTable>(std::move(tensors));
}

std::shared_ptr<const Layout> Layout::with(std::shared_ptr<const TensorTable> table) const {
  assert(*table == *tensors_);
  const std::shared_ptr<Layout> layout(new Layout(*this));
  layout->tensors_ = std::move(table);
  return layout;
}

std::shared_ptr<const Layout> Layout::of_files(std::vector<LayoutFile> files,
                                               std::string_view what) {
  Layout layout;
  layout.files_ = std::move(files);
  std::ranges::sort(layout.files_, {}, &LayoutFile::path);
  return parse(layout.serialize(), what);
}

std::string Layout::serialize() const {
  std::string bytes(kMagic);
  append_le(bytes, kLayoutFormat);
  append_le(bytes, static_cast<std::uint32_t>(files_.size()));
  for (const LayoutFile& file : files_) {
    append_le(bytes, static_cast<std::uint8_t>(file.kind));
    append_le(bytes, static_cast<std::uint16_t>(file.path.size()));
    bytes += file.path;
    append_le(bytes, std::uint64_t{file.head.size()});
    bytes += file.head;
    append_le(bytes, file.size_bytes);
  }
  return bytes;
}

std::span<const std::uint64_t> Layout::hashes_of(
    const LayoutFile& file, std::span<const std::uint64_t> hashes) const noexcept {
  if (file.tensor_count == 0) return {};
  const auto tensors = tensors_of(file);
  const std::uint64_t first = tensors.front().first_chunk;
  return hashes.subspan(first, tensors.back().first_chunk + tensors.back().chunk_count - first);
}

std::span<const LayoutTensor> Layout::tensors_of(const LayoutFile& file) const noexcept {
  return tensors().subspan(file.first_tensor, file.tensor_count);
}

const LayoutFile* Layout::find_file(std::string_view path) const noexcept {
  const auto found = std::lower_bound(
      files_.begin(), files_.end(), path,
      [](const LayoutFile& file, std::string_view wanted) { return file.path < wanted; });
  return found != files_.end() && found->path == path ? &*found : nullptr;
}

namespace {

/// Whether two layouts have the same files with the same tensors; headers may differ.
bool have_same_tensors(const Layout& newer, const Layout& older) {
  return newer.tensor_table() == older.tensor_table() &&
         std::equal(newer.files().begin(), newer.files().end(), older.files().begin(),
                    older.files().end(),
                    [](const LayoutFile& a, const LayoutFile& b) { return a.path == b.path; });
}

}  // namespace

std::vector<std::optional<std::uint32_t>> counterparts(const Layout& newer, const Layout& older) {
  if (have_same_tensors(newer, older)) {  // each tensor is its own counterpart: names are unique
                                          // within a file
    std::vector<std::optional<std::uint32_t>> own(newer.tensors().size());
    std::iota(own.begin(), own.end(), 0u);
    return own;
  }
  const CounterpartFinder finder(older);
  std::vector<std::optional<std::uint32_t>> found;
  found.reserve(newer.tensors().size());
  for (const LayoutTensor& tensor : newer.tensors()) {
    found.push_back(finder.find(tensor, newer.files()[tensor.file].path));
  }
  return found;
}

}  // namespace weightfs
