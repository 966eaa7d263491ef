#include "store/skips/make_skip.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/coding/delta_coder.hpp"
#include "store/format/pack_bytes.hpp"
#include "store/materialize/bases.hpp"
#include "store/materialize/materialize.hpp"
#include "store/materialize/patched_base.hpp"
#include "store/publish/old_version.hpp"
#include "store/publish/upload_names.hpp"
#include "store/repository/skips.hpp"
#include "store/skips/skip_rules.hpp"
#include "store/threads/parallel.hpp"

namespace weightfs {
namespace {

constexpr unsigned kSkipRepairs = 8;  // images and patches that may be found to be damaged

class SkipMaking {
 public:
  SkipMaking(Store& store, History& history, const VersionPair& versions,
             const MakeSkipOptions& options, const Context& context, const Progress& progress)
      : store_(store),
        history_(history),
        repository_(history.repository()),
        options_(options),
        context_(context),
        progress_(progress),
        from_(history.get(versions.from, context)),
        to_(history.get(versions.to, context)) {
    record_.repository = repository_.id();
    record_.versions = versions;
    record_.from_sha256 = from_->manifest_sha256;
    record_.to_sha256 = to_->manifest_sha256;
  }

  MadeSkip run();

 private:
  struct PackUpload {
    std::shared_ptr<const SpooledPack> pack;
    std::string head;
  };

  CodedDelta code();
  CodedDelta code_once();
  Base bring_from();
  std::optional<Base> find_from();
  void check_root(const Base& base) const;
  std::vector<PackUpload> name_packs(const CodedDelta& delta);
  void upload(const std::vector<PackUpload>& packs);
  void give_way() const {
    if (options_.before_batch) options_.before_batch(context_);
  }
  void remove_unnamed(const SkipRecord& there) noexcept;

