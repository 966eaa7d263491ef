#include "store/inspect/verdicts.hpp"

#include <fmt/format.h>

namespace weightfs {

bool is_verdict(const Error& error) noexcept {
  switch (error.code()) {
    case ErrorCode::corrupt:
    case ErrorCode::not_found:
    case ErrorCode::unsupported:
      return true;
    default:
      return false;
  }
}

void Verdicts::add(const std::string& object, const std::string& message) {
  const auto skip = find_skip_key(object);
  const std::string_view reach = skip && !needed_.contains(skip->versions)
                                     ? "; it is of a skip delta, and no version depends on it"
                                     : "";
  if (reported_.insert(object).second) {
    report.problems.push_back({object, fmt::format("{}{}", message, reach)});
  }
}

}  // namespace weightfs
