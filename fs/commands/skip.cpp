// skip: makes the skip deltas that a bucket lacks.

#include <fmt/format.h>

#include <optional>
#include <vector>

#include "fs/base/coder_choice.hpp"
#include "fs/base/errno.hpp"
#include "fs/base/text_table.hpp"
#include "fs/commands/command_context.hpp"
#include "fs/commands/skip_store.hpp"
#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/format/pack_bytes.hpp"
#include "store/skips/make_skip.hpp"
#include "store/skips/skip_rules.hpp"

namespace weightfs::fs {
namespace {

struct SkipRow {
  VersionPair versions;
  std::uint64_t delta_bytes = 0;  // of the deltas that it leads over
  std::uint64_t bytes = 0;        // of its packs; 0: it was not made
  bool is_there = false;          // in the bucket
  bool is_new = false;            // by this call
  std::optional<Error> error;
};

/// "0.49"; "-" if there is nothing to compare.
std::string ratio_text(const SkipRow& row) {
  if (row.bytes == 0 || row.delta_bytes == 0) return "-";
  return fmt::format("{:.2f}",
                     static_cast<double>(row.bytes) / static_cast<double>(row.delta_bytes));
}

Json to_json(const SkipRow& row) {
  Json json{{"from", row.versions.from},
            {"to", row.versions.to},
            {"delta_bytes", row.delta_bytes},
            {"made", row.is_new}};
  if (row.bytes != 0) json["bytes"] = row.bytes;
  if (row.error) {
    json["error"] = {{"code", to_string(row.error->code())}, {"message", row.error->what()}};
  }
  return json;
}

std::string text_of(const std::vector<SkipRow>& rows, bool is_dry, std::uint64_t uploaded,
                    std::size_t columns) {
  TextTable table({{"SKIP"},
                   {"BYTES", TextTable::Align::right},
                   {"DELTAS", TextTable::Align::right},
                   {"RATIO", TextTable::Align::right},
                   {"STATE"}});
  std::size_t made = 0, failed = 0;
  for (const SkipRow& row : rows) {
    made += row.is_new ? 1 : 0;
    failed += row.error ? 1 : 0;
    std::string state = row.is_new ? "made" : "made by another host meanwhile";
    if (!row.is_there) state = is_dry ? "missing" : "retired meanwhile";
    if (row.error) state = row.error->what();
    table.add({fmt::format("{}..{}", row.versions.from, row.versions.to),
               row.bytes == 0 ? "-" : human_bytes(row.bytes), human_bytes(row.delta_bytes),
               ratio_text(row), state});
  }
  std::string text = rows.empty() ? "" : table.text(columns);
  if (rows.empty()) return "no skip deltas are missing\n";
  if (is_dry) {
    return text + fmt::format("{} missing; nothing was changed\n", count_text(rows.size(), "skip"));
  }
  text += fmt::format("made {}, {} uploaded\n", count_text(made, "skip"), human_bytes(uploaded));
  if (failed != 0) text += fmt::format("{} could not be made\n", count_text(failed, "skip"));
  return text;
}

/// Errors of one skip alone: the others may still be made.
bool is_of_one(ErrorCode code) {
  return code == ErrorCode::not_found || code == ErrorCode::corrupt ||
         code == ErrorCode::unsupported;
}

/// Makes one, if it can be made.
/// Throws Error: what concerns the others as well.
SkipRow make_row(Store& store, History& history, const VersionPair& skip,
                 const MakeSkipOptions& how, const Context& context, const Progress& progress,
                 std::uint64_t& uploaded) {
  SkipRow row{.versions = skip, .delta_bytes = delta_bytes(history, skip, context), .error = {}};
  try {
    if (const auto made = make_skip(store, history, skip, how, context, progress)) {
      row.bytes = pack_bytes(made->record.delta);
      row.is_there = true;
      row.is_new = made->is_new;
      uploaded += made->uploaded_bytes;
    }
  } catch (const Error& error) {
    if (!is_of_one(error.code())) throw;
    row.error = error;
  }
  return row;
}

}  // namespace

int run_skip(Call& call) {
  Reading reading(call);
  const Options& options = call.options;
  const Context& context = reading.context;
  SkipStore opened(reading, options.host.store, call.progress());
  Store& store = opened.store();
  History& history = opened.history();
  const std::uint64_t newest = opened.newest();
  const GcLog retired = read_gc_log(*reading.repository, context);
  const std::uint64_t count = options.skip.newest == 0 ? newest : options.skip.newest;
  const CoderChoice choice(options.host.gpu);
  MakeSkipOptions how;
  how.may_materialize = true;
  how.coder = choice.coder();
  std::vector<SkipRow> rows;
  std::uint64_t uploaded = 0;
  int exit_code = 0;
  for (const VersionPair& skip : missing_skips(history, newest, count, retired, context)) {
    SkipRow row = options.skip.dry_run
                      ? SkipRow{.versions = skip,
                                .delta_bytes = delta_bytes(history, skip, context),
                                .error = {}}
                      : make_row(store, history, skip, how, context, call.progress(), uploaded);
    if (row.error && exit_code == 0) exit_code = to_exit_code(row.error->code());
    rows.push_back(std::move(row));
  }
  Json skips = Json::array();
  for (const SkipRow& row : rows) skips.push_back(to_json(row));
  call.print({{"url", reading.url},
              {"newest", newest},
              {"dry_run", options.skip.dry_run},
              {"skips", std::move(skips)},
              {"uploaded_bytes", uploaded}},
             text_of(rows, options.skip.dry_run, uploaded, call.output.columns));
  if (!options.skip.dry_run) call.sync_kept(store.images(), context);
  return exit_code;
}

}  // namespace weightfs::fs
