#include "fs/commands/skip_store.hpp"

#include <string>

#include "store/local/store.hpp"
#include "store/materialize/check_images.hpp"

namespace weightfs::fs {
namespace {

PublishStore open_skip_store(const Reading& reading, const std::filesystem::path& wanted) {
  const std::string& id = reading.repository->id();
  const std::filesystem::path path =
      wanted.empty() ? Store::default_path(id) : std::filesystem::absolute(wanted);
  return PublishStore::open(path, id, reading.url, StoreLimits{});
}

}  // namespace

SkipStore::SkipStore(Reading& reading, const std::filesystem::path& wanted,
                     const Progress& progress)
    : opened_(open_skip_store(reading, wanted)), history_(*reading.repository, &opened_.store()) {
  check_images(store(), history_, reading.context, progress);
  const std::uint64_t seen =
      history_.refresh(store().manifests().newest().version, reading.context);
  newest_ = history_.refresh(seen, reading.context);  // throws what ended the first
}

}  // namespace weightfs::fs
