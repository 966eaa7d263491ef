#include "store/parts/part_union.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "store/base/error.hpp"
#include "store/base/json.hpp"
#include "store/base/path_rules.hpp"
#include "store/format/checkpoint.hpp"
#include "store/format/manifest.hpp"
#include "store/format/shard_index.hpp"

namespace weightfs {
namespace {

constexpr std::string_view kMadeIndex = "model.safetensors.index.json";

[[noreturn]] void refuse_union(const std::string& message) {
  throw Error(ErrorCode::invalid, message);
}

/// `directory`: without a slash at its end; empty: the version itself.
std::string path_in(std::string_view directory, std::string_view name) {
  return directory.empty() ? std::string(name) : fmt::format("{}/{}", directory, name);
}

bool is_shard(const LayoutFile& file) { return file.kind == LayoutFile::Kind::safetensors; }

/// A file of the layout, in its part.
struct OwnedFile {
  const FoundPart* part = nullptr;
  const LayoutFile* file = nullptr;
};

class Uniter {
 public:
  Uniter(const std::vector<FoundPart>& parts, const UnionParent& parent,
         const std::function<std::string(const BlobRef& blob)>& read_blob)
      : parts_(parts), parent_(parent), read_blob_(read_blob) {}

  PartUnion run() {
    check_parents();
    take_files();
    take_blobs();
    check_paths();
    check_tensors();
    make_layout();
    require_weights();
    choose_forms();
    place_hashes();
    check_indexes();
    make_indexes();
    take_meta();
    return std::move(made_);
  }

 private:
  void check_parents() const;
  void take_files();
  void take_blobs();
  void check_paths() const;
  void check_tensors() const;
  void make_layout();
  void require_weights() const;
  void choose_forms();
  [[nodiscard]] std::string parent_problem() const;
  void take_packs();
  void place_hashes();
  void check_indexes() const;
  void make_indexes();
  void make_index(const std::string& directory);
  void take_meta();

