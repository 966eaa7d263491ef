#include "store/materialize/materialize.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "store/base/log.hpp"
#include "store/format/version_images.hpp"
#include "store/local/sync_images.hpp"
#include "store/materialize/bases.hpp"
#include "store/materialize/early_version.hpp"
#include "store/materialize/file_filter.hpp"
#include "store/materialize/image_files.hpp"
#include "store/materialize/patched_base.hpp"
#include "store/materialize/plan.hpp"
#include "store/materialize/write_version.hpp"
#include "store/os/file.hpp"
#include "store/os/scratch_directory.hpp"
#include "store/repository/pieces.hpp"
#include "store/sparse/ahead_deltas.hpp"

namespace weightfs {
namespace {

/// The files not to build, for a host that lacks `absent` and wants all files but `unwanted`.
FileSet all_but_missing(const Layout& layout, const FileSet& absent, const FileSet& unwanted) {
  FileSet without(layout.files().size());
  for (std::uint32_t i = 0; i < without.size(); i++) {
    without[i] = !contains(absent, i) || contains(unwanted, i);
  }
  return without;
}

std::vector<std::uint64_t> file_sizes(const Plan& plan) {
  std::vector<std::uint64_t> sizes;
  for (const auto& file : files_of(plan.version->manifest, *plan.layout)) {
    sizes.push_back(file.size_bytes);
  }
  return sizes;
}

/// Whether all files of a version are made from all files of an older one.
bool has_whole_ends(const Plan& plan) {
  if (!plan.base || plan.steps.empty() || !plan.without.empty()) return false;
  if (!plan.base->absent.empty()) return false;
  return plan.base->version->number() < plan.version->number();
}

/// How many elements of each chunk a step changes.
std::vector<std::uint32_t> counts_of(const Step& step) {
  std::vector<std::uint32_t> counts(step.layout->chunk_count());
  for (const auto& pack : step.packs) {
    for (const PackChunk& chunk : pack->chunks()) {
      counts[step.layout->tensors()[chunk.tensor].first_chunk + chunk.chunk] = chunk.changed;
    }
  }
  return counts;
}

/// Takes the lock once the version is not partial: whoever fills it needs the lock to finish.
ImagesLock lock_when_not_partial(Store& store, std::uint64_t version, const Context& context) {
  for (;;) {
    store.images().wait_partial(version, context);
    ImagesLock lock = store.images().lock_images(context);
    if (!store.images().is_partial(version)) return lock;
  }
}

class Materializer {
 public:
  Materializer(Store& store, History& history, const Context& context, const Progress& progress,
               const kernels::SharedCoder& coder, const std::vector<std::string>& only,
               VersionWatch* watch)
      : store_(store),
        history_(history),
        context_(context),
        progress_(progress),
        coder_(coder),
        only_(only),
        watch_(watch) {}

  void run(std::uint64_t version) {
    while (!is_here(version)) {
      std::vector<Base> bases = usable_bases(store_, history_, version, distrusted_, context_);
      if (std::optional<Base> patched = find_patched(version)) bases.push_back(std::move(*patched));
      with_damage_dropped([&] { approach(history_.get(version, context_), bases); });
    }
  }

  /// Returns: false if patches do not lead to the version.
  bool run_without_bucket(std::uint64_t version) {
    while (!is_here(version)) {
      // What lacks files is completed otherwise.
      if (store_.images().is_complete(version)) return false;
      const std::optional<Base> base = find_patched(version);
      if (!base || base->version->number() != version) return false;
      const auto wanted = history_.get(version, context_);
      bool has_all = true;
      with_damage_dropped([&] {
        const Plan plan = make_plan(history_, wanted, {&*base, 1}, context_,
                                    {.without = left_out(*base->layout, only_)});
        has_all = has_equal_blobs(plan);
        if (has_all) make(plan);
      });
      if (!has_all) return false;
    }
    return true;
  }

 private:
  template <typename Body>
  void with_damage_dropped(Body&& body) {
    try {
      body();
    } catch (const BaseDamaged& damaged) {
      if (!distrusted_.insert(damaged.version()).second) throw;
      drop(damaged);
    } catch (const PatchDamaged& damaged) {
      if (!uses_patches_) throw;
      uses_patches_ = drop_damaged_patches(store_, damaged);
    } catch (const ObjectError& missing) {
      const bool was_writing = std::exchange(is_writing_, false);
      if (history_.skips().leave_out_cause(missing)) return;  // the next plan does without it
      // gc may have removed it after it was planned with: the next plan finds another way, or the
      // error for the user.
      const bool is_new = was_writing && missing.code() == ErrorCode::not_found;
      if (!is_new || replans_++ == kReplansMax) throw;
      log_info(fmt::format("{}; planning again", missing.what()));
    }
  }

