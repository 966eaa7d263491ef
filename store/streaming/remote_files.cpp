// The first reader that asks for a chunk builds it. Others that want it wait, and build it
// themselves if that fails. A reader's chunk stays valid after it has left the cache. Plans of
// versions are made and kept in the same way: a reader that finds one waits for nobody.

#include "store/streaming/remote_files.hpp"

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

/// What is needed to build chunks of one version.
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
      return std::make_unique<ChunkMaker>(plan, spool, open_base_reader(plan, repository, context),
                                          *coder);
    });
    maker->make(wanted);
  }

  const Context context;  // of the RemoteFiles: a chunk outlives the request that started it
  const Plan plan;
  Repository& repository;
  const kernels::SharedCoder coder;
  const PackSpool spool;
  kernels::FreeList<ChunkMaker> makers;
};

/// What is made once, by one who asks for it, while others wait.
enum class Making { begun, made, failed };

/// A version's source.
struct RestPlan {
  std::shared_ptr<RestSource> source;  // once it is made
  Making state = Making::begun;        // guarded by RemoteFiles::State::mutex, as the source
};

/// (version, tensor, chunk)
using ChunkKey = std::tuple<std::uint64_t, std::uint32_t, std::uint32_t>;

struct RestChunk {
  std::vector<std::byte> bytes;          // constant once made
  Making state = Making::begun;          // guarded by RemoteFiles::State::mutex, as is `recent`
  std::list<ChunkKey>::iterator recent;  // valid if made and cached
};

/// The requested range of a file.
struct RestRange {
  std::uint64_t begin = 0, end = 0;
};

/// A chunk that overlaps the range.
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

/// Copies the part of `bytes`, which begin at `offset_bytes` of the file, that lies in the range.
void copy_part(std::span<const std::byte> bytes, std::uint64_t offset_bytes, RestRange range,
               std::span<std::byte> into) {
  const std::uint64_t begin = std::max(offset_bytes, range.begin);
  const std::uint64_t end = std::min(offset_bytes + bytes.size(), range.end);
  if (begin >= end) return;
  std::memcpy(into.data() + (begin - range.begin), bytes.data() + (begin - offset_bytes),
              static_cast<std::size_t>(end - begin));
}

bool is_missing_object(const Error& error) {
  return error.code() == ErrorCode::not_found &&
         dynamic_cast<const ObjectError*>(&error) != nullptr;
}

}  // namespace

struct RemoteFiles::State {
  using Source = std::shared_ptr<RestSource>;

  Source get_source(std::uint64_t version, const Context& asking);
  std::pair<std::shared_ptr<RestPlan>, bool> claim_plan(std::uint64_t version);
  Source make_source(std::uint64_t version, RestPlan& plan, const Context& asking);
  void settle(std::uint64_t version, RestPlan& plan, Source source);
  void forget_source(std::uint64_t version);
  std::size_t read(std::uint64_t version, std::string_view path, std::uint64_t offset_bytes,
                   std::span<std::byte> into, const Context& asking);
  void get_chunks(RestSource& source, std::span<RestPart> parts, const Context& asking);
  std::vector<RestPart*> claim(std::uint64_t version, std::span<RestPart> parts);
  void make(RestSource& source, std::span<RestPart* const> claimed);
  void settle(std::uint64_t version, std::span<RestPart* const> claimed, Making state);
  void wait(const Making& state, const Context& asking, std::string_view what);

  Store& store;
  History& history;
  const RemoteFilesOptions options;
  std::stop_source stop{};
  const Context context{stop.get_token(), Clock::time_point::max()};
  std::atomic<std::uint64_t> made_bytes{0};

  // Guards what follows; never held across store or bucket calls.
  RankedMutex mutex{LockRank::leaf, "RemoteFiles::State::mutex"};
  std::condition_variable_any settled{};
  std::map<std::uint64_t, std::shared_ptr<RestPlan>> plans{};  // made or being made
  std::list<std::uint64_t> recent_plans{};                     // of those made; newest use first
  std::map<ChunkKey, std::shared_ptr<RestChunk>> chunks{};     // made or being made
  std::list<ChunkKey> recent{};  // of those made; most recently used first
  std::size_t cached_bytes = 0;
};

// ---- sources ----

RemoteFiles::State::Source RemoteFiles::State::get_source(std::uint64_t version,
                                                          const Context& asking) {
  for (;;) {
    const auto [plan, is_mine] = claim_plan(version);
    if (is_mine) return make_source(version, *plan, asking);
    wait(plan->state, asking, "waiting for the way to a version that is being planned");
    const std::lock_guard lock(mutex);
    if (plan->state == Making::made) return plan->source;
  }
}

/// Takes what is made or being made.  True: it is neither, and the caller's to make.
std::pair<std::shared_ptr<RestPlan>, bool> RemoteFiles::State::claim_plan(std::uint64_t version) {
  const std::lock_guard lock(mutex);
  std::shared_ptr<RestPlan>& plan = plans[version];
  if (plan) {
    const auto used = std::find(recent_plans.begin(), recent_plans.end(), version);
    if (used != recent_plans.end()) recent_plans.splice(recent_plans.begin(), recent_plans, used);
    return {plan, false};
  }
  plan = std::make_shared<RestPlan>();
  return {plan, true};
}

