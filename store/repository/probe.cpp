#include "store/repository/probe.hpp"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/base/sha256.hpp"

namespace weightfs {
namespace {

constexpr auto kProbeRemoveTime = std::chrono::seconds(5);

/// Whether an error is a result of the probe: what was asked for was not done.
bool is_probe_refusal(const Error& error) noexcept {
  return error.code() == ErrorCode::permission || error.code() == ErrorCode::unsupported;
}

/// The object of one probe.
class ProbeObject {
 public:
  explicit ProbeObject(Bucket& bucket) : bucket_(bucket) {}
  ~ProbeObject() { remove(); }
  ProbeObject(const ProbeObject&) = delete;
  ProbeObject& operator=(const ProbeObject&) = delete;

  Bucket::Put put(std::string_view byte, const Context& context) {
    // Also after a failure, since the reply may have been lost.
    const bool was_put = std::exchange(may_exist_, true);
    try {
      return bucket_.put_if_absent(key_, byte, context);
    } catch (const Error& error) {
      if (is_probe_refusal(error)) may_exist_ = was_put;
      throw;
    }
  }
  /// Returns: its content; "" if it is not there.
  [[nodiscard]] std::string read(const Context& context) {
    try {
      return get_all(bucket_, key_, 1, context);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::not_found) throw;
      return "";
    }
  }

  /// Runs even if the caller was stopped, because an object left behind would stay for ever.
  /// Returns: its key if it may still be there, else "".
  std::string remove() noexcept {
    if (!std::exchange(may_exist_, false)) return "";
    try {
      bucket_.remove(key_, Context{}.within(kProbeRemoveTime));
      return "";
    } catch (const std::exception& error) {
      log_if_possible(LogLevel::debug, [&] {
        return fmt::format("the probe object could not be removed: {}", error.what());
      });
      return key_;
    }
  }

 private:
  Bucket& bucket_;
  const std::string key_ = ".probe-" + random_hex(16);
  bool may_exist_ = false;
};

ProbeResult compare(ProbeObject& object, const Context& context) {
  using Outcome = ProbeResult::Outcome;
  const Bucket::Put first = object.put("1", context);
  const Bucket::Put second = object.put("2", context);
  const std::string kept = object.read(context);
  // Nobody else knows the key, so a first byte that is there is our own: a request that something
  // on the way sent twice is told that the object exists.
  if (first != Bucket::Put::created && kept != "1") {
    return {Outcome::not_held, "it claims that a new object already exists", ""};
  }
  if (kept.empty()) return {Outcome::not_held, "an object that was written is not there", ""};
  if (second != Bucket::Put::exists || kept != "1") {
    return {Outcome::not_held, "it let a second writer overwrite an object", ""};
  }
  return {Outcome::held, "", ""};
}

}  // namespace

ProbeResult probe_put_if_absent(Bucket& bucket, const Context& context) {
  ProbeObject object(bucket);
  ProbeResult result;
  try {
    result = compare(object, context);
  } catch (const Error& error) {
    using Outcome = ProbeResult::Outcome;
    if (!is_probe_refusal(error)) throw;
    const bool is_refused = error.code() == ErrorCode::permission;
    result = {is_refused ? Outcome::not_permitted : Outcome::not_held, error.what(), ""};
  }
  result.left = object.remove();
  return result;
}

void require_put_if_absent(Bucket& bucket, const Context& context) {
  const ProbeResult result = probe_put_if_absent(bucket, context);
  switch (result.outcome) {
    case ProbeResult::Outcome::held:
      return;
    case ProbeResult::Outcome::not_permitted:
      throw Error(ErrorCode::permission, result.why);
    case ProbeResult::Outcome::not_held:
      throw Error(
          ErrorCode::unsupported,
          fmt::format(
              "the bucket {} does not support put-if-absent, so two publishers could overwrite "
              "each other; use another bucket: {}",
              bucket.url(), result.why));
  }
}

}  // namespace weightfs
