// MD5, for one purpose: S3 gives it as the ETag of a part, so a part that is already there need not
// be sent again. It is never taken as proof of integrity.
//
// Threads: one thread at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace weightfs {

class Md5Stream {
 public:
  Md5Stream();
  ~Md5Stream();
  Md5Stream(const Md5Stream&) = delete;
  Md5Stream& operator=(const Md5Stream&) = delete;

  void update(std::span<const std::byte> bytes);

  /// Lower-case hex; empty where the system's policy (FIPS) has no MD5.  Requires: called once.
  std::string finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weightfs
