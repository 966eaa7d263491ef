// BaseReader: reads the bytes that the first step of a plan is applied to: from the images of the
// base, or from the snapshot in the bucket.
//
// Threads: a BaseReader belongs to one thread at a time; make one for each worker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "store/materialize/plan.hpp"
#include "store/os/lease.hpp"

namespace weightfs {

class BaseReader {
 public:
  virtual ~BaseReader() = default;

  /// Fills `into` from `offset_bytes` of file `file` of the start's layout.  Requires: inside the
  /// file.
  /// Throws BaseDamaged (an image is missing, too short or unreadable); ObjectError (a snapshot's
  /// file is missing or does not match its SHA-256); Error: unavailable, cancelled, io.
  virtual void read(std::uint32_t file, std::uint64_t offset_bytes, std::span<std::byte> into) = 0;

  /// A hint: the bytes of `file` up to `end_bytes`, and none after that, will be read front to
  /// back, so it may be worth fetching them with one request.
  virtual void expect(std::uint32_t /*file*/, std::uint64_t /*end_bytes*/) {}
};

/// Keeps the references.  An image is open from the first read of it until another one is read, or
/// to the end of the object: nobody_reads() counts on that.
std::unique_ptr<BaseReader> open_old_bytes(const Plan& plan, Repository& repository,
                                           const Context& context);

}  // namespace weightfs
