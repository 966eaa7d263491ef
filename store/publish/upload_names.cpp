#include "store/publish/upload_names.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <fstream>
#include <string>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/database/db.hpp"

namespace weightfs {
namespace {

constexpr std::size_t kDigits = 32;
constexpr std::string_view kUploader = "uploader", kSkipUploader = "skip_uploader";

std::string first_line_of(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// 32 hex digits of where the store is: other ones for a copy of it, in another directory, or in
/// another machine that says which one it is.  product_uuid is for root only, and machine-id is the
/// same in machines that were made of one image.  What changes at a restart does not count (host
/// names of pods, device numbers).
std::string place_of(const Store& store) {
  struct stat info {};
  if (::stat(store.path().c_str(), &info) != 0) {
    throw_errno(errno, "read the inode number of " + store.path().string());
  }
  const std::string place =
      fmt::format("{}\n{}\n{}", first_line_of("/sys/class/dmi/id/product_uuid"),
                  first_line_of("/etc/machine-id"), info.st_ino);
  const Sha256 hash = sha256(as_bytes(place));
  return to_hex(std::span(hash).first(kDigits / 2));
}

void set_digits(Store& store, std::string_view record, const std::string& digits,
                Durability durability) {
  const std::string value = digits + place_of(store);
  store.db().write({{ColumnFamily::store, std::string(record), value}}, durability);
}

std::string digits_of(Store& store, std::string_view record) {
  std::string digits = random_hex(kDigits / 2);
  try {
    const auto known = store.db().find(ColumnFamily::store, std::string(record));
    const bool is_ours = known && known->size() == 2 * kDigits && known->ends_with(place_of(store));
    if (is_ours) return known->substr(0, kDigits);
    const bool is_old = known && known->size() == kDigits;  // of a release before 0.6.0
    // Two stores of that release may have the same digits, which harms no skips: theirs have the
    // same bytes.
    if (is_old && record == kSkipUploader) digits = *known;
    if (known && !is_old) log_info("the store was copied here: interrupted uploads begin anew");
    set_digits(store, record, digits, Durability::process);
  } catch (const Error& error) {
    log_debug(fmt::format("interrupted uploads cannot be resumed: {}", error.what()));
  }
  return digits;
}

}  // namespace

std::string uploader_of(Store& store) { return digits_of(store, kUploader); }

std::string skip_uploader_of(Store& store) { return digits_of(store, kSkipUploader); }

void set_uploader(Store& store, const std::string& digits, Durability durability) {
  set_digits(store, kUploader, digits, durability);
}

UploadNonce::UploadNonce(const Repository& repository, std::string_view uploader,
                         std::uint64_t version) {
  add(repository.id());
  add(uploader);
  add(std::to_string(version));
}

void UploadNonce::add(std::string_view text) { add(as_bytes(text)); }

void UploadNonce::add(std::span<const std::byte> bytes) {
  std::string size;
  append_le<std::uint64_t>(size, bytes.size());
  hash_.update(as_bytes(size));
  hash_.update(bytes);
}

std::string UploadNonce::finish() {
  const Sha256 hash = hash_.finish();
  return to_hex(std::span(hash).first(16));
}

}  // namespace weightfs
