#include "store/materialize/adopt.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cassert>
#include <cerrno>
#include <map>
#include <set>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/format/version_images.hpp"
#include "store/local/image_times.hpp"
#include "store/materialize/bases.hpp"
#include "store/materialize/image_files.hpp"
#include "store/materialize/plan.hpp"

namespace weightfs {
namespace {

namespace stdfs = std::filesystem;

/// Complete versions from which the hashes can be derived.
std::vector<Base> bases_before(Store& store, History& history, std::uint64_t version,
                               const Context& context) {
  std::vector<Base> bases = usable_bases(store, history, version + 1, {}, context);
  for (Base& base : bases) base.absent.clear();  // only the hashes are used
  return bases;
}

/// Hard-links one file into the images.
class Adoption {
 public:
  Adoption(const VersionImages& images, stdfs::path source, stdfs::path into)
      : images_(images), source_(std::move(source)), into_(std::move(into)) {
    directories_.insert(into_);
  }

  void adopt(const VersionImages::File& file) {
    make_directory_of(file.path);
    const stdfs::path from = source_ / file.path, to = into_ / file.path;
    check(from, file);
    if (::link(from.c_str(), to.c_str()) != 0) {
      throw_errno(errno, fmt::format("link {} to {}", from.string(), to.string()));
    }
    seal(to);
  }

 private:
  void make_directory_of(const std::string& path) {
    for (auto slash = path.find('/'); slash != path.npos; slash = path.find('/', slash + 1)) {
      const stdfs::path directory = into_ / path.substr(0, slash);
      if (!directories_.insert(directory).second) continue;
      if (::mkdir(directory.c_str(), 0755) != 0) {
        throw_errno(errno, "make the directory " + directory.string());
      }
    }
  }

  static void check(const stdfs::path& from, const VersionImages::File& file) {
    struct stat found {};
    if (::lstat(from.c_str(), &found) != 0) throw_errno(errno, "look at " + from.string());
    if (!S_ISREG(found.st_mode) || static_cast<std::uint64_t>(found.st_size) != file.size_bytes) {
      throw Error(ErrorCode::invalid,
                  fmt::format("{} is not what was published: expected a file of {} bytes",
                              from.string(), file.size_bytes));
    }
    if (is_marked_lost(found)) {
      throw Error(ErrorCode::corrupt, "the disk did not take " + from.string());
    }
    if (!file.sha256 || hash_of_small_file(from, file.size_bytes) == file.sha256) return;
    throw Error(ErrorCode::corrupt,
                fmt::format("{} is not what was published: expected the SHA-256 {}", from.string(),
                            to_hex(*file.sha256)));
  }

  void seal(const stdfs::path& path) const {
    const File file = File::open(path, O_RDONLY | O_NOFOLLOW);
    if (::fchmod(file.fd(), 0444) != 0) throw_errno(errno, "set the mode of " + path.string());
    const timespec times[2] = {{images_.time, 0}, {images_.time, 0}};
    if (::futimens(file.fd(), times) != 0) throw_errno(errno, "set the time of " + path.string());
  }

  const VersionImages& images_;
  const stdfs::path source_, into_;
  std::set<stdfs::path> directories_;
};

}  // namespace

VersionImages images_of(History& history, Store& store, std::uint64_t version,
                        const Context& context) {
  const Plan plan = make_plan(history, history.get(version, context),
                              bases_before(store, history, version, context), context);
  VersionImages images;
  images.version = version;
  images.time = plan.version->manifest.time;
  images.files = files_of(plan.version->manifest, *plan.layout);
  images.chunk_hashes = plan.hashes;
  return images;
}

void adopt_images(Store& store, const VersionImages& images, const stdfs::path& source,
                  [[maybe_unused]] const ImagesLock& lock) {
  assert(lock);
  if (store.images().is_complete(images.version)) return;
  if (store.images().is_partial(images.version)) {
    throw Error(
        ErrorCode::busy,
        fmt::format("version {} is being filled from the bucket for a reader; it will be adopted "
                    "afterwards unless it is complete by then",
                    images.version));
  }
  try {
    Adoption adoption(images, source, store.images().begin_images(images.version));
    std::vector<std::uint64_t> sizes;
    for (const VersionImages::File& file : images.files) {
      adoption.adopt(file);
      sizes.push_back(file.size_bytes);
    }
    store.images().complete_images(images.version, sizes, images.chunk_hashes);
  } catch (...) {
    try {
      store.images().remove_images(images.version);
    } catch (const Error& error) {
      log_error(fmt::format("cannot remove adopted files of version {}: {}", images.version,
                            error.what()));
    }
    throw;
  }
}

}  // namespace weightfs
