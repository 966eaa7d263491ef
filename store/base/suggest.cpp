// The distance is optimal string alignment: swapping two neighbours costs as much as replacing one
// letter, because it is a common typing error.

#include "store/base/suggest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "store/base/path_rules.hpp"

namespace weightfs {
namespace {

constexpr std::size_t kWordBytesMax = 64;  // longer words are not typing errors
constexpr std::size_t kFirstLettersMin = 3;

std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> cost(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); i++) cost[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); j++) cost[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); i++) {
    for (std::size_t j = 1; j <= b.size(); j++) {
      const std::size_t replaced = cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, replaced});
      const bool exchanged = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (exchanged) cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
    }
  }
  return cost[a.size()][b.size()];
}

}  // namespace

std::string nearest_word(std::string_view word, std::span<const std::string> known) {
  if (word.empty() || word.size() > kWordBytesMax) return "";
  const std::size_t most = std::max<std::size_t>(1, word.size() / 3);
  std::string nearest;
  std::size_t least = most + 1;
  for (const std::string& candidate : known) {
    if (candidate.size() > kWordBytesMax || candidate == word) continue;
    const bool is_beginning = word.size() >= kFirstLettersMin && candidate.starts_with(word);
    const std::size_t far = is_beginning ? most : distance(word, candidate);
    if (far >= least) continue;
    least = far;
    nearest = candidate;
  }
  return nearest;
}

std::string did_you_mean(std::string_view word, std::span<const std::string> known,
                         std::string_view prefix) {
  const std::string nearest = nearest_word(word, known);
  if (nearest.empty()) return "";
  return fmt::format("; did you mean {}{}?", prefix, escape_name(nearest));
}

}  // namespace weightfs
