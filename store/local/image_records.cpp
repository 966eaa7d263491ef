#include "store/local/image_records.hpp"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/database/record_keys.hpp"

namespace weightfs {
namespace {

namespace fs = std::filesystem;

constexpr char kAbsent = 0, kSynced = 2, kUnsynced = 3;  // state bytes of an image record
constexpr std::string_view kComing = "coming/";

std::string image_key(std::uint64_t version, std::uint32_t file) {
  std::string key = version_key(version);
  append_be32(key, file);
  return key;
}

std::string image_value(const ImageRecord& image) {
  std::string value(1, image.is_absent ? kAbsent : kUnsynced);
  append_be64(value, image.size_bytes);
  return value;
}

std::string coming_key(std::uint64_t version) {
  return std::string(kComing) + version_key(version);
}

// Sizes of the regular files below a directory, sorted bytewise by path.
std::vector<std::uint64_t> file_sizes_below(const fs::path& directory) {
  std::map<std::string, std::uint64_t> sizes;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (entry.symlink_status().type() == fs::file_type::directory) continue;
    sizes.emplace(entry.path().lexically_relative(directory).string(), entry.file_size());
  }
  std::vector<std::uint64_t> result;
  for (const auto& [path, size] : sizes) result.push_back(size);
  return result;
}

}  // namespace

std::map<std::uint64_t, VersionRecords> read_image_records(const Db& db) {
  std::map<std::uint64_t, VersionRecords> records;
  db.scan(ColumnFamily::hashes, "", [&](std::string_view key, std::string_view value) {
    if (value.size() % 8 != 0) throw_bad_record("hashes");
    records[version_of_key(key, 8, "hashes")] = {};
  });
  db.scan(ColumnFamily::images, "", [&](std::string_view key, std::string_view value) {
    if (value.size() != 9) throw_bad_record("images");
    const auto version = records.find(version_of_key(key, 12, "images"));
    // Without hashes the version is not complete; its directory is removed as a stray.
    if (version == records.end()) return;
    const bool is_known = value[0] == kAbsent || value[0] == kSynced || value[0] == kUnsynced;
    VersionRecords& found = version->second;
    if (!is_known || load_be(key.substr(8)) != found.images.size()) throw_bad_record("images");
    found.images.push_back({load_be(value.substr(1)), value[0] == kAbsent});
    found.is_synced = found.is_synced && value[0] != kUnsynced;
  });
  return records;
}

void write_image_records(Db& db, std::uint64_t version, const ImageRecords& images,
                         std::span<const std::uint64_t> chunk_hashes) {
  std::vector<Db::Change> changes;
  for (std::uint32_t file = 0; file < images.size(); file++) {
    changes.push_back({ColumnFamily::images, image_key(version, file), image_value(images[file])});
  }
  std::string hashes;
  hashes.reserve(8 * chunk_hashes.size());
  for (const std::uint64_t hash : chunk_hashes) append_le(hashes, hash);
  changes.push_back({ColumnFamily::hashes, version_key(version), std::move(hashes)});
  changes.push_back({ColumnFamily::store, coming_key(version), std::nullopt});
  db.write(changes, Durability::process);
}

void write_coming_files(Db& db, std::uint64_t version, std::span<const std::string> paths) {
  std::string value;
  for (const std::string& path : paths) value.append(path).push_back('\0');
  db.write({{ColumnFamily::store, coming_key(version), std::move(value)}}, Durability::power);
}

std::map<std::uint64_t, std::vector<std::string>> read_coming_files(const Db& db) {
  std::map<std::uint64_t, std::vector<std::string>> coming;
  db.scan(ColumnFamily::store, kComing, [&](std::string_view key, std::string_view value) {
    key.remove_prefix(kComing.size());
    std::vector<std::string>& paths = coming[version_of_key(key, 8, "default")];
    for (std::size_t end = 0; (end = value.find('\0')) != value.npos;
         value.remove_prefix(end + 1)) {
      paths.emplace_back(value.substr(0, end));
    }
  });
  return coming;
}

void mark_image_records_synced(Db& db, std::uint64_t version) {
  std::vector<Db::Change> changes;
  db.scan(ColumnFamily::images, version_key(version),
          [&](std::string_view key, std::string_view value) {
            if (value.size() != 9) throw_bad_record("images");
            if (value[0] != kUnsynced) return;
            std::string synced(value);
            synced[0] = kSynced;
            changes.push_back({ColumnFamily::images, std::string(key), std::move(synced)});
          });
  if (!changes.empty()) db.write(changes, Durability::process);
}

bool remove_image_records(Db& db, std::uint64_t version) {
  std::vector<Db::Change> changes;
  if (db.find(ColumnFamily::hashes, version_key(version))) {
    changes.push_back({ColumnFamily::hashes, version_key(version), std::nullopt});
  }
  db.scan(ColumnFamily::images, version_key(version), [&](std::string_view key, std::string_view) {
    changes.push_back({ColumnFamily::images, std::string(key), std::nullopt});
  });
  if (changes.empty()) return false;
  changes.push_back({ColumnFamily::store, coming_key(version), std::nullopt});
  db.write(changes, Durability::process);
  return true;
}

std::optional<std::vector<std::uint64_t>> find_chunk_hashes(const Db& db, std::uint64_t version) {
  const std::optional<std::string> bytes = db.find(ColumnFamily::hashes, version_key(version));
  if (!bytes) return std::nullopt;
  std::vector<std::uint64_t> hashes(bytes->size() / 8);
  for (std::size_t i = 0; i < hashes.size(); i++) {
    hashes[i] = load_le<std::uint64_t>(as_bytes(*bytes).data() + 8 * i);
  }
  return hashes;
}

bool has_files(const fs::path& directory, const ImageRecords& images) {
  std::vector<std::uint64_t> sizes;
  for (const ImageRecord& image : images) {
    if (!image.is_absent) sizes.push_back(image.size_bytes);
  }
  try {
    return file_sizes_below(directory) == sizes;
  } catch (const fs::filesystem_error&) {
    return false;
  }
}

std::vector<bool> absent_files_of(const ImageRecords& images) {
  std::vector<bool> absent;
  for (const ImageRecord& image : images) absent.push_back(image.is_absent);
  const bool any = std::find(absent.begin(), absent.end(), true) != absent.end();
  return any ? absent : std::vector<bool>();
}

}  // namespace weightfs
