#include "fs/mount/mount_point.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "fs/mount/mount_calls.hpp"
#include "fs/mount/mount_info.hpp"
#include "fs/mount/mount_users.hpp"
#include "fs/mount/session_mount.hpp"
#include "store/base/error.hpp"
#include "tests/support/support.hpp"

namespace weightfs::fs {
namespace {

namespace stdfs = std::filesystem;
using test::TempDir;

ErrorCode code_of(const auto& body, std::string_view expected_words) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(expected_words), std::string::npos) << error.what();
    return error.code();
  }
  ADD_FAILURE() << "no error";
  return ErrorCode::io;
}

bool can_mount() { return geteuid() == 0 && access("/dev/fuse", R_OK | W_OK) == 0; }

// A mount whose daemon is gone: nobody has its connection any more.
void make_dead_mount(const stdfs::path& path, const std::string& source) {
  const NewMount made = make_mount(path, source);
  attach_mount(made.tree, path, Replacing::on_top);
}

// Unmounts at the end, whatever the test has done.
class MountCleaner {
 public:
  explicit MountCleaner(stdfs::path path) : path_(std::move(path)) {}
  ~MountCleaner() {
    while (try_unmount(path_, true) == 0) {
    }
  }

 private:
  stdfs::path path_;
};

// A process with its working directory, or its standard input, at `path`.
class OtherProcess {
 public:
  OtherProcess(const stdfs::path& directory, const stdfs::path& input) {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addchdir_np(&actions, directory.c_str());
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, input.c_str(), O_RDONLY, 0);
    char name[] = "sleep", time[] = "600";
    char* argv[] = {name, time, nullptr};
    EXPECT_EQ(posix_spawnp(&pid_, name, &actions, nullptr, argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
  }
  ~OtherProcess() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  int pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
};

TEST(MountPoint, ParsesMountinfo) {
  const auto mounts = parse_mounts(
      "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
      "36 22 0:45 / /mnt/a\\040b\\134c rw,nosuid shared:7 master:1 - fuse.weightfs "
      "s3://bucket/x\\054y ro,user_id=1000,group_id=100,allow_other\n"
      "37 22 0:46 /a\\040b /mnt/plain ro - tmpfs tmpfs rw\n");
  ASSERT_EQ(mounts.size(), 3u);
  EXPECT_EQ(mounts[0], (MountInfo{"/", "ext4", "/dev/vda", 254, 0, 22, 1, "/"}));
  EXPECT_EQ(mounts[1],
            (MountInfo{"/mnt/a b\\c", "fuse.weightfs", "s3://bucket/x,y", 0, 45, 36, 22, "/", 1000,
                       100}));
  EXPECT_EQ(mounts[2], (MountInfo{"/mnt/plain", "tmpfs", "tmpfs", 0, 46, 37, 22, "/a b"}));
}

TEST(MountPoint, LeavesOutLinesItDoesNotUnderstand) {
  for (const char* line : {"", "22", "22 1 254:0 / /mnt rw", "22 1 254:0 / /mnt rw -",
                           "22 1 254:0 / /mnt rw - ext4", "22 1 2540 / /mnt rw - ext4 x rw",
                           "22 1 a:b / /mnt rw - ext4 x rw", "22 1 1: / /mnt rw - ext4 x rw"}) {
    EXPECT_TRUE(parse_mounts(line).empty()) << line;
  }
  EXPECT_EQ(parse_mounts("1 1 0:1 / /a\\04 rw - t s rw").at(0).path, "/a\\04");
  EXPECT_EQ(parse_mounts("1 1 0:1 / /a\\ rw - t s rw").at(0).path, "/a\\");
}

TEST(MountPoint, FindsTheMountsInsideAnotherOneAtAnyDepthAndInAnyOrder) {
  const auto mounts = parse_mounts(
      "40 39 0:50 / /mnt/versions/1/deeper rw - tmpfs a rw\n"
      "36 22 0:45 / /mnt ro - fuse.weightfs x ro\n"
      "37 22 0:46 / /mnt2 ro - tmpfs b rw\n"
      "39 36 254:0 /images/1 /mnt/versions/1 ro - ext4 /dev/vda rw\n");
  const auto inside = mounts_inside(mounts, mounts[1]);
  ASSERT_EQ(inside.size(), 2u);
  EXPECT_EQ(inside[0].id, 39);
  EXPECT_EQ(inside[1].id, 40);
  EXPECT_TRUE(mounts_inside(mounts, mounts[0]).empty());
}

TEST(MountPoint, TellsTheDeviceAsMappingsShowIt) {
  const TempDir temp;
  const int fd = ::open((temp / "file").c_str(), O_RDWR | O_CREAT, 0600);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(ftruncate(fd, 4096), 0);
  void* const mapped = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  const dev_t device = proc_device(temp.path());
  const std::string maps = test::read_text("/proc/self/maps");
  const std::size_t name = maps.find(stdfs::canonical(temp / "file").native());
  ASSERT_NE(name, std::string::npos);
  const std::string line = maps.substr(maps.rfind('\n', name) + 1, name);
  char expected[32];
  std::snprintf(expected, sizeof expected, " %02x:%02x ", major(device), minor(device));
  EXPECT_NE(line.find(expected), std::string::npos) << expected << " in " << line;
  munmap(mapped, 4096);
  close(fd);
}

TEST(MountPoint, KnowsTheMountsOfThisSystem) {
  const auto mounts = read_mounts();
  EXPECT_TRUE(std::any_of(mounts.begin(), mounts.end(),
                          [](const MountInfo& mount) { return mount.path == "/proc"; }));
  ASSERT_TRUE(find_mount("/proc"));
  EXPECT_EQ(find_mount("/proc/")->type, "proc");
  EXPECT_EQ(find_mount("/proc/../proc/.")->type, "proc");
  EXPECT_FALSE(find_mount("/proc/self"));
  EXPECT_FALSE(find_mount("/absent/path"));
}

TEST(MountPoint, AnEmptyDirectoryIsGood) {
  const TempDir temp;
  stdfs::create_directory(temp / "mnt");
  const stdfs::path canonical = stdfs::canonical(temp / "mnt");
  EXPECT_EQ(prepare_mount_point(temp / "mnt").path, canonical);
  EXPECT_EQ(prepare_mount_point(temp / "mnt/").path, canonical);
  EXPECT_EQ(prepare_mount_point(temp / "mnt/.").path, canonical);
  EXPECT_EQ(prepare_mount_point(temp / "mnt/../mnt").path, canonical);
  stdfs::create_symlink("mnt", temp / "link");
  stdfs::create_symlink(temp / "link", temp / "link2");
  EXPECT_EQ(prepare_mount_point(temp / "link2").path, canonical);
}

TEST(MountPoint, RefusesWhatIsAbsentFullOrNoDirectory) {
  const TempDir temp;
  test::write_text(temp / "full/file", "x");
  const auto prepare = [&](const char* name) {
    return [&, name] { prepare_mount_point(temp / name); };
  };
  EXPECT_EQ(code_of(prepare("absent"), "mkdir -p"), ErrorCode::not_found);
  EXPECT_EQ(code_of(prepare("absent/deeper"), "mkdir -p"), ErrorCode::not_found);
  EXPECT_EQ(code_of(prepare("full"), "not empty"), ErrorCode::invalid);
  EXPECT_EQ(code_of(prepare("full/file"), "not a directory"), ErrorCode::invalid);
  stdfs::create_symlink("loop", temp / "loop");
  EXPECT_EQ(code_of(prepare("loop"), "symlinks"), ErrorCode::invalid);
}

TEST(MountPoint, RefusesTheMountOfAnotherFileSystem) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  const TempDir temp;
  stdfs::create_directory(temp / "mnt");
  const MountCleaner cleaner(temp / "mnt");
  ASSERT_EQ(mount("foreign", (temp / "mnt").c_str(), "tmpfs", 0, nullptr), 0);
  EXPECT_EQ(code_of([&] { prepare_mount_point(temp / "mnt"); }, "foreign of type tmpfs"),
            ErrorCode::busy);
  EXPECT_EQ(code_of([&] { unmount(temp / "mnt", false); }, "no weightfs"), ErrorCode::not_found);
  EXPECT_TRUE(find_mount(temp / "mnt"));
}

