#include "fs/loader_pins.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <ctime>

#include "fs/mount_point.hpp"
#include "fs/process_files.hpp"
#include "store/error.hpp"
#include "store/log.hpp"

namespace weightfs::fs {
namespace {

constexpr std::chrono::milliseconds kLookMost{1000};
constexpr std::chrono::milliseconds kLookLeast{20};

Clock::duration look_interval(const PinTimes& times) {
  return std::clamp<Clock::duration>(std::min(times.quiet, times.grace / 4), kLookLeast, kLookMost);
}

std::size_t count_weights(const CatalogVersion& version) {
  return static_cast<std::size_t>(
      std::count_if(version.entries.begin(), version.entries.end(), [](const CatalogEntry& entry) {
        return !entry.is_directory && pin_file_of(entry.path) == PinFile::weights;
      }));
}

/// Of the weights files.
std::set<Inode> image_inodes(const CatalogVersion& version) {
  std::set<Inode> inodes;
  for (const CatalogEntry& entry : version.entries) {
    if (entry.is_directory || pin_file_of(entry.path) != PinFile::weights) continue;
    struct stat attributes {};
    const auto path = version.directory / entry.path;
    if (lstat(path.c_str(), &attributes) == 0) inodes.insert(attributes.st_ino);
  }
  return inodes;
}

std::string no_such_pin(const UnpinRequest& what) {
  if (what.session) return fmt::format("session '{}' has no pin", *what.session);
  return fmt::format("version {} is not pinned", what.version.value_or(0));
}

}  // namespace

LoaderPins::LoaderPins(FindCatalog catalog, HandPins& by_hand, PinTimes times)
    : catalog_(std::move(catalog)),
      by_hand_(by_hand),
      interval_(look_interval(times)),
      pins_(times),
      watch_([this](const std::stop_token& stop) { watch(stop); }) {}

LoaderPins::~LoaderPins() {
  watch_.request_stop();
  watch_.join();
}

// ---- for the session's threads ----

/// A version is hidden before anybody asks whether it is kept, and told before it is looked for: so
/// either the one who hides sees that it was told, or it is seen here that it is gone.
std::uint64_t LoaderPins::link(pid_t thread) {
  const auto reader = sessions_.find(thread);
  const bool pins_itself = is_bind_mode_ && reader;
  if (pins_itself) note_opens();  // what was opened before this READLINK counts before it
  while (true) {
    const auto now = Clock::now();
    std::uint64_t version = catalog_()->latest;
    if (version == 0) return 0;
    const auto pinned = reader ? pins_.find(reader->session, now) : std::nullopt;
    if (pinned) version = *pinned;
    walks_.told(thread, version, now);
    const bool is_told = !pins_itself || pins_.told(*reader, version, now);
    if (is_told && catalog_()->has_images(version)) {
      if (pins_itself) wake();
      return version;
    }
    if (is_told && (pinned || pins_itself)) pins_.end_session(reader->session);
  }
}

Pins::Opened LoaderPins::opened(pid_t thread, Inode inode) {
  const InodeParts parts = parts_of(inode);
  const bool is_version = parts.kind == InodeKind::version;
  const auto now = Clock::now();
  const bool through_latest = walks_.opened(thread, is_version ? parts.version : 0, now);
  if (!is_version || (!through_latest && pins_.is_empty())) return {};
  const auto catalog = catalog_();
  const auto version = catalog->find(parts.version);
  if (version == nullptr || parts.file >= version->entries.size()) return {};
  const PinFile kind = pin_file_of(version->entries[parts.file].path);
  if (is_bind_mode_) {  // not bound yet: it counts as if it were
    if (kind == PinFile::weights) pins_.opened_by_somebody(parts.version, kWalkTime, now);
    return {};
  }
  auto reader = sessions_.find(thread);
  if (!reader) return {};
  const auto opened = pins_.opened({.reader = std::move(*reader),
                                    .version = parts.version,
                                    .file = parts.file,
                                    .kind = kind,
                                    .weights_count = count_weights(*version),
                                    .through_latest = through_latest,
                                    .latest = catalog->latest},
                                   now);
  if (opened.handle != 0) wake();
  return opened;
}

bool LoaderPins::keeps(std::uint64_t version) const {
  return by_hand_.contains(version) || pins_.is_pinned(version) ||
         walks_.was_told(version, Clock::now());
}

// ---- bind mode ----

void LoaderPins::set_bind_mode() {
  try {
    image_watch_ = std::make_unique<ImageWatch>();
  } catch (const Error& error) {
    log_warning(fmt::format("a load that takes longer than --pin-grace may lose its pin: {}",
                            error.what()));
  }
  is_bind_mode_ = true;
}

void LoaderPins::bound(const CatalogVersion& version) {
  try {
    if (image_watch_) image_watch_->add(version);
  } catch (const Error& error) {
    log_warning(
        fmt::format("a load of version {} that takes longer than --pin-grace may lose its "
                    "pin: {}",
                    version.number, error.what()));
  }
}

void LoaderPins::unbound(std::uint64_t version) {
  if (image_watch_) image_watch_->remove(version);
}

/// What was opened since this was last called, at most one interval of the watch ago.
void LoaderPins::note_opens() {
  if (!image_watch_) return;
  const std::lock_guard lock(opens_mutex_);
  for (const std::uint64_t version : image_watch_->take_opened()) {
    pins_.opened_by_somebody(version, kWalkTime + interval_, Clock::now());
  }
}

// ---- the watch ----

void LoaderPins::wake() {
  { const std::lock_guard lock(wake_mutex_); }  // it is either before its look, or waits
  awake_.notify_one();
}

void LoaderPins::watch(const std::stop_token& stop) {
  const PinView view{
      .is_gone = [this](const ProcessId& process) { return sessions_.is_gone(process); },
      .has_files = [this](const std::string& session,
                          std::uint64_t version) { return has_files(session, version); }};
  while (!stop.stop_requested()) {
    {
      std::unique_lock lock(wake_mutex_);
      awake_.wait(lock, stop, [this] { return !pins_.is_empty(); });
      awake_.wait_for(lock, stop, interval_, [] { return false; });
    }
    try {
      if (stop.stop_requested()) return;
      if (is_bind_mode_) note_opens();
      pins_.sweep(view, Clock::now());
    } catch (const std::exception& error) {
      log_warning(fmt::format("cannot look at pins: {}", error.what()));
    }
  }
}

bool LoaderPins::has_files(const std::string& session, std::uint64_t version) const {
  const auto wanted = [version](Inode inode) {
    const InodeParts parts = parts_of(inode);
    return parts.kind == InodeKind::version && parts.version == version;
  };
  std::set<Inode> images;  // in bind mode
  dev_t image_device = 0;
  const auto catalog = catalog_();
  const auto shown = catalog->versions.find(version);
  if (is_bind_mode_ && shown != catalog->versions.end()) {
    images = image_inodes(*shown->second);
    image_device = proc_device(shown->second->directory);
  }
  const auto is_image = [&images](Inode inode) { return images.contains(inode); };
  const auto uses = [](ProcessFiles files) {
    return files.find_open([](const auto&) { return true; }).has_value() ||
           files.find_mapped([](const auto&) { return true; }).has_value();
  };
  bool found = false;
  for_each_process(sessions_.proc(), [&](pid_t pid) {
    if (found) return;
    const auto reader = sessions_.find(pid);
    if (!reader || reader->session != session) return;
    found = uses(ProcessFiles(sessions_.proc(), pid, device_, wanted)) ||
            (!images.empty() && uses(ProcessFiles(sessions_.proc(), pid, image_device, is_image)));
  });
  return found;
}

// ---- by hand, and for status ----

std::uint64_t LoaderPins::pin(std::uint64_t version) {
  if (version == 0) version = catalog_()->latest;
  if (version == 0)
    throw Error(ErrorCode::not_found, "there is no version yet that could be pinned");
  by_hand_.add(version, std::time(nullptr));  // first: from here on it does not go
  if (catalog_()->has_images(version)) return version;
  by_hand_.remove(version);
  throw Error(ErrorCode::not_found,
              fmt::format("version {} is not kept here; versions/ lists those that are", version));
}

std::size_t LoaderPins::unpin(const UnpinRequest& what) {
  std::size_t ended = 0;
  if (what.session) {
    ended = pins_.end_session(*what.session);
  } else if (what.version) {
    ended = pins_.end_version(*what.version);
    if (by_hand_.remove(*what.version)) ended++;
  } else {
    ended = pins_.end_all();
    for (const auto& [version, time] : by_hand_.list()) {
      if (by_hand_.remove(version)) ended++;
    }
  }
  if (ended == 0 && (what.session || what.version)) {
    throw Error(ErrorCode::not_found, no_such_pin(what));
  }
  return ended;
}

PinsState LoaderPins::list() const {
  return {.sessions = pins_.list(Clock::now()), .by_hand = by_hand_.list()};
}

}  // namespace weightfs::fs
