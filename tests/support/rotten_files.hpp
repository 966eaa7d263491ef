// Rotten files: the files of a closed database (store/database/db.hpp), damaged as a disk does.
//
// Threads: one test's.
#pragma once

#include <gtest/gtest.h>
#include <rocksdb/db.h>
#include <rocksdb/options.h>

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

/// Flips a bit of the first block of each of them.  Returns: how many.
inline std::size_t rot_family(const std::filesystem::path& database, std::string_view family) {
  const auto files = files_of_family(database, family);
  for (const std::filesystem::path& path : files) {
    std::string bytes = read_text(path);
    bytes[10] = static_cast<char>(bytes[10] ^ 1);
    write_text(path, bytes);
  }
  return files.size();
}

}  // namespace weightfs::test
