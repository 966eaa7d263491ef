#include "fs/hooks/vllm_in_place.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>

#include "store/base/error.hpp"
#include "store/base/version_pair.hpp"

namespace weightfs::fs {
namespace {

using Ranks = std::vector<VllmRank>;

[[noreturn]] void fail_rank(const std::string& text) { throw Error(ErrorCode::io, text); }

/// Throws nlohmann's exceptions if it is something else.
VllmRank rank_of(const Json& status) {
  return {.instance = status.at("instance").get<std::string>(),
          .mount = status.at("mount").get<std::string>(),
          .state = status.at("state").get<std::string>(),
          .error = status.at("error").get<std::string>(),
          .refused = status.at("refused").get<std::string>(),
          .held = status.at("held").get<std::uint64_t>(),
          .from = status.at("from").get<std::uint64_t>(),
          .to = status.at("to").get<std::uint64_t>(),
          .needs_proof = status.at("needs_proof").get<bool>(),
          .is_updating = status.at("updating").get<bool>(),
          .is_learning = status.value("learning", false)};
}

/// "rank 3: ", or nothing if there is only one.
std::string name_of(const Ranks& ranks, const VllmRank& rank) {
  return ranks.size() == 1 ? "" : fmt::format("rank {}: ", &rank - ranks.data());
}

std::string shown_version(std::uint64_t version) {
  return version == 0 ? "no known version" : fmt::format("version {}", version);
}

/// What the ranks have, of which one may say that it is never updated in place again.
VllmHeld held_by(const Ranks& ranks, std::uint64_t version) {
  VllmHeld held{.version = version};
  for (const VllmRank& rank : ranks) {
    held.instances.push_back(rank.instance);
    if (held.refused.empty() && !rank.refused.empty()) {
      held.refused = name_of(ranks, rank) + rank.refused;
    }
  }
  return held;
}

bool is_any_learning(const Ranks& ranks) {
  return std::any_of(ranks.begin(), ranks.end(),
                     [](const VllmRank& rank) { return rank.is_learning; });
}

bool is_any_staging(const Ranks& ranks) {
  return std::any_of(ranks.begin(), ranks.end(),
                     [](const VllmRank& rank) { return rank.state == "staging"; });
}

void check_ready(const Ranks& ranks, VersionPair change) {
  for (const VllmRank& rank : ranks) {
    const bool is_this = rank.from == change.from && rank.to == change.to;
    if (rank.state == "ready" && is_this) continue;
    fail_rank(name_of(ranks, rank) +
              (rank.error.empty() ? fmt::format("did not stage the change from version {} to {}",
                                                change.from, change.to)
                                  : rank.error));
  }
}

void check_has(const Ranks& ranks, std::uint64_t version) {
  for (const VllmRank& rank : ranks) {
    if (rank.held == version && rank.state == "idle") continue;
    fail_rank(name_of(ranks, rank) +
              (rank.error.empty()
                   ? fmt::format("has {}, not version {}", shown_version(rank.held), version)
                   : rank.error));
  }
}

}  // namespace

VllmInPlace::VllmInPlace(const VllmCalls& calls, std::filesystem::path mount_point, VllmPace pace)
    : calls_(calls), mount_point_(std::move(mount_point)), pace_(pace) {}

Ranks VllmInPlace::ask(const VllmEngine& engine, std::string_view method, const Json& arguments,
                       const Context& context) const {
  const std::vector<Json> answers = calls_.call(method, arguments, context);
  if (answers.size() != engine.ranks) {
    fail_rank(fmt::format("{}: {} of {} ranks answer", method, answers.size(), engine.ranks));
  }
  Ranks ranks;
  for (const Json& answer : answers) {
    try {
      ranks.push_back(rank_of(answer));
    } catch (const Json::exception&) {
      fail_rank(fmt::format("{}: rank {} does not answer with its status: {}", method, ranks.size(),
                            kVllmOutOfStep));
    }
  }
  return ranks;
}

/// The same mount, by its own name or by a link to it.  An engine in a container must have it at
/// the same path, as for a reload.
void VllmInPlace::check_mount(const VllmRank& rank) const {
  if (std::filesystem::path(rank.mount) == mount_point_) return;
  std::error_code error;
  if (std::filesystem::canonical(rank.mount, error) == mount_point_ && !error) return;
  fail_rank(fmt::format("vLLM was started from the mount {}, and this one is {}",
                        rank.mount.empty() ? "of another name" : rank.mount,
                        mount_point_.string()));
}

/// Whether they are as this hook has left them.
void VllmInPlace::check_known(const Ranks& ranks, const VllmHeld& held) const {
  for (const VllmRank& rank : ranks) {
    const auto at = static_cast<std::size_t>(&rank - ranks.data());
    if (!rank.refused.empty()) fail_rank(name_of(ranks, rank) + rank.refused);
    check_mount(rank);
    if (at >= held.instances.size() || rank.instance != held.instances[at]) {
      fail_rank(name_of(ranks, rank) + "it has been started again");
    }
    if (rank.held != held.version) {
      fail_rank(fmt::format("{}it has {}, not version {} as this hook left it",
                            name_of(ranks, rank), shown_version(rank.held), held.version));
    }
  }
}

Ranks VllmInPlace::wait_staged(const VllmEngine& engine, const Context& context) const {
  VllmWait wait(pace_);
  for (;;) {
    Ranks ranks = ask(engine, "weightfs_status", Json::array(), context);
    if (!is_any_staging(ranks)) return ranks;
    wait.wait(context, "vLLM staged the change");
  }
}

void VllmInPlace::stage(const VllmEngine& engine, const VllmHeld& held, std::uint64_t version,
                        const Context& context) const {
  check_known(ask(engine, "weightfs_status", Json::array(), context), held);
  Ranks ranks = ask(engine, "weightfs_stage", Json::array({held.version, version}), context);
  if (is_any_staging(ranks)) ranks = wait_staged(engine, context);
  check_ready(ranks, {held.version, version});
}

VllmInPlace::Applied VllmInPlace::apply(const VllmEngine& engine, const VllmHeld& held,
                                        std::uint64_t version, const Context& context) const {
  const Json update{{"update_info", {{"old", held.version}, {"new", version}}}};
  const Json finish{{"weight_version", std::to_string(version)}};
  calls_.post("/start_weight_update", nullptr, "", context);
  calls_.post("/update_weights", &update, "", context);
  const Ranks ranks = ask(engine, "weightfs_status", Json::array(), context);
  check_has(ranks, version);
  calls_.post("/finish_weight_update", &finish, "", context);
  Applied applied{.held = held_by(ranks, version)};
  if (applied.held.instances != held.instances) fail_rank("a rank has been started again");
  applied.needs_proof = std::any_of(ranks.begin(), ranks.end(),
                                    [](const VllmRank& rank) { return rank.needs_proof; });
  return applied;
}

Ranks VllmInPlace::hold(const VllmEngine& engine, std::uint64_t version,
                        const Context& context) const {
  Ranks ranks = ask(engine, "weightfs_hold", Json::array({version}), context);
  check_has(ranks, version);
  return ranks;
}

/// A rank that answers anything has answered another call.
void VllmInPlace::load(const VllmEngine& engine, const HookTarget& target,
                       const Context& context) const {
  const std::vector<Json> answers = calls_.reload(target.path, context);
  const bool are_null = std::all_of(answers.begin(), answers.end(),
                                    [](const Json& answer) { return answer.is_null(); });
  if (answers.size() == engine.ranks && are_null) return;
  fail_rank(fmt::format("reload_weights: a rank answers what was not asked: {}", kVllmOutOfStep));
}

VllmHeld VllmInPlace::prove(const VllmEngine& engine, const HookTarget& target,
                            const Context& context) const {
  (void)ask(engine, "weightfs_mark", Json::array(), context);
  load(engine, target, context);
  (void)ask(engine, "weightfs_compare", Json::array(), context);
  return held_by(hold(engine, target.version, context), target.version);
}

VllmHeld VllmInPlace::reload(const VllmEngine& engine, const HookTarget& target,
                             const Context& context) const {
  load(engine, target, context);
  return held_by(hold(engine, target.version, context), target.version);
}

/// Only an update that is known to be open: to end none is a failure of each rank, which leaves the
/// answers of the others behind.
void VllmInPlace::abandon(const VllmEngine& engine, const Context& context) const {
  Ranks ranks = ask(engine, "weightfs_status", Json::array(), context);
  VllmWait wait(pace_);
  while (is_any_learning(ranks)) {
    wait.wait(context, "vLLM learned how its weights are loaded");
    ranks = ask(engine, "weightfs_status", Json::array(), context);
  }
  const bool is_open = std::any_of(ranks.begin(), ranks.end(),
                                   [](const VllmRank& rank) { return rank.is_updating; });
  if (!is_open) return;
  try {
    calls_.post("/finish_weight_update", nullptr, "", context);
  } catch (const Error&) {
    context.check("the update of vLLM was ended");  // whatever it answers, it is reloaded
  }
}

}  // namespace weightfs::fs
