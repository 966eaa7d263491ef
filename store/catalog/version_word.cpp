#include "store/catalog/version_word.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "store/base/error.hpp"
#include "store/base/path_rules.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/base/suggest.hpp"
#include "store/threads/parallel.hpp"

namespace weightfs {
namespace {

constexpr unsigned kReadAtOnce = 16;  // manifests
constexpr std::size_t kTagsShown = 10;

/// The tags of the versions read so far, newest version first.
class Tags {
 public:
  Tags(History& history, const Context& context) : history_(history), context_(context) {}

  /// Reads the manifests of versions `oldest` to `newest`.
  void read(std::uint64_t oldest, std::uint64_t newest) {
    std::vector<std::string> read(newest - oldest + 1);
    parallel_for(read.size(), kReadAtOnce, context_,
                 [&](std::size_t i) { read[i] = tag_of(newest - i); });
    for (std::size_t i = 0; i < read.size(); i++) {
      if (read[i].empty() || std::find(names_.begin(), names_.end(), read[i]) != names_.end()) {
        continue;
      }
      names_.push_back(read[i]);
      versions_.push_back(newest - i);
    }
  }

  /// The newest version read so far that carries the tag; 0 if none does.
  [[nodiscard]] std::uint64_t find(const std::string& tag) const {
    const auto found = std::find(names_.begin(), names_.end(), tag);
    return found == names_.end() ? 0 : versions_[static_cast<std::size_t>(found - names_.begin())];
  }

  /// The error text if no version carries the tag.
  [[nodiscard]] std::string describe_absence(const std::string& tag) const {
    std::string text =
        fmt::format("no version of {} carries the tag {}{}", history_.repository().url(),
                    escape_name(tag), did_you_mean(tag, names_));
    text += names_.empty() ? "; no version has a tag" : "; " + list();
    return damage_.empty() ? text : fmt::format("{}; not all could be read: {}", text, damage_);
  }

 private:
  /// "" if the version has no tag, or is damaged.
  std::string tag_of(std::uint64_t number) {
    try {
      return history_.get(number, context_)->manifest.tag;
    } catch (const Error& error) {
      const bool is_damaged = error.code() == ErrorCode::corrupt ||
                              error.code() == ErrorCode::not_found ||
                              error.code() == ErrorCode::unsupported;
      if (!is_damaged) throw;
      const std::lock_guard lock(mutex_);
      if (damage_.empty()) damage_ = error.what();
      return "";
    }
  }

  [[nodiscard]] std::string list() const {
    std::vector<std::string> shown;
    for (const std::string& name : names_) {
      if (shown.size() == kTagsShown) break;
      shown.push_back(escape_name(name));
    }
    const std::size_t more = names_.size() - shown.size();
    return fmt::format("the tag{} {}{}", names_.size() == 1 ? " is" : "s are",
                       fmt::join(shown, ", "), more == 0 ? "" : fmt::format(" and {} more", more));
  }

  History& history_;
  const Context& context_;
  std::vector<std::string> names_;
  std::vector<std::uint64_t> versions_;                // by the same index
  RankedMutex mutex_{LockRank::leaf, "Tags::mutex_"};  // guards damage_
  std::string damage_;                                 // of a manifest that could not be read
};

}  // namespace

std::uint64_t find_version(const Follow& word, History& history, const Context& context) {
  if (word.kind == Follow::Kind::version) return word.version;
  const std::uint64_t newest = history.repository().newest_version(0, context);
  if (newest == 0) {
    throw Error(ErrorCode::not_found,
                fmt::format("{0} is empty; publish with: weightfs publish {0} "
                            "DIR",
                            history.repository().url()));
  }
  if (word.kind == Follow::Kind::latest) return newest;
  Tags tags(history, context);
  for (std::uint64_t end = newest; end > 0;) {
    const std::uint64_t begin = end - std::min<std::uint64_t>(end, kReadAtOnce) + 1;
    tags.read(begin, end);
    if (const std::uint64_t version = tags.find(word.tag); version != 0) return version;
    end = begin - 1;
  }
  throw Error(ErrorCode::not_found, tags.describe_absence(word.tag));
}

}  // namespace weightfs
