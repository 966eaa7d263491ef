#include "store/publish/version_wishes.hpp"

#include <fmt/format.h>

#include "store/base/error.hpp"
#include "store/base/path_rules.hpp"
#include "store/format/manifest.hpp"
#include "store/format/own_meta.hpp"

namespace weightfs {
namespace {

void check_rollback(const VersionWishes& wishes) {
  if (wishes.snapshot) {
    throw Error(ErrorCode::invalid, "a rollback is published as a delta, without a snapshot");
  }
  if (wishes.meta.contains(std::string(kRollbackKey))) {
    throw Error(
        ErrorCode::invalid,
        fmt::format("the metadata of a rollback have '{}' already: the version whose content "
                    "it has",
                    kRollbackKey));
  }
}

}  // namespace

void check_wishes(const VersionWishes& wishes) {
  const std::string problem = wishes.tag.empty() ? "" : tag_problem(wishes.tag);
  if (!problem.empty()) {
    throw Error(ErrorCode::invalid,
                fmt::format("the tag '{}' {}", escape_name(wishes.tag), problem));
  }
  check_users_meta(wishes.meta);
  if (wishes.rollback != 0) check_rollback(wishes);
  Manifest manifest;
  manifest.meta = wishes.meta;
  static_cast<void>(manifest.serialize());  // rejects what is not text, or too long
}

}  // namespace weightfs
