#include "fs/fuse/tree.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "store/base/error.hpp"
#include "store/format/manifest.hpp"

namespace weightfs::fs {
namespace {

// How many seconds the kernel may cache an answer.  The content of a version never changes; the set
// of versions changes slowly; the targets of `latest` and the tags must always be looked up.
constexpr double kForever = 86400;
constexpr double kSlow = 1;
constexpr double kAlwaysAsk = 0;

// Directory offsets: "." and ".." first; then, added to kFirst, the number of a member of the fixed
// part, the version of a version or tag, or the entry number of a file.
constexpr std::uint64_t kFirst = 2;

constexpr std::uint32_t kLinkMode = 0777;

struct FixedName {
  Fixed parent;
  std::string_view name;
  Fixed inode;
  std::uint32_t type;
  bool is_writers = false;  // only on a writer's mount
};
constexpr FixedName kFixedNames[] = {
    {Fixed::root, "latest", Fixed::latest, S_IFLNK},
    {Fixed::root, "versions", Fixed::versions, S_IFDIR},
    {Fixed::root, "tags", Fixed::tags, S_IFDIR},
    {Fixed::root, ".weightfs", Fixed::control, S_IFDIR},
    {Fixed::control, "status", Fixed::status, S_IFREG},
    {Fixed::root, "staging", Fixed::staging, S_IFDIR, true},
    {Fixed::root, "publish", Fixed::publish, S_IFDIR, true},
    {Fixed::control, "last_error", Fixed::last_error, S_IFREG, true},
    {Fixed::root, "deltas", Fixed::deltas, S_IFDIR},
    {Fixed::control, "advice", Fixed::advice, S_IFREG},
    {Fixed::control, "health", Fixed::health, S_IFREG},
};
constexpr std::string_view kDeltaSuffix = ".safetensors", kWithOldSuffix = ".with-old";
constexpr std::uint64_t kFirstDelta = 2;                // version 1 has no predecessor
constexpr std::uint32_t kWritersMode = S_IFDIR | 0755;  // Staging knows the actual mode

[[noreturn]] void throw_unknown(Inode inode) {
  throw Error(ErrorCode::not_found, "inode " + std::to_string(inode) + " is not in the mount");
}

[[noreturn]] void throw_no_name(std::string_view name) {
  throw Error(ErrorCode::not_found, "there is no '" + std::string(name) + "'");
}

[[noreturn]] void throw_no_directory(Inode inode) {
  throw Error(ErrorCode::invalid, "inode " + std::to_string(inode) + " is not a directory");
}

// A number beyond the enumerators becomes one that no case handles.
Fixed fixed_of(Inode inode) {
  return static_cast<Fixed>(std::min<Inode>(inode, make_inode(Fixed::health) + 1));
}

// Accepts only the spelling that readdir shows: "42", not "042" or "+42".
std::optional<std::uint64_t> parse_version(std::string_view name) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc{} || end != name.data() + name.size() || name.front() == '0') return {};
  return number;
}

Inode version_inode(std::uint64_t version, std::uint32_t entry) {
  return make_inode({InodeKind::version, version, entry});
}

// What a mount has besides the versions.
struct Parts {
  bool is_writer = false;
  bool has_deltas = false;

  [[nodiscard]] bool has(const FixedName& name) const {
    return (is_writer || !name.is_writers) && (has_deltas || name.inode != Fixed::deltas);
  }
};

bool has_delta(const Catalog& catalog, VersionPair versions) {
  const auto [before, behind] = std::minmax(versions.from, versions.to);
  return before > 0 && before < behind && behind <= catalog.latest &&
         behind - before <= kDeltaDistanceMax;
}

// "42.safetensors" is the change to 42, "40-42.safetensors" that from 40 to 42; with the old values
// it is "40-42.with-old.safetensors", in this form only.
// Returns: nullopt if the name is not a delta's, or a version does not exist.
std::optional<DeltaId> parse_delta(const Catalog& catalog, std::string_view name) {
  if (!name.ends_with(kDeltaSuffix)) return {};
  name.remove_suffix(kDeltaSuffix.size());
  const bool with_old = name.ends_with(kWithOldSuffix);
  if (with_old) name.remove_suffix(kWithOldSuffix.size());
  const std::size_t dash = name.find('-');
  const auto to = parse_version(name.substr(dash + 1));  // npos + 1 is 0
  const auto from = dash == name.npos ? std::nullopt : parse_version(name.substr(0, dash));
  if (!to || ((with_old || dash != name.npos) && !from)) return {};
  const VersionPair versions = from ? VersionPair{*from, *to} : step_to(*to);
  if (!has_delta(catalog, versions)) return {};
  return DeltaId{versions, with_old};
}