  std::optional<Base> find_patched(std::uint64_t version) {
    if (!uses_patches_) return std::nullopt;
    return find_sound_patched_base(store_, history_, version, distrusted_, context_);
  }

  [[nodiscard]] bool is_here(std::uint64_t version) const {
    return has_kept_files(store_, history_, version, only_, context_);
  }

  /// Builds `wanted`, or a version on the way there.  If gc removed that way, its base is not used
  /// again: a version that is left can be built from a snapshot.
  void approach(const std::shared_ptr<const Version>& wanted, std::span<const Base> bases) {
    const auto [stop, base] = next_stop(wanted, bases);
    try {
      make(stop, bases);
    } catch (const Error& error) {
      const bool is_detour = stop->number() != wanted->number() && base != nullptr;
      if (!is_detour || error.code() != ErrorCode::not_found) throw;
      log_info(
          fmt::format("{}; going to version {} by another way", error.what(), wanted->number()));
      if (base->patched) uses_patches_ = false;
      distrusted_.insert(base->version->number());
    }
  }

  struct Stop {
    std::shared_ptr<const Version> version;
    const Base* base = nullptr;  // that the way there begins at
  };

  /// The version to build now: `wanted`, or one on the way if that is too far for one pass.
  Stop next_stop(const std::shared_ptr<const Version>& wanted, std::span<const Base> bases) {
    const ReconstructionPath path = find_path(history_, wanted, bases, context_);
    if (path.way.hops.size() <= kStepsPerPass) return {wanted, path.base};
    for (std::size_t step = kStepsPerPass; step > 0; step--) {
      const std::uint64_t number = path.way.hops[step - 1].versions.to;
      const bool is_begun = is_here(number) || store_.images().is_partial(number);
      if (!is_begun) return {history_.get(number, context_), path.base};
    }
    return {wanted, path.base};
  }

  void make(const std::shared_ptr<const Version>& version, std::span<const Base> bases) {
    const auto layout = history_.layout(*version, context_);
    const FileSet unwanted = left_out(*layout, only_);
    if (store_.images().is_complete(version->number()))
      return fill(version, *layout, unwanted, bases);
    const PackReads reads = unwanted.empty() ? PackReads::with_data : PackReads::headers;
    make(make_plan(history_, version, bases, context_, {.without = unwanted, .reads = reads}));
  }

  void make(const Plan& plan) {
    const std::uint64_t version = plan.version->number();
    const auto base = reserve_base(store_, plan, Eviction::Claim::stays, context_);
    lap(watch_, &VersionTiming::plan);
    if (!base) return;
    const ImagesHome home = store_.images().home_of_next();
    EarlyVersion early(plan, claim_early(plan, home));
    const std::uint64_t room = bytes_to_write(plan, home);
    give_up_useless(room, home, early);
    evict_for(plan, room, 0, home, early.size_bytes());
    try {
      const std::shared_ptr<FreshChunks> fresh = begin_fresh(plan);
      const auto ahead = begin_ahead(plan, home, room);
      write(plan, store_.images().begin_images(version, home), {fresh.get(), ahead.get()}, &early);
      store_.images().complete_images(version, file_sizes(plan), plan.hashes,
                                      by_path(plan.version->manifest, *plan.layout, plan.without));
      put_fresh(plan, fresh, early);
      complete_ahead(plan, ahead.get());
      store_.early_images().put_rest(early.release());
      lap(watch_, &VersionTiming::record);
    } catch (...) {
      remove_quietly(version);
      throw;
    }
  }

  /// Files of the version that were made before its manifest was known.  Where somebody wants the
  /// delta to it, all is made now: the delta is made of what is decoded.
  std::unique_ptr<EarlySet> claim_early(const Plan& plan, ImagesHome home) {
    // What leads further than a step, or by a skip, has no use for packs of a step.
    const bool is_step = plan.steps.size() == 1 && !plan.steps.front().skip;
    const auto packs = is_step ? std::span<const PackRef>(plan.steps.front().delta().packs)
                               : std::span<const PackRef>();
    auto early = store_.early_images().claim(plan.version->number(), packs, context_);
    if (early && plan.base && early->home == home) {
      const VersionPair versions{plan.base->version->number(), plan.version->number()};
      if (store_.wanted_deltas().of(versions).empty()) return early;
    }
    store_.early_images().put_rest(std::move(early));
    return nullptr;
  }

