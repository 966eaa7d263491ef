// Random histories compared with an ordinary directory: each operation is done by Staging and by
// system calls; results, trees, and which times changed must be equal.

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "store/staging/staging.hpp"
#include "tests/support/staging_support.hpp"
#include "tests/support/support.hpp"

namespace weightfs {
namespace {

namespace fs = std::filesystem;

int answer_of(int status) { return status == 0 ? 0 : errno; }

// The attributes of an inode that must be equal.
struct Picture {
  std::string text;
  std::uint64_t inode = 0;
  timespec mtime{}, ctime{};
};
using Pictures = std::map<std::string, Picture>;  // by path

bool operator!=(const timespec& a, const timespec& b) {
  return a.tv_sec != b.tv_sec || a.tv_nsec != b.tv_nsec;
}

Picture picture_of(const struct stat& a, const std::string& bytes, bool with_links) {
  const bool has_size = !S_ISDIR(a.st_mode);
  return {fmt::format("mode {:o} owner {}:{} links {} size {} bytes {:x}", a.st_mode, a.st_uid,
                      a.st_gid, with_links ? a.st_nlink : 0, has_size ? a.st_size : 0,
                      std::hash<std::string>()(bytes)),
          a.st_ino, a.st_mtim, a.st_ctim};
}

// ---- the two sides ----

// The parent's id and the last name of "a/b/c", found as the kernel would; symlinks are not
// followed, since they lead nowhere here.
struct Place {
  StagingId parent = kStagingRoot;
  std::string name;
};

Place walk(const Staging& staging, const std::string& path) {
  Place place;
  for (const fs::path& part : fs::path(path)) {
    if (!place.name.empty()) {
      place.parent = staging.lookup(place.parent, place.name);
      if (S_ISLNK(staging.attributes(place.parent).st_mode)) throw PosixError(ENOENT, "walk");
    }
    place.name = part.string();
  }
  if (!S_ISDIR(staging.attributes(place.parent).st_mode)) throw PosixError(ENOTDIR, "walk");
  return place;
}

StagingId find(const Staging& staging, const std::string& path) {
  const Place place = walk(staging, path);
  return staging.lookup(place.parent, place.name);
}

Pictures pictures_of_directory(const fs::path& root, bool with_links) {
  Pictures all;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    struct stat a {};
    EXPECT_EQ(::lstat(entry.path().c_str(), &a), 0);
    std::string bytes;
    if (S_ISREG(a.st_mode)) bytes = test::read_text(entry.path());
    if (S_ISLNK(a.st_mode)) bytes = fs::read_symlink(entry.path()).string();
    all[entry.path().lexically_relative(root).string()] = picture_of(a, bytes, with_links);
  }
  struct stat a {};
  EXPECT_EQ(::lstat(root.c_str(), &a), 0);
  all["."] = picture_of(a, "", with_links);
  return all;
}

Pictures pictures_of_staging(const Staging& staging, bool with_links) {
  Pictures all;
  for (const StagedFile& file : staging.list(kStagingRoot)) {
    std::string bytes;
    if (file.type == S_IFREG) bytes = test::read_text(staging.backing_path(file.id));
    if (file.type == S_IFLNK) bytes = staging.read_link(file.id);
    all[file.path] = picture_of(staging.attributes(file.id), bytes, with_links);
  }
  all["."] = picture_of(staging.attributes(kStagingRoot), "", with_links);
  return all;
}

// Whether the kernel distinguishes two changes in quick succession (Linux 6.13, ext4).
bool has_fine_times(const fs::path& directory) {
  const fs::path file = directory / "probe";
  test::write_text(file, "");
  for (int i = 0; i < 50; i++) {
    struct stat before {
    }, after{};
    EXPECT_EQ(::stat(file.c_str(), &before), 0);
    EXPECT_EQ(::chmod(file.c_str(), 0600), 0);
    EXPECT_EQ(::stat(file.c_str(), &after), 0);
    if (!(before.st_ctim != after.st_ctim)) return false;
  }
  return true;
}

class Twins {
 public:
  explicit Twins(test::Random rng) : rng_(rng) {
    ::umask(0);
    fs::create_directory(real_);
    EXPECT_EQ(::chmod(real_.c_str(), 0755), 0);
    struct statfs info {};
    EXPECT_EQ(::statfs(real_.c_str(), &info), 0);
    is_ext4_ = info.f_type == EXT4_SUPER_MAGIC;
    has_fine_times_ = has_fine_times(parent_.path());
    reopen();
  }
  ~Twins() {
    close_all();
    ::umask(022);
  }

