#include "store/sync/make_early.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "store/base/error.hpp"
#include "store/base/path_rules.hpp"
#include "store/local/early_images.hpp"
#include "store/materialize/bases.hpp"
#include "store/materialize/image_files.hpp"
#include "store/materialize/plan.hpp"
#include "store/materialize/window_writer.hpp"
#include "store/materialize/write_version.hpp"
#include "store/sync/room_ahead.hpp"
#include "store/threads/background.hpp"

namespace weightfs {
namespace {

/// What a pass makes of a file.
struct Piece {
  EarlyRecord::File file;             // with the packs that the pass needs
  std::vector<PackRef> packs;         // all that the file is made by then
  const EarlyImage* begun = nullptr;  // that goes on; nullptr: a new one
  std::uint64_t end = 0;              // of the file; from where `begun` ends
  [[nodiscard]] std::uint64_t begin() const noexcept { return begun ? begun->made_bytes : 0; }
};

/// How much of a file can be made: windows are written whole, and chunks that reach beyond what is
/// coded are not known.
std::uint64_t end_of(const EarlyRecord::File& file, std::uint64_t size_bytes) {
  if (!file.coded_bytes || *file.coded_bytes >= size_bytes) return size_bytes;
  return *file.coded_bytes / kWindowBytes * kWindowBytes;
}

bool begins_with(std::span<const PackRef> packs, std::span<const PackRef> first) {
  return packs.size() >= first.size() && std::ranges::equal(packs.first(first.size()), first);
}

/// nullopt: it is here, or nothing can be made of it.
std::optional<Piece> piece_of(const EarlyRecord::File& file, const LayoutFile& known,
                              const EarlyImage* made) {
  Piece piece{file, file.delta.packs, nullptr, end_of(file, known.size_bytes)};
  if (made != nullptr && begins_with(piece.packs, made->packs)) {
    const bool is_here = made->packs.size() == piece.packs.size() && made->made_bytes >= piece.end;
    if (is_here) return std::nullopt;
    const bool goes_on = made->made_bytes > 0 && made->made_bytes < piece.end;
    if (goes_on) {
      piece.begun = made;
      // The last one has the chunk that reaches over the border.
      const auto old = static_cast<std::ptrdiff_t>(made->packs.size()) - 1;
      piece.file.delta.packs.erase(piece.file.delta.packs.begin(),
                                   piece.file.delta.packs.begin() + old);
    }
  }
  return piece.end > 0 ? std::optional(std::move(piece)) : std::nullopt;
}

class PiecesOfPass final : public BegunFiles {
 public:
  explicit PiecesOfPass(std::span<const Piece> pieces) : pieces_(pieces) {}

  [[nodiscard]] std::optional<Rest> rest_of(const LayoutFile& file,
                                            const std::filesystem::path& path,
                                            const ImageSeal& /*seal*/) const override {
    const auto is_it = [&](const Piece& piece) { return piece.file.path == file.path; };
    const Piece& piece = *std::ranges::find_if(pieces_, is_it);
    return Rest{piece.begun ? piece.begun->file : path, piece.begin(), piece.end};
  }

 private:
  const std::span<const Piece> pieces_;
};

class EarlyMaker {
 public:
  EarlyMaker(Store& store, History& history, const EarlyRecord& record,
             const kernels::SharedCoder& coder, OwnContext& own)
      : store_(store),
        history_(history),
        record_(record),
        coder_(coder),
        own_(own),
        context_(own.get()) {}

  EarlyMade run() {
    const std::uint64_t parent = record_.version - 1;
    if (!store_.images().has_all_files(parent)) return {};
    if (!store_.wanted_deltas().of({parent, record_.version}).empty()) return {};
    const Base base = base_of(store_, history_, parent, context_);
    if (base.version->manifest_sha256 != record_.parent_sha256) return {};
    const ImagesHome home = store_.images().home_of_next();
    auto pass = store_.early_images().begin(source(), home, store_.images().temporary_of(home),
                                            own_.source());
    if (!pass) return {};
    const std::vector<Piece> pieces = pieces_to_make(base, pass->set());
    if (pieces.empty()) return {};
    const auto reserved = reserve_base(store_, base, Eviction::Claim::stays, context_);
    if (!reserved || !make_room(base, pass->set(), home)) return {};
    return make(base, pieces, *pass);
  }

 private:
  [[nodiscard]] EarlySource source() const {
    EarlySource source{record_.version, record_.parent_sha256};
    for (const EarlyRecord::File& file : record_.files) {
      source.packs.insert(source.packs.end(), file.delta.packs.begin(), file.delta.packs.end());
    }
    return source;
  }

