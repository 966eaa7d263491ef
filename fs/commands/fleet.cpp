// fleet, wait --replicas: who reads a repository, and whether enough of them have a version.

#include <fmt/format.h>

#include "fs/base/text_table.hpp"
#include "fs/commands/command_context.hpp"
#include "store/base/error.hpp"
#include "store/readers/reader_gate.hpp"
#include "store/readers/reader_list.hpp"

namespace weightfs::fs {
namespace {

constexpr std::chrono::milliseconds kGatePoll{1'000};
constexpr std::chrono::milliseconds kGatePollOfReader{10};  // more for each: they are fetched

// ---- fleet ----

Json engines_json(const std::vector<ReaderEngine>& engines) {
  Json json = Json::array();
  for (const ReaderEngine& engine : engines) {
    json.push_back({{"name", engine.name}, {"state", engine.state}, {"version", engine.version}});
  }
  return json;
}

Json reader_json(const ListedReader& one) {
  const ReaderRecord& record = one.record;
  return {{"id", record.id},
          {"host", record.host},
          {"place", record.place},
          {"pid", record.pid},
          {"presence", to_string(one.presence)},
          {"age", one.age_s},
          {"every", record.every_s},
          {"version", record.version},
          {"newest", record.newest},
          {"whole", record.is_whole},
          {"follow", record.follow},
          {"lag_versions", record.lag_versions},
          {"lag_seconds", record.lag_seconds},
          {"health", record.health},
          {"engines", engines_json(record.engines)},
          {"since", record.since},
          {"time", record.time}};
}

Json fleet_json(const ReaderList& list) {
  Json readers = Json::array();
  for (const ListedReader& one : list.readers) readers.push_back(reader_json(one));
  return {{"readers", std::move(readers)},
          {"clock", list.by_bucket_clock ? "bucket" : "readers"},
          {"unreadable", list.unreadable},
          {"left_out", list.left_out}};
}

/// "42", "42 telling"; "-": it has none.
std::string engines_text(const std::vector<ReaderEngine>& engines) {
  std::string text;
  for (const ReaderEngine& engine : engines) {
    if (!text.empty()) text += ", ";
    text += engine.version == 0 ? "none" : std::to_string(engine.version);
    if (engine.state != "current") text += " " + engine.state;
  }
  return text.empty() ? "-" : text;
}

std::string lag_text(const ReaderRecord& record) {
  if (record.lag_versions == 0) return "0";
  return fmt::format("{} ({} s)", record.lag_versions, record.lag_seconds);
}

std::string shown_version_text(const ReaderRecord& record) {
  if (record.version == 0) return "-";
  return fmt::format("{}{}", record.version, record.is_whole ? "" : " (partly)");
}

std::string fleet_text(const ReaderList& list, std::size_t columns) {
  using Align = TextTable::Align;
  TextTable table({{"HOST"},
                   {"PLACE"},
                   {"VERSION", Align::right},
                   {"LAG", Align::right},
                   {"HEALTH"},
                   {"AGE", Align::right},
                   {"ENGINES"}});
  for (const ListedReader& one : list.readers) {
    const bool is_live = one.presence == Presence::live;
    table.add({one.record.host, one.record.place, shown_version_text(one.record),
               lag_text(one.record),
               is_live ? one.record.health : std::string(to_string(one.presence)),
               fmt::format("{} s", one.age_s), engines_text(one.record.engines)});
  }
  std::string text = list.readers.empty() && list.left_out == 0
                         ? std::string("no reader announces itself (mount and sync: --announce)\n")
                         : table.text(columns);
  for (const std::string& problem : list.unreadable) {
    text += fmt::format("not counted: {}\n", printable(problem));
  }
  if (list.left_out != 0) {
    text += fmt::format("{} more, that were heard of longer ago\n", list.left_out);
  }
  if (!list.by_bucket_clock) {
    text += "ages are by the clocks of the readers: the bucket does not say what time it is\n";
  }
  return text;
}

// ---- wait --replicas ----

/// Looks until enough readers have the version.
class Gate {
 public:
  Gate(Call& call, Reading& reading, const Context& context)
      : call_(call), reading_(reading), context_(context), lister_(*reading.repository) {
    wish_.replicas = call.options.wait.replicas;
    wish_.max_lag = call.options.wait.max_lag;
  }

  void wait() {
    for (;;) {
      const auto again = try_look();
      if (is_open_) return;
      if (said_ != situation_) call_.tell(said_ = situation_);
      try {
        context_.pause(again, "waiting for readers");
      } catch (const Error& error) {
        if (error.code() == ErrorCode::timed_out) throw_timed_out();
        throw;
      }
    }
  }

  [[nodiscard]] const GateWish& wish() const noexcept { return wish_; }
  [[nodiscard]] const ReaderList& list() const noexcept { return list_; }
  [[nodiscard]] const GateCount& count() const noexcept { return count_; }

 private:
  /// Returns: after how long to look again.
  Clock::duration try_look() {
    try {
      if (wish_.version == 0 && !find_version()) return kGatePoll;
      list_ = lister_.list(context_);
      count_ = count_readers(list_, wish_);
      is_open_ = count_.is_open(wish_);
      situation_ = gate_text(count_, wish_);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::timed_out) {
        if (Clock::now() >= context_.deadline) throw_timed_out();
      } else if (error.code() != ErrorCode::unavailable) {
        throw;
      }
      situation_ = error.what();
    }
    return kGatePoll + kGatePollOfReader * list_.readers.size();
  }

  /// A number need not exist yet, and a tag is waited for.
  bool find_version() {
    const Follow& word = *call_.options.version;
    if (word.kind == Follow::Kind::version) {
      wish_.version = word.version;
      return true;
    }
    try {
      if (word.kind == Follow::Kind::tag && !is_grown()) return false;
      if (!reading_.mount_point.empty() && reading_.latest == 0) {
        reading_.latest = resolve_target(call_.options.target).latest;
      }
      wish_.version = reading_.number_of(word);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::not_found) throw;
      situation_ = error.what();
    }
    return wish_.version != 0;
  }

  /// Whether there may be a tag that was not there at the last look.
  bool is_grown() {
    const std::uint64_t newest = reading_.repository->newest_version(newest_, context_);
    if (is_looked_ && newest == newest_) return false;
    newest_ = newest;
    return is_looked_ = true;
  }

  [[noreturn]] void throw_timed_out() const {
    throw Error(
        ErrorCode::timed_out,
        fmt::format("timed out: {}; weightfs fleet {} lists the readers",
                    situation_.empty() ? "the bucket did not answer" : situation_, reading_.url));
  }

  Call& call_;
  Reading& reading_;
  const Context& context_;
  ReaderLister lister_;
  GateWish wish_;
  ReaderList list_;
  GateCount count_;
  bool is_open_ = false;
  bool is_looked_ = false;
  std::uint64_t newest_ = 0;  // version, when the tag was looked for
  std::string situation_, said_;
};

}  // namespace

int run_fleet(Call& call) {
  Reading reading(call);
  const ReaderList list =
      ReaderLister(*reading.repository, call.options.look.limit).list(reading.context);
  call.print(fleet_json(list), fleet_text(list, call.output.columns));
  return 0;
}

int run_wait_replicas(Call& call) {
  Reading reading(call);
  Gate gate(call, reading, reading.context);
  gate.wait();
  Json json = fleet_json(gate.list());
  json["version"] = gate.wish().version;
  json["least"] = gate.wish().least();
  json["ready"] = gate.count().ready;
  call.print(json, printable(gate_text(gate.count(), gate.wish())) + "\n");
  return 0;
}

}  // namespace weightfs::fs
