// Random loaders of many kinds against two invariants: nobody mixes versions in a load, and no
// program that is started after a load is done gets an old version.  And a third: a rank that has
// all follows at its second load, whoever stays in its pass with a part.
//
// Some sessions run programs of one kind, one after another: there the processes of a program get
// one version too.  In the others they overlap as they like.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <queue>
#include <random>

#include "tests/support/pass_world.hpp"
#include "tests/support/support.hpp"

namespace weightfs::fs {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

constexpr std::uint32_t kModelShards = 4;
constexpr BootTime kModelGrace = seconds(60);
constexpr BootTime kModelTick = milliseconds(10);
constexpr std::uint32_t kLink = 1000;

/// What a process does next: it waits, and opens a file, reads the symlink, or closes all.
struct Step {
  BootTime wait{};
  std::uint32_t file =
      0;              // kLink: readlink(2); 0: closes what it has open, also what it has mapped
  unsigned load = 0;  // of this process
  enum { closed, open, mapped } kept = closed;  // until the next 0
};

/// A process of a program.
struct Script {
  BootTime start{};  // after the program's
  std::vector<Step> steps = {};
  bool is_child = false;  // of the first process of the program
  bool follows = false;   // at the second load: it opens all, and is quiet between its loads
};

/// What is started at once: an engine, a shell's loop, a copy.
struct Program {
  std::string kind = {};
  std::vector<Script> scripts = {};
};

/// Makes programs.
class Programs {
 public:
  explicit Programs(test::Random& rng) : rng_(rng) {}

  Program make(unsigned kind) {
    switch (kind) {
      case 0:
        return engine("eight ranks", 8, milliseconds(300), false);
      case 1:
        return engine("ranks that pause", 2 + random(3), seconds(5), false);
      case 2:
        return engine("slow second look", 2, seconds(3), true);
      case 3:
        return draft();
      case 4:
        return subset();
      case 5:
        return shell(1);
      case 6:
        return shell(4);  // xargs -P
      case 7:
        return copy("tar", milliseconds(1));
      case 8:
        return copy("rsync", seconds(20));
      case 9:
        return copy("cp -r", seconds(70));
      case 10:
        return config_poller();
      case 11:
        return again(seconds(1));
      case 12:
        return again(seconds(8));
      case 13:
        return again(seconds(60));
      case 14:
        return one_shard();
      case 15:
        return layer_by_layer();
      case 16:
        return part_again();
      case 17:
        return beside_a_part();
      default:
        return launcher();
    }
  }
  static constexpr unsigned kKinds = 19;

  unsigned random(unsigned count) { return static_cast<unsigned>(rng_() % count); }
  BootTime random(BootTime most) {
    return milliseconds(rng_() % static_cast<unsigned long>(most / milliseconds(1) + 1));
  }

 private:
  static std::vector<std::uint32_t> shards() {
    std::vector<std::uint32_t> files(kModelShards);
    std::iota(files.begin(), files.end(), 1);
    return files;
  }

  /// All shards, in any order, each kept until the next or closed at once.
  void add_load(Script& script, unsigned load, BootTime pause, bool in_order = false) {
    auto files = shards();
    if (!in_order && random(3) == 0) std::shuffle(files.begin(), files.end(), rng_);
    const bool twice_each = random(3) == 0;
    const auto kept = random(2) == 0 ? Step::closed : random(2) == 0 ? Step::open : Step::mapped;
    for (const std::uint32_t file : files) {
      script.steps.push_back({random(pause), file, load, kept});
      if (twice_each) script.steps.push_back({milliseconds(1), file, load, kept});
      if (random(2) == 0) script.steps.push_back({random(pause), 0, load});
    }
    script.steps.push_back({milliseconds(1), 0, load});
  }