TEST(MountPoint, ADeadMountOfOursIsCleanedUp) {
  if (!can_mount()) GTEST_SKIP() << "needs root and /dev/fuse";
  const TempDir temp;
  stdfs::create_directory(temp / "mnt");
  stdfs::create_symlink("mnt", temp / "link");
  const MountCleaner cleaner(temp / "mnt");
  EXPECT_FALSE(is_dead(temp / "mnt"));
  make_dead_mount(temp / "mnt", "file:///one");
  make_dead_mount(temp / "mnt", "file:///two");
  EXPECT_TRUE(is_dead(temp / "mnt"));
  EXPECT_EQ(find_mount(temp / "mnt")->source, "file:///two");
  EXPECT_EQ(prepare_mount_point(temp / "link").path, stdfs::canonical(temp.path()) / "mnt");
  EXPECT_EQ(find_mount(temp / "mnt")->source, "file:///one") << "the last one stays in its place";
  unmount_dead(stdfs::canonical(temp.path()) / "mnt");
  EXPECT_FALSE(find_mount(temp / "mnt"));
}

TEST(MountPoint, ANewMountTakesThePlaceOfADeadOne) {
  if (!can_mount()) GTEST_SKIP() << "needs root and /dev/fuse";
  const TempDir temp;
  stdfs::create_directory(temp / "mnt");
  const stdfs::path path = stdfs::canonical(temp / "mnt");
  const MountCleaner cleaner(path);
  make_dead_mount(path, "file:///dead");
  const NewMount made = make_mount(path, "file:///new");
  attach_mount(made.tree, path);
  const auto mounts = read_mounts();
  EXPECT_EQ(std::count_if(mounts.begin(), mounts.end(),
                          [&](const MountInfo& mount) { return mount.path == path; }),
            1);
  EXPECT_EQ(find_mount(path)->source, "file:///new");
}