std::string latest_target(const Catalog& catalog) {
  if (catalog.latest == 0) throw_no_name("latest");
  return version_target(catalog.latest);
}

struct Place {
  std::shared_ptr<const CatalogVersion> version;
  const CatalogEntry* entry = nullptr;
};

// The entry for an inode of kind `version`.
Place find_place(const Catalog& catalog, Inode inode) {
  const InodeParts parts = parts_of(inode);
  const auto version = catalog.find(parts.version);
  if (version == nullptr || parts.file >= version->entries.size()) throw_unknown(inode);
  return {version, &version->entries[parts.file]};
}

FileKind kind_of(const Place& place) {
  const CatalogEntry& entry = *place.entry;
  const std::uint64_t version = place.version->number;
  if (entry.is_directory) {
    throw Error(ErrorCode::invalid, "'" + entry.path + "' is a directory, not a file");
  }
  if (entry.is_remote) return RemoteFile{version, entry.path, entry.size_bytes};
  LocalFile local{place.version->directory / entry.path, entry.path, entry.size_bytes};
  if (entry.image == ImageState::complete) return local;
  return StreamingFile{std::move(local), version, entry.image == ImageState::partial};
}

std::string_view last_component(std::string_view path) {
  return path.substr(path.rfind('/') + 1);  // npos + 1 is 0
}

void set_times(struct stat& attributes, std::int64_t time) {
  attributes.st_mtim.tv_sec = attributes.st_ctim.tv_sec = attributes.st_atim.tv_sec = time;
}

// Makes the nodes of one catalog.
class Nodes {
 public:
  Nodes(const Catalog& catalog, const Ownership& ownership, bool is_writer,
        const FindDeltaFacts& deltas)
      : catalog_(catalog), ownership_(ownership), is_writer_(is_writer), deltas_(deltas) {}

  Node of(Inode inode) const {
    const InodeParts parts = parts_of(inode);
    switch (parts.kind) {
      case InodeKind::fixed:
        return fixed(inode);
      case InodeKind::version:
        return entry(inode);
      case InodeKind::tag:
        return tag(inode, parts);
      case InodeKind::delta:
      case InodeKind::delta_with_old:
        return delta(inode);
      case InodeKind::staging:
        break;
    }
    throw_unknown(inode);
  }

 private:
  Node fixed(Inode inode) const {
    switch (fixed_of(inode)) {
      case Fixed::root:
      case Fixed::versions:
      case Fixed::tags:
      case Fixed::control:
        return directory(inode, catalog_.repository_time, kSlow, kForever);
      case Fixed::latest:
        return link(inode, latest_target(catalog_), kAlwaysAsk);
      case Fixed::status:
      case Fixed::advice:
      case Fixed::health:
        return text(inode);
      case Fixed::staging:
      case Fixed::publish:
        if (is_writer_) return shared(inode);
        break;
      case Fixed::last_error:
        if (is_writer_) return text(inode);
        break;
      case Fixed::deltas:
        if (deltas_) return directory(inode, catalog_.repository_time, kSlow, kForever);
        break;
    }
    throw_unknown(inode);
  }

  // Size 0, as in /proc: the text is generated on open.
  Node text(Inode inode) const {
    Node node = base(inode, S_IFREG | 0444, catalog_.repository_time);
    node.attribute_timeout_s = kSlow;
    node.entry_timeout_s = kForever;
    return node;
  }

  Node shared(Inode inode) const {
    Node node = directory(inode, catalog_.repository_time, kAlwaysAsk, kForever);
    node.attributes.st_mode = kWritersMode;
    return node;
  }

