#include "store/inspect/orphans.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "store/base/log.hpp"

namespace weightfs {
namespace {

/// The first components of a key: "packs/7/" has two.  The whole key if it has fewer.
std::string below(std::string_view key, int components) {
  std::size_t end = 0;
  for (int i = 0; i < components; i++) {
    const std::size_t slash = key.find('/', end);
    if (slash == key.npos) return std::string(key);
    end = slash + 1;
  }
  return std::string(key.substr(0, end));
}

}  // namespace

void OrphanFinder::note(std::uint64_t number, const Version* version) {
  if (version == nullptr) {
    unknown_.add(number);
    return;
  }
  const Manifest& manifest = version->manifest;
  named_.insert(keys::layout(manifest.layout.sha256));
  for (const BlobRef& blob : manifest.blobs) named_.insert(keys::blob(blob.sha256));
  if (manifest.delta) {
    for (const PackRef& pack : manifest.delta->packs) named_.insert(keys::pack(number, pack.name));
  }
  if (manifest.snapshot) named_.insert(keys::snapshot_file(number, manifest.snapshot->nonce, ""));
}

bool OrphanFinder::is_named(const std::string& key) const {
  // The manifest names a snapshot by its directory.
  const bool is_snapshot = key.starts_with(keys::kSnapshots);
  return named_.contains(is_snapshot ? below(key, 3) : key);
}

bool OrphanFinder::is_of_unknown_version(std::string_view key) const {
  const std::size_t slash = key.find('/') + 1;
  std::uint64_t number = 0;
  std::from_chars(key.data() + slash, key.data() + key.size(), number);
  return unknown_.contains(number);
}

std::vector<Orphans> OrphanFinder::find(Repository& repository,
                                        const std::set<std::string, std::less<>>& retired,
                                        const Context& context) const {
  std::vector<Orphans> orphans;
  try {
    Bucket& bucket = repository.bucket(context);
    for (const std::string_view prefix : {keys::kPacks, keys::kSnapshots}) {
      find_below(prefix, 2, bucket, retired, context, orphans);
    }
    find_below(keys::kParts, 2, bucket, retired, context, orphans);
    // Blobs and layouts may belong to a version that cannot be read.
    if (unknown_.empty()) {
      for (const std::string_view prefix : {keys::kBlobs, keys::kLayouts}) {
        find_below(prefix, 1, bucket, retired, context, orphans);
      }
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::permission) throw;
    log_debug(fmt::format("cannot look for orphans: {}", error.what()));
  }
  std::ranges::sort(orphans, {}, &Orphans::prefix);
  return orphans;
}

/// `components`: how many components the reported prefixes have.
void OrphanFinder::find_below(std::string_view prefix, int components, Bucket& bucket,
                              const std::set<std::string, std::less<>>& retired,
                              const Context& context, std::vector<Orphans>& into) const {
  std::map<std::string, Orphans> found;
  for (std::string after;;) {
    const std::vector<ObjectInfo> page = bucket.list_objects(prefix, after, context);
    if (page.empty()) break;
    after = page.back().key;
    for (const ObjectInfo& object : page) {
      const bool is_known = is_named(object.key) || is_of_unknown_version(object.key);
      if (is_known || retired.contains(object.key)) continue;
      Orphans& orphans = found[below(object.key, components)];
      orphans.objects++;
      orphans.bytes += object.size_bytes;
    }
  }
  for (auto& [name, orphans] : found) {
    orphans.prefix = name;
    into.push_back(std::move(orphans));
  }
}

}  // namespace weightfs
