#include "store/handover/queue_item.hpp"

namespace weightfs {
namespace {

using Phase = HandOverRecord::Phase;

}  // namespace

HandOver::State state_of(const QueueItem& item) noexcept {
  switch (item.record.phase) {
    case Phase::queued:
      if (item.is_running) return HandOver::State::uploading;
      return item.error.empty() ? HandOver::State::queued : HandOver::State::waiting;
    case Phase::committing:
      return item.missing.empty() ? HandOver::State::committing : HandOver::State::waiting;
    case Phase::committed:
      return item.error.empty() ? HandOver::State::committing : HandOver::State::waiting;
    case Phase::conflict:
      return HandOver::State::conflict;
    case Phase::failed:
      return HandOver::State::failed;
  }
  return HandOver::State::failed;
}

HandOver describe(const QueueItem& item) {
  const HandOverRecord& record = item.record;
  HandOver result;
  result.order = record.order;
  result.directory = record.directory;
  result.name = record.name;
  result.tag = record.wishes.tag;
  result.state = state_of(item);
  if (result.state == HandOver::State::uploading) {
    result.phase = item.step;
    result.done_bytes = item.done_bytes;
    result.total_bytes = item.total_bytes;
  }
  if (record.is_terminal()) {
    result.error = record.error;
    result.error_code = record.error_code;
  } else if (result.state != HandOver::State::uploading) {
    result.error = item.error;
    result.error_code = item.error_code;
  }
  result.early_bytes = item.early_bytes;
  result.time = record.time;
  result.version = record.version;
  result.parts = record.part.parts;
  if (result.state == HandOver::State::waiting) result.missing = item.missing;
  return result;
}

}  // namespace weightfs
