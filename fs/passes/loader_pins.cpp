#include "fs/passes/loader_pins.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <ctime>
#include <functional>

#include "fs/base/process_files.hpp"
#include "fs/mount/mount_info.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"

namespace weightfs::fs {
namespace {

constexpr std::chrono::milliseconds kLookMost{1000};
constexpr std::chrono::milliseconds kLookLeast{20};

constexpr std::chrono::minutes kRefusedLog{1};
constexpr std::string_view kLatest = "latest";
constexpr std::string_view kTags = "tags/";

Clock::duration look_interval(const PassTimes& times) {
  return std::clamp<Clock::duration>(std::min(times.quiet, times.grace / 4), kLookLeast, kLookMost);
}

// "latest", "tags/step-42"; "" if it is not a symlink to a version.  A tag's inode names a version
// that carries the tag.
std::string link_name(const Catalog& catalog, Inode inode) {
  if (inode == make_inode(Fixed::latest)) return std::string(kLatest);
  const InodeParts parts = parts_of(inode);
  if (parts.kind != InodeKind::tag) return {};
  const auto version = catalog.find(parts.version);
  if (version != nullptr && !version->tag.empty()) return std::string(kTags) + version->tag;
  const auto tag = std::find_if(catalog.tags.begin(), catalog.tags.end(),
                                [&](const auto& item) { return item.second == parts.version; });
  return tag == catalog.tags.end() ? std::string() : std::string(kTags) + tag->first;
}

// Where a symlink leads a process that is in no pass; 0: nowhere.
std::uint64_t newest_of(const Catalog& catalog, const std::string& link) {
  if (link == kLatest) return catalog.latest;
  if (!link.starts_with(kTags)) return 0;
  const auto tag = catalog.tags.find(link.substr(kTags.size()));
  return tag == catalog.tags.end() ? 0 : tag->second;
}

// `latest` never leads to a version that would have to be fetched, but for the one that it names
// when its images are lost: that is made again.  A tag may.
bool is_shown(const Catalog& catalog, const std::string& link, std::uint64_t version) {
  return link != kLatest || version == catalog.latest || catalog.has_images(version);
}

bool is_weights(const CatalogEntry& entry) {
  return !entry.is_directory && pass_file_of(entry.path) == PassFile::weights;
}

std::size_t count_weights(const CatalogVersion& version) {
  return static_cast<std::size_t>(
      std::count_if(version.entries.begin(), version.entries.end(), is_weights));
}

std::size_t count_rest(const CatalogVersion& version) {
  return static_cast<std::size_t>(std::count_if(
      version.entries.begin(), version.entries.end(),
      [](const CatalogEntry& entry) { return is_weights(entry) && entry.is_remote; }));
}

/// The inodes of the weights files.
std::set<Inode> image_inodes(const CatalogVersion& version) {
  std::set<Inode> inodes;
  for (const CatalogEntry& entry : version.entries) {
    if (entry.is_directory || pass_file_of(entry.path) != PassFile::weights) continue;
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

LoaderPins::LoaderPins(FindCatalog catalog, ManualPins& by_hand, PassTimes times)
    : catalog_(std::move(catalog)),
      by_hand_(by_hand),
      interval_(look_interval(times)),
      passes_(times, *this),
      link_passes_(times, *this),
      watch_([this](const std::stop_token& stop) { watch(stop); }) {}

LoaderPins::~LoaderPins() {
  watch_.request_stop();
  watch_.join();
}

// ---- called by the session's threads ----

/// Eviction hides a version and then checks whether it is kept; this function notes the version
/// (named()) and then checks that it is shown.  So either eviction sees the note, or this function
/// sees that the version is gone.
std::optional<std::uint64_t> LoaderPins::link(const Requester& caller, Inode inode) {
  const std::string name = link_name(*catalog_(), inode);
  if (name.empty()) return {};
  const auto reader = sessions_.find(caller.thread, caller.uid);
  const LinkUse use = sessions_.use_of_link(caller.thread);
  if (is_bind_mode_) note_opens();  // opens before this READLINK must count first
  while (true) {
    const std::uint64_t newest = newest_of(*catalog_(), name);
    if (newest == 0) return {};
    const Walk walk = tell(caller, name, newest, use, reader);
    const auto now = Clock::now();
    lookups_.named(walk.version, now);
    if (is_shown(*catalog_(), name, walk.version)) {
      if (use != LinkUse::text) lookups_.told(caller.thread, walk, now);
      if (is_bind_mode_) wake();
      return walk.version;
    }
    if (walk.version == newest) continue;  // another version is the newest by now
    passes_.end_version(walk.version);
    link_passes_.end_version(walk.version);
    lookups_.opened(caller.thread, 0, now);
  }
}

Walk LoaderPins::tell(const Requester& caller, const std::string& link, std::uint64_t newest,
                      LinkUse use, const std::optional<Reader>& reader) {
  auto before = lookups_.find_before(caller.thread, link, Clock::now());
  if (before && (before->is_retry || use == LinkUse::open)) {
    before->is_look = false;
    return *before;
  }
  Walk walk{.link = link, .version = newest, .is_look = use == LinkUse::look};
  if (reader) {
    walk.version = is_bind_mode_ ? link_passes_.told(link, *reader, newest, boot_now())
                                 : passes_.told(link, *reader, newest, use, boot_now());
  }
  walk.was_newest = walk.version == newest;
  return walk;
}

Passes::Opened LoaderPins::opened(const Requester& caller, Inode inode) {
  const InodeParts parts = parts_of(inode);
  const bool is_version = parts.kind == InodeKind::version;
  const auto walk = lookups_.opened(caller.thread, is_version ? parts.version : 0, Clock::now());
  if (!is_version || (!walk && passes_.is_empty() && !is_bind_mode_)) return {};
  const auto catalog = catalog_();
  const auto version = catalog->find(parts.version);
  if (version == nullptr || parts.file >= version->entries.size()) return {};
  const CatalogEntry& entry = version->entries[parts.file];
  if (is_bind_mode_) {
    open_bound(*version, entry);
    return {};
  }
  auto reader = sessions_.find(caller.thread, caller.uid);
  if (!reader) return {};
  PassOpen open{.reader = std::move(*reader),
                .version = parts.version,
                .file = parts.file,
                .name = std::hash<std::string>()(entry.path),
                .kind = pass_file_of(entry.path),
                .weights_count = count_weights(*version),
                .absent_count = count_rest(*version),
                .is_absent = entry.is_remote};
  if (walk) {
    open.link = walk->link;
    open.newest = newest_of(*catalog, walk->link);
    open.was_newest = walk->was_newest;
    open.is_retry = walk->is_retry;
  }
  const auto opened = passes_.opened(open, boot_now());
  if (opened.wanted != 0) {
    lookups_.named(opened.wanted, Clock::now());
    lookups_.refused(caller.thread, open.link, opened.wanted, Clock::now());
  }
  if (opened.is_refused) note_refused(caller.uid);
  wake();
  return opened;
}

/// In bind mode, a version that is not bound yet counts as if it were.
void LoaderPins::open_bound(const CatalogVersion& version, const CatalogEntry& entry) {
  if (pass_file_of(entry.path) != PassFile::weights) return;
  link_passes_.opened(version.number, entry.path, kWalkTime, boot_now());
}

void LoaderPins::note_refused(uid_t uid) {
  const auto now = Clock::now();
  {
    const std::lock_guard lock(refused_mutex_);
    std::erase_if(refused_logged_,
                  [now](const auto& item) { return now - item.second >= kRefusedLog; });
    if (!refused_logged_.emplace(uid, now).second) return;
  }
  log_warning(
      fmt::format("uid {} has {} passes, the maximum: further loaders of this uid get the newest "
                  "version at each open, and may mix versions; give them versions/N",
                  uid, kPassesMax));
}

bool LoaderPins::keeps(std::uint64_t version) const {
  return by_hand_.contains(version) || passes_.has(version) || link_passes_.has(version) ||
         lookups_.was_told(version, Clock::now());
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

/// Counts the opens since the last call, which was at most one interval of the watch ago.
void LoaderPins::note_opens() {
  if (!image_watch_) return;
  const std::lock_guard lock(opens_mutex_);
  for (const auto& [version, file] : image_watch_->take_opened()) {
    link_passes_.opened(version, file, kWalkTime + interval_, boot_now());
  }
}

// ---- the watch ----

void LoaderPins::wake() {
  { const std::lock_guard lock(wake_mutex_); }  // the watch is either before its check, or waits
  awake_.notify_one();
}

void LoaderPins::watch(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    {
      std::unique_lock lock(wake_mutex_);
      awake_.wait(lock, stop, [this] { return !passes_.is_empty() || !link_passes_.is_empty(); });
      awake_.wait_for(lock, stop, interval_, [] { return false; });
    }
    try {
      if (stop.stop_requested()) return;
      if (is_bind_mode_) note_opens();
      passes_.sweep(boot_now());
      link_passes_.sweep(boot_now());
    } catch (const std::exception& error) {
      log_warning(fmt::format("cannot inspect loading processes: {}", error.what()));
    }
  }
}

// ---- information about processes ----

bool LoaderPins::is_gone(const ProcessId& process) const { return sessions_.is_gone(process); }

std::vector<ProcessId> LoaderPins::ancestors(const ProcessId& process) const {
  return sessions_.ancestors(process);
}

std::set<std::string> LoaderPins::find_dead(std::set<std::string> sessions) const {
  return sessions_.find_dead(std::move(sessions));
}

bool LoaderPins::uses(const std::string& session, std::uint64_t version) const {
  const auto wanted = [version](Inode inode) {
    const InodeParts parts = parts_of(inode);
    return parts.kind == InodeKind::version && parts.version == version;
  };
  std::set<Inode> images;  // bind mode only
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
    const auto reader = sessions_.find(pid, 0);
    if (!reader || reader->session != session) return;
    found = uses(ProcessFiles(sessions_.proc(), pid, device_, wanted)) ||
            (!images.empty() && uses(ProcessFiles(sessions_.proc(), pid, image_device, is_image)));
  });
  return found;
}

// ---- pins by hand, status ----

std::uint64_t LoaderPins::pin(std::uint64_t version) {
  if (version == 0) version = catalog_()->latest;
  if (version == 0) throw Error(ErrorCode::not_found, "there is no version to pin yet");
  by_hand_.add(version, std::time(nullptr));  // first: from here on it is not evicted
  if (catalog_()->has_images(version)) return version;
  by_hand_.remove(version);
  throw Error(
      ErrorCode::not_found,
      fmt::format("version {} is not on this host; versions/ lists those that are", version));
}

std::size_t LoaderPins::unpin(const UnpinRequest& what) {
  std::size_t ended = 0;
  if (what.session) {
    ended = passes_.end_session(*what.session) + link_passes_.end_session(*what.session);
  } else if (what.version) {
    ended = passes_.end_version(*what.version) + link_passes_.end_version(*what.version);
    if (by_hand_.remove(*what.version)) ended++;
  } else {
    ended = passes_.end_all() + link_passes_.end_all();
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
  const BootTime now = boot_now();
  PinsState state{
      .passes = passes_.list(now), .full = passes_.full_tables(), .by_hand = by_hand_.list()};
  const auto by_link = link_passes_.list(now);
  state.passes.insert(state.passes.end(), by_link.begin(), by_link.end());
  const auto full = link_passes_.full_tables();
  state.full.insert(state.full.end(), full.begin(), full.end());
  return state;
}

}  // namespace weightfs::fs
