// A hand-over that is a part of a version: the thread publishes the part, and waits for the others.
//
//     queued       code, upload                    -> committing, right before the part's record
//     committing   the part may be in the bucket: whoever finds all parts commits.  The same
//                  publish again, by this process or a later one, finds the part or the version
//                  -> committed; queued if the number is taken; failed if others do not come, or
//                  the parts make no version
//
// A part that failed stays in the bucket.  Handed over again, it is found there, or its version is.
#include <set>

#include "store/format/checkpoint.hpp"
#include "store/handover/queue_state.hpp"
#include "store/handover/seal.hpp"
#include "store/publish/publish_part.hpp"
#include "store/repository/repository.hpp"

namespace weightfs {

void PublishQueue::State::publish_part_item(QueueItem& item, const Context& context,
                                            const Progress& progress) {
  PublishOptions part = options_of(item);
  part.lock_images = false;  // there is nothing to adopt
  part.part = item.record.part;
  part.part_wait = options.part_wait;
  part.waiting = [&](const std::vector<unsigned>& missing) {
    change([&] { item.missing = missing; });
  };
  try {
    const PartResult result = publish_part(history, store, part, context, progress);
    note_committed(item, result.version);
  } catch (const CommitUnknown&) {
    throw;
  } catch (const NumberTaken&) {
    set_queued(item);
    throw;
  } catch (const PartsMissing& error) {
    set_queued(item);
    throw FinalError(error);
  } catch (const Error& error) {
    if (may_pass(error.code())) throw;  // if it is committing, it stays that
    set_queued(item);
    throw FinalError(error);
  }
}

/// The files that the hand-over publishes, so that others of these names, which another part has in
/// the version, stay in staging; nullopt: what is in the version is its own.
std::optional<std::set<std::string>> PublishQueue::State::own_paths(QueueItem& item) const {
  const HandOverRecord& record = item.record;
  if (!record.part.is_part()) return std::nullopt;
  std::set<std::string> paths;
  if (item.is_lost) {  // then the files cannot be read
    for (const StagedFile& file : staging.list(record.directory)) {
      if (is_published(file.path, record.wishes.include)) paths.insert(file.path);
    }
    return paths;
  }
  if (!item.has_links) make_links(staging, record.directory, links_of(record));
  item.has_links = true;
  for (const CheckpointFile& file :
       scan_checkpoint(links_of(record), record.wishes.include, ScanScope::part).files) {
    paths.insert(file.path);
  }
  return paths;
}

}  // namespace weightfs
