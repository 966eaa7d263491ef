// Verdicts: what a verification says about each object.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "store/base/error.hpp"
#include "store/inspect/orphans.hpp"
#include "store/materialize/plan.hpp"
#include "store/repository/gc_log.hpp"
#include "store/repository/pieces.hpp"

namespace weightfs {

struct Problem {
  std::string object;  // key, or path
  std::string message;
};

struct VerifyReport {
  std::uint64_t versions = 0;
  std::uint64_t skips = 0;  // skip deltas
  std::uint64_t objects = 0;
  std::uint64_t bytes = 0;  // read and hashed
  std::vector<Problem> problems;
  std::vector<Orphans> orphans;  // not problems; ascending
  /// Versions shown in a directory that gc removed from the bucket, and that are compared with
  /// nothing; not problems; ascending.
  std::vector<std::uint64_t> retired;
};

/// Whether the error is a verdict on an object; any other error ends the verification.
bool is_verdict(const Error& error) noexcept;

class Verdicts {
 public:
  /// The skip deltas that versions depend on; none, until it is known.
  void note_needed(const NeededSkips& skips) { needed_ = skips; }

  /// Runs `body`.  Returns: false if it found `key`, or the object that its ObjectError names,
  /// damaged, which is then reported.  Throws what is no verdict, and BaseDamaged: that is damage
  /// on this host, not in the bucket.
  template <typename Body>
  bool judge(const std::string& key, Body&& body) {
    try {
      body();
      return true;
    } catch (const ObjectError& error) {
      add(error.key(), error.what());
    } catch (const BaseDamaged&) {
      throw;
    } catch (const Error& error) {
      if (!is_verdict(error)) throw;
      add(key, error.what());
    }
    return false;
  }

  /// Reports a problem, unless the object has one already.
  void add(const std::string& object, const std::string& message);

  VerifyReport report;

 private:
  std::set<std::string> reported_;
  NeededSkips needed_;
};

}  // namespace weightfs
