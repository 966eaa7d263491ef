#include "store/local/manifest_table.hpp"

#include <cstring>
#include <mutex>

#include "store/base/bytes.hpp"
#include "store/database/record_keys.hpp"

namespace weightfs {
namespace {

std::string newest_value(const Newest& newest) {
  std::string value = version_key(newest.version);
  value += as_text(newest.manifest_sha256);
  return value;
}

Newest parse_newest(std::string_view value) {
  Newest newest;
  newest.version = version_of_key(value, 8 + sizeof(Sha256), "default");
  std::memcpy(newest.manifest_sha256.data(), value.data() + 8, sizeof(Sha256));
  return newest;
}

}  // namespace

ManifestTable::ManifestTable(Db& db) : db_(db) {
  if (const auto newest = db_.find(ColumnFamily::store, "newest")) newest_ = parse_newest(*newest);
}

// ---- manifests ----

std::optional<std::string> ManifestTable::find_manifest(std::uint64_t version) const {
  return db_.find(ColumnFamily::manifests, version_key(version));
}

void ManifestTable::put_manifest(std::uint64_t version, std::string_view bytes) {
  db_.write({{ColumnFamily::manifests, version_key(version), std::string(bytes)}},
            Durability::process);
}

std::vector<std::uint64_t> ManifestTable::manifest_numbers() const {
  std::vector<std::uint64_t> numbers;
  db_.scan(ColumnFamily::manifests, "", [&](std::string_view key, std::string_view) {
    numbers.push_back(version_of_key(key, 8, "manifests"));
  });
  return numbers;
}

// ---- layouts ----

std::optional<std::string> ManifestTable::find_layout(const Sha256& id) const {
  return db_.find(ColumnFamily::layouts, as_text(id));
}

void ManifestTable::put_layout(const Sha256& id, std::string_view bytes) {
  db_.write({{ColumnFamily::layouts, std::string(as_text(id)), std::string(bytes)}},
            Durability::process);
}

std::set<Sha256> ManifestTable::layout_ids() const {
  std::set<Sha256> ids;
  db_.scan(ColumnFamily::layouts, "", [&](std::string_view key, std::string_view) {
    Sha256 id{};
    if (key.size() != id.size()) return;
    std::memcpy(id.data(), key.data(), id.size());
    ids.insert(id);
  });
  return ids;
}

void ManifestTable::remove_layouts(std::span<const Sha256> ids) {
  std::vector<Db::Change> changes;
  for (const Sha256& id : ids) {
    changes.push_back({ColumnFamily::layouts, std::string(as_text(id)), std::nullopt});
  }
  if (!changes.empty()) db_.write(changes, Durability::process);
}

// ---- the newest version ----

Newest ManifestTable::newest() const {
  const std::scoped_lock lock(mutex_);
  return newest_;
}

void ManifestTable::put_newest(const Newest& newest, Durability durability) {
  const std::scoped_lock one_writer(newest_mutex_);
  if (newest.version < this->newest().version) return;
  db_.write({{ColumnFamily::store, "newest", newest_value(newest)}}, durability);
  const std::scoped_lock lock(mutex_);
  newest_ = newest;
  is_newest_synced_ = durability == Durability::power;
}

void ManifestTable::sync_newest() {
  const std::scoped_lock one_writer(newest_mutex_);
  {
    const std::scoped_lock lock(mutex_);
    if (is_newest_synced_) return;
  }
  db_.sync();
  const std::scoped_lock lock(mutex_);
  is_newest_synced_ = true;
}

}  // namespace weightfs
