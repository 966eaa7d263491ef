// RecordReader: reads the fields of a record of a bucket (manifest, skip record) as untrusted JSON.
//
// Records are canonical JSON, and most carry a SHA-256 of their own fields.  Messages name the
// record and the field.  Included by .cpp files only, as store/base/json.hpp.
//
// Threads: a value.  Format: docs/FORMAT.md, "Manifests".
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/error.hpp"
#include "store/base/json.hpp"
#include "store/base/sha256.hpp"
#include "store/format/object_refs.hpp"

namespace weightfs {

/// The fields that are no part of what a record's own hash covers.
inline constexpr const char* kRecordHash = "sha256";
inline constexpr const char* kRecordSignature = "signature";

/// The hash of a record's canonical bytes without hash and signature.
Sha256 hash_of_record(Json json);

Json json_of(const ObjectRef& object);
Json json_of(const DeltaRef& delta);

/// All throw Error: corrupt, unless they say otherwise.
class RecordReader {
 public:
  explicit RecordReader(std::string_view what) : what_(what) {}

  /// First: the other fields may have another meaning in a newer format.
  /// Throws Error: unsupported as well.
  void check_format(const Json& json, std::uint64_t newest) const;
  /// That `bytes` are those that these fields have.
  void check_canonical(const Json& json, std::string_view bytes) const;
  /// Before the features, so that a damaged feature name is reported as damage.  Nothing is
  /// compared if the record has no hash.
  void check_own_hash(const Json& json) const;
  /// Throws Error: unsupported as well, naming one that is not `known`.
  void check_features(const Json& json, std::span<const std::string_view> known) const;

  [[nodiscard]] std::uint64_t number(const Json& object, std::string_view name,
                                     std::uint64_t most) const;
  [[nodiscard]] std::string nonce(const Json& object, std::string_view name) const;
  [[nodiscard]] Sha256 hash(const Json& object, std::string_view name) const;
  [[nodiscard]] const Json& array(const Json& object, std::string_view name) const;
  /// Of check_features().
  [[nodiscard]] std::vector<std::string> features(const Json& json) const;
  [[nodiscard]] ObjectRef object(const Json& parent, std::string_view name,
                                 std::uint64_t most) const;
  /// An object that json_of(DeltaRef) made.
  [[nodiscard]] DeltaRef delta(const Json& json) const;

  [[noreturn]] void fail(const std::string& message, ErrorCode code = ErrorCode::corrupt) const;

 protected:
  [[nodiscard]] std::string_view what() const noexcept { return what_; }

 private:
  [[nodiscard]] PackRef pack(const Json& json) const;

  std::string_view what_;
};

}  // namespace weightfs