// Where the kernel cannot put a mount beneath another one.
TEST(MountPoint, ASessionsMountOnTopOfADeadOneEndsBoth) {
  if (!can_mount()) GTEST_SKIP() << "needs root and /dev/fuse";
  const TempDir temp;
  stdfs::create_directory(temp / "mnt");
  const stdfs::path path = stdfs::canonical(temp / "mnt");
  const MountCleaner cleaner(path);
  make_dead_mount(path, "file:///dead");
  {
    SessionMount mount(path, "file:///new", Access::read_only);
    mount.attach(Replacing::on_top);
    EXPECT_EQ(find_mount(path)->source, "file:///new");
    EXPECT_EQ(find_mount(path), mount.info());
  }
  EXPECT_FALSE(find_mount(path));
}

TEST(MountPoint, ASessionThatDoesNotGetFarLeavesTheDeadMountInItsPlace) {
  if (!can_mount()) GTEST_SKIP() << "needs root and /dev/fuse";
  const TempDir temp;
  stdfs::create_directory(temp / "mnt");
  const stdfs::path path = stdfs::canonical(temp / "mnt");
  const MountCleaner cleaner(path);
  make_dead_mount(path, "file:///dead");
  { const SessionMount mount(path, "file:///new", Access::read_only); }
  EXPECT_EQ(find_mount(path)->source, "file:///dead");
}

TEST(MountPoint, NamesWhatLiesInTheDirectoryAlsoBelowADeadMount) {
  if (!can_mount()) GTEST_SKIP() << "needs root and /dev/fuse";
  const TempDir temp;
  stdfs::create_directory(temp / "mnt");
  const stdfs::path path = stdfs::canonical(temp / "mnt");
  const MountCleaner cleaner(path);
  for (const char* name : {"staging", "publish", "a", "b", "c"}) test::write_text(path / name, "x");
  for (const bool is_dead_there : {false, true}) {
    if (is_dead_there) make_dead_mount(path, "file:///dead");
    EXPECT_EQ(code_of([&] { prepare_mount_point(path); }, "it contains a, b, c and 2 more"),
              ErrorCode::invalid);
    EXPECT_EQ(prepare_mount_point(path, NonEmpty::allowed).hidden,
              (std::vector<std::string>{"a", "b", "c", "publish", "staging"}));
  }
}

TEST(MountPoint, TheTopmostMountIsNotTheLastOneOfTheList) {
  const auto mounts = parse_mounts(
      "36 37 0:45 / /mnt ro - fuse.weightfs dead ro\n"
      "22 1 254:0 / / rw - ext4 /dev/vda rw\n"
      "37 22 0:46 / /mnt ro - fuse.weightfs beneath ro\n");
  EXPECT_EQ(topmost_mount(mounts, "/mnt")->source, "dead");
  EXPECT_EQ(topmost_mount(mounts, "/"), mounts[1]);
  EXPECT_EQ(topmost_mount(mounts, "/elsewhere"), std::nullopt);
}

