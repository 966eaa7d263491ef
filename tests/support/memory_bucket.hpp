// MemoryBucket: an in-memory Bucket that fails on demand.
//
// It keeps the contract of store/bucket/bucket.hpp, but can be told to break it:
//
//     fail_key("packs/2/", ErrorCode::unavailable)  every call whose key starts with this fails
//     fail_call(3, ErrorCode::timed_out)            the third call from now fails, once
//     lose_reply("versions/")                       the next put_if_absent of such a key is carried
//                                                   out, but reported as unavailable: a lost reply
//     hang_key("versions/")                         every call whose key starts with this waits
//                                                   until heal(), or until its Context ends it
//     hide_from_list("versions/")                   list() leaves out such keys; get finds them
//     list_also("versions/...9.json")               list() names a key that get does not find
//     fail_list(ErrorCode::permission)              every list() fails
//     lag_list(3)                                   list() misses the 3 objects written last
//     heal()                                        ends all of these
//
// Its clock moves only when it is told to: advance(24h), and back.  An object is as old as its last
// write.
//
// Objects can be inspected, replaced and erased behind the back of the code under test.
//
// Threads: all calls may run in parallel.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/bucket/bucket.hpp"

namespace weightfs::test {

class MemoryBucket final : public Bucket {
 public:
  explicit MemoryBucket(std::string url = "memory:///bucket") : url_(std::move(url)) {}

  // ---- the bucket ----

  std::size_t get(std::string_view key, std::uint64_t offset_bytes, std::span<std::byte> into,
                  const Context& context) override {
    std::unique_lock lock(mutex_);
    begin(lock, "get", key, context);
    const auto object = objects_.find(key);
    if (object == objects_.end()) throw Error(ErrorCode::not_found, about(key) + "does not exist");
    const std::string& bytes = object->second;
    if (offset_bytes >= bytes.size()) return 0;
    const std::size_t size = std::min<std::size_t>(into.size(), bytes.size() - offset_bytes);
    if (size != 0) std::memcpy(into.data(), bytes.data() + offset_bytes, size);
    bytes_read_ += size;
    return size;
  }

  void put(std::string_view key, const Source& source, const Context& context) override {
    std::string bytes(source.size_bytes(), '\0');
    source.read(0, std::as_writable_bytes(std::span(bytes)));
    std::unique_lock lock(mutex_);
    begin(lock, "put", key, context);
    objects_.insert_or_assign(std::string(key), std::move(bytes));
    note_written(key);
  }

  Put put_if_absent(std::string_view key, std::string_view bytes, const Context& context) override {
    std::unique_lock lock(mutex_);
    begin(lock, "put_if_absent", key, context);
    const bool created = objects_.emplace(key, bytes).second;
    if (created) note_written(key);
    if (lost_reply_ && key.starts_with(*lost_reply_)) {
      lost_reply_.reset();
      throw Error(ErrorCode::unavailable, about(key) + "the reply was lost");
    }
    return created ? Put::created : Put::exists;
  }

  std::vector<ObjectInfo> list_objects(std::string_view prefix, std::string_view after,
                                       const Context& context) override {
    std::unique_lock lock(mutex_);
    begin(lock, "list", prefix, context, false);
    if (failing_list_) fail(prefix, *failing_list_);
    std::set<std::string> keys = also_listed_;
    for (const auto& [key, bytes] : objects_) keys.insert(key);
    std::vector<ObjectInfo> found;
    for (const std::string& key : keys) {
      if (found.size() == 1000) break;
      if (!key.starts_with(prefix) || key <= after) continue;
      if (hidden_ && key.starts_with(*hidden_)) continue;
      const auto written = written_.find(key);
      const Written when = written == written_.end() ? Written{} : written->second;
      if (when.turn + lag_ > writes_) continue;
      const auto object = objects_.find(key);
      found.push_back({key, object == objects_.end() ? 0 : object->second.size(), when.time});
    }
    return found;
  }

  Time now(const Context& context) override {
    std::unique_lock lock(mutex_);
    begin(lock, "now", "", context, false);
    return clock_;
  }

  void remove(std::string_view key, const Context& context) override {
    std::unique_lock lock(mutex_);
    begin(lock, "remove", key, context);
    objects_.erase(std::string(key));
  }

  [[nodiscard]] const std::string& url() const noexcept override { return url_; }

  // ---- faults ----

  void fail_key(std::string prefix, ErrorCode code) {
    const std::scoped_lock lock(mutex_);
    failing_keys_.insert_or_assign(std::move(prefix), code);
  }
  /// `n` = 1: the next call.
  void fail_call(std::uint64_t n, ErrorCode code) {
    const std::scoped_lock lock(mutex_);
    failing_call_ = {calls_ + n, code};
  }
  void lose_reply(std::string prefix) {
    const std::scoped_lock lock(mutex_);
    lost_reply_ = std::move(prefix);
  }
  void hang_key(std::string prefix) {
    const std::scoped_lock lock(mutex_);
    hanging_.insert(std::move(prefix));
  }
  void hide_from_list(std::string prefix) {
    const std::scoped_lock lock(mutex_);
    hidden_ = std::move(prefix);
  }
  void list_also(std::string key) {
    const std::scoped_lock lock(mutex_);
    also_listed_.insert(std::move(key));
  }
  void fail_list(ErrorCode code) {
    const std::scoped_lock lock(mutex_);
    failing_list_ = code;
  }
  void lag_list(std::uint64_t writes) {
    const std::scoped_lock lock(mutex_);
    lag_ = writes;
  }
  void advance(Time::duration by) {
    const std::scoped_lock lock(mutex_);
    clock_ += by;
  }
  void heal() {
    const std::scoped_lock lock(mutex_);
    lag_ = 0;
    failing_list_.reset();
    failing_keys_.clear();
    failing_call_.reset();
    lost_reply_.reset();
    hidden_.reset();
    also_listed_.clear();
    hanging_.clear();
    healed_.notify_all();
  }

