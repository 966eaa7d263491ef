// Upload names: what a publish calls the objects that only its version uses.
//
// A name has a nonce that follows from all that decides the object's bytes, and from random digits
// of the store.  So a publish that was killed goes on with its uploads, names never stand for other
// bytes, and hosts that publish the same never share an object.  When a manifest has been sent, the
// store gets other digits: no later publish uses the names of objects that the manifest may name.
//
// Threads: pure, but for the records `uploader` and `skip_uploader`
// (store/database/column_families.hpp), which are one publish's, or skip maker's, at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "store/base/sha256.hpp"
#include "store/local/store.hpp"
#include "store/repository/repository.hpp"

namespace weightfs {

/// The random digits of this store.  No two processes hold a store at a time, and a copy of it, in
/// another directory or on another machine, gets others; so no two concurrent publishes have the
/// same digits.  Not told from the first: a clone of its volume, with all inode numbers, in a
/// machine that has the same machine-id (/etc) and shows this process no other product_uuid; such
/// two must not publish the same version at a time.  If the digits cannot be kept, uploads are not
/// resumed, and a publish fails before it sends its manifest.
std::string uploader_of(Store& store);

/// Those for the names of skip deltas, which stay the same where the store stays: a record that may
/// exist names objects with these bytes only, so they may be written again.
std::string skip_uploader_of(Store& store);

/// Throws Error: as Db::write.
void set_uploader(Store& store, const std::string& digits, Durability durability);

/// Makes the nonce of objects from everything that decides their bytes: the same after a crash, and
/// never the same for other bytes.
class UploadNonce {
 public:
  UploadNonce(const Repository& repository, std::string_view uploader, std::uint64_t version);

  void add(std::string_view text);
  void add(std::span<const std::byte> bytes);

  /// 32 hex digits.  To be called once.
  [[nodiscard]] std::string finish();

 private:
  Sha256Stream hash_;
};

}  // namespace weightfs