  void run(int operations) {
    Pictures real = real_now(), staged = staged_now();
    for (int i = 0; i < operations && !::testing::Test::HasFailure(); i++) {
      step();
      const std::string at = fmt::format("operation {}: {}", i, last_);
      Pictures real_after = real_now(), staged_after = staged_now();
      compare(real_after, staged_after, at);
      if (has_fine_times_ && is_ext4_ && !was_reopened_) {
        compare_changes({real, real_after}, {staged, staged_after}, at);
      }
      real = std::move(real_after);
      staged = std::move(staged_after);
    }
  }

 private:
  struct Open {
    int fd = -1;
    StagingId id = 0;
    bool writes = false;
  };

  // ---- random choices ----

  std::size_t below(std::size_t count) { return rng_() % count; }
  bool one_in(std::size_t count) { return below(count) == 0; }
  std::string name() {
    static const std::vector<std::string> kNames{"a", "b", "c", "d", "\xFF\n e"};
    if (one_in(60)) return std::string(255, 'x');
    if (one_in(60)) return std::string(256, 'x');
    return kNames[below(kNames.size())];
  }
  // Mostly in an existing directory.
  std::string path() {
    std::string path = name();
    if (one_in(6)) return path;
    std::vector<std::string> directories{""};
    for (const StagedFile& file : staging_->list(kStagingRoot)) {
      if (file.type == S_IFDIR || one_in(10)) directories.push_back(file.path + "/");
    }
    return directories[below(directories.size())] + path;
  }
  std::string path_there() {
    const std::vector<StagedFile> files = staging_->list(kStagingRoot);
    return files.empty() || one_in(8) ? path() : files[below(files.size())].path;
  }
  timespec time() { return {static_cast<time_t>(below(1u << 31)), static_cast<long>(below(999))}; }

  // ---- operations ----

  void step() {
    was_reopened_ = false;
    struct Weighted {
      unsigned weight;
      void (Twins::*run)();
    };
    static const std::vector<Weighted> kKinds{{12, &Twins::create},
                                              {10, &Twins::make_directory},
                                              {3, &Twins::make_symlink},
                                              {10, &Twins::unlink},
                                              {6, &Twins::remove_directory},
                                              {24, &Twins::rename},
                                              {8, &Twins::change},
                                              {6, &Twins::open},
                                              {12, &Twins::use_open},
                                              {8, &Twins::close},
                                              {1, &Twins::sync},
                                              {1, &Twins::restart}};
    unsigned sum = 0;
    for (const Weighted& kind : kKinds) sum += kind.weight;
    std::size_t chosen = below(sum);
    for (const Weighted& kind : kKinds) {
      if (chosen < kind.weight) return (this->*kind.run)();
      chosen -= kind.weight;
    }
  }

  // Runs both sides; their results must be equal.  Returns: true if they succeeded.
  bool both(const std::string& what, const std::function<int()>& real,
            const std::function<void(Staging&)>& staged) {
    last_ = what;
    const int expected = real();
    const int found = test::errno_of([&] { staged(*staging_); });
    EXPECT_EQ(found, expected) << what << ": an ordinary directory answers "
                               << ::strerrorname_np(expected);
    return expected == 0 && found == 0;
  }

  void create() {
    const std::string at = path();
    const mode_t mode = static_cast<mode_t>(below(01000));
    Open file{-1, 0, true};
    const bool works = both(
        fmt::format("create {} {:o}", at, mode),
        [&] {
          file.fd = ::open((real_ / at).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode);
          return file.fd < 0 ? errno : 0;
        },
        [&](Staging& staging) {
          const Place place = walk(staging, at);
          file.id = staging.make_file(place.parent, place.name, mode, caller_);
          staging.open(file.id, true);
        });
    if (works) opens_.push_back(file);
  }

  void make_directory() {
    const std::string at = path();
    const mode_t mode = static_cast<mode_t>(below(02000));
    both(
        fmt::format("mkdir {} {:o}", at, mode),
        [&] { return answer_of(::mkdir((real_ / at).c_str(), mode)); },
        [&](Staging& staging) {
          const Place place = walk(staging, at);
          staging.make_directory(place.parent, place.name, mode, caller_);
        });
  }

  void make_symlink() {
    const std::string at = path();
    const std::string target = "/nowhere" + std::string(one_in(5) ? 4090 : below(100), '/');
    both(
        "symlink " + at, [&] { return answer_of(::symlink(target.c_str(), (real_ / at).c_str())); },
        [&](Staging& staging) {
          // The kernel checks this limit before it asks a file system.
          if (target.size() > 4095) throw PosixError(ENAMETOOLONG, "make it");
          const Place place = walk(staging, at);
          staging.make_symlink(place.parent, place.name, target, caller_);
        });
  }

