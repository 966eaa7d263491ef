#include "fs/passes/pass_findings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "store/base/bytes.hpp"

namespace weightfs::fs {
namespace {

bool is_unseen(const Json& pin) {
  return pin.is_object() && pin.value("session", Json()).is_string() &&
         pin["session"].get<std::string>().starts_with("invisible");
}

}  // namespace

std::vector<Finding> pass_findings(const Json& status) {
  std::vector<Finding> findings;
  const Json pins = status.value("pins", Json::array());
  if (std::any_of(pins.begin(), pins.end(), is_unseen)) {
    findings.push_back(
        {"callers", Finding::State::warning,
         "the daemon cannot see some of its readers, so all processes of a uid count as one: "
         "run it in their PID namespace (Kubernetes: hostPID: true; docker: --pid host), or "
         "give them versions/N"});
  }
  for (const Json& full : status.value("pins_full", Json::array())) {
    findings.push_back(
        {"passes", Finding::State::warning,
         fmt::format(
             "uid {} has the maximum number of passes, and {} of its processes got none and may "
             "mix versions: give its loaders versions/N",
             json_uint(full, "uid", "pins_full"),
             count_text(json_uint(full, "refused", "pins_full"), "open"))});
  }
  return findings;
}

}  // namespace weightfs::fs