  /// Ranks that are started together, one of them late.
  Program engine(const char* kind, unsigned ranks, BootTime pause, bool looks_twice) {
    Program program{kind};
    for (unsigned rank = 0; rank < ranks; rank++) {
      Script script{.start = random(milliseconds(50))};
      const BootTime import = milliseconds(100) + random(seconds(5));
      if (random(2) == 0) script.steps.push_back({import, PassWorld::kConfig, 1});
      if (random(2) == 0) script.steps.push_back({import, PassWorld::kIndex, 1});
      script.steps.push_back({rank + 1 == ranks ? seconds(25) : import, 0, 1});
      add_load(script, 1, pause);
      if (looks_twice) add_load(script, 1, pause);
      script.steps.push_back({random(minutes(3)), 0, 1});  // it lives on
      program.scripts.push_back(std::move(script));
    }
    return program;
  }

  /// A process that reads config, compiles, and starts a worker for each half.
  Program launcher() {
    Program program{"launcher"};
    Script first;
    first.steps = {{milliseconds(100), PassWorld::kConfig, 1}, {minutes(4), 0, 1}};
    program.scripts.push_back(first);
    for (int worker = 0; worker < 2; worker++) {
      Script script{.start = seconds(90), .is_child = true};
      script.steps.push_back({milliseconds(20) + random(seconds(2)), 0, 1});
      add_load(script, 1, seconds(1));
      program.scripts.push_back(std::move(script));
    }
    return program;
  }

  Program draft() {
    Program program{"draft model"};
    Script script;
    add_load(script, 1, seconds(1), true);
    script.steps.push_back({random(seconds(40)), 0, 1});
    add_load(script, 1, seconds(1), true);
    program.scripts.push_back(script);
    return program;
  }

  Program subset() {
    Program program{.kind = "subset"};
    Script script;
    const std::uint32_t first = 1 + random(2);
    for (std::uint32_t file = first; file < first + 2; file++) {
      script.steps.push_back(
          {random(seconds(50)), file, 1, random(2) == 0 ? Step::mapped : Step::open});
    }
    script.steps.push_back({random(minutes(5)), 0, 1});
    program.scripts.push_back(script);
    return program;
  }

  /// A process for each shard, so many at a time.
  Program shell(unsigned at_a_time) {
    Program program{"shell loop"};
    BootTime start{};
    for (std::uint32_t file = 1; file <= kModelShards; file++) {
      Script script{.start = start};
      script.steps = {{milliseconds(20), file, 1, Step::open}, {random(seconds(20)), 0, 1}};
      program.scripts.push_back(script);
      start += at_a_time > 1 ? milliseconds(30) : milliseconds(40) + script.steps[1].wait;
    }
    return program;
  }

  /// One process that reads all files, small ones as well, each for so long.
  Program copy(const char* kind, BootTime each) {
    Program program{kind};
    Script script;
    for (std::uint32_t file : {PassWorld::kConfig, 1u, 2u, 3u, 4u, PassWorld::kIndex}) {
      script.steps.push_back({milliseconds(1), file, 1, Step::open});
      script.steps.push_back({each, 0, 1});
    }
    program.scripts.push_back(script);
    return program;
  }

  Program config_poller() {
    Program program{.kind = "config poller"};
    Script script;
    for (unsigned load = 1; load < 20; load++) {
      script.steps.push_back({seconds(1) + random(seconds(5)), PassWorld::kConfig, load});
    }
    program.scripts.push_back(script);
    return program;
  }

  /// The same process again and again.
  Program again(BootTime period) {
    Program program{fmt::format("each {} s", period / seconds(1))};
    Script script;
    const bool reads_config = random(2) == 0, reads_index = random(2) == 0;
    for (unsigned load = 1; load < 8; load++) {
      if (reads_config && (load == 1 || random(2) == 0)) {
        script.steps.push_back({milliseconds(5), PassWorld::kConfig, load});
      }
      if (reads_index) script.steps.push_back({milliseconds(5), PassWorld::kIndex, load});
      for (const std::uint32_t file : shards()) {
        script.steps.push_back({milliseconds(5), file, load});
      }
      script.steps.push_back({period, 0, load});
    }
    program.scripts.push_back(script);
    return program;
  }

