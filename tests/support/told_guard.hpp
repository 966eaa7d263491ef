// A version guard whose answers come from the test, for as long as it lives.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "store/local/eviction.hpp"
#include "store/local/version_guard.hpp"

namespace weightfs::test {

struct GuardAnswers {  // each may be empty
  std::function<bool(std::uint64_t version)> keeps = {};
  std::function<bool(std::uint64_t version)> withdraw = {};
  std::function<bool(std::uint64_t version)> release = {};
  std::function<void(std::uint64_t version)> restore = {};
};

class ToldGuard : public VersionGuard {
 public:
  ToldGuard(Eviction& eviction, GuardAnswers answers)
      : answers_(std::move(answers)), guarding_(eviction.add_guard(*this)) {}

  bool keeps(std::uint64_t version) override { return answers_.keeps && answers_.keeps(version); }
  bool withdraw(std::uint64_t version) override {
    return !answers_.withdraw || answers_.withdraw(version);
  }
  bool release(std::uint64_t version) override {
    return !answers_.release || answers_.release(version);
  }
  void restore(std::uint64_t version) override {
    if (answers_.restore) answers_.restore(version);
  }

 private:
  const GuardAnswers answers_;
  Eviction::Guarding guarding_;
};

}  // namespace weightfs::test
