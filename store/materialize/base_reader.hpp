// BaseReader: reads the bytes to which the first step of a plan applies, either from the images of
// the base, with the store's patches applied if it has some, or from the snapshot in the bucket.
//
// Threads: a BaseReader belongs to one thread at a time; make one for each worker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "store/materialize/plan.hpp"
#include "store/os/lease.hpp"
#include "store/timing/build_meter.hpp"

namespace weightfs {

class BaseReader {
 public:
  virtual ~BaseReader() = default;

  /// Fills `into` with the chunk at `offset_bytes` of file `file` of the start's layout.
  /// Throws BaseDamaged (an image is missing, too short or unreadable); PatchDamaged; ObjectError
  /// (a snapshot's file is missing or does not match its SHA-256); Error: unavailable, cancelled,
  /// io.
  virtual void read(std::uint32_t file, std::uint64_t offset_bytes, std::span<std::byte> into) = 0;

  /// A hint: the bytes of `file` up to `end_bytes`, and none beyond, will be read front to back, so
  /// one request may fetch them.
  virtual void expect(std::uint32_t /*file*/, std::uint64_t /*end_bytes*/) {}
};

/// Keeps the references.  An image stays open from its first read until another image is read or
/// the object is destroyed; nobody_reads() relies on that.  `meter`: of fetches, which the caller
/// waits for; may be null.
std::unique_ptr<BaseReader> open_base_reader(const Plan& plan, Repository& repository,
                                             const Context& context, BuildMeter* meter = nullptr);

/// Of a base: its images, with the store's patches applied if it has some.  Keeps the reference.
/// With patches, what is read is one whole chunk.
std::unique_ptr<BaseReader> open_base_reader(const Base& base, BuildMeter* meter = nullptr);

/// Of a base's images as they are, without patches.  Keeps the reference.
std::unique_ptr<BaseReader> open_image_reader(const Base& base);

}  // namespace weightfs
