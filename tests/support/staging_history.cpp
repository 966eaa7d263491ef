#include "tests/support/staging_history.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <cstdio>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "store/base/bytes.hpp"
#include "tests/support/random.hpp"

namespace weightfs::test {

namespace {

constexpr Caller kUser{1000, 100};

class Step {
 public:
  Step(Staging& staging, Random& rng) : staging_(staging), rng_(rng) {}

  void run() {
    switch (rng_() % 16) {
      case 0:
      case 1:
        return make_file();
      case 2:
      case 3:
      case 4:
        return write();
      case 5:
        return resize();
      case 6:
        return chmod();
      case 7:
        return make_directory();
      case 8:
        return unlink();
      case 9:
        return remove();
      case 10:
      case 11:
        return rename();
      case 12:
        return exchange();
      case 13:
        return hand_over();
      case 14:
        return end();
      default:
        return sync();
    }
  }

 private:
  std::string name() { return std::string(1, static_cast<char>('a' + rng_() % 8)); }

  // A random inode of the type below a root; the root itself if there is none.
  StagingId any(mode_t type, StagingId root = kStagingRoot) {
    std::vector<StagingId> found;
    for (const StagedFile& file : staging_.list(root)) {
      if (file.type == type) found.push_back(file.id);
    }
    const std::uint64_t chosen = rng_();
    return found.empty() ? root : found[chosen % found.size()];
  }
  StagingId directory() {
    const StagingId found = any(S_IFDIR);
    return rng_() % 3 == 0 ? kStagingRoot : found;
  }

  void make_file() { staging_.make_file(directory(), name(), 0600, kUser); }
  void make_directory() { staging_.make_directory(directory(), name(), 0755, kUser); }
  void write() {
    const StagingId id = any(S_IFREG);
    const std::string bytes(1 + rng_() % 3000, static_cast<char>('a' + rng_() % 26));
    const File file = File::open(staging_.backing_path(id), O_WRONLY);
    write_at(file.fd(), rng_() % 1000, std::as_bytes(std::span(bytes)), "bytes");
  }
  void resize() {
    const StagingId id = any(S_IFREG);
    AttributeChange change;
    change.size_bytes = rng_() % 5000;
    staging_.change(id, change);
  }
  void chmod() {
    const StagingId id = any(rng_() % 2 == 0 ? S_IFREG : S_IFDIR);
    AttributeChange change;
    change.mode = static_cast<mode_t>(rng_() % 01000);
    staging_.change(id, change);
  }
  void unlink() {
    const StagingId id = directory();
    staging_.unlink(id, name());
  }
  void remove() {
    const StagingId id = directory();
    staging_.remove_directory(id, name());
  }
  void rename_with(unsigned flags) {
    const StagingId from = directory(), to = directory();
    const std::string old_name = name(), new_name = name();
    staging_.rename(from, old_name, to, new_name, flags);
  }
  void rename() { rename_with(0); }
  void exchange() { rename_with(RENAME_EXCHANGE); }

  static std::vector<Db::Change> record(StagingId id, bool is_there) {
    std::vector<Db::Change> changes(1);
    changes[0].family = ColumnFamily::handovers;
    append_be64(changes[0].key, id);
    if (is_there) changes[0].value.emplace(1, 'x');
    return changes;
  }
  void hand_over() {
    const StagingId id = any(S_IFDIR);
    const std::string new_name = name();
    staging_.hand_over(id, new_name, record(id, true));
  }
  // Ends a hand-over: published in part, or taken back.
  void end() {
    std::vector<StagingId> tops, published;
    staging_.read_directory(kPublishRoot, 0, [&](const StagingName& top) {
      tops.push_back(top.id);
      return true;
    });
    if (tops.empty()) return;
    const StagingId id = tops[rng_() % tops.size()];
    for (const StagedFile& file : staging_.list(id)) {
      if (file.type == S_IFREG && rng_() % 2 == 0) published.push_back(file.id);
    }
    const std::string back = name();
    if (rng_() % 2 == 0) {
      staging_.take_back(id, kStagingRoot, back, record(id, false));
    } else {
      staging_.finish(id, published, {kStagingRoot, back}, 7, record(id, false));
    }
  }
  void sync() {
    if (rng_() % 4 == 0) staging_.sync_directory(kStagingRoot);
  }

  Staging& staging_;
  Random& rng_;
};

}  // namespace

void do_next(Staging& staging, Random& rng) {
  Random own(rng());
  try {
    Step(staging, own).run();
  } catch (const PosixError&) {
  }
}

}  // namespace weightfs::test