  const std::vector<FoundPart>& parts_;
  const UnionParent parent_;
  const std::function<std::string(const BlobRef& blob)>& read_blob_;
  std::map<std::string_view, OwnedFile> files_;                            // of the layout, by path
  std::map<std::string_view, std::pair<const BlobRef*, unsigned>> blobs_;  // and whose, by path
  PartUnion made_;
};

/// Whoever restores a bucket may leave records that follow a version that is no more.
void Uniter::check_parents() const {
  for (const FoundPart& part : parts_) {
    if (part.record.parent_sha256 == parent_.manifest_sha256) continue;
    refuse_union(
        fmt::format("part {} of version {} follows another version {} than the bucket has "
                    "now: publish again with a new token (--run)",
                    part.record.part, part.record.version, part.record.version - 1));
  }
}

void Uniter::take_files() {
  for (const FoundPart& part : parts_) {
    for (const LayoutFile& file : part.layout->files()) {
      const auto [entry, is_new] = files_.try_emplace(file.path, OwnedFile{&part, &file});
      if (is_new) continue;
      const std::string tensor =
          file.tensor_count == 0
              ? std::string()
              : fmt::format(" with the tensor '{}'",
                            escape_name(part.layout->tensors_of(file).front().name));
      refuse_union(
          fmt::format("{}{} is in parts {} and {}: each file of tensors must be in one "
                      "part; give the files of each rank names of their own",
                      file.path, is_shard(file) ? tensor : std::string(),
                      entry->second.part->record.part, part.record.part));
    }
  }
}

void Uniter::take_blobs() {
  for (const FoundPart& part : parts_) {
    for (const BlobRef& blob : part.record.blobs) {
      const auto [entry, is_new] = blobs_.try_emplace(blob.path, &blob, part.record.part);
      if (is_new || entry->second.first->sha256 == blob.sha256) continue;
      refuse_union(
          fmt::format("{} is in parts {} and {} with different bytes: it must be the same "
                      "in all parts, or in one part only",
                      blob.path, entry->second.second, part.record.part));
    }
  }
  for (const auto& [path, blob] : blobs_) made_.blobs.push_back(*blob.first);
}

/// No path twice, and none below another.
void Uniter::check_paths() const {
  std::vector<std::string_view> paths;
  for (const auto& [path, file] : files_) paths.push_back(path);
  for (const auto& [path, blob] : blobs_) {
    if (const auto file = files_.find(path); file != files_.end()) {
      refuse_union(fmt::format("{} is a small file in part {} and a file of tensors in part {}",
                               path, blob.second, file->second.part->record.part));
    }
    paths.push_back(path);
  }
  std::ranges::sort(paths);
  if (const std::string problem = paths_problem(paths); !problem.empty()) {
    refuse_union(fmt::format("the parts do not fit together: {}", problem));
  }
}

void Uniter::check_tensors() const {
  std::map<std::pair<std::string_view, std::string_view>, OwnedFile> seen;  // by directory and name
  for (const auto& [path, owned] : files_) {
    if (!is_shard(*owned.file)) continue;
    for (const LayoutTensor& tensor : owned.part->layout->tensors_of(*owned.file)) {
      const auto [entry, is_new] =
          seen.try_emplace({directory_of(path), std::string_view(tensor.name)}, owned);
      if (is_new) continue;
      const OwnedFile& other = entry->second;
      refuse_union(
          fmt::format("the tensor '{}' is in {} of part {} and in {} of part {}: a tensor "
                      "must be whole, and in one file of a directory.  If each rank has "
                      "a slice of it, gather it before it is saved",
                      escape_name(tensor.name), other.file->path, other.part->record.part, path,
                      owned.part->record.part));
    }
  }
}

void Uniter::make_layout() {
  std::vector<LayoutFile> files;
  for (const auto& [path, owned] : files_) files.push_back(*owned.file);
  made_.layout = Layout::of_files(std::move(files), "the files of all parts");
}

/// As of a version that one host publishes (Checkpoint::has_weights); before anybody is told to use
/// --snapshot.
void Uniter::require_weights() const {
  if (parent_.layout == nullptr) return;
  const auto is_included = [](const auto& file) { return !is_published(file.path, {}); };
  if (std::ranges::any_of(made_.layout->files(), is_shard)) return;
  if (std::ranges::any_of(made_.layout->files(), is_included)) return;
  if (std::ranges::any_of(made_.blobs, is_included)) return;
  if (std::ranges::none_of(parent_.layout->files(), is_shard)) return;
  refuse_union(fmt::format(
      "there are no weights in any part (*.safetensors), and version {} has some: save "
      "the whole checkpoint, or name its files of weights (--include GLOB), and publish "
      "all parts with a new token (--run) or tag",
      parts_.front().record.version - 1));
}

// ---- delta, snapshot ----

void Uniter::choose_forms() {
  const FoundPart *no_delta = nullptr, *no_snapshot = nullptr;
  for (const FoundPart& part : parts_) {
    if (!part.record.delta && no_delta == nullptr) no_delta = &part;
    if (!part.record.snapshot && no_snapshot == nullptr) no_snapshot = &part;
  }
  made_.snapshot = no_snapshot == nullptr;
  if (no_delta != nullptr && no_snapshot != nullptr) {
    refuse_union(fmt::format("part {} has only a snapshot and part {} only a delta: {}",
                             no_delta->record.part, no_snapshot->record.part, kSnapshotWay));
  }
  if (no_delta != nullptr) return;
  const std::string problem = parent_problem();
  if (problem.empty()) return take_packs();
  if (!made_.snapshot) refuse_union(fmt::format("{}: {}", problem, kSnapshotWay));
}

std::string Uniter::parent_problem() const {
  if (parent_.layout == nullptr) return "there is no parent for a delta";
  for (const LayoutFile& file : parent_.layout->files()) {
    if (files_.contains(file.path)) continue;
    return fmt::format("{}, which the version before has, is in no part", file.path);
  }
  return table_problem(*made_.layout, *parent_.layout);
}

void Uniter::take_packs() {
  made_.delta.emplace();
  std::set<std::string_view> names;
  for (const FoundPart& part : parts_) {
    made_.delta->changed_elements += part.record.delta->changed_elements;
    made_.needs_xr = made_.needs_xr || std::ranges::find(part.record.features, kFeatureXr) !=
                                           part.record.features.end();
    for (const PackRef& pack : part.record.delta->packs) {
      if (!names.insert(pack.name).second) {
        refuse_union(fmt::format("the pack {} is in two parts", pack.name));
      }
      made_.delta->packs.push_back(pack);
    }
  }
}

void Uniter::place_hashes() {
  for (const LayoutFile& file : made_.layout->files()) {
    const OwnedFile& owned = files_.at(file.path);
    const Layout& own = *owned.part->layout;
    for (const LayoutTensor& tensor : own.tensors_of(*owned.file)) {
      const auto first =
          owned.part->hashes.chunks.begin() + static_cast<std::ptrdiff_t>(tensor.first_chunk);
      made_.hashes.chunks.insert(made_.hashes.chunks.end(), first, first + tensor.chunk_count);
    }
    if (made_.snapshot) {
      made_.hashes.pieces.push_back(owned.part->hashes.pieces[own.number_of(*owned.file)]);
    }
  }
}

// ---- indexes ----

void Uniter::check_indexes() const {
  std::vector<ShardIndexes::File> files;
  for (const auto& [path, owned] : files_) {
    ShardIndexes::File& file =
        files.emplace_back(ShardIndexes::File{path, is_shard(*owned.file), {}});
    if (!file.is_shard) continue;
    for (const LayoutTensor& tensor : owned.part->layout->tensors_of(*owned.file)) {
      file.tensors.push_back(tensor.name);
    }
  }
  const ShardIndexes indexes(std::move(files), false);
  std::set<std::string_view> indexed;
  for (const BlobRef& blob : made_.blobs) {
    if (!is_shard_index(blob.path)) continue;
    indexed.merge(indexes.check(blob.path, read_blob_(blob), blob.path));
  }
  // An index that is made names what is there, and knows no better.
  indexes.check_names(indexed, "the version");
}

/// Where a directory has shards of several parts and no index, loaders would find only one of them.
void Uniter::make_indexes() {
  std::map<std::string, std::set<unsigned>> parts_in;
  for (const auto& [path, owned] : files_) {
    if (is_shard(*owned.file)) {
      parts_in[std::string(directory_of(path))].insert(owned.part->record.part);
    }
  }
  for (const BlobRef& blob : made_.blobs) {
    if (is_shard_index(blob.path)) parts_in.erase(std::string(directory_of(blob.path)));
  }
  for (const auto& [directory, parts] : parts_in) {
    if (parts.size() > 1) make_index(directory);
  }
}

void Uniter::make_index(const std::string& directory) {
  Json weight_map = Json::object();
  std::uint64_t bytes = 0;
  for (const auto& [path, owned] : files_) {
    if (!is_shard(*owned.file) || directory_of(path) != directory) continue;
    const std::string name(path.substr(path.rfind('/') + 1));
    for (const LayoutTensor& tensor : owned.part->layout->tensors_of(*owned.file)) {
      weight_map[tensor.name] = name;
      bytes += tensor.size_bytes;
    }
  }
  constexpr int kIndent = 2;  // as huggingface_hub writes it
  const std::string path = path_in(directory, kMadeIndex);
  std::string text =
      Json{{"metadata", {{"total_size", bytes}}}, {"weight_map", std::move(weight_map)}}.dump(
          kIndent) +
      "\n";
  if (text.size() > kBlobBytesMax) {
    refuse_union(
        fmt::format("{} would be larger than {} bytes, for which parts have no room: save "
                    "fewer, larger tensors",
                    path, kBlobBytesMax));
  }
  made_.indexes.emplace(path, std::move(text));
}

void Uniter::take_meta() {
  std::map<std::string_view, unsigned> whose;
  for (const FoundPart& part : parts_) {
    for (const auto& [key, value] : part.record.meta) {
      const auto [entry, is_new] = made_.meta.emplace(key, value);
      if (is_new) {
        whose.emplace(key, part.record.part);
      } else if (entry->second != value) {
        refuse_union(
            fmt::format("the metadata '{}' of part {} is '{}', and that of part {} is "
                        "'{}': give it on one part, or the same on all",
                        escape_name(key), whose[key], escape_name(entry->second), part.record.part,
                        escape_name(value)));
      }
    }
  }
}

}  // namespace

PartUnion unite_parts(const std::vector<FoundPart>& parts, const UnionParent& parent,
                      const std::function<std::string(const BlobRef& blob)>& read_blob) {
  return Uniter(parts, parent, read_blob).run();
}

std::string table_problem(const Layout& part, const Layout& parent) {
  for (const LayoutFile& file : part.files()) {
    const LayoutFile* const old = parent.find_file(file.path);
    if (old == nullptr) return fmt::format("{} is not in the version before", file.path);
    const auto now = part.tensors_of(file), before = parent.tensors_of(*old);
    for (std::size_t i = 0; i < std::max(now.size(), before.size()); i++) {
      if (i == now.size() || (i < before.size() && now[i].name != before[i].name)) {
        return fmt::format(
            "in {} the tensor '{}' of the version before is gone, or has another "
            "place",
            file.path, escape_name(before[i].name));
      }
      if (i == before.size()) {
        return fmt::format("in {} the tensor '{}' is new", file.path, escape_name(now[i].name));
      }
      if (now[i].dtype != before[i].dtype || now[i].shape != before[i].shape) {
        return fmt::format("in {} the tensor '{}' is {} [{}], and was {} [{}]", file.path,
                           escape_name(now[i].name), to_string(now[i].dtype),
                           fmt::join(now[i].shape, ", "), to_string(before[i].dtype),
                           fmt::join(before[i].shape, ", "));
      }
    }
  }
  return "";
}

void check_part_files(const Layout& part) {
  std::map<std::pair<std::string_view, std::string_view>, const LayoutFile*> seen;
  for (const LayoutFile& file : part.files()) {
    if (is_shard_index(file.path)) {
      refuse_union(
          fmt::format("the index {} has {} bytes; in a part it may have at most {}: leave "
                      "it out",
                      file.path, file.size_bytes, kBlobBytesMax));
    }
    if (!is_shard(file)) continue;
    for (const LayoutTensor& tensor : part.tensors_of(file)) {
      const auto [entry, is_new] =
          seen.try_emplace({directory_of(file.path), std::string_view(tensor.name)}, &file);
      if (is_new) continue;
      refuse_union(
          fmt::format("the tensor '{}' is in {} and in {}: in parts it must be in one file "
                      "of a directory",
                      escape_name(tensor.name), entry->second->path, file.path));
    }
  }
}

}  // namespace weightfs
