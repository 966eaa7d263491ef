#include "store/handover/handover_status.hpp"

namespace weightfs {

std::string_view to_string(HandOver::State state) noexcept {
  switch (state) {
    case HandOver::State::queued:
      return "queued";
    case HandOver::State::uploading:
      return "uploading";
    case HandOver::State::waiting:
      return "waiting";
    case HandOver::State::committing:
      return "committing";
    case HandOver::State::conflict:
      return "conflict";
    case HandOver::State::failed:
      return "failed";
  }
  return "failed";
}

}  // namespace weightfs