  void unlink() {
    const std::string at = path_there();
    both(
        "unlink " + at, [&] { return answer_of(::unlink((real_ / at).c_str())); },
        [&](Staging& staging) {
          const Place place = walk(staging, at);
          staging.unlink(place.parent, place.name);
        });
  }

  void remove_directory() {
    const std::string at = path_there();
    both(
        "rmdir " + at, [&] { return answer_of(::rmdir((real_ / at).c_str())); },
        [&](Staging& staging) {
          const Place place = walk(staging, at);
          staging.remove_directory(place.parent, place.name);
        });
  }

  void rename() {
    const std::string from = path_there(), to = one_in(2) ? path() : path_there();
    const unsigned flags = one_in(4) ? RENAME_EXCHANGE : one_in(5) ? RENAME_NOREPLACE : 0;
    both(
        fmt::format("rename {} to {} flags {}", from, to, flags),
        [&] {
          return answer_of(
              ::renameat2(AT_FDCWD, (real_ / from).c_str(), AT_FDCWD, (real_ / to).c_str(), flags));
        },
        [&](Staging& staging) {
          const Place source = walk(staging, from), target = walk(staging, to);
          staging.rename(source.parent, source.name, target.parent, target.name, flags);
        });
  }

  void change() {
    const std::string at = path_there();
    const fs::path real = real_ / at;
    struct stat found {};
    (void)!::lstat(real.c_str(), &found);  // it need not exist
    const bool is_symlink = S_ISLNK(found.st_mode), is_directory = S_ISDIR(found.st_mode);
    const std::size_t kind = below(3);
    if (kind == 0 && !is_symlink) {
      const mode_t mode = static_cast<mode_t>(below(is_directory ? 010000 : 01000));
      both(
          fmt::format("chmod {} {:o}", at, mode),
          [&] { return answer_of(::chmod(real.c_str(), mode)); },
          [&](Staging& staging) { staging.change(find(staging, at), {.mode = mode}); });
    } else if (kind == 1 && ::geteuid() == 0) {
      const auto uid = static_cast<uid_t>(below(9)), gid = static_cast<gid_t>(below(9));
      both(
          fmt::format("chown {} {}:{}", at, uid, gid),
          [&] { return answer_of(::lchown(real.c_str(), uid, gid)); },
          [&](Staging& staging) { staging.change(find(staging, at), {.uid = uid, .gid = gid}); });
    } else {
      const timespec times[2] = {time(), time()};
      both(
          "utimens " + at,
          [&] {
            return answer_of(::utimensat(AT_FDCWD, real.c_str(), times, AT_SYMLINK_NOFOLLOW));
          },
          [&](Staging& staging) {
            staging.change(find(staging, at), {.atime = times[0], .mtime = times[1]});
          });
    }
  }

  void open() {
    const std::string at = path_there();
    Open file{-1, 0, !one_in(3)};
    const bool works = both(
        fmt::format("open {} {}", at, file.writes),
        [&] {
          const int flags = (file.writes ? O_RDWR : O_RDONLY) | O_NOFOLLOW | O_CLOEXEC;
          file.fd = ::open((real_ / at).c_str(), flags);
          return file.fd < 0 ? errno : 0;
        },
        [&](Staging& staging) {
          file.id = find(staging, at);
          if (S_ISLNK(staging.attributes(file.id).st_mode)) throw PosixError(ELOOP, "open it");
          staging.open(file.id, file.writes);
        });
    if (works) opens_.push_back(file);
  }

  // Also uses files that were unlinked or replaced meanwhile.
  void use_open() {
    if (opens_.empty()) return create();
    const Open& file = opens_[below(opens_.size())];
    struct stat real {};
    ASSERT_EQ(::fstat(file.fd, &real), 0);
    const struct stat staged = staging_->attributes(file.id);
    if (is_ext4_ || !S_ISDIR(real.st_mode)) {
      EXPECT_EQ(staged.st_nlink, real.st_nlink);
    }
    EXPECT_EQ(staged.st_mode, real.st_mode);
    if (!S_ISREG(real.st_mode)) return;
    EXPECT_EQ(staged.st_size, real.st_size);
    if (!file.writes) return;

    const std::uint64_t offset = below(9000), size = below(9000);
    const std::size_t kind = below(4);
    if (kind == 0) {
      both(
          "ftruncate", [&] { return answer_of(::ftruncate(file.fd, static_cast<off_t>(size))); },
          [&](Staging& staging) { staging.change(file.id, {.size_bytes = size}); });
    } else if (kind == 1) {
      static constexpr int kModes[] = {0, FALLOC_FL_KEEP_SIZE,
                                       FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE};
      const int mode = kModes[below(3)];
      both(
          "fallocate",
          [&] {
            return answer_of(
                ::fallocate(file.fd, mode, static_cast<off_t>(offset), static_cast<off_t>(size)));
          },
          [&](Staging& staging) { staging.allocate(file.id, mode, offset, size); });
    } else if (kind == 2) {
      const auto mode = static_cast<mode_t>(below(01000));
      both(
          "fchmod", [&] { return answer_of(::fchmod(file.fd, mode)); },
          [&](Staging& staging) { staging.change(file.id, {.mode = mode}); });
    } else {
      write(file, offset, std::string(size + 1, static_cast<char>('a' + below(26))));
    }
  }

