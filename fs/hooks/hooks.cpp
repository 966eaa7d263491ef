#include "fs/hooks/hooks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <map>
#include <set>

#include "fs/hooks/engine_http.hpp"
#include "fs/hooks/exec.hpp"
#include "fs/hooks/http.hpp"
#include "fs/hooks/records.hpp"
#include "fs/hooks/sglang.hpp"
#include "fs/hooks/vllm.hpp"
#include "fs/hooks/vllm_lora.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/base/ranked_mutex.hpp"

namespace weightfs::fs {
namespace {

constexpr std::chrono::seconds kWithoutMemory{1};

/// Useful, but not necessary: an error is only logged.
template <typename Work>
void try_record(const HookOptions& spec, const char* what, const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    log_warning(fmt::format("hook {} {}: cannot {}: {}", to_string(spec.type), spec.target(), what,
                            error.what()));
  }
}

HookRecord read_hook_record(const Db& db, const HookOptions& spec) {
  HookRecord record;
  try_record(spec, "read the record of its last update",
             [&] { record = find_hook_record(db, spec.identity()); });
  return record;
}

template <typename Work>
auto must_record(const char* what, const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    throw error.within(what);
  }
}

/// A command that nobody remembers might run twice, so here an error is one of the hook.
HookMemory exec_memory(Db& db, const HookOptions& spec) {
  return {.find =
              [&db, identity = spec.identity()] {
                return must_record("cannot read which command ran last",
                                   [&] { return find_hook_text(db, HookText::run, identity); });
              },
          .save =
              [&db, identity = spec.identity()](const std::string& id) {
                must_record("cannot record which command runs",
                            [&] { put_hook_text(db, HookText::run, identity, id); });
              }};
}

HookMemory vllm_memory(Db& db, const HookOptions& spec) {
  return {.find =
              [&db, spec] {
                std::string process;
                try_record(spec, "read which process is out of step",
                           [&] { process = find_hook_text(db, HookText::step, spec.identity()); });
                return process;
              },
          .save =
              [&db, spec](const std::string& process) {
                try_record(spec, "record which process is out of step",
                           [&] { put_hook_text(db, HookText::step, spec.identity(), process); });
              }};
}

std::unique_ptr<Hook> make_hook(const HookOptions& spec, HttpClient& client,
                                const HooksOptions& options, Db& db) {
  switch (spec.type) {
    case HookType::vllm:
      return std::make_unique<VllmHook>(client, spec, options.mount_point, VllmPace{},
                                        vllm_memory(db, spec));
    case HookType::vllm_lora:
      return std::make_unique<VllmLoraHook>(client, spec, options.mount_point / "versions");
    case HookType::sglang:
      return std::make_unique<SglangHook>(client, spec);
    case HookType::http:
      return std::make_unique<HttpHook>(client, spec, options.repository);
    case HookType::exec:
      return std::make_unique<ExecHook>(spec, options.repository, options.mount_point,
                                        exec_memory(db, spec));
  }
  throw Error(ErrorCode::invalid, "an unknown kind of hook");
}

}  // namespace

Hooks::Hooks(HooksOptions options, Db& db) : options_(std::move(options)), db_(db) {
  if (options_.specs.empty()) return;
  client_ = std::make_unique<HttpClient>(engine_http_options());
  std::map<std::string, std::shared_ptr<RankedMutex>> engines;  // by origin
  for (const HookOptions& spec : options_.specs) {
    auto& engine = engines[spec.origin()];
    if (!engine) engine = std::make_shared<RankedMutex>(LockRank::hook_engine, "hook engine");
    reconcilers_.push_back(make(spec, engine));
  }
}

Hooks::~Hooks() { stop(); }

std::unique_ptr<HookReconciler> Hooks::make(const HookOptions& spec,
                                            std::shared_ptr<RankedMutex> engine) {
  ReconcilerOptions options{
      .type = std::string(to_string(spec.type)),
      .target = spec.target(),
      .url = spec.shown_url(),
      .every = spec.every,
      .timeout = spec.timeout,
      .record = read_hook_record(db_, spec),
      .save = [this, identity = spec.identity()](
                  const HookRecord& record) { put_hook_record(db_, identity, record); },
      .engine = std::move(engine)};
  return std::make_unique<HookReconciler>(make_hook(spec, *client_, options_, db_),
                                          std::move(options));
}

void Hooks::start(std::function<Shown()> find_newest) {
  find_newest_ = std::move(find_newest);
  is_started_ = true;
  for (const auto& reconciler : reconcilers_) {
    threads_.emplace_back(
        [this, &reconciler = *reconciler](const std::stop_token& stop) { run(reconciler, stop); });
  }
}

void Hooks::stop() {
  for (std::jthread& thread : threads_) thread.request_stop();
  threads_.clear();
}

void Hooks::notify() {
  {
    const std::lock_guard lock(mutex_);
    notices_++;
  }
  noticed_.notify_all();
}

std::optional<HookWish> Hooks::find_wish() const {
  const Shown shown = find_newest_();
  if (shown.version == 0) return std::nullopt;
  return HookWish{
      .target = {.version = shown.version,
                 .path = options_.mount_point / "versions" / std::to_string(shown.version),
                 .tag = shown.tag},
      .is_newest = shown.is_newest};
}

void Hooks::run(HookReconciler& reconciler, const std::stop_token& stop) {
  const Context context{.stop = stop};
  while (!stop.stop_requested()) {
    try {
      wait(reconciler, reconciler.round([this] { return find_wish(); }, context), stop);
    } catch (const std::exception& error) {  // no memory, mostly
      log_caught("telling engines", error);
      std::unique_lock lock(mutex_);
      noticed_.wait_for(lock, stop, kWithoutMemory, [] { return false; });
    }
  }
}

/// Waits until the next round is due, or, if it may come early, until another version is wanted.
void Hooks::wait(const HookReconciler& reconciler, const HookReconciler::Next& next,
                 const std::stop_token& stop) {
  const auto wants_other = [&] {
    const auto wish = find_wish();
    return wish && wish->target.version != reconciler.status().wanted;
  };
  while (!stop.stop_requested() && Clock::now() < next.due) {
    std::uint64_t seen = 0;
    {
      const std::lock_guard lock(mutex_);
      seen = notices_;
    }
    if (next.may_come_early && wants_other()) return;
    std::unique_lock lock(mutex_);
    noticed_.wait_until(lock, stop, next.due,
                        [&] { return next.may_come_early && notices_ != seen; });
  }
}

bool Hooks::holds(std::uint64_t version) const {
  return std::any_of(reconcilers_.begin(), reconcilers_.end(),
                     [&](const auto& reconciler) { return reconciler->holds(version); });
}

std::vector<DeltaId> Hooks::wanted_deltas(std::uint64_t newest) const {
  std::set<DeltaId> wanted;
  for (const auto& reconciler : reconcilers_) {
    if (const auto delta = reconciler->wanted_delta(newest)) wanted.insert(*delta);
  }
  return {wanted.begin(), wanted.end()};
}

std::vector<HookStatus> Hooks::status() const {
  const std::uint64_t newest = is_started_ ? find_newest_().version : 0;
  std::vector<HookStatus> all;
  for (const auto& reconciler : reconcilers_) {
    all.push_back(reconciler->status());
    if (newest != 0) all.back().wanted = newest;
  }
  return all;
}

}  // namespace weightfs::fs
