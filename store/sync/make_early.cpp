#include "store/sync/make_early.hpp"

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "store/local/early_images.hpp"
#include "store/materialize/bases.hpp"
#include "store/materialize/early_version.hpp"
#include "store/materialize/plan.hpp"
#include "store/materialize/write_version.hpp"

namespace weightfs {
namespace {

class EarlyMaker {
 public:
  EarlyMaker(Store& store, History& history, const EarlyRecord& record,
             const kernels::SharedCoder& coder, const Context& context)
      : store_(store), history_(history), record_(record), coder_(coder), context_(context) {}

  EarlyMade run() {
    const std::uint64_t parent = record_.version - 1;
    if (!store_.images().has_all_files(parent)) return {};
    if (!store_.wanted_deltas().of({parent, record_.version}).empty()) return {};
    const Base base = base_of(store_, history_, parent, context_);
    if (base.version->manifest_sha256 != record_.parent_sha256) return {};
    const ImagesHome home = store_.images().home_of_next();
    auto pass = store_.early_images().begin(record_.version, record_.parent_sha256, home,
                                            store_.images().temporary_of(home));
    if (!pass) return {};
    const std::vector<EarlyRecord::File> files = files_to_make(base, pass->set());
    if (files.empty() || !has_room(base, pass->set(), home)) return {};
    const auto reserved = reserve_base(store_, base, Eviction::Claim::stays, context_);
    if (!reserved) return {};
    return make(base, files, *pass);
  }

 private:
  /// What changed, and is not here made by the same packs.
  [[nodiscard]] std::vector<EarlyRecord::File> files_to_make(const Base& base,
                                                             const EarlySet& set) const {
    std::vector<EarlyRecord::File> files;
    for (const EarlyRecord::File& file : record_.files) {
      const LayoutFile* const known = base.layout->find_file(file.path);
      if (known == nullptr || known->tensor_count == 0 || file.delta.packs.empty()) continue;
      const auto made = set.files.find(file.path);
      const bool is_here = made != set.files.end() && made->second.packs == file.delta.packs;
      if (!is_here) files.push_back(file);
    }
    return files;
  }

  /// For the whole version, since that follows.
  [[nodiscard]] bool has_room(const Base& base, const EarlySet& set, ImagesHome home) const {
    const std::uint64_t bytes = base.layout->size_bytes();
    if (home == ImagesHome::disk) {
      return store_.evictor().has_room_for_images(bytes, set.size_bytes());
    }
    store_.evictor().evict_for_memory(bytes, bytes, set.size_bytes());
    return true;
  }

  EarlyMade make(const Base& base, std::span<const EarlyRecord::File> files,
                 EarlyImages::Pass& pass) {
    const Plan plan = make_early_plan(history_, base, files, context_);
    std::uint64_t bytes = 0;
    for (const EarlyRecord::File& file : files)
      bytes += base.layout->find_file(file.path)->size_bytes;
    WriteOptions options;
    options.directory = pass.directory();
    options.spool = store_.temporary_directory();
    options.all_packs = true;
    options.sync = false;
    options.mode = 0600;  // its header may be written over
    options.coder = coder_;
    const auto fresh = coder_->writes_logs() ? store_.fresh_patches().begin(bytes)
                                             : std::shared_ptr<FreshChunks>();
    options.noted.fresh = fresh.get();
    write_version(plan, history_.repository(), options, context_, {});
    for (const EarlyRecord::File& file : files) {
      const LayoutFile& its = *base.layout->find_file(file.path);
      const auto hashes = plan.layout->hashes_of(its, plan.hashes);
      pass.add(file.path, {options.directory / file.path,
                           its.size_bytes,
                           its.head,
                           file.delta.packs,
                           {hashes.begin(), hashes.end()},
                           fresh});
    }
    bound_notes(pass.set(), fresh.get());
    return {bytes, plan.fetch_bytes};
  }

  /// Notes wait until the version comes, which may be never: those of all passes have what those of
  /// one version may have.
  static void bound_notes(const EarlySet& set, FreshChunks* fresh) {
    if (fresh == nullptr || set.noted_bytes() <= fresh_bytes_max(set.size_bytes())) return;
    fresh->give_up("files that were made early have too many");
  }

  Store& store_;
  History& history_;
  const EarlyRecord& record_;
  const kernels::SharedCoder& coder_;
  const Context& context_;
};

}  // namespace

EarlyMade make_early(Store& store, History& history, const EarlyRecord& record,
                     const kernels::SharedCoder& coder, const Context& context) {
  return EarlyMaker(store, history, record, coder, context).run();
}

}  // namespace weightfs
