// A chunk is made by the first who asks for it; others who want it meanwhile wait for him, and make
// it themselves if he fails.  What a reader holds stays, also when it has left the cache.

#include "store/materialize/remote_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/block/free_list.hpp"
#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/base/retry_delay.hpp"
#include "store/materialize/base_reader.hpp"
#include "store/materialize/chunk_maker.hpp"
#include "store/materialize/pack_spool.hpp"
#include "store/materialize/plan.hpp"

namespace weightfs {
namespace {

constexpr std::size_t kSourcesMax = 2;
constexpr std::chrono::milliseconds kFirstPause{100};

/// How the chunks of a version are made.
struct RestSource {
  RestSource(Plan its_plan, Repository& its_repository, const std::filesystem::path& directory,
             kernels::SharedCoder its_coder, const Context& its_context)
      : context(its_context),
        plan(std::move(its_plan)),
        repository(its_repository),
        coder(std::move(its_coder)),
        spool(plan, repository, directory, context) {}

  void make(std::span<const WantedChunk> wanted) {
    const auto maker = makers.borrow([&] {
      return std::make_unique<ChunkMaker>(plan, spool, open_old_bytes(plan, repository, context),
                                          *coder);
    });
    maker->make(wanted);
  }

  const Context context;  // of the RemoteFiles: what is made outlives who asked for it first
  const Plan plan;
  Repository& repository;
  const kernels::SharedCoder coder;
  const PackSpool spool;
  kernels::FreeList<ChunkMaker> makers;
};

/// (version, tensor, chunk)
using ChunkKey = std::tuple<std::uint64_t, std::uint32_t, std::uint32_t>;

struct RestChunk {
  enum class State { being_made, made, failed };
  std::vector<std::byte> bytes;          // constant once it is made
  State state = State::being_made;       // guarded by RemoteFiles::State::mutex, as the next
  std::list<ChunkKey>::iterator recent;  // valid if made and cached
};

/// A part of a file that is wanted.
struct RestRange {
  std::uint64_t begin = 0, end = 0;
};

/// A chunk that lies in the range or reaches into it.
struct RestPart {
  std::uint32_t tensor = 0, chunk = 0;
  std::uint64_t offset_bytes = 0;  // in the file
  std::size_t size_bytes = 0;
  std::shared_ptr<RestChunk> made;
};

std::vector<RestPart> parts_of(const Layout& layout, const LayoutFile& file, RestRange range) {
  std::vector<RestPart> parts;
  const auto tensors = layout.tensors_of(file);
  auto tensor = std::partition_point(tensors.begin(), tensors.end(), [&](const LayoutTensor& one) {
    return one.offset_bytes + one.size_bytes <= range.begin;
  });
  for (; tensor != tensors.end() && tensor->offset_bytes < range.end; ++tensor) {
    const auto number = file.first_tensor + static_cast<std::uint32_t>(tensor - tensors.begin());
    const std::uint64_t skipped = range.begin - std::min(range.begin, tensor->offset_bytes);
    auto chunk = static_cast<std::uint32_t>(skipped / kernels::chunk_bytes(tensor->kind));
    for (; chunk < tensor->chunk_count; chunk++) {
      const std::uint64_t offset = tensor->offset_bytes + tensor->chunk_offset_bytes(chunk);
      if (offset >= range.end) break;
      parts.push_back({number, chunk, offset, tensor->chunk_size_bytes(chunk), {}});
    }
  }
  return parts;
}

/// Copies what of `bytes`, which begin at `offset_bytes` of the file, lies in the range.
void copy_part(std::span<const std::byte> bytes, std::uint64_t offset_bytes, RestRange range,
               std::span<std::byte> into) {
  const std::uint64_t begin = std::max(offset_bytes, range.begin);
  const std::uint64_t end = std::min(offset_bytes + bytes.size(), range.end);
  if (begin >= end) return;
  std::memcpy(into.data() + (begin - range.begin), bytes.data() + (begin - offset_bytes),
              static_cast<std::size_t>(end - begin));
}

}  // namespace

struct RemoteFiles::State {
  using Source = std::shared_ptr<RestSource>;