  Node entry(Inode inode) const {
    const Place place = find_place(catalog_, inode);
    const std::int64_t time = place.version->time;
    if (place.entry->is_directory) {
      const bool is_version = parts_of(inode).file == 0;
      return directory(inode, time, kForever, is_version ? kSlow : kForever);
    }
    return file(inode, place.entry->size_bytes, time);
  }

  Node delta(Inode inode) const {
    const auto id = find_delta_id(inode);
    if (!deltas_ || !id || !has_delta(catalog_, id->versions)) throw_unknown(inode);
    const auto facts = deltas_(*id);
    if (!facts) throw_unknown(inode);
    return file(inode, facts->size_bytes, facts->time);
  }

  Node file(Inode inode, std::uint64_t size_bytes, std::int64_t time) const {
    Node node = base(inode, S_IFREG | (0666 & ~ownership_.umask), time);
    node.attributes.st_size = static_cast<off_t>(size_bytes);
    node.attributes.st_blocks = static_cast<blkcnt_t>((size_bytes + 511) / 512);
    node.attribute_timeout_s = node.entry_timeout_s = kForever;
    return node;
  }

  Node tag(Inode inode, const InodeParts& parts) const {
    if (parts.version == 0 || parts.file != 0) throw_unknown(inode);
    return link(inode, tag_target(parts.version), kSlow);
  }

  Node base(Inode inode, std::uint32_t mode, std::int64_t time) const {
    Node node;
    node.attributes.st_ino = inode;
    node.attributes.st_mode = mode;
    node.attributes.st_nlink = 1;
    node.attributes.st_uid = ownership_.uid;
    node.attributes.st_gid = ownership_.gid;
    node.attributes.st_blksize = 4096;
    set_times(node.attributes, time);
    return node;
  }

  Node directory(Inode inode, std::int64_t time, double attribute_timeout_s,
                 double entry_timeout_s) const {
    Node node = base(inode, S_IFDIR | (0777 & ~ownership_.umask), time);
    node.attributes.st_nlink = 2;
    node.attribute_timeout_s = attribute_timeout_s;
    node.entry_timeout_s = entry_timeout_s;
    return node;
  }

  Node link(Inode inode, const std::string& target, double attribute_timeout_s) const {
    Node node = base(inode, S_IFLNK | kLinkMode, catalog_.repository_time);
    node.attributes.st_size = static_cast<off_t>(target.size());
    node.attribute_timeout_s = attribute_timeout_s;
    node.entry_timeout_s = kAlwaysAsk;
    return node;
  }

  const Catalog& catalog_;
  const Ownership& ownership_;
  const bool is_writer_;
  const FindDeltaFacts& deltas_;
};

// ---- Names -------------------------------------------------------------------------------------

Inode find_version(const Catalog& catalog, std::string_view name) {
  const auto number = parse_version(name);
  if (!number || catalog.find(*number) == nullptr) throw_no_name(name);
  return version_inode(*number, 0);
}

Inode find_tag(const Catalog& catalog, std::string_view name) {
  const auto found = catalog.tags.find(std::string(name));
  if (found == catalog.tags.end()) throw_no_name(name);
  return make_inode({InodeKind::tag, found->second, 0});
}

Inode find_delta_name(const Catalog& catalog, std::string_view name) {
  const auto id = parse_delta(catalog, name);
  if (!id) throw_no_name(name);
  return make_delta_inode(*id);
}

Inode find_fixed(const Catalog& catalog, Inode parent, std::string_view name, Parts parts) {
  const Fixed fixed = fixed_of(parent);
  if (fixed == Fixed::versions) return find_version(catalog, name);
  if (fixed == Fixed::tags) return find_tag(catalog, name);
  if (fixed == Fixed::deltas && parts.has_deltas) return find_delta_name(catalog, name);
  if (fixed != Fixed::root && fixed != Fixed::control) throw_no_directory(parent);
  for (const FixedName& known : kFixedNames) {
    if (!parts.has(known)) continue;
    if (known.parent == fixed && known.name == name) return make_inode(known.inode);
  }
  throw_no_name(name);
}

Inode find_entry(const Catalog& catalog, Inode parent, std::string_view name) {
  const Place place = find_place(catalog, parent);
  if (!place.entry->is_directory) throw_no_directory(parent);
  const CatalogEntry* found = place.version->find(parts_of(parent).file, name);
  if (found == nullptr) throw_no_name(name);
  return version_inode(place.version->number, place.version->number_of(*found));
}