TEST(MountPoint, RootsMountIsReadOnlyAndForAllUsers) {
  if (!can_mount()) GTEST_SKIP() << "needs root and /dev/fuse";
  const TempDir temp;
  stdfs::create_directory(temp / "a, b");
  const stdfs::path path = stdfs::canonical(temp / "a, b");
  const MountCleaner cleaner(path);
  const std::string source = "file:///with space,comma\\backslash";
  const NewMount made = make_mount(path, source);
  EXPECT_FALSE(find_mount(path)) << "it is nowhere yet";
  attach_mount(made.tree, path);
  const auto mount = find_mount(path);
  ASSERT_TRUE(mount);
  EXPECT_EQ(mount->type, kMountType);
  EXPECT_EQ(mount->source, source);
  const std::string mounts = test::read_text("/proc/self/mounts");
  const std::size_t line = mounts.find("a,\\040b fuse.weightfs");
  ASSERT_NE(line, std::string::npos);
  const std::string options = mounts.substr(line, mounts.find('\n', line) - line);
  for (const char* option : {"ro,", "nosuid", "nodev", "allow_other", "default_permissions"}) {
    EXPECT_NE(options.find(option), std::string::npos) << option << " in " << options;
  }
}

TEST(MountPoint, UnmountEndsOurMounts) {
  if (!can_mount()) GTEST_SKIP() << "needs root and /dev/fuse";
  const TempDir temp;
  stdfs::create_directory(temp / "mnt");
  const MountCleaner cleaner(temp / "mnt");
  for (const bool lazy : {false, true}) {
    make_dead_mount(temp / "mnt", "file:///x");
    unmount(temp / "mnt", lazy);
    EXPECT_FALSE(find_mount(temp / "mnt"));
  }
  EXPECT_EQ(code_of([&] { unmount(temp / "mnt", false); }, "no weightfs"), ErrorCode::not_found);
  EXPECT_EQ(try_unmount(temp / "mnt", false), EINVAL);
}

// A process with a mount namespace of its own, in which everything is mounted as it was here.
class OtherNamespace {
 public:
  OtherNamespace() {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    pid_ = fork();
    if (pid_ == 0) {
      const bool made = unshare(CLONE_NEWNS) == 0 &&
                        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
      if (!made || write(ends[1], "x", 1) != 1) _exit(1);
      for (;;) pause();
    }
    close(ends[1]);
    char made = 0;
    EXPECT_EQ(read(ends[0], &made, 1), 1);
    close(ends[0]);
  }
  ~OtherNamespace() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  int pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
};

TEST(MountPoint, NamesTheCopiesOfWhatIsUnmounted) {
  if (!can_mount()) GTEST_SKIP() << "needs root and /dev/fuse";
  const TempDir temp;
  const stdfs::path one = stdfs::canonical(temp.path()) / "one", two = one.parent_path() / "two";
  for (const auto& path : {one, two}) stdfs::create_directory(path);
  ASSERT_EQ(::mount("none", one.c_str(), "tmpfs", 0, nullptr), 0);
  const auto mounted = find_mount(one);
  ASSERT_TRUE(mounted);
  {
    const OtherNamespace other;
    EXPECT_EQ(::mount(one.c_str(), two.c_str(), nullptr, MS_BIND, nullptr), 0);
    EXPECT_EQ(umount2(one.c_str(), 0), 0);
    const auto copies = copies_of(*mounted);
    ASSERT_GE(copies.size(), 2u);  // another test may have a mount namespace
    EXPECT_TRUE(copies[0].pids.empty());
    EXPECT_EQ(copies[0].paths, std::vector{two});
    const auto found = std::find_if(copies.begin(), copies.end(), [&](const MountCopies& copy) {
      return copy.pids == std::vector{other.pid()};
    });
    ASSERT_NE(found, copies.end());
    EXPECT_EQ(found->paths, std::vector{one});
  }
  EXPECT_EQ(umount2(two.c_str(), MNT_DETACH), 0);
}

TEST(MountPoint, NamesTheProcessesBelowAPath) {
  const TempDir temp;
  test::write_text(temp / "used/file", "x");
  test::write_text(temp / "used2/file", "x");
  stdfs::create_directory(temp / "free");
  const OtherProcess opener(temp.path(), temp / "used/file");
  const OtherProcess worker(temp / "used", "/dev/null");
  const OtherProcess neighbour(temp / "used2", temp / "used2/file");
  std::vector<int> expected{opener.pid(), worker.pid()};
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(users_of(temp / "used"), expected);
  EXPECT_TRUE(users_of(temp / "free").empty());
  const File own = File::open(temp / "free", O_RDONLY);
  EXPECT_TRUE(users_of(temp / "free").empty()) << "the caller itself is not named";
}

}  // namespace
}  // namespace weightfs::fs
