#include "store/handover/early_work.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <exception>
#include <mutex>
#include <string_view>
#include <vector>

#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/handover/seal.hpp"
#include "store/os/lease.hpp"

namespace weightfs {
namespace {

/// Time limit for a layout that is usually in the store.
constexpr auto kLayoutTime = std::chrono::seconds(1);

/// The path of a file relative to the directory before step `first`.
std::string path_from(const std::vector<Staging::Step>& way, std::size_t first) {
  std::string path;
  for (std::size_t i = first; i < way.size(); i++) {
    path += (path.empty() ? "" : "/") + way[i].name;
  }
  return path;
}

bool is_hidden(const Staging::Step& step) { return step.name.starts_with('.'); }

/// Whether a file of this name may be one with weights.  Many savers give it that name last:
/// `.tmpQ4LQlO` (safetensors), `.model.safetensors.x7Yz` (rsync), `model.safetensors.tmp`.
bool may_have_weights(const Staging::Step& step, bool is_written) {
  constexpr std::string_view kSuffix = ".safetensors";
  if (!is_written) return !is_hidden(step) && step.name.ends_with(kSuffix);
  return is_hidden(step) || step.name.find(kSuffix) != std::string::npos;
}

/// By its path in the checkpoint.
bool is_published_weights(std::string_view path) {
  return path.ends_with(".safetensors") && !path.starts_with('.') && path.find("/.") == path.npos;
}

std::string_view folder_of(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == path.npos ? std::string_view() : path.substr(0, slash);
}

bool has_files_in(const Layout& layout, std::string_view folder) {
  return std::ranges::any_of(
      layout.files(), [&](const LayoutFile& file) { return folder_of(file.path) == folder; });
}

/// Usually because the file is gone.
void log_no_early_work(const std::exception& error) noexcept {
  log_if_possible(LogLevel::debug, [&] { return fmt::format("no early work: {}", error.what()); });
}

}  // namespace

EarlyWork::EarlyWork(Staging& staging, Store& store, History& history, EarlyOptions options,
                     bool is_on)
    : staging_(staging),
      store_(store),
      history_(history),
      announcer_(history.repository(), [this] { return coder_.coming(); }),
      coder_(history, store, announced(std::move(options))) {
  if (!is_on) return;
  closes_.emplace(watch_options());
  announcer_.start();  // last: what throws here leaves no thread behind
}

EarlyWork::~EarlyWork() { announcer_.stop(); }

EarlyOptions EarlyWork::announced(EarlyOptions options) {
  options.changed = [this] { announcer_.wake(); };
  return options;
}

void EarlyWork::parent_changed() {
  coder_.parent_changed();
  announcer_.wake();
}

CloseWatchOptions EarlyWork::watch_options() {
  return {.directory = store_.path() / "staging",
          .all = [this] { return staging_.staged_files(); },
          .closed = [this](StagingId file) { look(file, false); },
          .written = [this](StagingId file) { look(file, true); },
          .is_open = [this](StagingId file) { return staging_.has_writers(file); }};
}

void EarlyWork::look(StagingId file, bool is_written) noexcept {
  try {
    add(file, is_written);
  } catch (const std::exception& error) {
    log_no_early_work(error);
  }
}

void EarlyWork::look_at(StagingId id) noexcept {
  if (!closes_) return;
  try {
    note(id);
  } catch (const std::exception& error) {
    log_no_early_work(error);
  }
}

void EarlyWork::look_at_all() noexcept {
  if (closes_) closes_->note_all();
}

/// For a directory, notes the files in it.
void EarlyWork::note(StagingId id) {
  if (S_ISREG(staging_.attributes(id).st_mode)) return closes_->note(id);
  for (const StagedFile& file : staging_.list(id)) {
    if (S_ISREG(file.type)) closes_->note(file.id);
  }
}

/// Called when a process can write to the file, or none, perhaps repeatedly for the same bytes.
void EarlyWork::add(StagingId file, bool is_written) {
  {
    const std::lock_guard lock(mutex_);
    drop_stale();  // also if this one is gone
  }
  std::optional<EarlyFile> found = find_file(file, is_written);
  // It may have been opened again since it was closed, before its generation was read.
  const bool is_closed =
      !found || is_written || (!staging_.has_writers(file) && nobody_writes(found->source));
  if (!is_closed) return;  // it is looked at again when that writer has closed it
  const struct stat now = staging_.attributes(file);
  if (found && !may_hand_over(staging_, {now.st_uid, now.st_gid})) found.reset();
  if (found && staging_.is_lost(file)) found.reset();  // it may hold anything
  const std::lock_guard lock(mutex_);
  if (!found) {
    if (!is_written) leave(file);
    return;
  }
  const Source source =
      is_written ? Source{file, true} : Source{file, false, false, found->generation, now.st_mtim};
  const auto [known, is_new] = sources_.try_emplace({found->directory, found->path}, Source{});
  if (!is_new && known->second == source) return;
  known->second = source;
  coder_.add(std::move(*found));
  announcer_.wake();  // it may have been coded before, with other bytes
}

/// It is closed under a name by which it is not published.  Requires: the mutex is held.
void EarlyWork::leave(StagingId file) {
  const auto known = std::ranges::find_if(sources_, [&](const auto& entry) {
    return entry.second.file == file && entry.second.is_written;
  });
  if (known == sources_.end() || known->second.is_left) return;
  known->second.is_left = true;
  coder_.leave(known->first.first, staging_.backing_path(file));
}

/// The checkpoint of a file is not known before the hand-over.  If the newest version has a file of
/// a matching path, that tells (of one that is still written: files in that folder); otherwise it
/// is the directory directly below staging/.
std::optional<EarlyFile> EarlyWork::find_file(StagingId file, bool is_written) {
  const std::vector<Staging::Step> way = staging_.way_to(file);
  if (way.size() < 3 || way.front().id != kStagingRoot ||
      !may_have_weights(way.back(), is_written)) {
    return std::nullopt;
  }
  // Hidden files are not published, so the checkpoint lies below the last hidden directory.
  std::size_t top = way.size() - 2;
  while (top > 1 && !is_hidden(way[top])) top--;
  std::size_t at = top;
  if (top + 2 < way.size()) {
    const auto layout = newest_layout();
    const auto is_known = [&](std::size_t i) {
      const std::string path = path_from(way, i + 1);
      if (!layout) return false;
      return is_written ? has_files_in(*layout, folder_of(path))
                        : layout->find_file(path) != nullptr;
    };
    while (at + 2 < way.size() && !is_known(at)) at++;
    if (!is_known(at)) at = top;
  }
  return EarlyFile{way[at].id, path_from(way, at + 1), staging_.backing_path(file),
                   staging_.generation(file), is_written};
}

/// nullptr if there is none, or if it cannot be read quickly.
std::shared_ptr<const Layout> EarlyWork::newest_layout() {
  const std::uint64_t newest = store_.manifests().newest().version;
  if (newest == 0) return nullptr;
  try {
    const Context soon = Context{}.within(kLayoutTime);
    const auto version = history_.find(newest, soon);
    return version ? history_.layout(*version, soon) : nullptr;
  } catch (const Error& error) {
    log_debug(fmt::format("the layout of version {} is not here: {}", newest, error.what()));
    return nullptr;
  }
}

/// Early results are held until they are taken: drops those that no hand-over will take.
void EarlyWork::drop_stale() {
  std::erase_if(sources_, [this](const auto& entry) {
    const auto& [directory, path] = entry.first;
    const Source& source = entry.second;
    try {
      const std::vector<Staging::Step> way = staging_.way_to(source.file);
      const auto at = std::ranges::find(way, directory, &Staging::Step::id);
      const bool is_there =
          at != way.end() &&
          (source.is_written  // who writes it may have given it its name
               ? may_have_weights(way.back(), true)
               : path_from(way, static_cast<std::size_t>(at - way.begin()) + 1) == path);
      // Handed over: the thread takes it, or a withdrawal drops it.
      if (is_there && way.front().id == kPublishRoot && at == way.begin() + 1) return true;
      const bool is_staged = is_there && way.front().id == kStagingRoot;
      const bool is_same =
          source.is_written || staging_.generation(source.file) == source.generation;
      if (is_staged && is_same) return false;
    } catch (const PosixError&) {
      // The file is gone.
    }
    coder_.drop(directory, path);
    announcer_.wake();
    return true;
  });
}

std::shared_ptr<const PreEncoded> EarlyWork::take(StagingId directory, const Context& context) {
  std::map<std::string, StagedFile> files;
  for (StagedFile& file : staging_.list(directory)) files.emplace(file.path, std::move(file));
  for (const auto& [path, file] : files) {  // perhaps nobody has asked since
    if (!S_ISREG(file.type) || !is_published_weights(path)) continue;
    coder_.close({directory, path, staging_.backing_path(file.id), file.generation});
  }
  return coder_.take(
      directory,
      [&](const EarlyFile& coded) {
        const auto file = files.find(coded.path);
        return file != files.end() && file->second.generation == coded.generation &&
               staging_.backing_path(file->second.id) == coded.source;
      },
      context);
}

void EarlyWork::drop(StagingId directory) {
  const std::lock_guard lock(mutex_);
  std::erase_if(sources_, [&](const auto& entry) { return entry.first.first == directory; });
  coder_.drop(directory);
}

EarlyStatus EarlyWork::status() const {
  const std::size_t pending =
      closes_ ? closes_->pending() : 0;  // first, so that none is missed between the two
  EarlyStatus status = coder_.status();
  status.waiting_files += pending;
  return status;
}

}  // namespace weightfs