  // ---- behind the back ----

  [[nodiscard]] std::map<std::string, std::string, std::less<>> objects() const {
    const std::scoped_lock lock(mutex_);
    return objects_;
  }
  [[nodiscard]] std::optional<std::string> find(std::string_view key) const {
    const std::scoped_lock lock(mutex_);
    const auto object = objects_.find(key);
    return object == objects_.end() ? std::nullopt : std::optional(object->second);
  }
  void replace(std::string_view key, std::string bytes) {
    const std::scoped_lock lock(mutex_);
    objects_.insert_or_assign(std::string(key), std::move(bytes));
    note_written(key);
  }
  void erase(std::string_view key) {
    const std::scoped_lock lock(mutex_);
    objects_.erase(std::string(key));
  }

  /// Calls so far, all or of one kind ("get", "put", "put_if_absent", "list", "remove",
  /// "now").
  [[nodiscard]] std::uint64_t calls() const {
    const std::scoped_lock lock(mutex_);
    return calls_;
  }
  [[nodiscard]] std::uint64_t calls(const std::string& kind) const {
    const std::scoped_lock lock(mutex_);
    const auto count = calls_of_.find(kind);
    return count == calls_of_.end() ? 0 : count->second;
  }
  /// Bytes that get() gave.
  [[nodiscard]] std::uint64_t bytes_read() const {
    const std::scoped_lock lock(mutex_);
    return bytes_read_;
  }
  /// Calls that are hanging now.
  [[nodiscard]] int waiting() const {
    const std::scoped_lock lock(mutex_);
    return waiting_;
  }
  /// Failures that occurred: a fault test without any proves nothing.
  [[nodiscard]] std::uint64_t failures() const {
    const std::scoped_lock lock(mutex_);
    return failures_;
  }

 private:
  struct Written {
    Time time;
    std::uint64_t turn = 0;  // of all writes
  };

  // Requires: mutex_ is held.
  void note_written(std::string_view key) {
    written_.insert_or_assign(std::string(key), Written{clock_, ++writes_});
  }

  [[nodiscard]] std::string about(std::string_view key) const {
    return "bucket " + url_ + ": object " + std::string(key) + ": ";
  }

  // The beginning of every call.  Requires: mutex_ is held.
  void begin(std::unique_lock<std::mutex>& lock, const std::string& kind, std::string_view key,
             const Context& context, bool is_key = true) {
    if (is_key) check_key(key);
    calls_++;
    calls_of_[kind]++;
    if (failing_call_ && failing_call_->first == calls_) fail(key, failing_call_->second);
    for (const auto& [prefix, code] : failing_keys_) {
      if (key.starts_with(prefix)) fail(key, code);
    }
    wait_while_hanging(lock, key, context);
    context.check("accessing " + std::string(key));
  }

  void wait_while_hanging(std::unique_lock<std::mutex>& lock, std::string_view key,
                          const Context& context) {
    const auto hangs = [&] {
      return std::any_of(hanging_.begin(), hanging_.end(),
                         [&](const std::string& prefix) { return key.starts_with(prefix); });
    };
    if (!hangs()) return;
    waiting_++;
    const auto limit = std::min(context.deadline, Clock::now() + std::chrono::hours(1));
    healed_.wait_until(lock, context.stop, limit, [&] { return !hangs(); });
    waiting_--;
  }

  [[noreturn]] void fail(std::string_view key, ErrorCode code) {
    failures_++;
    throw Error(code, about(key) + "failed on demand");
  }

  const std::string url_;
  mutable std::mutex mutex_;  // guards everything below
  std::map<std::string, std::string, std::less<>> objects_;
  std::map<std::string, Written, std::less<>> written_;
  Time clock_{std::chrono::seconds(1'790'000'000)};
  std::uint64_t writes_ = 0, lag_ = 0;
  std::map<std::string, ErrorCode> failing_keys_;
  std::optional<std::pair<std::uint64_t, ErrorCode>> failing_call_;
  std::optional<ErrorCode> failing_list_;
  std::optional<std::string> lost_reply_, hidden_;
  std::set<std::string> also_listed_, hanging_;
  std::condition_variable_any healed_;
  int waiting_ = 0;
  std::uint64_t calls_ = 0, failures_ = 0, bytes_read_ = 0;
  std::map<std::string, std::uint64_t> calls_of_;
};

}  // namespace weightfs::test
