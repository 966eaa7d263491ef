#include "store/staging/records.hpp"

#include <sys/stat.h>

#include <cstdint>

#include "store/base/bytes.hpp"

namespace weightfs {

namespace {

constexpr std::int64_t kNanoseconds = 1'000'000'000;
constexpr std::size_t kFixedBytes = 12, kTimesBytes = 24;
constexpr std::uint32_t kLostBit = 1u << 31;  // in the mode: releases that do not know it go on

// Times outside the range of 64-bit nanoseconds (1677 to 2262) are clamped.
std::int64_t nanoseconds_of(const timespec& time) {
  constexpr std::int64_t kSecondsMax = INT64_MAX / kNanoseconds - 1;
  if (time.tv_sec > kSecondsMax) return kSecondsMax * kNanoseconds;
  if (time.tv_sec < -kSecondsMax) return -kSecondsMax * kNanoseconds;
  return time.tv_sec * kNanoseconds + time.tv_nsec;
}

timespec time_of(std::int64_t nanoseconds) {
  std::int64_t seconds = nanoseconds / kNanoseconds, rest = nanoseconds % kNanoseconds;
  if (rest < 0) {
    rest += kNanoseconds;
    seconds--;
  }
  return {seconds, rest};
}

void append_time(std::string& to, const timespec& time) {
  append_be64(to, static_cast<std::uint64_t>(nanoseconds_of(time)));
}

timespec load_time(std::string_view from) {
  return time_of(static_cast<std::int64_t>(load_be(from.substr(0, 8))));
}

std::uint32_t load_be32(std::string_view from) {
  return static_cast<std::uint32_t>(load_be(from.substr(0, 4)));
}

}  // namespace

std::string inode_key(StagingId id) {
  std::string key;
  append_be64(key, id);
  return key;
}

std::string encode(const StagingRecord& record) {
  std::string value;
  append_be32(value, record.mode | (record.is_lost ? kLostBit : 0));
  append_be32(value, record.uid);
  append_be32(value, record.gid);
  if (S_ISREG(record.mode)) return value;
  append_time(value, record.atime);
  append_time(value, record.mtime);
  append_time(value, record.ctime);
  return value + record.target;
}

std::optional<StagingRecord> decode_inode(std::string_view value) {
  if (value.size() < kFixedBytes) return std::nullopt;
  StagingRecord record;
  record.mode = load_be32(value);
  record.uid = load_be32(value.substr(4));
  record.gid = load_be32(value.substr(8));
  value.remove_prefix(kFixedBytes);
  if (S_ISREG(record.mode)) {
    record.is_lost = (record.mode & kLostBit) != 0;
    record.mode &= ~kLostBit;
    return value.empty() ? std::optional(record) : std::nullopt;
  }

  if (value.size() < kTimesBytes) return std::nullopt;
  record.atime = load_time(value);
  record.mtime = load_time(value.substr(8));
  record.ctime = load_time(value.substr(16));
  record.target = value.substr(kTimesBytes);
  const bool fits =
      S_ISLNK(record.mode) ? !record.target.empty() : S_ISDIR(record.mode) && record.target.empty();
  return fits ? std::optional(std::move(record)) : std::nullopt;
}

std::string name_key(StagingId directory, std::string_view name) {
  std::string key = inode_key(directory);
  key += name;
  return key;
}

std::optional<StagingNameRecord> decode_name(std::string_view key, std::string_view value) {
  if (key.size() < 8 || value.size() != 8) return std::nullopt;
  return StagingNameRecord{load_be(key.substr(0, 8)), std::string(key.substr(8)), load_be(value)};
}

bool is_entry_name(std::string_view name) noexcept {
  return !name.empty() && name.size() <= kNameBytesMax && name != "." && name != ".." &&
         name.find('/') == std::string_view::npos && name.find('\0') == std::string_view::npos;
}

}  // namespace weightfs
