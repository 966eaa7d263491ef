#include "store/handover/early_announcer.hpp"

#include <fmt/format.h>

#include <chrono>
#include <exception>
#include <utility>

#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/repository/early_records.hpp"

namespace weightfs {
namespace {

constexpr std::chrono::seconds kRequestTime{30};

}  // namespace

EarlyAnnouncer::EarlyAnnouncer(Repository& repository, std::function<EarlyComing()> state)
    : repository_(repository),
      state_(std::move(state)),
      thread_({"no early record: {}"}, [this](const Context& context, bool) {
        try {
          announce(context);
        } catch (const std::exception& error) {
          log_debug(fmt::format("no early record: {}", error.what()));
        }
        return WokenThread::kUntilWoken;
      }) {}

/// While the next version is not known a hand-over is being published: its record stays.
void EarlyAnnouncer::announce(const Context& context) {
  const EarlyComing state = state_();
  if (state.next == 0) return;
  if (told_ != 0 && (told_ != state.next || !state.record)) remove_told(context);
  if (!state.record) return;
  std::string bytes = state.record->serialize();
  if (told_ == state.next && bytes == bytes_) return;
  told_ = state.next;  // also if the request fails: it may have been carried out
  bytes_.clear();
  put_early_record(repository_, *state.record, context.within(kRequestTime));
  bytes_ = std::move(bytes);
}

/// Its version exists, or all its files were removed from staging.
void EarlyAnnouncer::remove_told(const Context& context) {
  const std::uint64_t told = std::exchange(told_, 0);
  bytes_.clear();
  remove_early_record(repository_, told, context.within(kRequestTime));
}

}  // namespace weightfs
