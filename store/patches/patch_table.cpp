// Writing: the record of a span is the last thing that is written and the first that is removed.
// What a write that failed may have left of a span's patches is removed before others of the same
// name are taken in.
//
// Reading: the span is looked up before and after the patches are read.  It leaves memory before
// the patches leave the database, so if it is there both times, and is the same, so were they.
#include "store/patches/patch_table.hpp"

#include <fmt/format.h>

#include <cassert>
#include <mutex>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"

namespace weightfs {
namespace {

constexpr ColumnFamily kPatches = ColumnFamily::patches;
constexpr std::string_view kCountersKey = "patch_bytes";

PatchCounters read_counters(const Db& db) {
  const std::optional<std::string> value = db.find(ColumnFamily::store, kCountersKey);
  if (!value || value->size() != 16) return {};  // they are for information only
  const std::string_view bytes = *value;
  return {load_be(bytes.substr(0, 8)), load_be(bytes.substr(8))};
}

std::string encode_counters(const PatchCounters& counters) {
  std::string value;
  append_be64(value, counters.taken_bytes);
  append_be64(value, counters.folded_bytes);
  return value;
}

PatchCounters with(PatchCounters counters, PatchLevel level, std::uint64_t bytes) {
  (level == PatchLevel::one ? counters.taken_bytes : counters.folded_bytes) += bytes;
  return counters;
}

std::string name_of_patch(const PatchSpan& span, ChunkPlace place) {
  return fmt::format("the patch of {} from versions {} in the store's database", to_string(place),
                     to_string(span));
}

/// The first key of a family at or above `from`.
std::optional<std::string> find_key(const Db& db, std::string_view from) {
  std::optional<std::string> found;
  db.read_range(kPatches, from, {}, [&](std::string_view key, std::string_view) {
    found = std::string(key);
    return false;
  });
  return found;
}

}  // namespace

PatchTable::PatchTable(Db& db, std::filesystem::path directory)
    : db_(db), directory_(std::move(directory)), counters_(read_counters(db)) {
  sweep(load());
}

// ---- opening ----

// Returns: keys of records that cannot be read.
std::vector<std::string> PatchTable::load() {
  std::vector<std::string> bad;
  db_.scan(ColumnFamily::store, kSpanPrefix, [&](std::string_view key, std::string_view value) {
    std::optional<SpanRecord> record = decode_span_record(key, value);
    if (!record) {
      bad.emplace_back(key);
      return;
    }
    const SpanEnds& ends = record->info.ends;
    entries_[{ends.level, ends.last.version}] = {*record, ++last_serial_};
  });
  return bad;
}

void PatchTable::sweep(const std::vector<std::string>& bad_records) {
  try {
    std::vector<Db::Change> changes;
    for (const std::string& key : bad_records) {
      log_warning("the record of a span of patches cannot be read; its patches are removed");
      changes.push_back({ColumnFamily::store, key, std::nullopt});
    }
    if (!changes.empty()) db_.write(changes);
    sweep_patches();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::corrupt) return remove_all(error);
    // Nobody reads what has no record; the next opening tries again.
    if (error.code() != ErrorCode::no_space) throw;
    log_warning(error.what());
  }
}

// Patches are made again; the store's other records must not go with them.
void PatchTable::remove_all(const Error& damage) {
  log_warning(fmt::format("patches are damaged; all of them are removed: {}", damage.what()));
  entries_.clear();
  std::vector<Db::Change> changes;
  db_.scan(ColumnFamily::store, kSpanPrefix, [&](std::string_view key, std::string_view) {
    changes.push_back({ColumnFamily::store, std::string(key), std::nullopt});
  });
  try {
    db_.remove_range(kPatches, {}, {}, changes);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::no_space) throw;
    log_warning(error.what());  // the next opening meets the same damage, and tries again
  }
}

// Looks at one key of each span only.
void PatchTable::sweep_patches() {
  std::set<Name> found;
  std::string from;
  while (const std::optional<std::string> key = find_key(db_, from)) {
    if (key->size() < kSpanKeyBytes) {  // of no span
      from = *key + '\0';
      db_.remove_range(kPatches, *key, from, {});
      continue;
    }
    const std::string prefix = key->substr(0, kSpanKeyBytes);
    const std::string end = key_after(prefix);
    const Name name{static_cast<PatchLevel>(prefix[0]), load_be(prefix.substr(1))};
    found.insert(name);
    const auto entry = find_entry(name);
    if (!entry) {
      db_.remove_range(kPatches, prefix, end, {});
    } else if (entry->record.next) {
      const PatchSpan span = entry->record.info.span();
      db_.remove_range(kPatches, patch_key(span, *entry->record.next), end, {});
    }
    if (end.empty()) break;
    from = end;
  }
  forget_all_but(found);
}

