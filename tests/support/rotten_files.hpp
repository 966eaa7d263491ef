// Rotten files: the files of a closed database (store/database/db.hpp), damaged as a disk does.
//
// Threads: one test's.
#pragma once

#include <gtest/gtest.h>
#include <rocksdb/db.h>
#include <rocksdb/options.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/support.hpp"

namespace weightfs::test {

/// Those that hold pairs of a family, by its name in store/database/column_families.hpp.  What was
/// written last is not in a file until the database was opened again.
inline std::vector<std::filesystem::path> files_of_family(const std::filesystem::path& database,
                                                          std::string_view family) {
  std::vector<std::string> names;
  EXPECT_TRUE(rocksdb::DB::ListColumnFamilies({}, database.string(), &names).ok());
  std::vector<rocksdb::ColumnFamilyDescriptor> families;
  for (const std::string& name : names) families.emplace_back(name, rocksdb::ColumnFamilyOptions());
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* opened = nullptr;
  EXPECT_TRUE(
      rocksdb::DB::OpenForReadOnly({}, database.string(), families, &handles, &opened).ok());
  const std::unique_ptr<rocksdb::DB> db(opened);
  std::vector<rocksdb::LiveFileMetaData> files;
  db->GetLiveFilesMetaData(&files);
  for (auto* handle : handles) db->DestroyColumnFamilyHandle(handle);
  std::vector<std::filesystem::path> found;
  for (const auto& file : files) {
    if (file.column_family_name == family) found.push_back(database.string() + file.name);
  }
  return found;
}

/// What becomes of a file.  RocksDB meets the first when it reads, the others when it opens.
enum class Rot { block, index, footer, cut, gone };
inline constexpr std::array kRots{Rot::block, Rot::index, Rot::footer, Rot::cut, Rot::gone};

/// Where a file's index begins, by its footer: a byte, then two handles of two varints each, of
/// which the second is the index's.
inline std::size_t index_of_sorted_file(const std::string& bytes) {
  constexpr std::size_t kFooterBytes = 53;
  std::size_t at = bytes.size() - kFooterBytes + 1;
  const auto next = [&] {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(bytes.at(at++));
      value |= std::uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
  };
  next();
  next();
  return next();
}

inline void rot_file(const std::filesystem::path& path, Rot rot) {
  std::string bytes = read_text(path);
  if (rot == Rot::gone) {
    std::filesystem::remove(path);
  } else if (rot == Rot::cut) {
    std::filesystem::resize_file(path, bytes.size() / 2);
  } else {
    char& byte = bytes.at(rot == Rot::block    ? 10
                          : rot == Rot::footer ? bytes.size() - 3
                                               : index_of_sorted_file(bytes) + 1);
    byte = static_cast<char>(byte ^ 1);
    write_text(path, bytes);
  }
}

/// Damages each of them.  Returns: how many.
inline std::size_t rot_family(const std::filesystem::path& database, std::string_view family,
                              Rot rot = Rot::block) {
  const auto files = files_of_family(database, family);
  for (const std::filesystem::path& path : files) rot_file(path, rot);
  return files.size();
}

}  // namespace weightfs::test
