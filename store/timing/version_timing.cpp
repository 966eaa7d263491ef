// One list of fields for each struct, visited by who writes and by who reads.
#include "store/timing/version_timing.hpp"

#include <fmt/format.h>

#include <cmath>

#include "store/base/error.hpp"
#include "store/base/json.hpp"

namespace weightfs {
namespace {

using std::chrono::nanoseconds;

constexpr double kMsMax = 1e12;  // 30 years

template <typename Timing, typename Visitor>
void visit_brought(Timing& timing, Visitor&& visit) {
  visit("seen_ns", timing.seen_ns);
  visit("published", timing.published);
  visit("attempts", timing.attempts);
  visit("streamed", timing.is_streamed);
  visit("base", timing.base);
  visit("snapshot", timing.snapshot);
  visit("deltas", timing.deltas);
  visit("skips", timing.skips);
  visit("patches", timing.patches);
  visit("bytes", timing.bytes);
  visit("early_bytes", timing.early_bytes);
  visit("unseen_ms", timing.unseen);
  visit("wait_ms", timing.wait);
  visit("plan_ms", timing.plan);
  visit("room_ms", timing.room);
  visit("build_ms", timing.build);
  visit("record_ms", timing.record);
  visit("flip_ms", timing.flip);
  visit("sync_ms", timing.sync);
  visit("fetch_ms", timing.work.fetch);
  visit("fetched_bytes", timing.work.fetched_bytes);
  visit("requests", timing.work.requests);
  visit("seeded_bytes", timing.work.seeded_bytes);
  visit("stalled_thread_ms", timing.work.stalled);
  visit("decode_thread_ms", timing.work.decode);
  visit("patch_thread_ms", timing.work.patch);
  visit("patched_bytes", timing.work.patched_bytes);
  visit("write_thread_ms", timing.work.write);
  visit("written_bytes", timing.work.written_bytes);
}

template <typename Timing, typename Visitor>
void visit_handed_over(Timing& timing, Visitor&& visit) {
  visit("begun_ns", timing.begun_ns);
  visit("name", timing.name);
  visit("attempts", timing.attempts);
  visit("seal_ms", timing.seal);
  visit("wait_ms", timing.wait);
  visit("code_ms", timing.code);
  visit("upload_ms", timing.upload);
  visit("commit_ms", timing.commit);
  visit("adopt_ms", timing.adopt);
  visit("bytes", timing.bytes);
  visit("early_bytes", timing.early_bytes);
  visit("uploaded_bytes", timing.uploaded_bytes);
}

/// Makes every time one that the text can tell, so that their sum is that of what is told.
struct Rounder {
  template <typename Value>
  void operator()(const char* /*name*/, Value& /*value*/) const {}
  void operator()(const char* /*name*/, nanoseconds& value) const {
    value = std::chrono::round<std::chrono::microseconds>(value);
  }
  void operator()(const char* name, std::optional<nanoseconds>& value) const {
    if (value) (*this)(name, *value);
  }
};

double ms_of(nanoseconds time) {
  return static_cast<double>(std::chrono::round<std::chrono::microseconds>(time).count()) / 1e3;
}

/// Puts every field into an object.
struct FieldWriter {
  template <typename Value>
  void operator()(const char* name, const Value& value) {
    object[name] = value;
  }
  void operator()(const char* name, const nanoseconds& value) { object[name] = ms_of(value); }
  void operator()(const char* name, const std::optional<nanoseconds>& value) {
    object[name] = value ? Json(ms_of(*value)) : Json(nullptr);
  }

  Json& object;
};

/// Takes every field from an object; one that is not there keeps its default.
class FieldReader {
 public:
  FieldReader(const Json& object, const char* what) : object_(object), what_(what) {
    if (!object.is_object()) fail("must be an object");
  }

  void operator()(const char* name, std::uint64_t& value) {
    if (const Json* found = find(name)) value = number<std::uint64_t>(name, *found);
  }
  void operator()(const char* name, std::int64_t& value) {
    if (const Json* found = find(name)) value = number<std::int64_t>(name, *found);
  }
  void operator()(const char* name, unsigned& value) {
    if (const Json* found = find(name)) value = number<unsigned>(name, *found);
  }
  void operator()(const char* name, bool& value) {
    const Json* found = find(name);
    if (found == nullptr) return;
    if (!found->is_boolean()) fail(name);
    value = found->get<bool>();
  }
  void operator()(const char* name, std::string& value) {
    const Json* found = find(name);
    if (found == nullptr) return;
    if (!found->is_string()) fail(name);
    value = found->get<std::string>();
  }
  void operator()(const char* name, nanoseconds& value) {
    if (const Json* found = find(name)) value = time(name, *found);
  }
  void operator()(const char* name, std::optional<nanoseconds>& value) {
    const Json* found = find(name);
    if (found != nullptr && !found->is_null()) value = time(name, *found);
  }

 private:
  [[nodiscard]] const Json* find(const char* name) const {
    const auto found = object_.find(name);
    return found == object_.end() ? nullptr : &*found;
  }
  template <typename Number>
  Number number(const char* name, const Json& value) const {
    if (!value.is_number_integer()) fail(name);
    return value.get<Number>();
  }
  nanoseconds time(const char* name, const Json& value) const {
    const double ms = value.is_number() ? value.get<double>() : -1;
    if (!(ms >= 0 && ms <= kMsMax)) fail(name);
    return nanoseconds(std::llround(ms * 1e3) * 1000);
  }
  [[noreturn]] void fail(const char* name) const {
    throw Error(
        ErrorCode::corrupt,
        fmt::format("the record of a timing: field '{}' of '{}' is malformed", name, what_));
  }

  const Json& object_;
  const char* what_;
};

}  // namespace

nanoseconds VersionTiming::total() const noexcept {
  return wait + plan + room + (is_streamed ? nanoseconds(0) : build) + record + flip;
}

nanoseconds HandOverTiming::total() const noexcept {
  return seal + wait + code + upload + commit + adopt;
}

std::string to_json_text(TimingRecord record) {
  Json json{{"version", record.version}, {"brought", nullptr}, {"handed_over", nullptr}};
  if (record.brought) {
    visit_brought(*record.brought, Rounder());
    Json object{{"total_ms", ms_of(record.brought->total())}};
    visit_brought(*record.brought, FieldWriter{object});
    json["brought"] = std::move(object);
  }
  if (record.handed_over) {
    visit_handed_over(*record.handed_over, Rounder());
    Json object{{"total_ms", ms_of(record.handed_over->total())}};
    visit_handed_over(*record.handed_over, FieldWriter{object});
    json["handed_over"] = std::move(object);
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

TimingRecord parse_timing(std::string_view text) {
  constexpr const char* kWhat = "the record of a timing";
  const Json json = parse_json(text, kWhat);
  TimingRecord record;
  record.version = json_uint(json, "version", kWhat);
  const Json& brought = json_field(json, "brought", kWhat);
  if (!brought.is_null()) {
    visit_brought(record.brought.emplace(), FieldReader(brought, "brought"));
    record.brought->version = record.version;
  }
  const Json& handed_over = json_field(json, "handed_over", kWhat);
  if (!handed_over.is_null()) {
    visit_handed_over(record.handed_over.emplace(), FieldReader(handed_over, "handed_over"));
    record.handed_over->version = record.version;
  }
  return record;
}

}  // namespace weightfs
