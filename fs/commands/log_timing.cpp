// log --timing: how long versions took on this host, from the records of its store.  No bucket is
// asked, and the daemon only for its store's path.

#include <fmt/format.h>

#include <algorithm>

#include "fs/base/timing_text.hpp"
#include "fs/commands/command_context.hpp"
#include "store/local/store.hpp"
#include "store/local/timing_table.hpp"
#include "store/repository/open_bucket.hpp"
#include "store/timing/version_timing.hpp"

namespace weightfs::fs {
namespace {

/// The store of a mount, of a sync's directory, or at a path; of a URL the default one.
std::filesystem::path store_of(const std::string& target) {
  const bool is_url = target.find("://") != std::string::npos;
  if (!is_url && Store::find_identity(target)) return target;
  if (!is_url && find_served_around(target)) {
    const MountInfo served = get_served(target);
    const std::string what = (served.path / ".weightfs/status").string();
    return json_string(parse_json(read_status(served), what), "store", what);
  }
  const std::string url = canonical_url(target);
  if (const auto found = Store::find_default_by_url(url)) return *found;
  throw Error(ErrorCode::not_found,
              fmt::format("there is no store of {} here: timings are those of one host. Ask on the "
                          "host, with its mount point, or with the store's directory (--store)",
                          url));
}

/// Only its owner may look into a store.
std::vector<TimingRecord> read_permitted_timings(const std::filesystem::path& store) {
  try {
    return read_timings(store);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::permission) throw;
    throw Error(
        ErrorCode::permission,
        fmt::format("the timings in the store {} are its owner's: ask as that user, or as "
                    "root; of the newest version `weightfs status MOUNTPOINT` tells anybody",
                    store.string()));
  }
}

}  // namespace

int run_log_timing(Call& call) {
  const std::filesystem::path store = store_of(call.options.target);
  std::vector<TimingRecord> records = read_permitted_timings(store);
  const std::uint64_t limit = call.options.look.limit;
  if (limit != 0 && records.size() > limit) {
    records.erase(records.begin(), records.end() - static_cast<std::ptrdiff_t>(limit));
  }
  Json json = Json::array();
  for (auto record = records.rbegin(); record != records.rend(); ++record) {
    json.push_back(parse_json(to_json_text(*record), "a timing"));
  }
  const std::string empty =
      fmt::format("the store {} has recorded no version yet\n", store.string());
  call.print(json, records.empty() ? empty : timing_tables(records));
  return 0;
}

}  // namespace weightfs::fs