  Store& store_;
  History& history_;
  Repository& repository_;
  const MakeSkipOptions& options_;
  const Context& context_;
  const Progress& progress_;
  const std::shared_ptr<const Version> from_, to_;
  Eviction::Reservation images_;  // that `from` is read from
  SkipRecord record_;
};

MadeSkip SkipMaking::run() {
  const CodedDelta delta = code();
  images_.give_up();
  const std::vector<PackUpload> packs = name_packs(delta);
  give_way();
  // Coding takes a while.
  if (auto there = find_skip(repository_, record_.versions, context_)) {
    return {std::move(*there), false, 0};
  }
  upload(packs);
  give_way();
  MadeSkip made{put_skip(repository_, record_, context_), false, pack_bytes(record_.delta)};
  made.is_new = made.record.nonce == record_.nonce;
  if (!made.is_new) remove_unnamed(made.record);
  if (made.is_new) made.uploaded_bytes += record_.serialize().size();
  return made;
}

// ---- coding ----

CodedDelta SkipMaking::code() {
  for (unsigned repairs = 0;; repairs++) {
    try {
      return code_once();
    } catch (const BaseDamaged& damaged) {
      images_.give_up();
      if (repairs == kSkipRepairs || !store_.evictor().discard_damaged(damaged.version())) throw;
      log_warning(fmt::format("{}; it is removed", damaged.what()));
    } catch (const PatchDamaged& damaged) {
      images_.give_up();
      if (repairs == kSkipRepairs || !drop_damaged_patches(store_, damaged)) throw;
    }
  }
}

CodedDelta SkipMaking::code_once() {
  const Base base = bring_from();
  check_root(base);
  const OldVersion content(store_, history_, to_, base, options_.coder, context_, progress_,
                           options_.claim);
  CodeOptions options;
  options.spool = store_.temporary_directory();
  options.threads = options_.threads;
  options.coder = options_.coder;
  options.pack_bytes = options_.pack_bytes;
  options.before_batch = options_.before_batch;
  return code_delta(content, base, options, context_, progress_);
}

/// `from` as a base whose images are reserved.
Base SkipMaking::bring_from() {
  for (;;) {
    context_.check("planning the skip delta");
    if (std::optional<Base> base = find_from()) {
      auto reserved = reserve_base(store_, *base, options_.claim, context_);
      if (!reserved) continue;  // evicted meanwhile
      images_ = std::move(*reserved);
      return std::move(*base);
    }
    if (!options_.may_materialize) {
      throw Error(
          ErrorCode::not_found,
          fmt::format("version {} is neither in the store {}, nor do its patches lead to it",
                      from_->number(), store_.path().string()));
    }
    images_ = store_.eviction().reserve(from_->number(), options_.claim, context_);
    const Progress reading = [this](std::string_view, std::uint64_t done, std::uint64_t total) {
      if (progress_) progress_("reading", done, total);
    };
    materialize(store_, history_, from_->number(), context_, reading, options_.coder);
  }
}

/// nullopt: neither images nor patches lead to it.
std::optional<Base> SkipMaking::find_from() {
  const std::uint64_t number = from_->number();
  if (store_.images().is_complete(number) && store_.images().has_all_files(number)) {
    return base_of(store_, history_, number, context_);
  }
  auto patched = find_sound_patched_base(store_, history_, number, {}, context_);
  if (!patched || patched->version->manifest_sha256 != from_->manifest_sha256) return std::nullopt;
  return patched;
}

/// What is coded against must be `from`: a reader has no other bytes.
void SkipMaking::check_root(const Base& base) const {
  if (root_of(base.hashes) == from_->manifest.root) return;
  const std::string why = fmt::format("do not have the root of version {}", from_->number());
  if (base.patched) throw PatchDamaged(std::nullopt, "patches of the store " + why);
  throw BaseDamaged(from_->number(), "the recorded hashes of its images " + why);
}

// ---- uploading ----

/// Enters the packs into the record, with names that follow from all their bytes.
std::vector<SkipMaking::PackUpload> SkipMaking::name_packs(const CodedDelta& delta) {
  if (root_of(delta.hashes) != to_->manifest.root) {
    throw Error(ErrorCode::io,
                fmt::format("version {} was coded with another root; nothing was uploaded.  Check "
                            "this machine's memory",
                            to_->number()));
  }
  record_.delta.changed_elements = delta.changed_elements;
  if (delta.needs_xr) record_.features = {std::string(kFeatureXr)};
  const std::string uploader = skip_uploader_of(store_);
  const auto nonce_of = [&](std::string_view what) {
    UploadNonce nonce(repository_, uploader, record_.versions.to);
    nonce.add(what);
    nonce.add(std::to_string(record_.versions.from));
    return nonce;
  };
  UploadNonce all = nonce_of("skip");
  all.add(record_.from_sha256);
  all.add(record_.to_sha256);
  std::vector<PackUpload> packs;
  for (const auto& pack : delta.packs) {
    PackUpload& upload = packs.emplace_back(PackUpload{pack, pack->writer.head(0)});
    PackRef ref = pack_ref(*pack, upload.head);
    all.add(ref.head_sha256);
    UploadNonce nonce = nonce_of("skip pack");
    nonce.add(ref.head_sha256);  // the header contains the hash of every piece of the data
    ref.name = fmt::format("{}-{}", nonce.finish(), record_.delta.packs.size());
    record_.delta.packs.push_back(std::move(ref));
  }
  record_.nonce = all.finish();
  return packs;
}

void SkipMaking::upload(const std::vector<PackUpload>& packs) {
  Bucket& bucket = repository_.bucket(context_);
  const std::uint64_t total = pack_bytes(record_.delta);
  std::atomic<std::uint64_t> done{0};
  parallel_for(packs.size(), request_threads(bucket, options_.threads), context_,
               [&](std::size_t i) {
                 give_way();
                 const PackRef& ref = record_.delta.packs[i];
                 const PackSource source(packs[i].head, *packs[i].pack);
                 bucket.put(keys::skip_pack(record_.versions, ref.name), source, context_);
                 const std::uint64_t now_done = done += ref.size_bytes;
                 if (progress_) progress_("uploading", now_done, total);
               });
}

/// Somebody else's record is there: our packs belong to none, unless it names them too.  Best
/// effort: gc removes what is left.
void SkipMaking::remove_unnamed(const SkipRecord& there) noexcept {
  try {
    for (const PackRef& pack : record_.delta.packs) {
      const bool is_named = std::ranges::any_of(
          there.delta.packs, [&](const PackRef& other) { return other.name == pack.name; });
      if (is_named) continue;
      repository_.bucket(context_).remove(keys::skip_pack(record_.versions, pack.name), context_);
    }
  } catch (const std::exception& error) {
    log_if_possible(LogLevel::warning, [&] {
      return fmt::format(
          "packs of the skip delta from version {} to {}, which another host made as well, are "
          "left in {}: {}",
          record_.versions.from, record_.versions.to, repository_.url(), error.what());
    });
  }
}

}  // namespace

std::optional<MadeSkip> make_skip(Store& store, History& history, const VersionPair& versions,
                                  const MakeSkipOptions& options, const Context& context,
                                  const Progress& progress) {
  if (versions.from == 0 || versions.from + 2 > versions.to) {
    throw Error(ErrorCode::invalid, fmt::format("a skip delta cannot lead from version {} to {}",
                                                versions.from, versions.to));
  }
  const GcLog retired = read_gc_log(history.repository(), context);
  if (!is_wanted(history, versions, retired, context)) return std::nullopt;
  if (auto there = find_skip(history.repository(), versions, context)) {
    return MadeSkip{std::move(*there), false, 0};
  }
  return SkipMaking(store, history, versions, options, context, progress).run();
}

}  // namespace weightfs
