#include "store/sync/history_files.hpp"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/materialize/image_files.hpp"
#include "store/os/file.hpp"

namespace weightfs {
namespace {

bool has_blob(const Version& version, const BlobRef& blob) {
  const auto& blobs = version.manifest.blobs;
  return std::any_of(blobs.begin(), blobs.end(), [&](const BlobRef& one) {
    return one.path == blob.path && one.sha256 == blob.sha256;
  });
}

class HistoryFiles {
 public:
  HistoryFiles(Store& store, History& history, const std::vector<Base>& sources,
               const Context& context)
      : store_(store), history_(history), sources_(sources), context_(context) {}

  std::set<Sha256> keep(const std::vector<std::uint64_t>& images) {
    for (const std::uint64_t number : images) {
      if (auto version = find(number)) here_.push_back(std::move(version));
    }
    bool is_newest = true;
    std::uint64_t bytes = 0;
    for (const std::uint64_t number : versions()) {
      const auto version = find(number);
      if (!version) continue;
      for (const BlobRef& blob : version->manifest.blobs) {
        if (is_everywhere(blob) || wanted_.contains(blob.sha256)) continue;
        bytes += blob.size_bytes;
        if (!is_newest && bytes > kHistoryFilesBytesMax) return std::move(wanted_);
        wanted_.insert(blob.sha256);
        keep(blob);
      }
      is_newest = false;
    }
    return std::move(wanted_);
  }

 private:
  /// To which patches lead, and those that are to be recorded; the newest first.
  [[nodiscard]] std::set<std::uint64_t, std::greater<>> versions() const {
    std::set<std::uint64_t, std::greater<>> numbers;
    for (const Base& source : sources_) numbers.insert(source.version->number());
    for (const SpanInfo& span : store_.patches().list()) {
      numbers.insert({span.ends.first.version, span.ends.last.version});
    }
    return numbers;
  }

  /// nullptr if it is not known here, and cannot be asked for.
  std::shared_ptr<const Version> find(std::uint64_t number) {
    try {
      return history_.get(number, context_);
    } catch (const Error&) {
      context_.check("looking for small files");
      return nullptr;
    }
  }

  /// Whatever images a plan begins with, they have it.
  [[nodiscard]] bool is_everywhere(const BlobRef& blob) const {
    return !here_.empty() && std::all_of(here_.begin(), here_.end(), [&](const auto& version) {
      return has_blob(*version, blob);
    });
  }

  void keep(const BlobRef& blob) {
    SmallFiles& kept = store_.small_files();
    const Base* const source = find_source(blob);
    if (source == nullptr) return;
    if (hash_of_small_file(kept.path_of(blob.sha256), blob.size_bytes) == blob.sha256) return;
    const std::string bytes = read_file(source->directory / blob.path, kBlobBytesMax);
    if (sha256(as_bytes(bytes)) == blob.sha256) kept.keep(blob.sha256, bytes);
  }

  [[nodiscard]] const Base* find_source(const BlobRef& blob) const {
    const auto found = std::find_if(sources_.begin(), sources_.end(), [&](const Base& source) {
      return has_blob(*source.version, blob);
    });
    return found == sources_.end() ? nullptr : &*found;
  }

  Store& store_;
  History& history_;
  const std::vector<Base>& sources_;
  const Context& context_;
  std::vector<std::shared_ptr<const Version>> here_;
  std::set<Sha256> wanted_;
};

}  // namespace

std::set<Sha256> keep_history_files(Store& store, History& history,
                                    const std::vector<std::uint64_t>& images,
                                    const std::vector<Base>& sources, const Context& context) {
  return HistoryFiles(store, history, sources, context).keep(images);
}

}  // namespace weightfs