  /// Config, index, both or none.
  std::vector<std::uint32_t> small_files() {
    std::vector<std::uint32_t> files;
    if (random(2) == 0) files.push_back(PassWorld::kConfig);
    if (random(2) == 0) files.push_back(PassWorld::kIndex);
    return files;
  }

  static void add_files(Script& script, unsigned load, const std::vector<std::uint32_t>& files,
                        decltype(Step::kept) kept = Step::closed) {
    for (const std::uint32_t file : files)
      script.steps.push_back({milliseconds(5), file, load, kept});
  }

  /// A process that works on each layer for longer than the grace, and opens its shard anew, after
  /// small files that it had opened before.  Another thread of it may read the symlink.
  Program layer_by_layer() {
    Program program{.kind = "layer by layer"};
    Script script;
    const auto before_each = small_files();
    const bool polls = random(2) == 0;
    const auto kept = random(3) == 0 ? Step::mapped : Step::closed;
    const unsigned layers = 1 + random(3);  // of each shard but the first
    auto files = shards();
    if (random(2) == 0) std::shuffle(files.begin(), files.end(), rng_);
    add_files(script, 1, small_files());
    for (const std::uint32_t file : files) {
      for (unsigned layer = 0; layer < (file == files.front() ? 1 : layers); layer++) {
        if (file == files.back() && layer > 0) break;  // it has all
        add_files(script, 1, before_each);
        add_files(script, 1, {file}, kept);
        if (random(4) > 0) script.steps.push_back({seconds(1), 0, 1});
        script.steps.push_back({kModelGrace + random(minutes(5)), polls ? kLink : 0, 1});
      }
    }
    program.scripts.push_back(std::move(script));
    return program;
  }

  /// Ranks that read their own shards again and again, each in its way, in any order.
  Program part_again() {
    Program program{.kind = "part again"};
    std::vector<BootTime> pauses(11);
    for (BootTime& pause : pauses) pause = random(minutes(3));
    const unsigned ranks = 1 + random(4);
    for (unsigned rank = 0; rank < ranks; rank++) {
      program.scripts.push_back(rank_again(pauses));
    }
    return program;
  }

  Script rank_again(const std::vector<BootTime>& pauses) {
    Script script{.start = random(milliseconds(50)), .steps = {{milliseconds(100), 0, 1}}};
    const auto begins_with = small_files();
    auto files = shards();
    std::shuffle(files.begin(), files.end(), rng_);
    files.resize(1 + random(kModelShards));
    for (unsigned load = 1; load <= pauses.size(); load++) {
      if (random(3) == 0) std::shuffle(files.begin(), files.end(), rng_);
      add_files(script, load, begins_with);
      add_files(script, load, files);
      script.steps.push_back({pauses[load - 1], random(2) == 0 ? kLink : 0, load});
    }
    return script;
  }

  /// A rank that opens all shards again and again, in any order as a thread pool does, each load
  /// for seconds or minutes, and others that have a part.  It polls, or reads the symlink now and
  /// then, or never.
  Program beside_a_part() {
    Program program{.kind = "beside a part"};
    Script all{.start = random(milliseconds(50)), .follows = true};
    const auto begins_with = random(2) == 0 ? small_files() : std::vector<std::uint32_t>{};
    const BootTime pause = random(3) == 0 ? milliseconds(5) : seconds(25);
    const BootTime compiles = random(3) == 0 ? minutes(3) : seconds(1);
    const unsigned polls = random(3);
    auto files = shards();
    all.steps.push_back({milliseconds(100), 0, 1});
    for (unsigned load = 1; load < 9; load++) {
      std::shuffle(files.begin(), files.end(), rng_);
      add_files(all, load, begins_with);
      if (!begins_with.empty()) all.steps.push_back({random(compiles), 0, load});
      for (const std::uint32_t file : files) {
        add_files(all, load, {file});
        if (polls > 0) all.steps.push_back({seconds(2), random(polls) == 0 ? kLink : 0, load});
        all.steps.push_back({random(pause), 0, load});
      }
      all.steps.push_back({kModelGrace + random(minutes(6)), 0, load});
      if (polls > 0) all.steps.push_back({milliseconds(5), random(polls) == 0 ? kLink : 0, load});
    }
    program.scripts.push_back(std::move(all));
    for (unsigned part = random(3); part < 3; part++) program.scripts.push_back(part_loader());
    return program;
  }

