#include "fs/hooks/vllm.hpp"

#include <fmt/format.h>

#include <utility>

#include "fs/hooks/engine_http.hpp"
#include "store/base/error.hpp"
#include "store/base/path_rules.hpp"
#include "store/http/client.hpp"

namespace weightfs::fs {
namespace {

constexpr std::size_t kVllmReasonMax = 300;
/// There is nobody whom a proxy could ask.
constexpr int kVllmNobodyThere = 503;

/// As status shows it.
std::string short_reason(const std::string& reason) {
  return escape_name(std::string_view(reason).substr(0, kVllmReasonMax));
}

/// Whether ranks may be at work on a call that has failed, or one of them did: the answer is vLLM's
/// own (500), or somebody did not wait for it, a proxy (502, 504) or this hook.  What refuses a
/// call (4xx) asks no rank.
bool may_have_reached_ranks(const Error& error) {
  if (const auto* answer = dynamic_cast<const EngineError*>(&error)) {
    return answer->status() >= 500 && answer->status() != kVllmNobodyThere;
  }
  if (const auto* lost = dynamic_cast<const TransportError*>(&error)) {
    return lost->may_have_arrived();
  }
  return error.code() == ErrorCode::timed_out;
}

}  // namespace

VllmHook::VllmHook(HttpClient& client, const HookOptions& spec, std::filesystem::path mount_point,
                   VllmPace pace, HookMemory memory)
    : is_in_place_(spec.is_in_place),
      keeps_running_(spec.keeps_running),
      timeout_(spec.timeout),
      calls_(client, spec, pace),
      in_place_(calls_, std::move(mount_point), pace),
      memory_(std::move(memory)),
      out_of_step_(memory_.find()) {}

/// One that was gone, or has another label than this hook gave it, may be another process.
std::optional<std::uint64_t> VllmHook::find_reported(const Context& context) {
  try {
    const auto label = calls_.find_label(context);
    if (!label) engine_.reset();  // nothing says whether it is the same process
    if (label && *label != told_) forget();
    return label;
  } catch (const TransportError&) {
    forget();
    throw;
  }
}

void VllmHook::forget() {
  engine_.reset();
  held_.reset();
}

std::uint64_t VllmHook::base_of_change() const noexcept {
  return held_ && held_->refused.empty() ? held_->version : 0;
}

/// How it is configured, or why nobody knows.
VllmEngine VllmHook::ask(const Context& context) {
  try {
    engine_ = calls_.describe(context.within(timeout_ / 2));  // a reload does without
    return *engine_;
  } catch (const Error& error) {
    context.check("vLLM was asked how it is configured");
    return {.reason = error.what()};
  }
}

/// Once for each process of an engine with labels, unless something fails.  Also where nothing is
/// in place: once a reload has failed, another process may answer than the one whose ranks are out
/// of step.
VllmEngine VllmHook::look(const Context& context) {
  VllmEngine engine = engine_ ? *engine_ : ask(context);
  if (!is_in_place_) engine.reason = "inplace=no";
  return engine;
}

/// Why the change is not in place; "": each rank is ready.
std::string VllmHook::stage(const VllmEngine& engine, const std::optional<VllmHeld>& held,
                            std::uint64_t version, const Context& context) const {
  if (!engine.reason.empty()) return engine.reason;
  if (!held) return "vLLM is new to this hook; its next version is in place";
  if (!held->refused.empty()) return held->refused;
  if (held->version == version) return "vLLM is told the same version again";
  const auto patience = std::chrono::duration<double>(timeout_ / 2);
  try {
    in_place_.stage(engine, *held, version, context.within(timeout_ / 2));
    return "";
  } catch (const Error& error) {
    context.check("vLLM staged the change");
    if (error.code() != ErrorCode::timed_out) return error.what();
    return fmt::format("not every rank has staged the change after {} s", patience.count());
  }
}

std::optional<VllmHeld> VllmHook::change(const VllmEngine& engine, const VllmHeld& held,
                                         const HookTarget& target, HookUpdate& update,
                                         const Context& context) const {
  const auto begin = Clock::now();
  try {
    auto applied = in_place_.apply(engine, held, target.version, context);
    update.apply = Clock::now() - begin;
    update.how = HookUpdate::How::in_place;
    if (!applied.needs_proof) return std::move(applied.held);
    VllmHeld proven = in_place_.prove(engine, target, context);
    update.how = proven.refused.empty() ? HookUpdate::How::proof : HookUpdate::How::reload;
    update.reason = proven.refused;
    return proven;
  } catch (const Error& error) {
    context.check("vLLM took the change");
    update.how = HookUpdate::How::reload;
    update.reason = error.what();
    return std::nullopt;
  }
}

/// Without the extension: success of all ranks, or failure of any.
void VllmHook::reload_unseen(const VllmEngine& engine, const HookTarget& target,
                             const Context& context) {
  try {
    calls_.reload(target.path, context);
  } catch (const Error& error) {
    if (!may_have_reached_ranks(error)) throw;
    const bool is_known = engine.ranks != 0;
    const VllmEngine seen = is_known ? engine : ask({.stop = context.stop});  // also past its time
    forget();
    if (seen.ranks > 1) set_out_of_step(seen.process);
    throw;
  }
}

void VllmHook::set_out_of_step(const std::string& process) {
  out_of_step_ = process;
  memory_.save(process);
}

void VllmHook::check_in_step(const Context& context) {
  if (out_of_step_.empty()) return;
  if (calls_.describe(context).process == out_of_step_) {
    throw Error(ErrorCode::io, std::string(kVllmOutOfStep));
  }
  set_out_of_step("");
}

std::optional<VllmHeld> VllmHook::reload(const VllmEngine& engine, const HookTarget& target,
                                         const Context& context) {
  if (!engine.reason.empty()) {
    reload_unseen(engine, target, context);
    return std::nullopt;
  }
  in_place_.abandon(engine, context);
  return in_place_.reload(engine, target, context);
}

void VllmHook::tell(const HookTarget& target, const Context& context) {
  check_in_step(context);
  const auto held = std::exchange(held_, std::nullopt);  // until this one has succeeded
  const VllmEngine engine = look(context);
  auto engine_known = std::exchange(engine_, std::nullopt);
  HookUpdate update;
  auto begin = Clock::now();
  update.reason = stage(engine, held, target.version, context);
  const bool is_ready = update.reason.empty();
  if (held && engine.reason.empty()) update.stage = Clock::now() - begin;

  begin = Clock::now();
  calls_.pause(!keeps_running_ && !engine.reason.empty(), context);
  std::optional<VllmHeld> now;
  if (is_ready) now = change(engine, *held, target, update, context);
  const bool is_labelled = now.has_value();
  if (!now) now = reload(engine, target, context);
  update.keeps_running = calls_.reset_caches(engine, keeps_running_, context);
  if (!is_labelled) calls_.label(target.version, context);
  calls_.resume(context);
  update.pause = Clock::now() - begin;

  engine_ = std::move(engine_known);
  held_ = std::move(now);
  told_ = target.version;
  update.reason = short_reason(update.reason);
  update_ = std::move(update);
}

}  // namespace weightfs::fs