  /// The room of what was made early and does not fit is the version's, before any other's.
  /// `bytes`: to come.
  void give_up_useless(std::uint64_t bytes, ImagesHome home, EarlyVersion& early) {
    if (early.size_bytes() == 0) {
      store_.early_images().put_rest(early.release());  // it goes if there is no room
    } else if (home == ImagesHome::memory ||
               !store_.evictor().has_room_for_images(bytes, early.size_bytes())) {
      early.remove_rest();
    }
  }

  [[nodiscard]] std::uint64_t bytes_to_write(const Plan& plan, ImagesHome home) const {
    return plan.version_bytes() - linked_bytes(plan, store_.images().directory_of(home));
  }

  /// Adds missing files to a complete version.
  void fill(const std::shared_ptr<const Version>& version, const Layout& layout,
            const FileSet& unwanted, std::span<const Base> bases) {
    FileSet absent = absent_files(store_, *version, layout);
    const FileSet without = all_but_missing(layout, absent, unwanted);
    const Plan plan = make_plan(history_, version, bases, context_, {.without = without});
    const auto base = reserve_base(store_, plan, Eviction::Claim::stays, context_);
    lap(watch_, &VersionTiming::plan);
    if (!base) return;
    const std::uint64_t had = layout.size_bytes() - bytes_of(layout, absent);
    const ImagesHome home = store_.images().home_of(version->number());
    evict_for(plan, bytes_to_write(plan, home), had, home, 0);
    const ScratchDirectory scratch(store_.images().temporary_of(home), "files-");
    write(plan, scratch.path());
    std::vector<std::string> added;
    for (std::uint32_t i = 0; i < absent.size(); i++) {
      if (contains(without, i)) continue;
      added.push_back(layout.files()[i].path);
      absent[i] = false;
    }
    const std::filesystem::path directory = store_.images().image_directory(version->number());
    for (const std::string& path : added) sync_image(scratch.path() / path, context_);
    store_.images().announce_files(version->number(), added);
    try {
      for (const std::string& path : added) move_in(scratch.path() / path, directory, path);
      sync_directories(directory, added);
      store_.images().complete_images(version->number(), file_sizes(plan), plan.hashes,
                                      by_path(version->manifest, layout, absent));
      lap(watch_, &VersionTiming::record);
    } catch (...) {
      std::error_code ignored;
      for (const std::string& path : added) std::filesystem::remove(directory / path, ignored);
      throw;
    }
  }

  /// Moves a whole file to its name.
  static void move_in(const std::filesystem::path& from, const std::filesystem::path& directory,
                      const std::string& path) {
    std::filesystem::create_directories((directory / path).parent_path());
    std::filesystem::rename(from, directory / path);
  }

  /// Makes the names of files below a directory durable.
  static void sync_directories(const std::filesystem::path& directory,
                               const std::vector<std::string>& paths) {
    std::set<std::filesystem::path> above{directory};
    for (const std::string& path : paths) {
      for (auto at = (directory / path).parent_path(); at != directory; at = at.parent_path()) {
        above.insert(at);
      }
    }
    for (const std::filesystem::path& each : above) fsync_directory(each);
  }

  /// `bytes`: to come.  `had_bytes`: size of what the version already has.  `early_bytes`: of files
  /// that have their room, and count for nothing yet.
  void evict_for(const Plan& plan, std::uint64_t bytes, std::uint64_t had_bytes, ImagesHome home,
                 std::uint64_t early_bytes) {
    const std::uint64_t version_bytes = plan.version_bytes() + had_bytes;
    if (home == ImagesHome::memory) {
      store_.evictor().evict_for_memory(bytes, version_bytes, early_bytes);
    } else {
      store_.evictor().evict_for_images(bytes, version_bytes, early_bytes);
    }
    lap(watch_, &VersionTiming::room);
  }

  /// nullptr: nobody wants it, or the changes of a build by this plan cannot be noted.
  std::shared_ptr<FreshChunks> begin_fresh(const Plan& plan) {
    if (!plan.base || plan.steps.empty() || !plan.without.empty()) return nullptr;
    if (!plan.base->absent.empty() || !coder_->writes_logs()) return nullptr;
    return store_.fresh_patches().begin(plan.version_bytes());
  }

  void put_fresh(const Plan& plan, const std::shared_ptr<FreshChunks>& fresh,
                 const EarlyVersion& early) {
    std::optional<std::vector<FreshPart>> parts = early.noted();
    if (!fresh || !parts) return;
    parts->push_back({fresh, 0});
    const auto end_of = [](const Version& version, std::shared_ptr<const Layout> layout) {
      return FreshEnd{{version.number(), version.manifest_sha256}, std::move(layout)};
    };
    store_.fresh_patches().put(
        std::make_unique<FreshSpan>(end_of(*plan.base->version, plan.base->layout),
                                    end_of(*plan.version, plan.layout), std::move(*parts)));
  }

