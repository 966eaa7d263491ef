#include "store/materialize.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "store/adopt.hpp"
#include "store/log.hpp"
#include "store/plan.hpp"

namespace weightfs {
namespace {

bool is_stop(const Error& error) {
  return error.code() == ErrorCode::cancelled || error.code() == ErrorCode::timed_out;
}

std::vector<std::uint64_t> file_sizes(const Plan& plan) {
  std::vector<std::uint64_t> sizes;
  for (const auto& file : files_of(plan.version->manifest, *plan.layout)) {
    sizes.push_back(file.size_bytes);
  }
  return sizes;
}

/// The lock, with the version not partial: who fills it needs the lock in the end.
ImagesLock lock_when_not_partial(Store& store, std::uint64_t version, const Context& context) {
  for (;;) {
    store.wait_partial(version, context);
    ImagesLock lock = store.lock_images(context);
    if (!store.is_partial(version)) return lock;
  }
}

class Materializer {
 public:
  Materializer(Store& store, History& history, std::span<const std::uint64_t> keep,
               const std::function<bool(std::uint64_t)>& release, const Context& context,
               const Progress& progress, const kernels::SharedCoder& coder)
      : store_(store),
        history_(history),
        keep_(keep),
        release_(release),
        context_(context),
        progress_(progress),
        coder_(coder) {}

  void run(std::uint64_t version) {
    while (!store_.is_complete(version)) {
      const std::vector<Base> bases =
          usable_bases(store_, history_, version, distrusted_, context_);
      try {
        make(next_stop(history_.get(version, context_), bases), bases);
      } catch (const BaseDamaged& damaged) {
        if (!distrusted_.insert(damaged.version()).second) throw;
        drop(damaged);
      }
    }
  }

 private:
  /// The version to make now: `wanted`, or one on the way if that is too long for one pass.
  std::shared_ptr<const Version> next_stop(std::shared_ptr<const Version> wanted,
                                           std::span<const Base> bases) {
    const Way way = find_ways(history_, wanted, bases, context_).front();
    if (way.steps <= kStepsPerPass) return wanted;
    for (std::uint64_t ahead = kStepsPerPass; ahead > 0; ahead--) {
      const std::uint64_t number = way.start->number() + ahead;
      const bool is_begun = store_.is_complete(number) || store_.is_partial(number);
      if (!is_begun) return history_.get(number, context_);
    }
    return wanted;
  }

  void make(const std::shared_ptr<const Version>& version, std::span<const Base> bases) {
    const Plan plan = make_plan(history_, version, bases, context_);
    std::set<std::uint64_t> keep(keep_.begin(), keep_.end());
    if (plan.base) keep.insert(plan.base->version->number());
    const std::vector<std::uint64_t> kept(keep.begin(), keep.end());
    store_.make_room(plan.version_bytes(), kept, release_);
    try {
      WriteOptions options;
      options.directory = store_.begin_images(version->number());
      options.spool = store_.temporary_directory();
      options.coder = coder_;
      write_version(plan, history_.repository(), options, context_, progress_);
      store_.complete_images(version->number(), file_sizes(plan), plan.hashes);
    } catch (...) {
      remove_quietly(version->number());
      throw;
    }
  }

  void drop(const BaseDamaged& damaged) {
    const std::uint64_t number = damaged.version();
    log_error(fmt::format("{}; not building on it", damaged.what()));
    if (std::find(keep_.begin(), keep_.end(), number) != keep_.end()) return;
    if (release_ && !release_(number)) return;
    store_.remove_images(number);
  }

  void remove_quietly(std::uint64_t version) {
    try {
      store_.remove_images(version);
    } catch (const Error& error) {
      log_error(
          fmt::format("cannot remove what was written of version {}: {}", version, error.what()));
    }
  }

  Store& store_;
  History& history_;
  std::span<const std::uint64_t> keep_;
  const std::function<bool(std::uint64_t)>& release_;
  const Context& context_;
  const Progress& progress_;
  const kernels::SharedCoder& coder_;
  std::set<std::uint64_t> distrusted_;
};

}  // namespace

Base base_of(Store& store, History& history, std::uint64_t version, const Context& context) {
  Base base;
  base.version = history.get(version, context);
  base.layout = history.layout(*base.version, context);
  base.directory = store.image_directory(version);
  base.hashes = store.chunk_hashes(version);
  return base;
}

std::vector<Base> usable_bases(Store& store, History& history, std::uint64_t before,
                               const std::set<std::uint64_t>& distrusted, const Context& context) {
  std::vector<Base> bases;
  for (const std::uint64_t number : store.complete_versions()) {
    if (number >= before || distrusted.contains(number)) continue;
    try {
      bases.push_back(base_of(store, history, number, context));
    } catch (const Error& error) {
      if (is_stop(error)) throw;
      log_warning(
          fmt::format("version {} is here but cannot be built on: {}", number, error.what()));
    }
  }
  return bases;
}

void materialize(Store& store, History& history, std::uint64_t version,
                 std::span<const std::uint64_t> keep,
                 const std::function<bool(std::uint64_t)>& release, const Context& context,
                 const Progress& progress, const kernels::SharedCoder& coder) {
  if (store.is_complete(version)) return;
  const ImagesLock lock = lock_when_not_partial(store, version, context);
  Materializer(store, history, keep, release, context, progress, coder).run(version);
}

}  // namespace weightfs