  void write(const Open& file, std::uint64_t offset, const std::string& bytes) {
    const auto put = [&](int fd) {
      const ssize_t count = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
      return count == static_cast<ssize_t>(bytes.size()) ? 0 : EIO;
    };
    both(
        "pwrite", [&] { return put(file.fd); },
        [&](Staging& staging) {
          staging.prepare_write(file.id, offset, bytes.size());
          const File backing = File::open(staging.backing_path(file.id), O_WRONLY);
          if (put(backing.fd()) != 0) throw PosixError(EIO, "write");
        });
  }

  void close() {
    if (opens_.empty()) return create();
    const std::size_t chosen = below(opens_.size());
    last_ = "close";
    close(opens_[chosen]);
    opens_.erase(opens_.begin() + static_cast<std::ptrdiff_t>(chosen));
  }
  void close(const Open& file) {
    EXPECT_EQ(::close(file.fd), 0);
    staging_->release(file.id, file.writes);
  }
  void close_all() {
    for (const Open& file : opens_) close(file);
    opens_.clear();
  }

  void sync() {
    last_ = "sync";
    for (const Open& file : opens_) {
      const bool is_file = S_ISREG(staging_->attributes(file.id).st_mode);
      is_file ? staging_->sync_file(file.id, one_in(2)) : staging_->sync_directory(file.id);
    }
  }

  void restart() {
    last_ = "restart";
    close_all();
    reopen();
    was_reopened_ = true;
  }
  void reopen() {
    const std::string before = staging_ ? test::tree_text(*staging_) : "";
    staging_.reset();
    db_.reset();
    db_ = Db::open(parent_ / "db");
    staging_ = std::make_unique<Staging>(*db_, parent_ / "staging",
                                         StagingOptions{{}, {caller_.uid, caller_.gid}});
    if (!before.empty()) {
      EXPECT_EQ(test::tree_text(*staging_), before);
    }
  }

  // ---- comparing ----

  Pictures real_now() { return pictures_of_directory(real_, is_ext4_); }
  Pictures staged_now() { return pictures_of_staging(*staging_, is_ext4_); }

  static void compare(const Pictures& real, const Pictures& staged, const std::string& at) {
    for (const auto& [path, picture] : real) {
      const auto other = staged.find(path);
      ASSERT_TRUE(other != staged.end()) << path << " is not there after " << at;
      EXPECT_EQ(other->second.text, picture.text) << path << " after " << at;
    }
    EXPECT_EQ(staged.size(), real.size()) << "after " << at;
  }

  // Which inodes got another mtime or ctime in the last operation.
  struct Sides {
    const Pictures &before, &after;
  };
  static std::string changes_of(const Sides& sides, const std::string& path) {
    const Picture& now = sides.after.at(path);
    for (const auto& [old_path, picture] : sides.before) {
      if (picture.inode != now.inode) continue;
      return fmt::format("mtime {} ctime {}", picture.mtime != now.mtime,
                         picture.ctime != now.ctime);
    }
    return "is made";
  }
  static void compare_changes(const Sides& real, const Sides& staged, const std::string& at) {
    for (const auto& [path, picture] : real.after) {
      if (!staged.after.contains(path)) continue;
      EXPECT_EQ(changes_of(staged, path), changes_of(real, path)) << path << " after " << at;
    }
  }

  test::Random rng_;
  test::TempDir parent_;
  const fs::path real_ = parent_ / "real";
  const Caller caller_{::geteuid(), ::getegid()};
  std::unique_ptr<Db> db_;
  std::unique_ptr<Staging> staging_;
  std::vector<Open> opens_;
  std::string last_;
  bool is_ext4_ = false, has_fine_times_ = false, was_reopened_ = false;
};

TEST(StagingModel, IsLikeAnOrdinaryDirectory) {
  test::Random rng = test::make_rng();
  for (int history = 0; history < 6 && !HasFailure(); history++) {
    Twins twins{test::Random(rng())};
    twins.run(400);
  }
}

}  // namespace
}  // namespace weightfs
