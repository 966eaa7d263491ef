#include "store/sync/delta_finisher.hpp"

namespace weightfs {

DeltaFinisher::DeltaFinisher(Store& store)
    : store_(store),
      thread_({"a delta that was made with its version is not recorded, and is made again after a "
               "restart: {}"},
              [this](const Context& context, bool) {
                finish_all(context);
                return WokenThread::kUntilWoken;
              }) {}

void DeltaFinisher::finish_all(const Context& context) {
  for (const auto& delta : store_.wanted_deltas().take_unfinished()) delta->finish(context);
  store_.deltas().record_synced();
}

}  // namespace weightfs
