#include "store/publish/parent.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>
#include <utility>

#include "store/base/error.hpp"
#include "store/base/log.hpp"

namespace weightfs {

std::uint64_t find_newest(History& history, Store& store, const Context& context) {
  history.look_behind_the_newest();
  const std::uint64_t known = store.manifests().newest().version;
  const std::uint64_t seen = history.refresh(known, context);
  // The first call returns what it found before an error, the second one throws the error.
  return seen == known ? seen : history.refresh(seen, context);
}

void check_has_room(std::uint64_t parent, Repository& repository) {
  if (parent < kVersionMax) return;
  throw Error(ErrorCode::unsupported, fmt::format("the repository {} is full: it has {} versions",
                                                  repository.url(), parent));
}

void check_is_in_bucket(const Version& version, Repository& repository, const Context& context) {
  const auto there = repository.find_version(version.number(), context);
  if (there && there->manifest_sha256 == version.manifest_sha256) return;
  throw Error(
      ErrorCode::corrupt,
      fmt::format(
          "{} in {} is {}: this host has seen version {}.  Restore the bucket, or publish with "
          "an empty --store to continue from its present state",
          keys::manifest(version.number()), repository.url(), there ? "no longer the same" : "gone",
          version.number()));
}

std::optional<std::uint64_t> find_snapshot_before(std::shared_ptr<const Version> parent,
                                                  History& history, const Context& context) {
  if (!parent) return 0;
  const std::uint64_t number = parent->number() + 1;
  try {
    for (auto version = std::move(parent);;) {
      if (version->manifest.snapshot) return version->number();
      if (version->manifest.snapshot_before) return version->manifest.snapshot_before;
      version = history.get(version->manifest.parent, context);
    }
  } catch (const Error& error) {
    if (error.code() == ErrorCode::cancelled || error.code() == ErrorCode::timed_out) throw;
    log_debug(
        fmt::format("version {} does not name the snapshot before it: {}", number, error.what()));
    return std::nullopt;
  }
}

Clock::duration pause_after(unsigned tries) {
  constexpr double kFirstSeconds = 0.02, kLongestSeconds = 1;
  std::random_device random;
  std::uniform_real_distribution<double> jitter(0.5, 1.5);
  const double seconds = std::min(kFirstSeconds * std::exp2(tries - 1), kLongestSeconds);
  return std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(seconds * jitter(random)));
}

}  // namespace weightfs
