#include "store/sync/head_start.hpp"

#include <fmt/format.h>

#include <chrono>
#include <exception>
#include <utility>

#include "store/base/log.hpp"
#include "store/format/own_meta.hpp"
#include "store/repository/early_records.hpp"
#include "store/sync/make_early.hpp"

namespace weightfs {
namespace {

constexpr std::chrono::seconds kRecordTime{30};

}  // namespace

HeadStart::HeadStart(Store& store, History& history, kernels::SharedCoder coder)
    : store_(store),
      history_(history),
      coder_(std::move(coder)),
      thread_({"no head start: {}"}, [this](const Context& context, bool) {
        try {
          static_cast<void>(look(context));
        } catch (const std::exception& error) {
          log_debug(fmt::format("nothing of the next version is made early: {}", error.what()));
        }
        return WokenThread::kUntilWoken;
      }) {}

std::uint64_t HeadStart::look(const Context& context) {
  const std::uint64_t newest = store_.manifests().newest().version;
  // One that is not here yet is being made, and is about to claim what was made early.
  if (newest == 0 || !store_.images().has_all_files(newest)) return 0;
  store_.early_images().drop_until(newest);
  const auto version = history_.get(newest, context.within(kRecordTime));
  if (find_early_bytes(version->manifest.meta).value_or(0) == 0) return 0;
  const auto record =
      find_early_record(history_.repository(), newest + 1, context.within(kRecordTime));
  if (!record) return 0;
  const EarlyMade made = make_early(store_, history_, *record, coder_, context);
  fetched_bytes_ += made.fetched_bytes;
  return made.bytes;
}

}  // namespace weightfs
