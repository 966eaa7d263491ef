#include "store/ways/skip_book.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "store/base/log.hpp"
#include "store/repository/gc_log.hpp"
#include "store/repository/pieces.hpp"

namespace weightfs {
namespace {

bool is_about_an_object(ErrorCode code) {
  return code == ErrorCode::corrupt || code == ErrorCode::not_found ||
         code == ErrorCode::unsupported;
}

/// With the object that `why` names, if that is one of a skip, or the record.
NeededSkipDamaged reason_of(const VersionPair& versions, const Error& why) {
  const auto* const named = dynamic_cast<const ObjectError*>(&why);
  const bool is_of_skip = named != nullptr && find_skip_key(named->key());
  const std::string key = is_of_skip ? named->key() : keys::skip_record(versions);
  return {why.code(), key,
          fmt::format("{}: gc left the skip delta from version {} to {} instead of deltas, but it "
                      "cannot be used: {}",
                      key, versions.from, versions.to, why.what())};
}

}  // namespace

std::vector<ListedSkip> SkipBook::list(std::uint64_t wanted, std::uint64_t after,
                                       const Context& context) {
  std::vector<ListedSkip> skips;
  bool is_known = false;
  {
    const std::scoped_lock lock(mutex_);
    is_known = listed_ && wanted <= wanted_ && listed_->first <= after;
    if (is_known) skips = listed_->second;
  }
  if (!is_known) skips = list_skips(repository_, after, context, ListDepth::hint);
  const std::scoped_lock lock(mutex_);
  if (!is_known) {
    if (wanted_ != wanted) records_.clear();
    wanted_ = wanted;
    listed_.emplace(after, skips);
  }
  std::erase_if(skips, [&](const ListedSkip& skip) {
    const bool is_asked_for = skip.versions.to > after && skip.versions.to <= wanted;
    return !is_asked_for || is_left_out(skip.versions);
  });
  return skips;
}

NeededSkips SkipBook::needed(const Context& context) {
  return read_gc_log(repository_, context).needs;
}

std::shared_ptr<const SkipRecord> SkipBook::find(const VersionPair& versions,
                                                 const Context& context) {
  {
    const std::scoped_lock lock(mutex_);
    if (is_left_out(versions)) return nullptr;
    if (const auto known = records_.find(versions); known != records_.end()) return known->second;
  }
  std::optional<SkipRecord> record;
  try {
    record = find_skip(repository_, versions, context);
  } catch (const Error& error) {
    // Who may not read skips does without them.
    if (!is_about_an_object(error.code()) && error.code() != ErrorCode::permission) throw;
    leave_out(versions, error);
    return nullptr;
  }
  if (!record) {
    leave_out(versions, Error(ErrorCode::not_found,
                              fmt::format("object {} is gone", keys::skip_record(versions))));
    return nullptr;
  }
  auto shared = std::make_shared<const SkipRecord>(std::move(*record));
  const std::scoped_lock lock(mutex_);
  return records_.insert_or_assign(versions, std::move(shared)).first->second;
}

void SkipBook::leave_out(const VersionPair& versions, const Error& why) {
  {
    const std::scoped_lock lock(mutex_);
    records_.erase(versions);
    LeftOut left_out{true, reason_of(versions, why)};
    if (!left_out_.insert_or_assign(versions, std::move(left_out)).second) return;
  }
  log_warning(
      fmt::format("the skip delta from version {} to {} is not used: {}; trying another way",
                  versions.from, versions.to, why.what()));
}

std::optional<NeededSkipDamaged> SkipBook::find_reason(const VersionPair& versions) const {
  const std::scoped_lock lock(mutex_);
  const auto found = left_out_.find(versions);
  if (found == left_out_.end()) return std::nullopt;
  return found->second.reason;
}

void SkipBook::forgive() {
  const std::scoped_lock lock(mutex_);
  for (auto& [versions, left_out] : left_out_) left_out.is_now = false;
}

/// Requires: mutex_ is held.
bool SkipBook::is_left_out(const VersionPair& versions) const {
  const auto found = left_out_.find(versions);
  return found != left_out_.end() && found->second.is_now;
}

bool SkipBook::leave_out_cause(const Error& error) {
  const auto* const object = dynamic_cast<const ObjectError*>(&error);
  if (dynamic_cast<const NeededSkipDamaged*>(&error) != nullptr) return false;
  if (object == nullptr || !is_about_an_object(error.code())) return false;
  const auto key = find_skip_key(object->key());
  if (!key) return false;
  leave_out(key->versions, error);
  return true;
}

}  // namespace weightfs