/// As of chunks, below.  `source`: nullptr if it failed.
void RemoteFiles::State::settle(std::uint64_t version, RestPlan& plan, Source source) {
  std::shared_ptr<RestPlan> oldest;  // ends without the lock
  const std::lock_guard lock(mutex);
  plan.state = source ? Making::made : Making::failed;
  plan.source = std::move(source);
  settled.notify_all();
  if (plan.state == Making::failed) {
    plans.erase(version);
    return;
  }
  recent_plans.push_front(version);
  if (recent_plans.size() <= kSourcesMax) return;
  const auto left = plans.find(recent_plans.back());
  oldest = std::move(left->second);
  plans.erase(left);
  recent_plans.pop_back();
}

/// The next reader plans again.
void RemoteFiles::State::forget_source(std::uint64_t version) {
  std::shared_ptr<RestPlan> forgotten;  // ends without the lock
  const std::lock_guard lock(mutex);
  const auto used = std::find(recent_plans.begin(), recent_plans.end(), version);
  if (used == recent_plans.end()) return;  // not there, or being made anew
  recent_plans.erase(used);
  const auto found = plans.find(version);
  forgotten = std::move(found->second);
  plans.erase(found);
}

RemoteFiles::State::Source RemoteFiles::State::make_source(std::uint64_t version, RestPlan& plan,
                                                           const Context& asking) {
  Source source;
  try {
    asking.check("reading a file that is not kept here");
    source = std::make_shared<RestSource>(
        make_plan(history, history.get(version, context), {}, context), history.repository(),
        store.temporary_directory(), options.coder, context);
  } catch (...) {
    settle(version, plan, nullptr);
    throw;
  }
  settle(version, plan, source);
  return source;
}

// ---- chunks ----

/// Takes the chunks that exist or are being made.  Returns: the others, which the caller must make.
std::vector<RestPart*> RemoteFiles::State::claim(std::uint64_t version, std::span<RestPart> parts) {
  std::vector<RestPart*> claimed;
  const std::lock_guard lock(mutex);
  for (RestPart& part : parts) {
    std::shared_ptr<RestChunk>& chunk = chunks[{version, part.tensor, part.chunk}];
    if (!chunk) {
      chunk = std::make_shared<RestChunk>();
      claimed.push_back(&part);
    } else if (chunk->state == Making::made) {
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
    settle(version, claimed, Making::failed);
    throw;
  }
  settle(version, claimed, Making::made);
}

/// Sets the state and wakes the waiters; forgets failed chunks, and evicts the least recently used.
void RemoteFiles::State::settle(std::uint64_t version, std::span<RestPart* const> claimed,
                                Making state) {
  const std::lock_guard lock(mutex);
  for (const RestPart* const part : claimed) {
    const ChunkKey key{version, part->tensor, part->chunk};
    part->made->state = state;
    if (state == Making::failed) {
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

/// Until it is made, or has failed.
void RemoteFiles::State::wait(const Making& state, const Context& asking, std::string_view what) {
  constexpr auto kLookAgain = std::chrono::hours(1);  // the deadline may be infinite
  std::unique_lock lock(mutex);
  while (!settled.wait_until(lock, asking.stop,
                             std::min(asking.deadline, Clock::now() + kLookAgain),
                             [&] { return state != Making::begun; })) {
    asking.check(what);
  }
}

void RemoteFiles::State::get_chunks(RestSource& source, std::span<RestPart> parts,
                                    const Context& asking) {
  const auto has_failed = [&](const RestPart& part) {
    const std::lock_guard lock(mutex);
    return part.made->state == Making::failed;
  };
  for (bool again = true; again;) {
    const auto claimed = claim(source.plan.version->number(), parts);
    if (!claimed.empty()) make(source, claimed);
    for (const RestPart& part : parts) {
      wait(part.made->state, asking, "waiting for a chunk that is being built");
    }
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

RemoteFiles::RemoteFiles(Store& store, History& history, RemoteFilesOptions options)
    : state_(new State{store, history, std::move(options)}) {}

RemoteFiles::~RemoteFiles() = default;

void RemoteFiles::stop() noexcept { state_->stop.request_stop(); }

std::size_t RemoteFiles::read(std::uint64_t version, std::string_view path,
                              std::uint64_t offset_bytes, std::span<std::byte> into,
                              const Context& context) {
  const auto give_up = Clock::now() + state_->options.retry;
  std::minstd_rand random{std::random_device{}()};
  int replans = 0;
  for (unsigned failures = 0;; failures++) {
    try {
      return state_->read(version, path, offset_bytes, into, context);
    } catch (const Error& error) {
      // gc may have removed it since that was planned, which may be long ago.
      const bool is_gone = is_missing_object(error) && replans++ < kReplansMax;
      if (state_->history.skips().leave_out_cause(error) || is_gone) {
        state_->forget_source(version);
        continue;
      }
      // A missing object in the bucket does not mean that the file does not exist.
      if (error.code() == ErrorCode::not_found) throw Error(ErrorCode::io, error.what());
      if (error.code() != ErrorCode::unavailable || Clock::now() >= give_up) throw;
    }
    context.pause(retry_delay(kFirstPause, failures, random),
                  "waiting for the bucket to read a file that is not kept here");
  }
}

std::uint64_t RemoteFiles::made_bytes() const { return state_->made_bytes; }

}  // namespace weightfs