Inode find_name(const Catalog& catalog, Inode parent, std::string_view name, Parts parts) {
  switch (parts_of(parent).kind) {
    case InodeKind::fixed:
      return find_fixed(catalog, parent, name, parts);
    case InodeKind::version:
      return find_entry(catalog, parent, name);
    case InodeKind::tag:
    case InodeKind::delta:
    case InodeKind::delta_with_old:
      throw_no_directory(parent);
    case InodeKind::staging:
      break;
  }
  throw_unknown(parent);
}

// ---- Listings ----------------------------------------------------------------------------------

using Each = std::function<bool(const DirectoryEntry&)>;

Inode parent_of(const Catalog& catalog, Inode inode) {
  if (parts_of(inode).kind == InodeKind::fixed) return make_inode(Fixed::root);
  if (parts_of(inode).file == 0) return make_inode(Fixed::versions);
  const Place place = find_place(catalog, inode);
  return version_inode(place.version->number, place.entry->parent);
}

bool list_dots(Inode inode, Inode parent, std::uint64_t offset, const Each& each) {
  if (offset < 1 && !each({".", inode, S_IFDIR, 1})) return false;
  return offset >= kFirst || each({"..", parent, S_IFDIR, kFirst});
}

// `behind`: the number of the last one listed; 0 at the start.
void list_fixed(const Catalog& catalog, Fixed parent, std::uint64_t behind, Parts parts,
                const Each& each) {
  for (const FixedName& known : kFixedNames) {
    const Inode inode = make_inode(known.inode);
    if (known.parent != parent || inode <= behind) continue;
    if (known.inode == Fixed::latest && catalog.latest == 0) continue;
    if (!parts.has(known)) continue;
    if (!each({std::string(known.name), inode, known.type, inode + kFirst})) return;
  }
}

/// Versions that are here or streaming; others can be opened by name.
std::set<std::uint64_t> listed_versions(const Catalog& catalog) {
  std::set<std::uint64_t> numbers;
  for (const auto& [number, version] : catalog.versions) numbers.insert(number);
  for (const auto& [number, one] : catalog.incomplete) {
    if (one.state == ImageState::partial) numbers.insert(number);
  }
  return numbers;
}

void list_versions(const Catalog& catalog, std::uint64_t behind, const Each& each) {
  const std::set<std::uint64_t> numbers = listed_versions(catalog);
  for (auto at = numbers.upper_bound(behind); at != numbers.end(); ++at) {
    if (!each({std::to_string(*at), version_inode(*at, 0), S_IFDIR, *at + kFirst})) return;
  }
}

void list_deltas(const Catalog& catalog, std::uint64_t behind, const Each& each) {
  const std::set<std::uint64_t> numbers = listed_versions(catalog);
  for (auto at = numbers.upper_bound(std::max(behind, kFirstDelta - 1)); at != numbers.end();
       ++at) {
    if (!each({std::to_string(*at).append(kDeltaSuffix), make_delta_inode(step_to(*at)), S_IFREG,
               *at + kFirst})) {
      return;
    }
  }
}

void list_tags(const Catalog& catalog, std::uint64_t behind, const Each& each) {
  std::vector<std::pair<std::uint64_t, std::string_view>> tags;
  for (const auto& [name, version] : catalog.tags) {
    if (version > behind) tags.emplace_back(version, name);
  }
  std::sort(tags.begin(), tags.end());
  for (const auto& [version, name] : tags) {
    const Inode inode = make_inode({InodeKind::tag, version, 0});
    if (!each({std::string(name), inode, S_IFLNK, version + kFirst})) return;
  }
}

void list_entries(const CatalogVersion& version, std::uint32_t parent, std::uint64_t behind,
                  const Each& each) {
  for (std::uint64_t number = behind + 1; number < version.entries.size(); number++) {
    const CatalogEntry& entry = version.entries[number];
    if (entry.parent != parent) continue;
    const Inode inode = version_inode(version.number, static_cast<std::uint32_t>(number));
    const std::uint32_t type = entry.is_directory ? S_IFDIR : S_IFREG;
    if (!each({std::string(last_component(entry.path)), inode, type, number + kFirst})) return;
  }
}

}  // namespace