  /// Config and a shard or two, then idle; or the same again now and then.
  Script part_loader() {
    Script script{.start = random(milliseconds(50)), .steps = {{milliseconds(100), 0, 1}}};
    auto files = shards();
    std::shuffle(files.begin(), files.end(), rng_);
    files.resize(1 + random(2));
    const unsigned loads = random(2) == 0 ? 1 : 2 + random(8);
    for (unsigned load = 1; load <= loads; load++) {
      add_files(script, load, {PassWorld::kConfig});
      add_files(script, load, files);
      script.steps.push_back({random(minutes(8)), 0, load});
    }
    script.steps.push_back({random(minutes(40)), 0, loads});
    return script;
  }

  /// md5sum of one shard.
  Program one_shard() {
    Program program{.kind = "one shard"};
    Script script;
    script.steps = {{milliseconds(20), 2, 1, Step::open}, {random(seconds(2)), 0, 1}};
    program.scripts.push_back(script);
    return program;
  }

  test::Random& rng_;
};

/// Runs programs in sessions, in virtual time.
class PassesModel : public testing::Test {
 protected:
  struct Running {
    Program program;
    std::string session;
    BootTime started{};
    std::uint64_t newest = 0;             // when it was started
    std::uint64_t version = 0;            // of its first OPEN; 0: none yet
    unsigned load = 0;                    // the last that one of its processes has begun
    std::set<std::uint32_t> opened = {};  // weights files, by all of them, in that
    BootTime full{};                      // when that had opened all; 0: not yet
    BootTime ended{};                     // 0: not yet
    std::size_t processes = 0;            // that have not ended
    pid_t first = 0;
    bool is_alone = true;  // no other program of the session was in the middle of a load
    bool must_be_newest = false;
    bool is_apart = false;  // no other program of the session runs
  };
  struct Actor {
    std::size_t program = 0;
    pid_t pid = 0;  // 0: not started
    Script script;
    std::size_t next = 0;
    std::map<unsigned, std::uint64_t> loads = {};  // load -> version
    std::uint64_t due = 0;                         // its next load is of that or a newer version
  };
  struct Event {
    BootTime at{};
    std::size_t actor = 0;
    friend bool operator>(const Event& a, const Event& b) { return a.at > b.at; }
  };

  std::string describe(const Actor& actor) const {
    const Running& running = runs_[actor.program];
    std::string text =
        fmt::format("{} in {}, pid {}, at {} ms; seed {}", running.program.kind, running.session,
                    actor.pid, world_.now / milliseconds(1), test::seed());
    for (const PassState& pass : world_.passes.list(world_.now)) {
      if (pass.session != running.session) continue;
      text += fmt::format("\n  version {}, {} s, {} members{}", pass.version, pass.age / seconds(1),
                          pass.members.size(), pass.is_full ? ", full" : "");
    }
    for (const Running& other : runs_) {
      if (other.session != running.session || is_forgotten(other)) continue;
      text += fmt::format("\n  {}: {} s, full {} s, ended {} s ago", other.program.kind,
                          (world_.now - other.started) / seconds(1),
                          (world_.now - other.full) / seconds(1),
                          (world_.now - other.ended) / seconds(1));
    }
    return text;
  }