  Source find_source(std::uint64_t version);
  Source get_source(std::uint64_t version, const Context& asking);
  Source make_source(std::uint64_t version);
  std::size_t read(std::uint64_t version, std::string_view path, std::uint64_t offset_bytes,
                   std::span<std::byte> into, const Context& asking);
  void get_chunks(RestSource& source, std::span<RestPart> parts, const Context& asking);
  std::vector<RestPart*> claim(std::uint64_t version, std::span<RestPart> parts);
  void make(RestSource& source, std::span<RestPart* const> claimed);
  void settle(std::uint64_t version, std::span<RestPart* const> claimed, RestChunk::State state);
  void wait(const RestPart& part, const Context& asking);

  Store& store;
  History& history;
  const RestFilesOptions options;
  std::stop_source stop{};
  const Context context{stop.get_token(), Clock::time_point::max()};
  std::atomic<std::uint64_t> made_bytes{0};

  // Held while one is made: the next who asks for it needs it too.
  RankedMutex sources_mutex{LockRank::remote_sources, "RemoteFiles::State::sources_mutex"};
  std::list<std::pair<std::uint64_t, Source>> sources{};  // newest use first

  // Guards what follows; never held over store or bucket.
  RankedMutex mutex{LockRank::leaf, "RemoteFiles::State::mutex"};
  std::condition_variable_any settled{};
  std::map<ChunkKey, std::shared_ptr<RestChunk>> chunks{};  // made or being made
  std::list<ChunkKey> recent{};                             // of those made; newest use first
  std::size_t cached_bytes = 0;
};

// ---- sources ----

RemoteFiles::State::Source RemoteFiles::State::find_source(std::uint64_t version) {
  const auto found = std::find_if(sources.begin(), sources.end(),
                                  [&](const auto& source) { return source.first == version; });
  if (found == sources.end()) return nullptr;
  sources.splice(sources.begin(), sources, found);
  return sources.front().second;
}

RemoteFiles::State::Source RemoteFiles::State::get_source(std::uint64_t version,
                                                          const Context& asking) {
  const std::lock_guard lock(sources_mutex);
  if (Source source = find_source(version)) return source;
  asking.check("reading a file that is not kept here");
  sources.emplace_front(version, make_source(version));
  if (sources.size() > kSourcesMax) sources.pop_back();
  return sources.front().second;
}

RemoteFiles::State::Source RemoteFiles::State::make_source(std::uint64_t version) {
  Plan plan = make_plan(history, history.get(version, context), {}, context);
  return std::make_shared<RestSource>(std::move(plan), history.repository(),
                                      store.temporary_directory(), options.coder, context);
}

// ---- chunks ----

/// Takes what is here or being made.  Returns: what is neither, which is the caller's to make.
std::vector<RestPart*> RemoteFiles::State::claim(std::uint64_t version, std::span<RestPart> parts) {
  std::vector<RestPart*> claimed;
  const std::lock_guard lock(mutex);
  for (RestPart& part : parts) {
    std::shared_ptr<RestChunk>& chunk = chunks[{version, part.tensor, part.chunk}];
    if (!chunk) {
      chunk = std::make_shared<RestChunk>();
      claimed.push_back(&part);
    } else if (chunk->state == RestChunk::State::made) {
      recent.splice(recent.begin(), recent, chunk->recent);
    }
    part.made = chunk;
  }
  return claimed;
}

void RemoteFiles::State::make(RestSource& source, std::span<RestPart* const> claimed) {
  const std::uint64_t version = source.plan.version->number();
  try {
    std::vector<WantedChunk> wanted;
    for (RestPart* const part : claimed) {
      part->made->bytes.resize(part->size_bytes);
      wanted.push_back({part->tensor, part->chunk, part->made->bytes});
      made_bytes += part->size_bytes;
    }
    source.make(wanted);
  } catch (...) {
    settle(version, claimed, RestChunk::State::failed);
    throw;
  }
  settle(version, claimed, RestChunk::State::made);
}

/// Tells who waits; what failed is forgotten, and so is what was not used for longest.
void RemoteFiles::State::settle(std::uint64_t version, std::span<RestPart* const> claimed,
                                RestChunk::State state) {
  const std::lock_guard lock(mutex);
  for (const RestPart* const part : claimed) {
    const ChunkKey key{version, part->tensor, part->chunk};
    part->made->state = state;
    if (state == RestChunk::State::failed) {
      chunks.erase(key);
      continue;
    }
    recent.push_front(key);
    part->made->recent = recent.begin();
    cached_bytes += part->size_bytes;
  }
  while (cached_bytes > kRestBytesMax) {
    const auto oldest = chunks.find(recent.back());
    cached_bytes -= oldest->second->bytes.size();
    chunks.erase(oldest);
    recent.pop_back();
  }
  settled.notify_all();
}

void RemoteFiles::State::wait(const RestPart& part, const Context& asking) {
  constexpr auto kLookAgain = std::chrono::hours(1);  // a deadline may be as far off as can be
  std::unique_lock lock(mutex);
  while (!settled.wait_until(lock, asking.stop,
                             std::min(asking.deadline, Clock::now() + kLookAgain),
                             [&] { return part.made->state != RestChunk::State::being_made; })) {
    asking.check("waiting for a chunk that is being built");
  }
}

void RemoteFiles::State::get_chunks(RestSource& source, std::span<RestPart> parts,
                                    const Context& asking) {
  const auto has_failed = [&](const RestPart& part) {
    const std::lock_guard lock(mutex);
    return part.made->state == RestChunk::State::failed;
  };
  for (bool again = true; again;) {
    const auto claimed = claim(source.plan.version->number(), parts);
    if (!claimed.empty()) make(source, claimed);
    for (const RestPart& part : parts) wait(part, asking);
    again = std::any_of(parts.begin(), parts.end(), has_failed);
  }
}

// ---- reading ----

std::size_t RemoteFiles::State::read(std::uint64_t version, std::string_view path,
                                     std::uint64_t offset_bytes, std::span<std::byte> into,
                                     const Context& asking) {
  const Source source = get_source(version, asking);
  const Layout& layout = *source->plan.layout;
  const LayoutFile* const file = layout.find_file(path);
  if (file == nullptr) {
    throw Error(ErrorCode::io, fmt::format("version {} has no weights file '{}'", version, path));
  }
  if (offset_bytes >= file->size_bytes) return 0;
  const auto size = static_cast<std::size_t>(
      std::min<std::uint64_t>(into.size(), file->size_bytes - offset_bytes));
  const RestRange range{offset_bytes, offset_bytes + size};
  copy_part(as_bytes(file->head), 0, range, into);
  std::vector<RestPart> parts = parts_of(layout, *file, range);
  get_chunks(*source, parts, asking);
  for (const RestPart& part : parts) copy_part(part.made->bytes, part.offset_bytes, range, into);
  return size;
}

RemoteFiles::RemoteFiles(Store& store, History& history, RestFilesOptions options)
    : state_(new State{store, history, std::move(options)}) {}

RemoteFiles::~RemoteFiles() = default;

void RemoteFiles::stop() noexcept { state_->stop.request_stop(); }

std::size_t RemoteFiles::read(std::uint64_t version, std::string_view path,
                              std::uint64_t offset_bytes, std::span<std::byte> into,
                              const Context& context) {
  const auto give_up = Clock::now() + state_->options.retry;
  std::minstd_rand random{std::random_device{}()};
  for (unsigned failures = 0;; failures++) {
    try {
      return state_->read(version, path, offset_bytes, into, context);
    } catch (const Error& error) {
      // To a reader an object that is gone is no file that is gone.
      if (error.code() == ErrorCode::not_found) throw Error(ErrorCode::io, error.what());
      if (error.code() != ErrorCode::unavailable || Clock::now() >= give_up) throw;
    }
    context.pause(retry_delay(kFirstPause, failures, random),
                  "waiting for the bucket to read a file that is not kept here");
  }
}

std::uint64_t RemoteFiles::made_bytes() const { return state_->made_bytes; }

}  // namespace weightfs
