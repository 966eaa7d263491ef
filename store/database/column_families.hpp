// Column families: all families of the store's RocksDB, with their keys and values.  Opening and
// the tests use this table; no other code names a family.
//
// Integers in keys are big-endian, so that keys sort by number.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace weightfs {

enum class ColumnFamily : std::size_t {
  store,
  manifests,
  layouts,
  hashes,
  images,
  inodes,
  names,
  handovers,
  deltas,
  patches
};

struct ColumnFamilyInfo {
  ColumnFamily family;
  std::string_view name;  // stable: part of the store's format
  std::string_view key;
  std::string_view value;
  /// Made by the first write.  Releases that do not know the family cannot open a database that has
  /// it, and rebuild the store.
  bool is_lazy = false;
  /// Its pairs are large, come by Db::ingest() and go by Db::remove_range(): RocksDB does not
  /// compact them, and has no cache for them.
  bool is_bulk = false;
  /// Its pairs are fetched or made again: it is emptied where a file of it cannot be read, so that
  /// this costs no other family.
  bool is_renewable = false;
};

inline constexpr std::array kColumnFamilies{
    ColumnFamilyInfo{
        ColumnFamily::store, "default",
        "text: format, repository, url, newest, staging_ids, own, orders, uploader,\n"
        "probed, pins, hook/<16 hex digits of the SHA-256 of a --hook>, timing/<be64 version>,\n"
        "spans/<level byte, be64 last version>, patch_bytes, reader, coming/<be64 version>,\n"
        "staging_boot",
        "text; newest: be64 version, then SHA-256 of its manifest; staging_ids: be64, every\n"
        "StagingId given out is below; own: be64 first, be64 last version of an unbroken run\n"
        "that this store's queue has published; orders: be64, every order of a hand-over given\n"
        "out is below; uploader: 32 hex digits of this store alone, in the names of what it\n"
        "uploads, and 32 of where it was; probed: the URL and the --endpoint-url whose\n"
        "put-if-absent was proven; hook/...: be64\n"
        "version told with success, be64 version told and not yet confirmed (0: none); pins: for\n"
        "each version that is pinned by hand be64 version, be64 seconds since 1970; timing/...:\n"
        "JSON (store/timing/version_timing.hpp), of the highest 1024 versions; spans/...: which\n"
        "patches there are (store/patches/patch_records.hpp); patch_bytes: be64 bytes of patches\n"
        "taken, be64 bytes folded, since the store was made; reader: 32 hex digits by which this\n"
        "store's mount announces itself, then the host and the place for which they were made;\n"
        "coming/...: paths, each with a NUL after it, of files that are being added to the images\n"
        "of the version: whoever opens the store removes them; staging_boot: the kernel's id of\n"
        "the run of the machine in which staging was last opened"},
    ColumnFamilyInfo{ColumnFamily::manifests, "manifests", "be64 version", "manifest, verbatim",
                     false, false, true},
    ColumnFamilyInfo{ColumnFamily::layouts, "layouts", "SHA-256 (32 bytes) of the layout",
                     "layout, uncompressed", false, false, true},
    ColumnFamilyInfo{
        ColumnFamily::hashes, "hashes", "be64 version",
        "XXH3-64 of every chunk, 8 bytes little-endian each; exists iff the version is complete"},
    ColumnFamilyInfo{ColumnFamily::images, "images", "be64 version, be32 file",
                     "state byte (0 absent: not kept by this host, 2 complete and synced, 3\n"
                     "complete, not synced: a power cut may have taken its bytes), be64 size"},
    ColumnFamilyInfo{
        ColumnFamily::inodes, "inodes", "be64 StagingId",
        "be32 mode, be32 uid, be32 gid; of directories and symlinks then be64 ns of atime,\n"
        "mtime, ctime (two's complement); of symlinks then the target.  The highest bit of a\n"
        "file's mode says that the disk may not have all its bytes"},
    ColumnFamilyInfo{ColumnFamily::names, "names", "be64 StagingId of the directory, then the name",
                     "be64 StagingId"},
    ColumnFamilyInfo{ColumnFamily::handovers, "handovers", "be64 order",
                     "JSON: store/handover/handover_record.hpp"},
    ColumnFamilyInfo{ColumnFamily::deltas, "deltas", "be64 version",
                     "be64 size of deltas/<v>.safetensors"},
    ColumnFamilyInfo{
        ColumnFamily::patches, "patches", "level byte, be64 last version, be32 tensor, be32 chunk",
        "the patch of a chunk (docs/FORMAT.md, Patches of a store); exists iff a record spans/...\n"
        "names level and last version",
        true, true, true},
};

/// Version of this table and of the store's directory; a store of another version is rebuilt.
inline constexpr std::string_view kStoreFormat = "1";

}  // namespace weightfs
