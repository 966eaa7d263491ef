#include "store/handover/proven_bucket.hpp"

#include <fmt/format.h>

#include <string>

#include "store/database/db.hpp"
#include "store/repository/probe.hpp"

namespace weightfs {
namespace {

constexpr std::string_view kProbedKey =
    "probed";  // in the family `store`: see store/database/column_families.hpp

}  // namespace

void require_put_if_absent_once(Repository& repository, Store& store, std::string_view endpoint_url,
                                const Context& context) {
  const std::string place = fmt::format("{}\n{}", repository.url(), endpoint_url);
  if (store.db().find(ColumnFamily::store, kProbedKey) == place) return;
  require_put_if_absent(repository.bucket(context), context);
  store.db().write({{ColumnFamily::store, std::string(kProbedKey), place}});
}

}  // namespace weightfs
