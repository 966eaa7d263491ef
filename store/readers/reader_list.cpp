#include "store/readers/reader_list.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <tuple>
#include <utility>

#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/base/path_rules.hpp"
#include "store/format/manifest.hpp"
#include "store/threads/parallel.hpp"

namespace weightfs {
namespace {

using Time = Bucket::Time;

constexpr unsigned kReaderRequests = 32;
constexpr std::size_t kOldReadersMax = 100'000;  // that are removed at a time
constexpr std::uint64_t kListedMax = 10'000'000;
constexpr std::string_view kReaderSuffix = ".json";
// Two writes that a LIST gives the same time are less than this apart.
constexpr std::chrono::seconds kListClockStep{5};

std::string_view id_of_key(std::string_view key) {
  key.remove_prefix(std::min(key.size(), keys::kReaders.size()));
  if (!key.ends_with(kReaderSuffix)) return {};
  key.remove_suffix(kReaderSuffix.size());
  return is_nonce(key) ? key : std::string_view();
}

Error never_ends() {
  return {ErrorCode::unavailable,
          fmt::format("the list of {} goes on behind {} objects: the bucket lists keys that do not "
                      "exist, or somebody writes there; remove what is no record of a reader",
                      keys::kReaders, kListedMax)};
}

struct ReaderObjects {
  std::vector<ObjectInfo> objects;
  std::uint64_t left_out = 0;
};

/// Objects of readers/ whose keys have the right form: the first `most` by `comes_before`, in that
/// order.  All are listed, as a LIST is in the order of keys; no more than `most` are in memory.
ReaderObjects list_reader_objects(
    Bucket& bucket, std::size_t most,
    const std::function<bool(const ObjectInfo& one, const ObjectInfo& other)>& comes_before,
    const Context& context) {
  ReaderObjects found;
  std::vector<ObjectInfo>& heap = found.objects;  // at its front is what goes first
  std::string after;
  for (std::uint64_t listed = 0;;) {
    context.check("listing readers");
    std::vector<ObjectInfo> page = bucket.list_objects(keys::kReaders, after, context);
    if (page.empty() || page.back().key <= after) break;
    after = page.back().key;
    listed += page.size();
    if (listed > kListedMax) throw never_ends();
    for (ObjectInfo& object : page) {
      if (id_of_key(object.key).empty()) continue;
      heap.push_back(std::move(object));
      std::ranges::push_heap(heap, comes_before);
      if (heap.size() <= most) continue;
      std::ranges::pop_heap(heap, comes_before);
      heap.pop_back();
      found.left_out++;
    }
  }
  std::ranges::sort_heap(heap, comes_before);
  return found;
}

bool is_newer(const ObjectInfo& one, const ObjectInfo& other) {
  return one.written != other.written ? one.written > other.written : one.key < other.key;
}

/// nullopt: a directory that may not be written does not say what time it is.
std::optional<Time> find_bucket_time(Bucket& bucket, const Context& context) {
  try {
    return bucket.now(context);
  } catch (const Error& error) {
    const bool is_refused = error.code() == ErrorCode::permission ||
                            error.code() == ErrorCode::read_only ||
                            error.code() == ErrorCode::no_space;
    if (!is_refused) throw;
    return std::nullopt;
  }
}

std::int64_t seconds_between(Time from, Time to) {
  return std::chrono::duration_cast<std::chrono::seconds>(to - from).count();
}

/// A record from the future is as old as its clock is wrong: otherwise it would stay for ever.
std::int64_t age_of(const ReaderRecord& record, Time written, const std::optional<Time>& now) {
  if (now) return std::abs(seconds_between(written, *now));
  return std::abs(seconds_now() - static_cast<std::int64_t>(record.time));
}

Presence presence_of(const ReaderRecord& record, std::int64_t age_s) {
  if (record.has_left) return Presence::left;
  const auto most = kGoneAfterIntervals * static_cast<std::int64_t>(record.every_s);
  return age_s > most ? Presence::gone : Presence::live;
}

}  // namespace

std::string_view to_string(Presence presence) noexcept {
  switch (presence) {
    case Presence::live:
      return "live";
    case Presence::left:
      return "left";
    case Presence::gone:
      return "gone";
  }
  return "";
}

ReaderLister::ReaderLister(Repository& repository, std::uint64_t limit)
    : repository_(repository),
      limit_(limit == 0 ? kReadersMax : std::min<std::uint64_t>(limit, kReadersMax)) {}

/// Those written last.
std::vector<ObjectInfo> ReaderLister::list_objects(std::uint64_t& left_out,
                                                   const Context& context) const {
  ReaderObjects found = list_reader_objects(repository_.bucket(context),
                                            static_cast<std::size_t>(limit_), is_newer, context);
  left_out = found.left_out;
  return std::move(found.objects);
}

ReaderLister::Fetched ReaderLister::fetch(const ObjectInfo& object, const std::optional<Time>& now,
                                          const Context& context) const {
  Fetched fetched{.written = object.written,
                  .size_bytes = object.size_bytes,
                  .record = {},
                  .problem = {},
                  .is_settled = now && *now - object.written > kListClockStep};
  try {
    const std::string bytes =
        get_all(repository_.bucket(context), object.key, kReaderBytesMax, context);
    ReaderRecord record = ReaderRecord::parse(bytes, "object " + object.key);
    if (record.id != id_of_key(object.key)) {
      fetched.problem = fmt::format("object {}: its id is {}", object.key, record.id);
    } else if (record.repository != repository_.id()) {
      fetched.problem =
          fmt::format("object {}: it is of another repository, {}", object.key, record.repository);
    } else {
      fetched.record = std::move(record);
    }
  } catch (const Error& error) {
    if (error.code() == ErrorCode::not_found) return fetched;
    // Permission: another account's object, of which its owner decides.
    const bool is_verdict = error.code() == ErrorCode::corrupt ||
                            error.code() == ErrorCode::unsupported ||
                            error.code() == ErrorCode::permission;
    if (!is_verdict) throw;
    fetched.problem = error.what();
  }
  return fetched;
}

ReaderList ReaderLister::list(const Context& context) {
  ReaderList list;
  const auto now = find_bucket_time(repository_.bucket(context), context);
  list.by_bucket_clock = now.has_value();
  const std::vector<ObjectInfo> objects = list_objects(list.left_out, context);
  std::vector<Fetched> found(objects.size());
  parallel_for(objects.size(), kReaderRequests, context, [&](std::size_t i) {
    const auto known = fetched_.find(objects[i].key);
    const bool is_same = known != fetched_.end() && known->second.is_settled &&
                         known->second.written == objects[i].written &&
                         known->second.size_bytes == objects[i].size_bytes;
    found[i] = is_same ? known->second : fetch(objects[i], now, context);
  });
  fetched_.clear();
  for (std::size_t i = 0; i < objects.size(); i++) {
    if (found[i].record) {
      const std::int64_t age_s = age_of(*found[i].record, found[i].written, now);
      list.readers.push_back({*found[i].record, presence_of(*found[i].record, age_s), age_s});
    } else if (!found[i].problem.empty()) {
      list.unreadable.push_back(found[i].problem);
    }
    fetched_.insert_or_assign(objects[i].key, std::move(found[i]));
  }
  std::ranges::sort(list.readers, {}, [](const ListedReader& one) {
    return std::tie(one.record.host, one.record.place, one.record.id);
  });
  std::ranges::sort(list.unreadable);
  return list;
}

std::vector<ObjectInfo> find_old_readers(Repository& repository, const Context& context) {
  Bucket& bucket = repository.bucket(context);
  const auto is_older = [](const ObjectInfo& one, const ObjectInfo& other) {
    return is_newer(other, one);
  };
  std::vector<ObjectInfo> objects =
      list_reader_objects(bucket, kOldReadersMax, is_older, context).objects;
  if (objects.empty()) return objects;
  const auto now = find_bucket_time(bucket, context);
  std::erase_if(objects, [&](const ObjectInfo& object) {
    return !now || *now - object.written <= kReaderRecordAgeMax;
  });
  return objects;
}

std::vector<ObjectInfo> remove_old_readers(
    Repository& repository, const Context& context,
    const std::function<void(const Context& context)>& wait_turn) {
  std::vector<ObjectInfo> removed;
  for (ObjectInfo& object : find_old_readers(repository, context)) {
    if (wait_turn) wait_turn(context);
    try {
      repository.bucket(context).remove(object.key, context);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::permission) throw;
      log_warning(fmt::format("old records of readers stay: {}", error.what()));
      break;
    }
    removed.push_back(std::move(object));
  }
  return removed;
}

}  // namespace weightfs
