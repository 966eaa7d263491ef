#include "store/format/hub_base.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace weightfs {
namespace {

constexpr std::string_view kHubScheme = "hub:";
constexpr std::size_t kHubNameMax = 96;
constexpr std::size_t kCommitDigits = 40;

bool is_alphanumeric(char c) noexcept {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

/// The Hub's own rules for names of organisations and models.  They leave out all that could lead
/// elsewhere in a URL.
bool is_hub_name(std::string_view name) noexcept {
  if (name.empty() || name.size() > kHubNameMax) return false;
  const auto is_edge = [](char c) { return is_alphanumeric(c) || c == '_'; };
  if (!is_edge(name.front()) || !is_edge(name.back())) return false;
  if (name.find("..") != name.npos || name.find("--") != name.npos) return false;
  return std::all_of(name.begin(), name.end(),
                     [&](char c) { return is_edge(c) || c == '.' || c == '-'; });
}

bool is_commit(std::string_view text) noexcept {
  return text.size() == kCommitDigits && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

}  // namespace

std::string HubBase::text() const { return fmt::format("{}{}@{}", kHubScheme, model, revision); }

std::string HubBase::key(std::string_view path) const {
  return fmt::format("{}/resolve/{}/{}", model, revision, path);
}

std::optional<HubBase> HubBase::parse(std::string_view text) {
  if (!text.starts_with(kHubScheme)) return std::nullopt;
  text.remove_prefix(kHubScheme.size());
  const std::size_t at = text.find('@');
  const std::size_t slash = text.substr(0, at).find('/');
  if (at == text.npos || slash == text.npos) return std::nullopt;
  const std::string_view model = text.substr(0, at), revision = text.substr(at + 1);
  if (!is_hub_name(model.substr(0, slash)) || !is_hub_name(model.substr(slash + 1)) ||
      !is_commit(revision)) {
    return std::nullopt;
  }
  return HubBase{std::string(model), std::string(revision)};
}

}  // namespace weightfs