  void launch(unsigned kind, const std::string& session, bool is_apart = false) {
    Running running{.program = programs_.make(kind), .session = session};
    running.started = world_.now;
    running.newest = world_.newest;
    running.processes = running.program.scripts.size();
    running.must_be_newest = true;
    running.is_apart = is_apart;
    for (const Running& other : runs_) {
      if (other.session != session || is_forgotten(other)) continue;
      // Half of it may have joined another's pass, which was full before the other half started.
      const bool is_done = other.full != BootTime{} && other.full + kModelTick < world_.now &&
                           (other.is_alone || other.program.scripts.size() == 1);
      if (!is_done) running.must_be_newest = running.is_alone = false;
    }
    share(session);
    runs_.push_back(std::move(running));
    for (const Script& script : runs_.back().program.scripts) {
      actors_.push_back({.program = runs_.size() - 1, .script = script});
      events_.push({world_.now + script.start, actors_.size() - 1});
    }
  }

  /// Who is in the middle of a load is not alone in the session any more: another one begins.
  void share(const std::string& session) {
    for (Running& running : runs_) {
      if (running.session == session && running.full == BootTime{}) running.is_alone = false;
    }
  }

  /// Nothing of what it has begun lives any more, by the rules.
  bool is_forgotten(const Running& other) const {
    return other.ended != BootTime{} && world_.now - other.ended > kModelGrace + seconds(20);
  }

  void run(const Event& event) {
    advance(event.at);
    Actor& actor = actors_[event.actor];
    Running& running = runs_[actor.program];
    if (actor.pid == 0) {
      const pid_t parent = actor.script.is_child ? running.first : shells_.at(running.session);
      actor.pid = world_.start(running.session, parent);
      if (running.first == 0) running.first = actor.pid;
    } else if (actor.next < actor.script.steps.size()) {
      step(actor, actor.script.steps[actor.next++]);
    }
    if (actor.next < actor.script.steps.size()) {
      events_.push({world_.now + actor.script.steps[actor.next].wait, event.actor});
      return;
    }
    world_.end(actor.pid);
    if (--running.processes == 0) running.ended = world_.now;
  }

  /// Time passes; the thread of the daemon looks each second.
  void advance(BootTime to) {
    while (next_sweep_ <= to) {
      world_.now = std::max(world_.now, next_sweep_);
      world_.sweep();
      next_sweep_ += seconds(1);
    }
    world_.now = std::max(world_.now, to);
  }

  void step(Actor& actor, const Step& step) {
    Running& running = runs_[actor.program];
    if (step.file == 0) {
      world_.close(actor.pid);
      world_.processes.at(actor.pid).mapped.clear();
      return;
    }
    if (step.file == kLink) {
      world_.read_link(actor.pid);
      return;
    }
    const std::uint64_t got = world_.open(actor.pid, step.file);
    opens_++;
    if (step.kept != Step::open) world_.close(actor.pid);
    if (step.kept == Step::mapped) world_.processes.at(actor.pid).mapped.insert(got);
    if (actor.script.follows && running.is_apart) check_follows(actor, step, got);
    check(actor, running, step, got);
    if (step.load > running.load) {
      if (running.load > 0) share(running.session);
      if (running.load > 0) running.is_alone = false;  // its ranks may begin again in two passes
      running.load = step.load;
      running.opened.clear();
      running.full = BootTime{};
    }
    if (step.file < PassWorld::kConfig) running.opened.insert(step.file);
    if (running.full == BootTime{} && running.opened.size() == kModelShards)
      running.full = world_.now;
  }

  /// At one load it may wait for others, and at the one before have met them, in a pass that they
  /// had begun a little earlier.
  void check_follows(Actor& actor, const Step& step, std::uint64_t got) {
    if (step.load == 1 || actor.loads.contains(step.load)) return;
    ASSERT_GE(got, actor.due) << "its second load is an old version: " << describe(actor);
    const std::uint64_t last = actor.loads.rbegin()->second;
    followed_ += actor.due > last ? 1u : 0u;
    const bool has_met = got > last && got < world_.newest;
    actor.due = has_met ? got : world_.newest;
  }

