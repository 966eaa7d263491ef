// Published range: the unbroken run of versions that the queue of this store has published, and
// what a fence allows because of it.
//
//     fence 5, own 6..8: all versions since the fence are the queue's own, so 8 may be followed
//     fence 5, own 7..8: 6 is another writer's, so only 5 may be followed: a conflict
//
// Threads: a value; pure functions.  Kept in the store's record `own`
// (store/database/column_families.hpp).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "store/base/bytes.hpp"

namespace weightfs {

struct PublishedRange {
  std::uint64_t first = 0, last = 0;  // 0, 0: none yet

  /// The only version that a hand-over with this fence may follow.
  [[nodiscard]] std::uint64_t parent_for(std::uint64_t fence) const noexcept {
    return last > fence && first <= fence + 1 ? last : fence;
  }

  /// The range after the queue has also published `version`.
  [[nodiscard]] PublishedRange with(std::uint64_t version) const noexcept {
    return last > 0 && version == last + 1 ? PublishedRange{first, version}
                                           : PublishedRange{version, version};
  }

  [[nodiscard]] std::string serialize() const {
    std::string text;
    append_be64(text, first);
    append_be64(text, last);
    return text;
  }

  /// An invalid record counts as empty: then only fences matter.
  static PublishedRange parse(std::string_view text) noexcept {
    if (text.size() != 16) return {};
    const PublishedRange own{load_be(text.substr(0, 8)), load_be(text.substr(8))};
    return own.first == 0 || own.first > own.last ? PublishedRange{} : own;
  }

  friend bool operator==(const PublishedRange&, const PublishedRange&) = default;
};

}  // namespace weightfs
