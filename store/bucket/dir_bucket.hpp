// DirBucket: a bucket that is a directory, the embedded default.
//
//     <root>/<key>               objects
//     <root>/.tmp/<random>       objects being written; removed by the next writer after a day
//
// An object is written under .tmp, fsynced, and then given its name: put by rename(2),
// put_if_absent by link(2), which fails if the name is taken.  Then every directory from the
// object's up to the root is fsynced: another writer may have made one of them and not yet come to
// its own fsync.  Readers need no write permission anywhere.
//
// If the root is gone, or is there without its landmark, every call throws unavailable, never "no
// such object", and nothing is written: it may be a mount that comes back.  The root is looked up
// by path each time, and never recreated.
//
// Deadlines are checked between pieces of 8 MiB; a system call that hangs (a dead NFS server)
// cannot be cut short.
//
// Threads: all calls may run in parallel, from any number of processes.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <set>
#include <string>

#include "store/base/error.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/bucket/bucket.hpp"

namespace weightfs {

class DirBucket final : public Bucket {
 public:
  /// Throws Error: not_found if the directory is absent and `create` is false; invalid if it is not
  /// a directory; permission.
  DirBucket(std::filesystem::path root, bool create);
  /// Leaves no empty .tmp behind where there is no landmark: that directory is no bucket.
  ~DirBucket() override;
  DirBucket(const DirBucket&) = delete;
  DirBucket& operator=(const DirBucket&) = delete;

  std::size_t get(std::string_view key, std::uint64_t offset_bytes, std::span<std::byte> into,
                  const Context& context) override;
  void put(std::string_view key, const Source& source, const Context& context) override;
  Put put_if_absent(std::string_view key, std::string_view bytes, const Context& context) override;
  std::vector<ObjectInfo> list_objects(std::string_view prefix, std::string_view after,
                                       const Context& context) override;
  Time now(const Context& context) override;
  void remove(std::string_view key, const Context& context) override;
  void set_landmark(std::string_view key) override;
  [[nodiscard]] const std::string& url() const noexcept override { return url_; }

 private:
  struct Listing;

  void write_temporary(const std::filesystem::path& path, std::string_view key,
                       const Source& source, const Context& context);
  void make_parents(std::string_view key);
  void sync_up(std::string_view key);
  void remove_old_temporaries() const noexcept;
  void collect(const std::string& directory, Listing& listing, const Context& context) const;
  template <typename Body>
  void named(std::string_view key, Body&& body) const;
  [[nodiscard]] std::string landmark() const;
  [[nodiscard]] bool is_gone() const;
  void require_there(std::string_view action, std::string_view key) const;
  [[nodiscard]] Error failure(int error, std::string_view action, std::string_view key) const;

  std::filesystem::path root_;
  std::string url_;
  std::atomic<bool> tidied_ = false;    // old files under .tmp were removed
  std::atomic<bool> has_made_ = false;  // .tmp
  mutable RankedMutex mutex_{LockRank::leaf, "DirBucket::mutex_"};  // guards the next two
  std::set<std::string, std::less<>> durable_;  // directories whose names survive a power cut
  std::string landmark_;                        // empty: it has none
};

}  // namespace weightfs
