#include "fs/doctor/scrubber.hpp"

#include <algorithm>
#include <cctype>
#include <utility>

#include "fs/base/secret_names.hpp"
#include "store/aws/sigv4.hpp"

namespace weightfs::fs {
namespace {

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r\n\"'";
  const std::size_t first = text.find_first_not_of(kSpaces);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpaces) - first + 1);
}

void replace_all(std::string& text, std::string_view what) {
  for (std::size_t at = text.find(what); at != std::string::npos;
       at = text.find(what, at + Scrubber::kRemoved.size())) {
    text.replace(at, what.size(), Scrubber::kRemoved);
  }
}

bool ends_url(char c) {
  return std::isspace(static_cast<unsigned char>(c)) != 0 || c == '"' || c == '\'' || c == '<' ||
         c == '>' || c == '\0';
}

/// Of each URL who logs in.
void scrub_logins(std::string& text) {
  for (std::size_t at = text.find("://"); at != std::string::npos; at = text.find("://", at + 3)) {
    const std::size_t begin = at + 3;
    std::size_t end = begin;
    while (end < text.size() && !ends_url(text[end]) && text[end] != '/' && text[end] != '?') end++;
    const std::size_t login = text.substr(begin, end - begin).rfind('@');
    if (login != std::string::npos) text.replace(begin, login, Scrubber::kRemoved);
  }
}

/// Of URLs and paths: "?name=value...", up to a fragment or the comma of a hook's options.
void scrub_queries(std::string& text) {
  for (std::size_t at = text.find('?'); at != std::string::npos; at = text.find('?', at + 1)) {
    std::size_t end = at + 1;
    while (end < text.size() && !ends_url(text[end]) && text[end] != ',' && text[end] != '#') end++;
    if (text.substr(at, end - at).find('=') == std::string::npos) continue;
    text.replace(at + 1, end - at - 1, Scrubber::kRemoved);
  }
}

void scrub_bearers(std::string& text) {
  constexpr std::string_view kBearer = "Bearer ";
  for (std::size_t at = text.find(kBearer); at != std::string::npos;
       at = text.find(kBearer, at + kBearer.size())) {
    std::size_t end = at + kBearer.size();
    while (end < text.size() && !ends_url(text[end])) end++;
    text.replace(at + kBearer.size(), end - at - kBearer.size(), Scrubber::kRemoved);
  }
}

}  // namespace

void Scrubber::add(std::string_view secret) {
  for (const std::string& form :
       {std::string(trimmed(secret)), uri_encode(trimmed(secret), false)}) {
    if (form.size() < kSecretBytesMin || std::ranges::count(secrets_, form) != 0) continue;
    secrets_.push_back(form);
  }
  std::ranges::stable_sort(secrets_, std::ranges::greater(), &std::string::size);
}

void Scrubber::add_environment(std::string_view block) {
  while (!block.empty()) {
    const std::size_t end = std::min(block.find('\0'), block.size());
    const std::string_view variable = block.substr(0, end);
    block.remove_prefix(std::min(end + 1, block.size()));
    const std::size_t equals = variable.find('=');
    if (equals == std::string_view::npos) continue;
    if (is_secret_name(variable.substr(0, equals))) add(variable.substr(equals + 1));
  }
}

void Scrubber::add_values(std::string_view text) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::size_t equals = line.find('=');
    if (equals != std::string_view::npos) add(line.substr(equals + 1));
  }
}

std::string Scrubber::scrub(std::string text) const {
  for (const std::string& secret : secrets_) replace_all(text, secret);
  scrub_logins(text);
  scrub_queries(text);
  scrub_bearers(text);
  return text;
}

}  // namespace weightfs::fs