  /// Of what changed, and is not here made by the same packs.
  [[nodiscard]] std::vector<Piece> pieces_to_make(const Base& base, const EarlySet& set) const {
    std::vector<Piece> pieces;
    for (const EarlyRecord::File& file : record_.files) {
      const LayoutFile* const known = base.layout->find_file(file.path);
      if (known == nullptr || known->tensor_count == 0 || file.delta.packs.empty()) continue;
      const auto made = set.files.find(file.path);
      auto piece = piece_of(file, *known, made == set.files.end() ? nullptr : &made->second);
      if (piece) pieces.push_back(std::move(*piece));
    }
    return pieces;
  }

  /// For the whole version, since that follows.
  [[nodiscard]] bool make_room(const Base& base, const EarlySet& set, ImagesHome home) {
    const std::uint64_t bytes = base.layout->size_bytes(), there = set.size_bytes();
    if (home == ImagesHome::memory) {
      store_.evictor().evict_for_memory(bytes, bytes, there);
      return true;
    }
    if (store_.evictor().has_room_for_images(bytes, there)) return true;
    // What was in use when room was made ahead may go by now; and if not, it counts for nothing.
    // Deltas stay, though their bytes are counted as free there.
    const auto made = make_room_ahead(store_, record_.version - 1, there);
    return made && made->is_met && store_.evictor().has_free_bytes(bytes - std::min(bytes, there));
  }

  EarlyMade make(const Base& base, std::span<const Piece> pieces, EarlyImages::Pass& pass) {
    std::vector<EarlyRecord::File> files;
    std::uint64_t bytes = 0;
    for (const Piece& piece : pieces) {
      files.push_back(piece.file);
      bytes += piece.end - piece.begin();
    }
    const Plan plan = make_early_plan(history_, base, files, context_);
    const PiecesOfPass begun(pieces);
    WriteOptions options;
    options.directory = pass.directory();
    options.begun = &begun;
    options.spool = store_.temporary_directory();
    options.all_packs = true;
    options.sync = false;
    options.mode = 0600;  // its header may be written over
    options.coder = coder_;
    const auto fresh = coder_->writes_logs() ? store_.fresh_patches().begin(bytes)
                                             : std::shared_ptr<FreshChunks>();
    options.noted.fresh = fresh.get();
    write_version(plan, history_.repository(), options, context_, {});
    std::vector<EarlyImage> images;
    for (const Piece& piece : pieces) {
      images.push_back(image_of(piece, plan, options.directory, fresh));
    }
    for (std::size_t i = 0; i < pieces.size(); i++) {  // all or, if one is wrong, none
      pass.add(pieces[i].file.path, std::move(images[i]));
    }
    bound_notes(pass.set(), fresh.get());
    return {bytes, plan.fetch_bytes};
  }

  static EarlyImage image_of(const Piece& piece, const Plan& plan,
                             const std::filesystem::path& directory,
                             const std::shared_ptr<FreshChunks>& fresh) {
    const LayoutFile& its = *plan.layout->find_file(piece.file.path);
    const auto hashes = plan.layout->hashes_of(its, plan.hashes);
    EarlyImage image;
    image.file = piece.begun ? piece.begun->file : directory / its.path;
    image.size_bytes = its.size_bytes;
    image.made_bytes = piece.end;
    image.head = its.head;
    image.packs = piece.packs;
    image.hashes.assign(hashes.begin(), hashes.end());
    if (piece.begun) {
      keep_hashes(*piece.begun, *plan.layout, its, image.hashes);
      image.fresh = piece.begun->fresh;
    }
    image.fresh.push_back(fresh);
    return image;
  }

  /// Those of the chunks that were made before.  One that reaches over the border was made again,
  /// by the same pack if the record is right.
  /// Throws Error: corrupt.
  static void keep_hashes(const EarlyImage& begun, const Layout& layout, const LayoutFile& file,
                          std::span<std::uint64_t> hashes) {
    std::size_t k = 0;
    for (const LayoutTensor& tensor : layout.tensors_of(file)) {
      for (std::uint32_t i = 0; i < tensor.chunk_count; i++, k++) {
        const std::uint64_t chunk_begin = tensor.offset_bytes + tensor.chunk_offset_bytes(i);
        if (chunk_begin >= begun.made_bytes) return;
        const bool reaches_over = chunk_begin + tensor.chunk_size_bytes(i) > begun.made_bytes;
        if (reaches_over && hashes[k] != begun.hashes[k]) {
          throw Error(ErrorCode::corrupt,
                      fmt::format("the packs of '{}' are not in the order of its chunks",
                                  escape_name(file.path)));
        }
        hashes[k] = begun.hashes[k];
      }
    }
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
  OwnContext& own_;
  const Context& context_;
};

}  // namespace

EarlyMade make_early(Store& store, History& history, const EarlyRecord& record,
                     const kernels::SharedCoder& coder, const Context& context) {
  OwnContext own(context);
  return EarlyMaker(store, history, record, coder, own).run();
}

}  // namespace weightfs