// The database was emptied of patches that it could not read (Db::open).
void PatchTable::forget_all_but(const std::set<Name>& found) {
  std::vector<Db::Change> changes;
  std::erase_if(entries_, [&](const auto& known) {
    const SpanInfo& info = known.second.record.info;
    if (info.chunk_count == 0 || found.contains(known.first)) return false;
    changes.push_back({ColumnFamily::store, span_record_key(info.span()), std::nullopt});
    return true;
  });
  if (!changes.empty()) db_.write(changes);
}

// ---- changes ----

PatchFileWriter PatchTable::make_writer(PatchSpan span, std::uint64_t file_bytes_max) const {
  return {db_, directory_, span, file_bytes_max};
}

void PatchTable::install(const SpanEnds& ends, PatchFiles files) {
  put(ends, std::move(files), std::nullopt);
}

void PatchTable::install_part(const SpanEnds& ends, PatchFiles files, ChunkPlace next) {
  put(ends, std::move(files), next);
}

void PatchTable::put(const SpanEnds& ends, PatchFiles files, std::optional<ChunkPlace> next) {
  assert(ends.first.version < ends.last.version);
  const std::scoped_lock one_change(change_mutex_);
  const PatchSpan span = ends.span();
  const Name name{span.level, span.last};
  const std::optional<Entry> found = find_entry(name);
  const bool is_same = found && found->record.info.ends == ends;
  if (is_same && !found->record.next) return;
  if (found && !is_same) remove_entry(name, *found);

  SpanRecord record{is_same ? found->record.info : SpanInfo{ends, 0, 0}, next};
  const ChunkPlace begin = is_same ? *found->record.next : ChunkPlace{};
  db_.remove_range(kPatches, patch_key(span, begin), key_after(span_key(span.level, span.last)),
                   {});
  record.info.chunk_count += files.chunk_count;
  record.info.size_bytes += files.size_bytes;
  const PatchCounters counters = with(this->counters(), span.level, files.size_bytes);
  db_.ingest(kPatches, std::move(files.files),
             {{ColumnFamily::store, span_record_key(span), encode_span_record(record)},
              {ColumnFamily::store, std::string(kCountersKey), encode_counters(counters)}});

  const std::scoped_lock lock(mutex_);
  entries_[name] = {record, ++last_serial_};
  counters_ = counters;
}

bool PatchTable::remove(const PatchSpan& span) { return remove(span, true); }

bool PatchTable::remove_if_unheld(const PatchSpan& span) { return remove(span, false); }

bool PatchTable::remove(const PatchSpan& span, bool even_if_held) {
  const std::scoped_lock one_change(change_mutex_);
  const Name name{span.level, span.last};
  const std::optional<Entry> found = find_entry(name);
  if (!found || found->record.info.span() != span) return false;
  if (!even_if_held && is_held(name)) return false;
  remove_entry(name, *found);
  return true;
}

// ---- holds ----

PatchTable::Hold PatchTable::hold(const PatchPath& path) const {
  Hold held;
  for (const PathStep& step : path) {
    held.names_.emplace_back(step.span.ends.level, step.span.ends.last.version);
  }
  std::multiset<Name> names(held.names_.begin(), held.names_.end());
  const std::scoped_lock one_change(change_mutex_);  // nobody is about to remove them
  const std::scoped_lock lock(mutex_);
  held_.merge(names);  // all or none: it allocates nothing
  held.table_ = this;
  return held;
}

PatchTable::Hold::~Hold() {
  if (table_ == nullptr) return;
  const std::scoped_lock lock(table_->mutex_);
  for (const Name& name : names_) table_->held_.erase(table_->held_.find(name));
}

bool PatchTable::is_held(Name name) const {
  const std::scoped_lock lock(mutex_);
  return held_.contains(name);
}

std::size_t PatchTable::remove_if(const std::function<bool(const SpanEnds&, bool)>& is_unwanted) {
  const std::scoped_lock one_change(change_mutex_);
  std::map<Name, Entry> entries;
  {
    const std::scoped_lock lock(mutex_);
    entries = entries_;
  }
  std::size_t count = 0;
  for (const auto& [name, entry] : entries) {
    if (is_held(name)) continue;
    if (!is_unwanted(entry.record.info.ends, entry.record.next.has_value())) continue;
    remove_entry(name, entry);
    ++count;
  }
  return count;
}

