// EarlyImages: files of the next version that were made before its manifest was known, until that
// version takes them (store/materialize/early_version.hpp).
//
//     begin ... add ... end      a pass makes some files; further passes make more
//     claim ... put_rest         the version is being made now: it takes what fits
//     drop_until                 it is shown: the rest goes
//
// A pass that fails leaves nothing.
//
// They lie in a scratch directory, in the home of the images that come next: nobody sees them, and
// nothing of them is recorded, so a restart finds none.
//
// Only one version comes next, so there is one set of files.
//
// Threads: all calls may run in parallel; one pass at a time.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "store/base/context.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/base/sha256.hpp"
#include "store/format/object_refs.hpp"
#include "store/local/image_table.hpp"
#include "store/os/scratch_directory.hpp"
#include "store/patches/fresh_patches.hpp"

namespace weightfs {

/// A file, made from the parent's file of the same path; or its first bytes, while its writer goes
/// on.
struct EarlyImage {
  std::filesystem::path file;    // where it lies
  std::uint64_t size_bytes = 0;  // the header of the parent's file included
  std::uint64_t made_bytes = 0;  // what lies behind is to be made; at most size_bytes
  std::string head;              // the header of the parent's file
  std::vector<PackRef> packs;    // that it was made by
  /// Of the chunks that begin in what is made, compared when they were made; the others' say
  /// nothing.
  std::vector<std::uint64_t> hashes;
  /// What changed, of each pass that made some of it; nullptr: not noted.
  std::vector<std::shared_ptr<FreshChunks>> fresh = {};
};

/// The files of one version.
struct EarlySet {
  std::uint64_t version = 0;
  Sha256 parent_sha256{};  // of the manifest of the version before
  ImagesHome home{};
  ScratchDirectory directory;
  std::map<std::string, EarlyImage> files = {};  // by path
  unsigned passes = 0;                           // that were begun

  [[nodiscard]] std::uint64_t size_bytes() const;
  /// Of memory, for what changed.
  [[nodiscard]] std::uint64_t noted_bytes() const;
};

/// What a pass makes files of.
struct EarlySource {
  std::uint64_t version = 0;
  Sha256 parent_sha256{};
  std::vector<PackRef> packs = {};  // of all files, also of such as are there
};

class EarlyImages {
 public:
  /// Makes files; ends with the object, which removes them again unless they were added.
  class Pass {
   public:
    explicit Pass(EarlyImages& images) : images_(&images) {}
    ~Pass();
    Pass(Pass&& other) noexcept : images_(std::exchange(other.images_, nullptr)) {}
    Pass& operator=(Pass&&) = delete;

    /// The set as it was when the pass began; nobody else changes it meanwhile.
    [[nodiscard]] const EarlySet& set() const { return *images_->set_; }
    /// An empty directory for the files of this pass.
    [[nodiscard]] std::filesystem::path directory() const;
    /// Replaces a file of this path, or says that it goes on.  Of one that is replaced, what was
    /// noted is not true of the version: the pass that noted it loses its notes.
    void add(std::string path, EarlyImage image);

   private:
    void remove_files() noexcept;

    EarlyImages* images_;
    bool has_added_ = false;
  };

  /// Begins a pass; files of another version, or of another parent, go.
  /// `temporary`: of `home` (ImageTable::temporary_of).
  /// `stop`: of the pass, when a version comes to which it is of no use.
  /// Returns: nullopt if a pass is running, or if the version was claimed.
  /// Throws Error: io, no_space.
  std::optional<Pass> begin(EarlySource source, ImagesHome home,
                            const std::filesystem::path& temporary, std::stop_source stop);

  /// Waits for the pass that is running, for half a minute; no other pass for the version begins
  /// from now on.  `packs`: that the version is made of.  A pass that works on others, or for an
  /// earlier version, is stopped.
  /// Returns: the files of the version; nullptr: there are none, or a pass does not end.  What
  /// there is of earlier ones goes with the rest.
  /// Throws Error: cancelled, timed_out.
  std::unique_ptr<EarlySet> claim(std::uint64_t version, std::span<const PackRef> packs,
                                  const Context& context);

  /// What a version claimed and did not take goes when it is shown, even if that is nothing but
  /// empty directories: to remove one, the kernel may wait for its file system's journal.  `set`
  /// may be null.
  void put_rest(std::unique_ptr<EarlySet> set);

  /// Somebody needs the room: all go; while a pass is running, only the rest.
  /// Returns: whether there was anything.
  bool drop() noexcept;
  /// Files of versions up to this one, which are here, go, unless a pass is running: nobody claims
  /// them any more.  So does the rest of what was claimed.
  void drop_until(std::uint64_t version) noexcept;

  /// Room of all files that are waiting, also of such as are begun.
  [[nodiscard]] std::uint64_t size_bytes() const;

  /// Bytes that versions took since the store was opened.
  [[nodiscard]] std::uint64_t taken_bytes() const;
  void note_taken(std::uint64_t bytes);

 private:
  void claim_pass(std::uint64_t version, std::span<const PackRef> packs);
  [[nodiscard]] bool is_claimed(std::uint64_t version) const;
  void end_pass() noexcept;

  mutable RankedMutex mutex_{LockRank::leaf, "EarlyImages::mutex_"};  // guards what follows
  std::condition_variable_any changed_;
  bool is_running_ = false;    // a pass; set_ stays as long
  EarlySource source_;         // of the last pass
  std::stop_source stop_;      // likewise
  std::uint64_t claimed_ = 0;  // the newest version that was claimed
  std::unique_ptr<EarlySet> set_;
  std::vector<std::unique_ptr<EarlySet>> rest_;
  std::uint64_t taken_bytes_ = 0;
};

}  // namespace weightfs
