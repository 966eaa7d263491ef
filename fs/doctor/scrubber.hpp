// Scrubber: takes secrets out of texts that leave this host (weightfs doctor --bundle).
//
// It knows the secrets of this host by where weightfs and its libraries take them from, and
// replaces each of them wherever it stands.  Besides, what looks like one is replaced whatever it
// is: the user and password of a URL, a query, and what follows "Bearer".  It is the second line:
// a bundle has only texts that should have none.
//
// Threads: a value; after the last add..() all calls may run in parallel.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace weightfs::fs {

class Scrubber {
 public:
  /// What stands in a text in place of a secret.
  static constexpr std::string_view kRemoved = "[removed]";
  /// A shorter one is taken for a placeholder: replacing it would make texts unreadable.
  static constexpr std::size_t kSecretBytesMin = 6;

  /// A secret, and the same percent-encoded.
  void add(std::string_view secret);

  /// Of variables whose name says so, such as AWS_SECRET_ACCESS_KEY, HF_TOKEN, DB_PASSWORD.
  /// `block`: NAME=VALUE, each followed by a NUL, as /proc/PID/environ has it.
  void add_environment(std::string_view block);

  /// All values of a file of `name = value` lines, such as AWS's credentials.
  void add_values(std::string_view text);

  [[nodiscard]] std::string scrub(std::string text) const;

 private:
  std::vector<std::string> secrets_;  // the longest first: one may contain another
};

}  // namespace weightfs::fs
