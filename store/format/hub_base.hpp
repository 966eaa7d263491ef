// HubBase: a commit of a model repository on the Hugging Face Hub, where the files of a snapshot
// lie instead of in the bucket: "hub:ORG/MODEL@COMMIT".
//
// Threads: a value; pure functions.  Format: docs/FORMAT.md, "Snapshots on the Hub".
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace weightfs {

struct HubBase {
  std::string model;     // "ORG/MODEL"
  std::string revision;  // of a commit: 40 lower-case hex digits

  [[nodiscard]] std::string text() const;
  /// The path of a file below the Hub's endpoint, not encoded.
  [[nodiscard]] std::string key(std::string_view path) const;

  /// nullopt: it is none.
  static std::optional<HubBase> parse(std::string_view text);

  friend bool operator==(const HubBase&, const HubBase&) = default;
};

/// For messages.
inline constexpr std::string_view kHubBaseForm =
    "hub:ORG/MODEL@COMMIT, with the 40 lower-case hex digits of a commit";

}  // namespace weightfs
