#include "store/format/rank_pieces.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "store/base/error.hpp"
#include "store/base/json.hpp"
#include "store/base/path_rules.hpp"
#include "store/os/file.hpp"

namespace weightfs {
namespace {

namespace stdfs = std::filesystem;

constexpr const char* kNote = "DCP_SHARDING_INFO";
constexpr std::string_view kIndex = "model.safetensors.index.json";

using Headers = std::vector<NamedHeader>;

[[noreturn]] void refuse(const stdfs::path& directory, std::string_view tensor,
                         const std::string& why) {
  throw Error(ErrorCode::corrupt,
              fmt::format("{} has no whole tensor '{}': {}. It was written by several ranks, each "
                          "its own part; save it with HuggingFaceStorageWriter(..., "
                          "save_distributed=True, enable_consolidation=True) and remove sharded/",
                          escape_name(directory.native()), escape_name(tensor), why));
}

/// Of what cannot be read nothing is said: it is not what a loader reads.  Null then.
Json read_note(std::string_view text) {
  try {
    return parse_json(text, kNote);
  } catch (const Error&) {
    return nullptr;
  }
}

void check_beginnings(const stdfs::path& directory, const NamedHeader& file) {
  const Json note = read_note(file.header->metadata.at(kNote));
  if (!note.is_object()) return;
  for (const auto& [tensor, piece] : note.items()) {
    if (!piece.is_object() || !piece.contains("saved_offsets")) continue;
    const Json& begins = piece["saved_offsets"];
    const auto is_later = [](const Json& at) { return at.is_number_integer() && at != 0; };
    if (begins.is_array() && std::ranges::any_of(begins, is_later)) {
      refuse(directory, tensor,
             fmt::format("what '{}' has of it begins at {}", escape_name(file.path),
                         begins.dump().substr(0, 80)));
    }
  }
}

void check_names(const stdfs::path& directory, const Headers& noted) {
  std::map<std::string_view, std::string_view> seen;  // in which file
  for (const NamedHeader& file : noted) {
    for (const SafetensorsTensor& tensor : file.header->tensors) {
      const auto [first, is_new] = seen.emplace(tensor.name, file.path);
      if (is_new) continue;
      refuse(directory, tensor.name,
             fmt::format("both '{}' and '{}' have a part of it", escape_name(first->second),
                         escape_name(file.path)));
    }
  }
}

/// nullopt: the index does not say.
std::optional<std::uint64_t> total_in_index(const stdfs::path& directory) {
  const stdfs::path index = directory / kIndex;
  std::error_code error;
  if (!stdfs::exists(index, error)) return std::nullopt;
  const Json parsed = read_note(read_file(index, kSafetensorsHeaderBytesMax));
  const auto total = Json::json_pointer("/metadata/total_size");
  if (!parsed.contains(total) || !parsed[total].is_number_unsigned()) return std::nullopt;
  return parsed[total].get<std::uint64_t>();
}

/// Two ranks may have written one after another under the same name: the first piece is left then.
void check_total(const stdfs::path& directory, const Headers& noted) {
  std::uint64_t written = 0;
  for (const NamedHeader& file : noted) written += file.header->data_size_bytes;
  const std::optional<std::uint64_t> total = total_in_index(directory);
  if (!total || *total <= written) return;
  const auto& tensors = noted.front().header->tensors;
  refuse(directory, tensors.empty() ? std::string_view{} : tensors.front().name,
         fmt::format("or no whole one of the others: by {} they have {} bytes, in the files {}",
                     kIndex, *total, written));
}

}  // namespace

void refuse_rank_pieces(const stdfs::path& directory, const Headers& files) {
  Headers noted;
  std::ranges::copy_if(files, std::back_inserter(noted), [](const NamedHeader& file) {
    return file.header->metadata.contains(kNote);
  });
  if (noted.empty()) return;
  check_names(directory, noted);
  for (const NamedHeader& file : noted) check_beginnings(directory, file);
  check_total(directory, noted);
}

}  // namespace weightfs