  void check(Actor& actor, Running& running, const Step& step, std::uint64_t got) {
    const auto [load, is_first] = actor.loads.emplace(step.load, got);
    ASSERT_EQ(load->second, got) << "a load mixes versions: " << describe(actor);
    ASSERT_TRUE(world_.passes.has(got)) << "its images: " << describe(actor);
    if (step.load > 1) {
      if (load != actor.loads.begin()) {
        ASSERT_GE(got, std::prev(load)->second) << "it goes back: " << describe(actor);
      }
      return;
    }
    if (running.version == 0) {
      running.version = got;
      if (running.must_be_newest) {
        ASSERT_GE(got, running.newest) << "it is not the newest: " << describe(actor);
        new_++;
      }
    }
    if (running.is_alone) {
      ASSERT_EQ(got, running.version) << "the processes of a program differ: " << describe(actor);
      alone_++;
    }
  }

  /// Programs for a while.  `kinds`: of each session.
  void play(BootTime duration) {
    for (unsigned session = 0; session < kSessions; session++) {
      const std::string name = fmt::format("session {}", session);
      shells_[name] = world_.start(name);
      next_launch_[name] = world_.now;
    }
    const BootTime end = world_.now + duration;
    while (world_.now < end && !HasFatalFailure()) {
      for (auto& [session, at] : next_launch_) {
        if (at <= world_.now) at = world_.now + launch_in(session);
      }
      if (rng_() % 3 == 0) world_.newest++;
      const Event event = events_.top();
      const auto launch =
          std::min_element(next_launch_.begin(), next_launch_.end(), by_time)->second;
      if (launch < event.at) {
        advance(launch);
        continue;
      }
      events_.pop();
      run(event);
    }
  }

  /// Returns: until the next one.
  BootTime launch_in(const std::string& session) {
    const auto number = static_cast<unsigned>(std::stoul(session.substr(8)));
    if (number >= Programs::kKinds) {  // anything at any time
      launch(programs_.random(Programs::kKinds), session);
      return milliseconds(50) + programs_.random(seconds(60));
    }
    const bool is_idle = std::all_of(runs_.begin(), runs_.end(), [&](const Running& running) {
      return running.session != session || running.ended != BootTime{};
    });
    if (is_idle) launch(number, session, true);
    return seconds(1) + programs_.random(seconds(50));
  }

  static bool by_time(const std::pair<const std::string, BootTime>& a,
                      const std::pair<const std::string, BootTime>& b) {
    return a.second < b.second;
  }

  static constexpr unsigned kSessions = Programs::kKinds + 3;

  test::Random rng_ = test::make_rng();
  Programs programs_{rng_};
  PassWorld world_{kModelShards};
  std::vector<Running> runs_;
  std::deque<Actor> actors_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::map<std::string, pid_t> shells_;
  std::map<std::string, BootTime> next_launch_;
  BootTime next_sweep_ = world_.now;
  std::uint64_t opens_ = 0, new_ = 0, alone_ = 0, followed_ = 0;
};

TEST_F(PassesModel, NobodyMixesAndWhoComesAfterALoadGetsTheNewest) {
  for (int i = 0; i < 5 && (i == 0 || followed_ == 0); i++) play(minutes(60));
  EXPECT_GT(opens_, 2500u);
  EXPECT_GT(new_, 100u) << "hardly a program had to get the newest version";
  EXPECT_GT(alone_, 500u) << "hardly a program was alone in its session";
  EXPECT_GE(followed_, 1u) << "hardly a rank with all had to follow";
  EXPECT_GT(world_.looked_again, 50u) << "hardly a walk was led to another version";
}

}  // namespace
}  // namespace weightfs::fs