std::string version_target(std::uint64_t version) { return "versions/" + std::to_string(version); }

std::string tag_target(std::uint64_t version) { return "../" + version_target(version); }

Tree::Tree(std::function<std::shared_ptr<const Catalog>()> catalog, Ownership ownership,
           bool is_writer, FindDeltaFacts deltas)
    : catalog_(std::move(catalog)),
      ownership_(ownership),
      is_writer_(is_writer),
      deltas_(std::move(deltas)) {}

Node Tree::lookup(Inode parent, std::string_view name) const {
  const auto catalog = catalog_();
  const Parts parts{is_writer_, static_cast<bool>(deltas_)};
  return Nodes(*catalog, ownership_, is_writer_, deltas_)
      .of(find_name(*catalog, parent, name, parts));
}

Node Tree::attributes(Inode inode) const {
  const auto catalog = catalog_();
  return Nodes(*catalog, ownership_, is_writer_, deltas_).of(inode);
}

std::optional<DeltaId> Tree::find_delta(Inode parent, std::string_view name) const {
  if (!deltas_ || parent != make_inode(Fixed::deltas)) return {};
  return parse_delta(*catalog_(), name);
}

std::optional<DeltaId> Tree::find_delta(Inode inode) const {
  if (!find_delta_id(inode)) return {};
  return delta_of(*catalog_(), inode);
}

std::optional<DeltaId> Tree::delta_of(const Catalog& catalog, Inode inode) const {
  const auto id = find_delta_id(inode);
  if (!deltas_ || !id || !has_delta(catalog, id->versions)) return {};
  return id;
}

std::optional<std::uint64_t> Tree::find_unnamed(Inode parent, std::string_view name) const {
  const InodeParts parts = parts_of(parent);
  const bool is_within = parts.kind == InodeKind::version;
  if (!is_within && parent != make_inode(Fixed::versions)) return {};
  const auto number = is_within ? parts.version : parse_version(name);
  if (!number || *number > kVersionMax || catalog_()->find(*number) != nullptr) return {};
  return number;
}

std::string Tree::read_link(Inode inode) const {
  const auto catalog = catalog_();
  if (inode == make_inode(Fixed::latest)) return latest_target(*catalog);
  const Node node = Nodes(*catalog, ownership_, is_writer_, deltas_).of(inode);
  if (!S_ISLNK(node.attributes.st_mode)) {
    throw Error(ErrorCode::invalid, "inode " + std::to_string(inode) + " is not a symlink");
  }
  return tag_target(parts_of(inode).version);
}

void Tree::read_directory(Inode inode, std::uint64_t offset, const Each& each) const {
  const auto catalog = catalog_();
  const Node node = Nodes(*catalog, ownership_, is_writer_, deltas_).of(inode);
  if (!S_ISDIR(node.attributes.st_mode)) throw_no_directory(inode);
  if (!list_dots(inode, parent_of(*catalog, inode), offset, each)) return;

  const std::uint64_t behind = offset <= kFirst ? 0 : offset - kFirst;
  if (inode == make_inode(Fixed::versions)) return list_versions(*catalog, behind, each);
  if (inode == make_inode(Fixed::tags)) return list_tags(*catalog, behind, each);
  if (inode == make_inode(Fixed::deltas)) return list_deltas(*catalog, behind, each);
  const InodeParts parts = parts_of(inode);
  if (parts.kind == InodeKind::fixed) {
    return list_fixed(*catalog, fixed_of(inode), behind, {is_writer_, static_cast<bool>(deltas_)},
                      each);
  }
  list_entries(*find_place(*catalog, inode).version, parts.file, behind, each);
}

FileKind Tree::open(Inode inode) const {
  const auto catalog = catalog_();
  if (const auto id = delta_of(*catalog, inode)) return DeltaFile{*id};
  if (parts_of(inode).kind == InodeKind::version) return kind_of(find_place(*catalog, inode));
  static_cast<void>(
      Nodes(*catalog, ownership_, is_writer_, deltas_).of(inode));  // not_found takes precedence
  if (is_text(inode)) return TextFile{inode};
  throw Error(ErrorCode::invalid, "inode " + std::to_string(inode) + " is not a file");
}

}  // namespace weightfs::fs