// Requires: change_mutex_ is held.
void PatchTable::remove_entry(Name name, const Entry& entry) {
  {
    const std::scoped_lock lock(mutex_);
    entries_.erase(name);
  }
  try {
    const std::string prefix = span_key(name.first, name.second);
    const std::string record = span_record_key(entry.record.info.span());
    db_.remove_range(kPatches, prefix, key_after(prefix),
                     {{ColumnFamily::store, record, std::nullopt}});
  } catch (const Error& error) {
    if (error.code() == ErrorCode::no_space) {  // nothing was done
      const std::scoped_lock lock(mutex_);
      entries_[name] = entry;
    }
    throw;
  }
}

// ---- what there is ----

std::optional<PatchTable::Entry> PatchTable::find_entry(Name name) const {
  const std::scoped_lock lock(mutex_);
  const auto found = entries_.find(name);
  if (found == entries_.end()) return std::nullopt;
  return found->second;
}

std::optional<SpanPart> PatchTable::find_part(const SpanEnds& ends) const {
  const std::optional<Entry> found = find_entry({ends.level, ends.last.version});
  if (!found || !found->record.next || found->record.info.ends != ends) return std::nullopt;
  return SpanPart{found->record.info, *found->record.next};
}

std::vector<SpanInfo> PatchTable::list() const {
  const std::scoped_lock lock(mutex_);
  std::vector<SpanInfo> spans;
  for (const auto& [name, entry] : entries_) {
    if (!entry.record.next) spans.push_back(entry.record.info);
  }
  return spans;
}

std::optional<SpanInfo> PatchTable::find(const PatchSpan& span) const {
  const std::optional<Entry> found = find_entry({span.level, span.last});
  if (!found || found->record.next || found->record.info.span() != span) return std::nullopt;
  return found->record.info;
}

std::uint64_t PatchTable::size_bytes() const {
  const std::scoped_lock lock(mutex_);
  std::uint64_t sum = 0;
  for (const auto& [name, entry] : entries_) sum += entry.record.info.size_bytes;
  return sum;
}

PatchCounters PatchTable::counters() const {
  const std::scoped_lock lock(mutex_);
  return counters_;
}

// ---- patches ----

std::uint64_t PatchTable::get_serial(const SpanInfo& span) const {
  const PatchSpan name = span.span();
  const std::optional<Entry> found = find_entry({name.level, name.last});
  if (found && !found->record.next && found->record.info == span) return found->serial;
  throw Error(ErrorCode::not_found, fmt::format("the store has no patches from versions {} any "
                                                "more",
                                                to_string(name)));
}

void PatchTable::check_is_still_there(const SpanInfo& span, std::uint64_t serial) const {
  if (get_serial(span) == serial) return;
  throw Error(ErrorCode::not_found, fmt::format("the patches from versions {} were replaced while "
                                                "they were read",
                                                to_string(span.span())));
}

std::optional<ChunkPatch> PatchTable::find_patch(const SpanInfo& span, ChunkPlace place) const {
  const std::uint64_t serial = get_serial(span);
  const std::string key = patch_key(span.span(), place);
  const std::optional<std::string> value = db_.find(kPatches, key);
  check_is_still_there(span, serial);
  if (!value) return std::nullopt;
  return decode_chunk_patch(*value, span.ends.first.version, key,
                            name_of_patch(span.span(), place));
}

PatchTable::Page PatchTable::read_page(const SpanInfo& span, ChunkPlace from,
                                       std::size_t bytes_max) const {
  const std::uint64_t serial = get_serial(span);
  const PatchSpan name = span.span();
  Page page;
  page.is_last = true;
  std::size_t bytes = 0;
  db_.read_range(
      kPatches, patch_key(name, from), key_after(span_key(name.level, name.last)),
      [&](std::string_view key, std::string_view value) {
        if (!page.patches.empty() && bytes + value.size() > bytes_max) {
          page.is_last = false;
          return false;
        }
        const std::optional<ChunkPlace> place = place_of_key(key, name);
        if (!place) {
          throw Error(
              ErrorCode::corrupt,
              fmt::format("a key of the patches from versions {} is malformed", to_string(name)));
        }
        bytes += value.size();
        page.patches.emplace_back(*place, decode_chunk_patch(value, span.ends.first.version, key,
                                                             name_of_patch(name, *place)));
        return true;
      });
  check_is_still_there(span, serial);
  return page;
}

}  // namespace weightfs