  /// nullptr: nobody wants the delta from the base to the version, or it is made on demand.
  std::unique_ptr<AheadDeltas> begin_ahead(const Plan& plan, ImagesHome home,
                                           std::uint64_t coming_bytes) {
    if (!has_whole_ends(plan) || !coder_->writes_logs()) return nullptr;
    DeltaEnds ends{{plan.base->version->number(), plan.version->number()},
                   plan.base->layout,
                   plan.layout,
                   plan.base->hashes,
                   plan.hashes,
                   plan.version->manifest.time};
    std::vector<DeltaId> ids = store_.wanted_deltas().of(ends.versions);
    if (ids.empty()) return nullptr;
    if (plan.steps.size() == 1) ends.counts = counts_of(plan.steps.front());
    ends.home = home;
    ends.coming_bytes = coming_bytes;
    return AheadDeltas::begin(store_, std::move(ends), std::move(ids));
  }

  void complete_ahead(const Plan& plan, AheadDeltas* ahead) {
    if (auto unfinished = ahead != nullptr ? ahead->complete() : nullptr) {
      store_.wanted_deltas().put_unfinished(std::move(unfinished));
    }
    if (!plan.base || plan.steps.empty()) return;
    store_.wanted_deltas().note_made({plan.base->version->number(), plan.version->number()});
  }

  void write(const Plan& plan, const std::filesystem::path& directory,
             const NotedChanges& noted = {}, const EarlyVersion* early = nullptr) {
    is_writing_ = true;
    WriteOptions options;
    options.directory = directory;
    options.spool = store_.temporary_directory();
    options.coder = coder_;
    options.sync = false;  // after the flip: store/sync/image_syncer.hpp
    options.noted = noted;
    options.begun = early;
    if (watch_ != nullptr) options.meter = watch_->meter.get();
    write_version(plan, history_.repository(), options, context_, progress_);
    is_writing_ = false;
    if (watch_ != nullptr) note_origin(plan, watch_->timing);  // not of a way that was left
    if (early != nullptr) note_early(early->made_bytes());
    lap(watch_, &VersionTiming::build);
  }

  void note_early(std::uint64_t bytes) {
    store_.early_images().note_taken(bytes);
    if (watch_ != nullptr) watch_->timing.early_bytes += bytes;
  }

  void drop(const BaseDamaged& damaged) {
    const std::uint64_t number = damaged.version();
    log_error(fmt::format("{}; not using it as a base", damaged.what()));
    static_cast<void>(store_.evictor().discard_damaged(number));
    store_.images().remove_leftovers();  // there may be no room for another while it is there
  }

  void remove_quietly(std::uint64_t version) {
    try {
      store_.images().remove_images(version);
    } catch (const Error& error) {
      log_error(fmt::format("cannot remove files of version {}: {}", version, error.what()));
    }
  }

  Store& store_;
  History& history_;
  const Context& context_;
  const Progress& progress_;
  const kernels::SharedCoder& coder_;
  const std::vector<std::string>& only_;
  VersionWatch* const watch_;
  std::set<std::uint64_t> distrusted_;
  bool uses_patches_ = true;
  bool is_writing_ = false;  // objects that a plan named are being read
  int replans_ = 0;
};

}  // namespace

void materialize(Store& store, History& history, std::uint64_t version, const Context& context,
                 const Progress& progress, const kernels::SharedCoder& coder,
                 const std::vector<std::string>& only, VersionWatch* watch) {
  if (has_kept_files(store, history, version, only, context)) return;
  const auto making = store.eviction().reserve(version, Eviction::Claim::stays, context);
  const ImagesLock lock = lock_when_not_partial(store, version, context);
  lap(watch, &VersionTiming::wait);
  Materializer(store, history, context, progress, coder, only, watch).run(version);
}

bool materialize_from_patches(Store& store, History& history, std::uint64_t version,
                              const Context& context, const Progress& progress,
                              const kernels::SharedCoder& coder,
                              const std::vector<std::string>& only, VersionWatch* watch) {
  if (store.patches().list().empty()) return false;
  const auto making = store.eviction().reserve(version, Eviction::Claim::stays, context);
  const ImagesLock lock = lock_when_not_partial(store, version, context);
  lap(watch, &VersionTiming::wait);
  return Materializer(store, history, context, progress, coder, only, watch)
      .run_without_bucket(version);
}

}  // namespace weightfs
